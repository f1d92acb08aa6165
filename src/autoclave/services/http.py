"""Serve a WSGI application by uvicorn. Slow clients hold no worker thread, or hold it for a bounded time."""

import asyncio
import io
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote_to_bytes

import h11
from oslo_log import log as logging
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, MutableMapping

    from _typeshed.wsgi import WSGIApplication, WSGIEnvironment

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

_T = TypeVar("_T")

LOG = logging.getLogger(__name__)

_HEADERS_TIMEOUT = 20.0
"""Seconds from the connection, or from the last answer on it, until the next request's headers are complete."""
_BODY_TIMEOUT = 30.0
"""Seconds to wait for a part of a body; in addition, its sender must be faster than ``_SLOWEST`` on average."""
_SLOWEST = 1024
"""Bytes a second."""
_SEND_TIMEOUT = 30.0
"""Seconds to wait until the client has read enough of the answer for the next part of it."""
_SMALL_BODY = 1 << 16
"""Bytes of a body that is awaited before a worker thread is taken. Larger ones may be refused before they arrive."""
_PART = 1 << 16
"""Bytes of an answer that are made, and sent, at a time."""
_LOOP_CHECK = 5.0
"""Seconds after which a worker thread that waits for the event loop checks that the loop still runs."""
_DRAIN_SECONDS = 2.0
"""Seconds to read off a refused body, so that its sender, who may still be sending, receives the answer."""
_DRAIN_BYTES = 1 << 26
_CONNECTION = "autoclave.connection"
_RETRY_AFTER = 5
_FAILED = b"The service failed; its log tells why."
_STOPPED = b"The service stops. The request may or may not have been carried out."


class _ClientGone(ConnectionError):
    """Report that the client has closed the connection, or does not read the answer."""


class _ClientSlow(TimeoutError):
    """Report that the client does not send the body in time."""


class Connection(H11Protocol):
    """A connection with a deadline for headers, which uvicorn does not have."""

    def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None) -> None:
        super().__init__(config, server_state, {**app_state, _CONNECTION: self}, _loop)
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Wait for a request."""
        super().connection_made(transport)
        self._transport = transport
        self.end_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self.begin_request()
        self._transport = None
        super().connection_lost(exc)

    @property
    def is_lost(self) -> bool:
        """Whether nothing that is sent arrives."""
        return self._transport is None

    def begin_request(self) -> None:
        """Note that the headers of a request are complete."""
        if self._deadline is not None:
            self._deadline.cancel()

    def end_request(self) -> None:
        """Note that a request has been answered: the next one may take its time again."""
        if self._transport is not None:
            self._deadline = asyncio.get_running_loop().call_later(_HEADERS_TIMEOUT, self._transport.abort)

    def abort(self) -> None:
        """Close at once; what has not been sent is lost."""
        if self._transport is not None:
            self._transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not HTTP; only close the connection if an answer has begun."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def _should_upgrade(self) -> bool:
        # uvicorn would advise the operator to install a WebSocket library whenever a client offers HTTP/2.
        return False


class Gateway:
    """The ASGI application that runs a WSGI application in worker threads.

    At most half of them serve requests with large bodies, or bodies of unknown length: these are read by a worker.

    :param workers: number of threads.
    """

    app: "WSGIApplication"
    """The WSGI application, set before the first request."""

    def __init__(self, workers: int) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="api")
        self._streams = asyncio.Semaphore(max(1, workers // 2))

    async def __call__(self, scope: "Message", receive: "Receive", send: "Send") -> None:
        """Answer one request."""
        connection: Connection = scope["state"][_CONNECTION]
        connection.begin_request()
        body, out = _Incoming(receive), _Outgoing(connection, send)
        try:
            await self._answer_or_fail(scope, body, out)
        except (_ClientGone, _ClientSlow):
            connection.abort()
        finally:
            connection.end_request()

    def close(self) -> None:
        """Start no further request."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _answer_or_fail(self, scope: "Message", body: "_Incoming", out: "_Outgoing") -> None:
        try:
            await self._answer(scope, body, out)
        except (_ClientGone, _ClientSlow):
            raise
        except asyncio.CancelledError:  # of a service that has waited long enough before it stops
            await out.fail(503, _STOPPED, body)
        except Exception:
            LOG.exception("%s %s failed", scope["method"], scope["path"])
            await out.fail(500, _FAILED, body)

    async def _answer(self, scope: "Message", body: "_Incoming", out: "_Outgoing") -> None:
        headers = _combined(scope["headers"])
        if "content-length" in headers and "transfer-encoding" in headers:
            # h11 goes by the latter, as RFC 9112 (6.1) allows; a proxy that goes by the former sees other requests.
            return await out.refuse(400, b"Content-Length and Transfer-Encoding are mutually exclusive.", body)
        if not scope["raw_path"].startswith(b"/"):
            return await out.refuse(400, b"The request's target must be a path.", body)
        if not _is_small(headers):
            try:
                async with asyncio.timeout(_BODY_TIMEOUT):
                    await self._streams.acquire()
            except TimeoutError:
                retry = (b"retry-after", b"%d" % _RETRY_AFTER)
                return await out.refuse(503, b"Too many request bodies are in transfer. Retry later.", body, retry)
            try:
                return await self._work(scope, headers, body, out)
            finally:
                self._streams.release()
        try:
            await body.collect()
        except _ClientSlow:
            return await out.refuse(408, b"The body did not arrive in time. Send it again.", body)
        return await self._work(scope, headers, body, out)

    async def _work(self, scope: "Message", headers: dict[str, str], body: "_Incoming", out: "_Outgoing") -> None:
        loop = asyncio.get_running_loop()
        environ = _environ(scope, headers, io.BufferedReader(_Body(body, loop), _SMALL_BODY))
        call = _Call(self.app, environ, out)
        try:
            # The worker is free while a part is sent: a slow reader holds none.
            while not call.is_closed:
                await out.write(await loop.run_in_executor(self._pool, call.next_part), body)
        finally:
            if not call.is_closed:
                await asyncio.shield(loop.run_in_executor(self._pool, call.close))
        await out.end(body)


