"""Slow clients: other requests are answered, and each wait has an end."""

import contextlib
import queue
import socket
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from autoclave.conf import new_config
from autoclave.services import api, http
from autoclave.services.api import APIService, Listener

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n"
UPLOAD = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
WORKERS = 4
WHOLE = 1 << 25
"""Bytes of an answer in one piece: more than the system keeps for a client that does not read."""


def listener() -> Listener:
    threads = {"threads": WORKERS - 1, "max_waiting_requests": 1}
    options = {"host_ip": "127.0.0.1", "port": 0, "auth_strategy": "noauth", **threads}
    return Listener(new_config([], {("api", name): value for name, value in options.items()}))


class Service:
    """A service on a real socket.

    :attr reading: gets an item for each request whose body is being read.
    """

    def __init__(self) -> None:
        self.reading: queue.Queue[None] = queue.Queue()
        self.errors: queue.Queue[Exception] = queue.Queue()
        self.listener = listener()
        self.listener.open()
        self.service = APIService(self.listener, self.app)
        self.service.start()

    def app(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/large":
            start_response("200 OK", [("Content-Length", str(1 << 30))])
            return self.large()
        if environ["PATH_INFO"] == "/whole":
            start_response("200 OK", [("Content-Length", str(WHOLE))])
            return [b"x" * WHOLE]
        if environ["REQUEST_METHOD"] == "POST":
            self.reading.put(None)
            try:
                environ["wsgi.input"].read()
            except OSError as error:
                self.errors.put(error)
        start_response("200 OK", [("Content-Length", "0")])
        return []

    def large(self) -> Iterator[bytes]:
        try:
            for _ in range(1 << 10):
                yield b"x" * (1 << 20)
        except GeneratorExit as error:
            self.errors.put(OSError(str(error)))

    def connect(self, sent: bytes) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", int(self.listener.url.rpartition(":")[2])), timeout=60)
        connection.sendall(sent)
        return connection

    def ask(self) -> bytes:
        with self.connect(GET) as connection:
            return connection.recv(1 << 16)


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.service.stop()


@pytest.fixture
def clients() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as opened:
        yield opened


@pytest.mark.parametrize(
    "sent", [b"", GET[:20], POST, POST + b"x"], ids=["silent", "headers", "body", "part of a body"]
)
def test_slow_senders_hold_no_worker(service: Service, clients: contextlib.ExitStack, sent: bytes) -> None:
    for _ in range(4 * WORKERS):
        clients.enter_context(service.connect(sent))
    assert service.ask().startswith(b"HTTP/1.1 200 ")
    assert service.reading.empty()


def test_slow_uploads_hold_half_of_the_workers(
    service: Service, clients: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(WORKERS // 2):
        clients.enter_context(service.connect(UPLOAD))
        service.reading.get(timeout=60)
    assert service.ask().startswith(b"HTTP/1.1 200 ")
    monkeypatch.setattr(http, "_BODY_TIMEOUT", 0.1)
    refused = clients.enter_context(service.connect(UPLOAD)).recv(1 << 16)
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 5" in refused


@pytest.mark.parametrize("sent", [b"", GET[:20]], ids=["silent", "headers"])
def test_headers_have_a_deadline(monkeypatch: pytest.MonkeyPatch, service: Service, sent: bytes) -> None:
    monkeypatch.setattr(http, "_HEADERS_TIMEOUT", 0.1)
    with service.connect(sent) as connection, contextlib.suppress(ConnectionError):
        assert connection.recv(1) == b""


def test_headers_after_an_answer_have_a_deadline(monkeypatch: pytest.MonkeyPatch, service: Service) -> None:
    monkeypatch.setattr(http, "_HEADERS_TIMEOUT", 0.1)
    with (
        service.connect(GET.replace(b"close", b"keep-alive") + b"G") as connection,
        contextlib.suppress(ConnectionError),
    ):
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        assert connection.recv(1) == b""


def test_a_request_in_progress_is_not_ended_by_the_deadline_for_headers(
    monkeypatch: pytest.MonkeyPatch, service: Service
) -> None:
    monkeypatch.setattr(http, "_HEADERS_TIMEOUT", 0.5)
    with service.connect(UPLOAD.replace(b"chunked", b"chunked\r\nConnection: close")) as upload:
        service.reading.get(timeout=60)
        with service.connect(b"") as silent, contextlib.suppress(ConnectionError):
            assert silent.recv(1) == b""  # now the deadline of the upload has passed, too
        upload.sendall(b"0\r\n\r\n")
        assert upload.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


def test_a_body_has_a_deadline(monkeypatch: pytest.MonkeyPatch, service: Service) -> None:
    monkeypatch.setattr(http, "_BODY_TIMEOUT", 0.1)
    with service.connect(POST + b"x") as connection:
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 408 ")


def test_an_upload_has_a_deadline(monkeypatch: pytest.MonkeyPatch, service: Service) -> None:
    monkeypatch.setattr(http, "_BODY_TIMEOUT", 0.1)
    with service.connect(UPLOAD + b"1\r\nx\r\n"):
        assert isinstance(service.errors.get(timeout=60), TimeoutError)


def test_an_upload_that_trickles_has_a_deadline(monkeypatch: pytest.MonkeyPatch, service: Service) -> None:
    monkeypatch.setattr(http, "_BODY_TIMEOUT", 1.0)
    error = None
    with service.connect(UPLOAD) as connection:
        for _ in range(600):
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"1\r\nx\r\n")
            with contextlib.suppress(queue.Empty):
                error = service.errors.get(timeout=0.05)
                break
    assert isinstance(error, TimeoutError)


def test_an_answer_that_is_not_read_has_a_deadline(monkeypatch: pytest.MonkeyPatch, service: Service) -> None:
    monkeypatch.setattr(http, "_SEND_TIMEOUT", 0.1)
    with service.connect(GET.replace(b"/ ", b"/large ", 1)):
        service.errors.get(timeout=60)


def test_an_answer_ends_when_its_client_is_gone(service: Service) -> None:
    with service.connect(GET.replace(b"/ ", b"/large ", 1)) as connection:
        assert connection.recv(10)
    service.errors.get(timeout=60)


def test_slow_readers_hold_no_worker(
    service: Service, clients: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_SEND_TIMEOUT", 3600.0)
    for path in [b"/large", b"/whole"] * 2 * WORKERS:
        reader = clients.enter_context(service.connect(GET.replace(b"/ ", path + b" ", 1)))
        assert reader.recv(10) == b"HTTP/1.1 2"
    assert service.ask().startswith(b"HTTP/1.1 200 ")


def test_a_long_answer_outlasts_the_deadline_for_headers(monkeypatch: pytest.MonkeyPatch, service: Service) -> None:
    """The deadline of the next request began when the last byte was handed to the transport, not when it was read."""
    monkeypatch.setattr(http, "_HEADERS_TIMEOUT", 0.5)
    with service.connect(GET.replace(b"/ ", b"/whole ", 1)) as connection:
        head = connection.recv(1)
        with service.connect(b"") as silent, contextlib.suppress(ConnectionError):
            assert silent.recv(1) == b""
        monkeypatch.setattr(http, "_HEADERS_TIMEOUT", 60.0)
        answer = head + b"".join(iter(lambda: connection.recv(1 << 20), b""))
    assert len(answer.partition(b"\r\n\r\n")[2]) == WHOLE


def test_requests_in_progress_are_answered_before_the_service_stops() -> None:
    begun, finish = threading.Event(), threading.Event()

    def slow(_environ: Any, start_response: Any) -> list[bytes]:
        begun.set()
        finish.wait()
        start_response("200 OK", [("Content-Length", "4")])
        return [b"done"]

    made = listener()
    made.open()
    service = APIService(made, slow)
    service.start()
    address = ("127.0.0.1", int(made.url.rpartition(":")[2]))
    with socket.create_connection(address, timeout=60) as connection:
        connection.sendall(GET)
        assert begun.wait(60)
        stopping = threading.Thread(target=service.stop)
        stopping.start()
        with contextlib.suppress(ConnectionError):
            while True:  # until it listens no more
                socket.create_connection(address, timeout=60).close()
        finish.set()
        assert b"".join(iter(lambda: connection.recv(1 << 16), b"")).endswith(b"done")
        stopping.join(60)
        assert not stopping.is_alive()


@contextlib.contextmanager
def stuck(sent: bytes, app: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Stop a service without patience while *app* is at work, and yield the client's connection."""
    begun = threading.Event()

    def noting(environ: Any, start_response: Any) -> Iterable[bytes]:
        begun.set()
        return list(app(environ, start_response))

    monkeypatch.setattr(api, "_STOP", 0)
    made = listener()
    made.open()
    service = APIService(made, noting)
    service.start()
    with socket.create_connection(("127.0.0.1", int(made.url.rpartition(":")[2])), timeout=60) as connection:
        connection.sendall(sent)
        assert begun.wait(60)
        service.stop()
        yield connection


def test_a_stop_during_a_request_answers_503(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    finish = threading.Event()

    def slow(_environ: Any, start_response: Any) -> list[bytes]:
        finish.wait()
        start_response("200 OK", [("Content-Length", "0")])
        return []

    with stuck(GET, slow, monkeypatch) as connection:
        answer = connection.recv(1 << 16)
        finish.set()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"may or may not have been carried out" in answer
    assert not [record for record in caplog.records if record.exc_info]


def test_a_body_breaks_off_when_the_service_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = threading.Event()
    errors: queue.Queue[Exception] = queue.Queue()

    def late(environ: Any, _start_response: Any) -> list[bytes]:
        finish.wait()
        try:
            environ["wsgi.input"].read()
        except Exception as error:
            errors.put(error)
            raise
        return []

    with stuck(UPLOAD, late, monkeypatch):
        finish.set()
        assert isinstance(errors.get(timeout=60), ConnectionError)
