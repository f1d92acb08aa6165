"""Something between a service and one that it asks over HTTP, which can keep an answer back."""

import contextlib
import http.client
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from processes import PATIENCE

_OF_ONE_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "server", "date"}


class Held:
    """The answer to one request, which the one who asked waits for."""

    def __init__(self, method: str, path: str) -> None:
        self._method = method
        self._path = re.compile(path)
        self._reached = threading.Event()
        self._let_go = threading.Event()

    def wait(self) -> None:
        """Return when what was asked is done, and the answer is kept back."""
        assert self._reached.wait(PATIENCE), f"in {PATIENCE} s never asked: {self._method} {self._path.pattern}"

    def let_go(self) -> None:
        """Give the answer."""
        self._let_go.set()

    def keep(self, method: str, path: str) -> None:
        """Called with every answer: waits if it is the one."""
        if method == self._method and self._path.search(path) and not self._reached.is_set():
            self._reached.set()
            self._let_go.wait(PATIENCE)


class HTTPGate:
    """Passes requests on to *port* of this machine, and the answers back.

    :attr url: where it listens.
    """

    def __init__(self, port: int) -> None:
        self._held: Held | None = None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler(port))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def holding(self, method: str, path: str) -> Iterator[Held]:
        """Keep the answer to the first request of *method* back whose path has *path* in it; until the end at most."""
        self._held = held = Held(method, path)
        try:
            yield held
        finally:
            self._held = None
            held.let_go()

    def close(self) -> None:
        """Listen no longer."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self, port: int) -> type[BaseHTTPRequestHandler]:
        gate = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                behind = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
                with contextlib.closing(behind):
                    behind.request(self.command, self.path, body or None, dict(self.headers))
                    answer = behind.getresponse()
                    said = answer.read()
                if gate._held is not None:
                    gate._held.keep(self.command, self.path)
                with contextlib.suppress(OSError):  # who asked may be dead by now
                    self.send_response(answer.status)
                    for name, value in answer.getheaders():
                        if name.lower() not in _OF_ONE_HOP:
                            self.send_header(name, value)
                    self.send_header("Content-Length", str(len(said)))
                    self.end_headers()
                    self.wfile.write(said)

            do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = pass_on

            def log_message(self, *_: object) -> None:
                """Nobody reads it."""

        return Handler