class _Incoming:
    """The body of a request, as it arrives.

    :param receive: of the ASGI server.
    """

    def __init__(self, receive: "Receive") -> None:
        self._receive = receive
        self._pieces = b""
        self._patience = _BODY_TIMEOUT
        self.is_complete = False

    async def some(self, most: int) -> bytes:
        """Return at most *most* bytes, none at the end.

        :raises OSError: the rest does not arrive (:class:`_ClientGone`), or not in time (:class:`_ClientSlow`).
        """
        while not self._pieces and not self.is_complete:
            await self._more()
        piece, self._pieces = self._pieces[:most], self._pieces[most:]
        return piece

    async def collect(self) -> None:
        """Wait until all of it is there.

        :raises OSError: the rest does not arrive (:class:`_ClientGone`), or not in time (:class:`_ClientSlow`).
        """
        while not self.is_complete:
            await self._more()

    async def drain(self) -> None:
        """Discard the rest, as far as it arrives soon."""
        left = _DRAIN_BYTES
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                while left > 0 and not self.is_complete:
                    self._pieces = b""
                    await self._more()
                    left -= len(self._pieces)
        except OSError:
            return

    async def _more(self) -> None:
        # Only waiting counts: the application may take its time between two reads.
        begun = time.monotonic()
        try:
            async with asyncio.timeout(min(self._patience, _BODY_TIMEOUT)):
                message = await self._receive()
        except TimeoutError as error:
            raise _ClientSlow("It did not arrive in time.") from error
        if message["type"] == "http.disconnect":
            raise _ClientGone("The connection ended before it did.")
        self._pieces += message.get("body", b"")
        self._patience += len(message.get("body", b"")) / _SLOWEST - (time.monotonic() - begun)
        self.is_complete = not message.get("more_body", False)


