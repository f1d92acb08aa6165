"""Text that others choose, made fit to be compared, stored and shown: of drives, tools, guests and users."""

import hashlib
import unicodedata

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
