"""What cheroot leaves open of a request: how much of it is in memory, where it ends, and who is still sending it."""

import contextlib
import socket
import time
from typing import Any, BinaryIO

from cheroot import server, wsgi

from autoclave.services.chunked_body import ChunkedBody
from autoclave.services.request_headers import read_headers, require_framed, spell_options

_PIECE = 1 << 16
_READ_OFF = 1 << 26
"""Bytes of a refused body that are read, so that its sender comes to see why; then he is hung up on."""
_HEARD_OUT = 2.0
"""Seconds that who is still sending has for coming to see why he is hung up on."""


class _Request(server.HTTPRequest):
    def header_reader(self, lines: BinaryIO, headers: dict[bytes, bytes]) -> None:
        """Fill *headers*.

        :raises ValueError: they are refused.
        """
        headers |= read_headers(lines)
        by_http_1_1 = self.response_protocol == "HTTP/1.1"
        require_framed(headers, by_http_1_1=by_http_1_1)
        spell_options(headers, by_http_1_1=by_http_1_1)

    def simple_response(self, status: str, msg: str = "") -> None:
        """Refuse the request before it was read to its end, and take no other on this connection."""
        self.close_connection = True
        self.conn.is_cut_short = True
        said = msg.encode("latin-1", "replace")
        fields = f"Content-Length: {len(said)}\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
        with contextlib.suppress(OSError):  # he has hung up
            self.conn.wfile.write(f"{self.server.protocol} {status}\r\n{fields}".encode() + said)


class Connection(server.HTTPConnection):
    """Closes on its sender only when he has stopped, or had the time to.

    TCP resets a connection that is closed with something unread in it, and with that goes the answer, if its receiver
    has not come to read it (RFC 9112, 9.6).
    """

    RequestHandlerClass = _Request
    is_cut_short = False
    """Whether a request was answered of which a part may still come."""

    def communicate(self) -> bool:
        """As cheroot has it."""
        is_kept = bool(super().communicate())  # type: ignore[no-untyped-call]
        if self.is_cut_short:
            self._hear_out()
        return is_kept

    def _hear_out(self) -> None:
        deadline = time.monotonic() + _HEARD_OUT
        left = _READ_OFF
        try:
            self.socket.shutdown(socket.SHUT_WR)
            while left > 0 and (seconds := deadline - time.monotonic()) > 0:
                self.socket.settimeout(seconds)
                piece = self.socket.recv(_PIECE)
                if not piece:
                    return
                left -= len(piece)
        except OSError:  # he has hung up, or is silent: there is nobody to wait for
            return


class Gateway(wsgi.Gateway_10):
    """A chunked body is read as it is asked for, and what is left of any when it is answered is thrown away in pieces.

    cheroot would take a chunk, and the rest of a body of known length, into memory at once, and the rest of a chunked
    body for the next request.
    """

    def __init__(self, req: Any) -> None:
        if req.chunked_read:
            req.rfile = ChunkedBody(req.conn.rfile)
        super().__init__(req)

    def start_response(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        """As WSGI has it."""
        if not self._is_read_off():
            self.req.close_connection = self.req.conn.is_cut_short = True
        return super().start_response(status, headers, exc_info)

    def _is_read_off(self) -> bool:
        body = self.req.rfile
        pieces = 0
        try:
            while getattr(body, "remaining", 1) > 0 and pieces < _READ_OFF // _PIECE and body.read(_PIECE):
                pieces += 1
        except (OSError, ValueError):  # it breaks off, or is none that HTTP knows
            return False
        return bool(body.closed if self.req.chunked_read else body.remaining == 0)
