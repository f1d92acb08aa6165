"""Make text from outside fit to be compared, stored and shown.

Such text comes from drives, tools, guests and users. :func:`evidence_text` limits the evidence of an event to the size
of its column.
"""

import hashlib
import json
import unicodedata
from collections.abc import Mapping
from typing import Any

DRIVE_TEXT_LIMIT = 64
"""The most characters of a drive's serial number or model: the width of their columns."""

_PADDING = " \t\n\v\f\r"
_EXCERPT = 400
_DIGEST = 8


def printable(text: str, *, keep: str = "") -> str:
    r"""Replace control and unprintable characters by their escapes, such as ``\x1b``.

    :param keep: control characters to keep.
    """
    if text.isprintable():
        return text
    return "".join(each if _shown(each) or each in keep else _escape(each) for each in text)


def excerpt(text: str, limit: int = _EXCERPT) -> str:
    """Return *text* in one printable line, shortened to *limit*; a shortened one ends in its full length."""
    line = " ".join(printable(word) for word in text.split())
    return line if len(line) <= limit else f"{line[:limit]}… ({len(text)} characters)"


def drive_text(text: str, limit: int = DRIVE_TEXT_LIMIT) -> str:
    r"""Normalize a string that a drive reports about itself.

    The result does not depend on the source of the string, and a second call changes nothing. The NVMe specification
    requires ASCII, padded with spaces. Some drives end the text with NUL, or include other bytes: each of those becomes
    ``\xNN``. A long text is cut and ends in a digest of the whole, so that different texts stay different.
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
    """Return whether a serial number can identify one drive: it is not missing, nor one repeated character.

    :param serial: as returned by :func:`drive_text`.
    """
    characters = set((serial or "").upper()) - set(" -_.:")
    return len(characters) > 1


def _shown(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


MOST_BYTES = 60_000
"""The most bytes of the JSON text: MariaDB's TEXT holds 65,535."""
LEFT_OUT = "left_out"
"""The key that records the omitted data: the number of entries of a list, the bytes of another value."""


def evidence_text(evidence: Mapping[str, Any]) -> str:
    """Return *evidence* as JSON of at most :data:`MOST_BYTES`.

    The largest value is reduced first: a list loses its last entries, any other value is removed. So short facts
    remain, such as the action and the result of the verification.
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
