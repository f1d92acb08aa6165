"""The body of a WSGI request: read as a whole, or refused."""

from typing import TYPE_CHECKING

from autoclave.exceptions import BadRequest

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

_LONGEST_NUMBER = 18
_SHOWN = 200


class BodyTooLarge(Exception):
    """It has more bytes than are taken; in words for its sender."""

    def __init__(self, most: int) -> None:
        super().__init__(f"A request body may have {most} bytes at most.")


class RequestBody:
    """What the sender of a request has put behind its headers.

    :param environ: of a server that ends a chunked body where its last chunk does.
    :raises BadRequest: ``Content-Length`` is none, or the server does not pass chunked bodies on.
    """

    def __init__(self, environ: "WSGIEnvironment") -> None:
        if _is_chunked(environ) and not environ.get("wsgi.input_terminated"):
            # Such a server may give an empty body instead of this one.
            raise BadRequest("This server takes no chunked bodies. Send Content-Length.")
        self._stream = environ["wsgi.input"]
        self.announced = None if _is_chunked(environ) else _length(environ)
        """Bytes that it has, if that was said."""
        self._arrived = 0

    def read(self, size: int) -> bytes:
        """At most *size* bytes, none at the end.

        :raises BadRequest: it breaks off, or is none that HTTP knows.
        """
        if self.announced is not None:
            size = min(size, self.announced - self._arrived)
        try:
            piece: bytes = self._stream.read(size) if size else b""
        except Exception as error:  # each server has its own
            raise BadRequest(f"The body did not arrive as a whole; send it again. {str(error)[:_SHOWN]}") from error
        self._arrived += len(piece)
        if size and not piece and self.announced is not None:
            raise BadRequest(f"The body ended after {self._arrived} of {self.announced} bytes; send it again.")
        return piece

    def read_all(self, most: int) -> bytes:
        """All of it, at once.

        :param most: bytes that it may have.
        :raises BadRequest: it breaks off, or is none that HTTP knows.
        :raises BodyTooLarge: it has more.
        """
        if self.announced is not None and self.announced > most:
            raise BodyTooLarge(most)
        pieces: list[bytes] = []
        while piece := self.read(most + 1 - self._arrived):
            pieces.append(piece)
        if self._arrived > most:
            raise BodyTooLarge(most)
        return b"".join(pieces)


def _is_chunked(environ: "WSGIEnvironment") -> bool:
    return "chunked" in environ.get("HTTP_TRANSFER_ENCODING", "").lower()


def _length(environ: "WSGIEnvironment") -> int:
    announced = environ.get("CONTENT_LENGTH") or "0"
    if not (announced.isascii() and announced.isdecimal()) or len(announced) > _LONGEST_NUMBER:
        raise BadRequest("Content-Length must be a number of bytes.")
    return int(announced)
