"""A request's header fields, read as RFC 9112 wants: what two readers may understand differently is refused.

cheroot keeps the last of two fields and of the lines of a folded one, and takes a name for the same with a space behind
it. A proxy that keeps the first sees another request than we do, and may be made to let a second one through inside it.
"""

import re
from typing import BinaryIO

_NAME = re.compile(rb"[!#$%&'*+.^`|~0-9A-Za-z_-]+")
_NO_VALUE = re.compile(rb"[\x00\r\n]")
_ONCE = frozenset({b"Content-Length", b"Content-Type", b"Host", b"Transfer-Encoding"})
_CHUNKED = b"chunked"
_SPELLINGS = ((b"Connection", b"close"), (b"Connection", b"Keep-Alive"), (b"Expect", b"100-continue"))
"""Options by the only spelling that cheroot knows, and only where nothing else is in the field; the first counts."""


def read_headers(lines: BinaryIO) -> dict[bytes, bytes]:
    """The fields up to the empty line, by their names as in ``Content-Length``; of a repeated one all values.

    A name with an underscore is left out: to an application it is that with a hyphen.

    :raises ValueError: they are none, or may be understood in two ways; in words for their sender.
    """
    found: dict[bytes, bytes] = {}
    while (line := lines.readline()) != b"\r\n":
        if not line.endswith(b"\r\n"):
            raise ValueError("Each header field is a line that ends with CR and LF, and an empty one follows the last.")
        name, colon, value = line[:-2].partition(b":")
        if not (colon and _NAME.fullmatch(name)) or _NO_VALUE.search(value):
            raise ValueError("A header field is a name, a colon and a value, on one line; nothing is before the colon.")
        if b"_" in name:
            continue
        name, value = name.title(), value.strip(b" \t")
        if name in found and name in _ONCE:
            raise ValueError(f"{name.decode()} must be there once.")
        found[name] = value if name not in found else b", ".join((found[name], value))
    return found


def require_framed(headers: dict[bytes, bytes], *, by_http_1_1: bool) -> None:
    """Refuse a request whose end, or whose host, is not sure (RFC 9112, 3.2, 6.1 and 6.3).

    :param by_http_1_1: its sender speaks HTTP/1.1, and so knows of chunks, and of hosts.
    :raises ValueError: it is not; in words for its sender.
    """
    length, coding = headers.get(b"Content-Length"), headers.get(b"Transfer-Encoding")
    if by_http_1_1 and b"Host" not in headers:
        raise ValueError("Host must be there.")
    if length is not None and (not length.isdigit() or coding is not None):
        raise ValueError("Content-Length must be one number, and not beside chunks.")
    if coding is not None and not by_http_1_1:
        raise ValueError("Transfer-Encoding is not known in HTTP/1.0.")
    codings = [] if coding is None else [each.strip().lower() for each in coding.split(b",")]
    # What is coded in other ways is answered by 501.
    if codings not in ([], [_CHUNKED]) and {_CHUNKED, b""}.issuperset(codings):
        raise ValueError("Transfer-Encoding must be chunked, once.")


def spell_options(headers: dict[bytes, bytes], *, by_http_1_1: bool) -> None:
    """Write what *headers* ask of the connection as cheroot reads it: they may say it in any case, among other things.

    Who wants the connection closed must see it closed (RFC 9112, 9.6).

    :param by_http_1_1: their sender speaks HTTP/1.1; any other would take ``100 Continue`` for the answer.
    """
    if not by_http_1_1:
        headers.pop(b"Expect", None)
    asked = {name: {each.strip().lower() for each in headers.get(name, b"").split(b",")} for name, _ in _SPELLINGS}
    for name, option in reversed(_SPELLINGS):
        if option.lower() in asked[name]:
            headers[name] = option
