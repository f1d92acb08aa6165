"""Make text from outside fit to be compared, stored and shown.

Text that others choose, made fit to be compared, stored and shown: of drives, tools, guests and users.

The evidence of an event as the database keeps it: JSON that fits into a column.
"""

import hashlib
import json
import unicodedata
from collections.abc import Mapping
from typing import Any

DRIVE_TEXT_LIMIT = 64
"""Characters of a drive's serial number or model that are kept: as many as the database has room for."""

_PADDING = " \t\n\v\f\r"
_EXCERPT = 400
_DIGEST = 8


def printable(text: str, *, keep: str = "") -> str:
    """Replace what a terminal would obey or not show by its escape, such as ``\\x1b``.

    :param keep: control characters that stay.
    """
    if text.isprintable():
        return text
    return "".join(each if _shown(each) or each in keep else _escape(each) for each in text)


def excerpt(text: str, limit: int = _EXCERPT) -> str:
    """The beginning of *text* in one printable line, and how long it was if that is not all of it."""
    line = " ".join(printable(word) for word in text.split())
    return line if len(line) <= limit else f"{line[:limit]}… ({len(text)} characters)"


def drive_text(text: str, limit: int = DRIVE_TEXT_LIMIT) -> str:
    """The one spelling of a string that a drive says of itself, whichever way it was read.

    The specification has ASCII here, padded with spaces. Drives also end the text with NUL, or have other bytes in it:
    each of those stands as ``\\xNN``. The spelling of a spelling is itself. A text that is too long is cut, and ends in
    a digest of all of it, so that different ones stay different.
    """
    said = text.split("\0", 1)[0].strip(_PADDING)
    spelled = "".join(
        each if " " <= each <= "~" else "".join(f"\\x{byte:02x}" for byte in each.encode("utf-8", "surrogatepass"))
        for each in said
    )
    if len(spelled) <= limit:
        return spelled
    digest = hashlib.sha256(spelled.encode()).hexdigest()[:_DIGEST]
    return f"{spelled[: limit - _DIGEST - 1]}~{digest}"


def tells_apart(serial: str | None) -> bool:
    """Whether a serial number can be one drive's own: it is neither missing, nor one character again and again.

    :param serial: in the spelling of :func:`drive_text`.
    """
    characters = set((serial or "").upper()) - set(" -_.:")
    return len(characters) > 1


def _shown(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


MOST_BYTES = 60_000
"""Bytes of JSON: MariaDB's TEXT holds 65,535."""
LEFT_OUT = "left_out"
"""The key that says what was left out: of a list, how many entries; of another value, its bytes."""


def evidence_text(evidence: Mapping[str, Any]) -> str:
    """Return *evidence* as JSON of at most :data:`MOST_BYTES`.

    The largest value is shortened first: a list loses its last entries, any other value goes. So the short facts stay,
    such as the action and what was verified.
    """
    kept = dict(evidence)
    left_out: dict[str, Any] = {}
    while len(text := _json({**kept, LEFT_OUT: left_out} if left_out else kept)) > MOST_BYTES:
        largest = max(kept, key=lambda name: len(_json(kept[name])))
        value = kept[largest]
        if isinstance(value, list) and len(value) > 1:
            kept[largest] = value[: max(1, len(value) * MOST_BYTES // len(text) - 1)]
            entries = left_out.get(largest, {"entries": 0})["entries"] + len(value) - len(kept[largest])
            left_out[largest] = {"entries": entries}
        else:
            left_out[largest] = {**left_out.get(largest, {}), "bytes": len(_json(kept.pop(largest)))}
    return text


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