class _Body(io.RawIOBase):
    """*body* for a worker thread."""

    def __init__(self, body: _Incoming, loop: asyncio.AbstractEventLoop) -> None:
        self._body = body
        self._loop = loop

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill *buffer* with what there is.

        :raises OSError: the rest does not arrive (:class:`_ClientGone`), or not in time (:class:`_ClientSlow`).
        """
        piece = _from_worker(self._body.some(len(buffer)), self._loop)
        buffer[: len(piece)] = piece
        return len(piece)


class _Outgoing:
    """The answer to a request."""

    def __init__(self, connection: Connection, send: "Send") -> None:
        self._connection = connection
        self._send_message = send
        self._start: Message | None = None
        self._last = b""
        self.is_begun = False
        """The status and the headers have been sent."""

    def begin(self, status: str, headers: list[tuple[str, str]]) -> None:
        """Set the status and the headers; they are sent with the first bytes."""
        fields = [(name.lower().encode("latin-1"), value.strip().encode("latin-1")) for name, value in headers]
        self._start = {"type": "http.response.start", "status": int(status[:3]), "headers": fields}

    async def write(self, part: bytes, body: _Incoming) -> None:
        """Send all that was written before *part*.

        :raises _ClientGone: the client is gone, or too slow.
        """
        last, self._last = self._last, part
        if last and part:
            await self._flush(last, body, more=True)
        elif last:
            self._last = last

    async def end(self, body: _Incoming) -> None:
        """Send the rest, and see that a client that is still sending receives it.

        TCP resets a connection that is closed with unread data in it, and the answer is lost (RFC 9112, 9.6).

        :raises _ClientGone: the client is gone, or too slow.
        """
        last, self._last = self._last, b""
        if not body.is_complete:
            await self._flush(last, body, more=True)
            await body.drain()
            last = b""
        await self._flush(last, body, more=False)

    async def refuse(self, status: int, text: bytes, body: _Incoming, *headers: tuple[bytes, bytes]) -> None:
        """Answer *status*, and end the connection.

        :raises _ClientGone: the client is gone, or too slow.
        """
        described = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(text))]
        fields = [*described, (b"connection", b"close"), *headers]
        self._start = {"type": "http.response.start", "status": status, "headers": fields}
        self._last = text
        await self.end(body)

    async def fail(self, status: int, text: bytes, body: _Incoming) -> None:
        """Answer *status* if nothing has been sent; else end the connection, so that no client takes a part for all.

        :raises _ClientGone: the client is gone, too slow, or has a part of the answer.
        """
        if self.is_begun:
            raise _ClientGone("A part of the answer has been sent.")
        await self.refuse(status, text, body)

    async def _flush(self, data: bytes, body: _Incoming, *, more: bool) -> None:
        if self._start is not None:
            start, self._start = self._start, None
            close = (b"connection", b"close")
            if not body.is_complete and close not in start["headers"]:
                start["headers"].append(close)
            self.is_begun = True
            await self._send(start)
        parts = [data[at : at + _PART] for at in range(0, len(data), _PART)] or [b""]
        if len(parts) > 1:
            parts.append(b"")
        # Each message waits until the client has read most of those before it. So a long answer has no deadline as a
        # whole, and the next request's deadline begins when this answer has been read.
        for part in parts[:-1]:
            await self._send({"type": "http.response.body", "body": part, "more_body": True})
        await self._send({"type": "http.response.body", "body": parts[-1], "more_body": more})

    async def _send(self, message: "Message") -> None:
        if self._connection.is_lost:
            raise _ClientGone("The client is gone.")
        try:
            async with asyncio.timeout(_SEND_TIMEOUT):
                await self._send_message(message)
        except TimeoutError as error:
            raise _ClientGone("The client does not read the answer.") from error


class _Call:
    """One call of a WSGI application, by worker threads: one at a time, and not always the same.

    :param out: gets the status and the headers.
    """

    def __init__(self, app: "WSGIApplication", environ: "WSGIEnvironment", out: _Outgoing) -> None:
        self._app = app
        self._environ = environ
        self._out = out
        self._lock = threading.Lock()
        self._iterable: Iterable[bytes] = ()
        self._pieces: Iterator[bytes] | None = None
        self._written: list[bytes] = []
        self.is_closed = False

    def next_part(self) -> bytes:
        """Return the next bytes of the answer: at least ``_PART``, or fewer at the end; then close the application."""
        with self._lock:
            if self._pieces is None:
                self._iterable = self._app(self._environ, self._start_response)
                self._pieces = iter(self._iterable)
            size = sum(map(len, self._written))
            while size < _PART:
                piece = next(self._pieces, None)
                if piece is None:
                    self._close()
                    break
                self._written.append(piece)
                size += len(piece)
            part = b"".join(self._written)
            self._written.clear()
            return part

    def close(self) -> None:
        """Close what the application has returned, after a step in progress."""
        with self._lock:
            if not self.is_closed:
                self._close()

    def _close(self) -> None:
        self.is_closed = True
        if hasattr(self._iterable, "close"):  # PEP 3333
            self._iterable.close()

    def _start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None, /
    ) -> "Callable[[bytes], object]":
        if self._out.is_begun and exc_info:
            raise exc_info[1]
        self._out.begin(status, headers)
        return self._written.append


def _from_worker(work: "Coroutine[Any, Any, _T]", loop: asyncio.AbstractEventLoop) -> _T:
    """Return the result of *work*, run by *loop*.

    :raises _ClientGone: the loop has ended, since the service stops.
    """
    try:
        future: Future[_T] = asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError as error:
        work.close()
        raise _ClientGone("The service has stopped.") from error
    while not wait([future], _LOOP_CHECK).done:
        if loop.is_closed():
            raise _ClientGone("The service has stopped.")
    return future.result()


def _is_small(headers: dict[str, str]) -> bool:
    """Return whether the body is worth waiting for before a worker looks at the request."""
    if "transfer-encoding" in headers or "expect" in headers:
        return False
    return int(headers.get("content-length", "0")) <= _SMALL_BODY


def _combined(fields: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the header fields by name, the values of repeated ones as a list.

    Names with an underscore are left out: in an environment they are those with a hyphen.
    """
    found: dict[str, str] = {}
    for raw_name, raw_value in fields:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        if "_" not in name:
            found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def _environ(scope: "Message", headers: dict[str, str], body: Any) -> "WSGIEnvironment":
    """Return the environment of PEP 3333."""
    host, port = scope["server"]
    environ: WSGIEnvironment = {
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(scope["raw_path"]).decode("latin-1"),
        "QUERY_STRING": scope["query_string"].decode("latin-1"),
        "SERVER_NAME": host,
        "SERVER_PORT": str(port),
        "SERVER_PROTOCOL": f"HTTP/{scope['http_version']}",
        "REMOTE_ADDR": scope["client"][0],
        "REMOTE_PORT": str(scope["client"][1]),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scope["scheme"],
        "wsgi.input": body,
        "wsgi.input_terminated": True,
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    for name, value in headers.items():
        key = name.upper().replace("-", "_")
        environ[key if key in ("CONTENT_LENGTH", "CONTENT_TYPE") else f"HTTP_{key}"] = value
    return environ
