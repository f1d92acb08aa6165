"""Who can reach the service, and under which names, where every caller is an administrator."""

import collections
import contextlib
import errno
import io
import itertools
import logging
import queue
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_world import World, fault

from autoclave.conf import new_config
from autoclave.exceptions import InvalidConfiguration
from autoclave.services import http
from autoclave.services.api import Listener


def listener(host: str, **options: Any) -> Listener:
    overrides = {("api", name): value for name, value in {"host_ip": host, "port": 0, **options}.items()}
    return Listener(new_config([], overrides))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "controller"])
def test_without_keystone_nobody_beyond_this_machine_is_served_unless_that_is_said(host: str) -> None:
    with pytest.raises(InvalidConfiguration, match="noauth_beyond_loopback"):
        listener(host, auth_strategy="noauth")
    listener(host, auth_strategy="noauth", noauth_beyond_loopback=True)
    listener(host, auth_strategy="keystone")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_without_keystone_this_machine_is_served(host: str) -> None:
    listener(host, auth_strategy="noauth")


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("192.0.2.1", "the address is not assigned to this machine"),
        ("no-such-host.invalid", "no-such-host.invalid cannot be resolved"),
    ],
)
def test_an_address_that_cannot_be_listened_on_is_told_in_words(host: str, why: str) -> None:
    asked = listener(host)
    with pytest.raises(InvalidConfiguration) as refused:
        asked.open()
    asked.close()
    assert str(refused.value) == f"[api] host_ip, port: cannot listen on {host}:0: {why}"


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the sender of a refused body all the time that it needs on a busy machine."""
    monkeypatch.setattr(http, "_DRAIN_SECONDS", 60.0)


@contextlib.contextmanager
def connected(app: Any) -> Iterator[socket.socket]:
    """A connection to a service that serves *app*."""
    served = listener("127.0.0.1")
    served.open()
    thread = threading.Thread(target=served.serve, args=(app,), daemon=True)
    thread.start()
    try:
        with socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2])), timeout=60) as connection:
            yield connection
    finally:
        served.close()
        thread.join()


def rest(connection: socket.socket) -> bytes:
    """Return all that is answered on *connection* until the service closes it, which is said in lower case."""
    received = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    return received.replace(b"Connection: close", b"connection: close")


def exchange(app: Any, *requests: bytes) -> bytes:
    """All that the service answers on one connection to *requests*, sent one after another without a pause."""
    with connected(app) as connection:
        connection.sendall(b"".join(requests))
        return rest(connection)


def refusing(environ: Any, start_response: Any) -> list[bytes]:
    """An application that looks at nothing of a body."""
    start_response("403 Forbidden", [("Content-Type", "text/plain"), ("Content-Length", "0")])
    return [b""]


LAST = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_refused_body_is_not_taken_for_the_next_request() -> None:
    inside = b"GET /inside HTTP/1.1\r\nHost: localhost\r\n\r\n"
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(inside), inside)
    answer = exchange(refusing, CHUNKED, body, LAST)
    assert answer.count(b"HTTP/1.1 ") == answer.count(b"HTTP/1.1 403 Forbidden") == 1
    assert b"connection: close" in answer


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: -1\r\n",
        b"Content-Length: +1\r\n",
        b"Content-Length: 1_0\r\n",
        b"Content-Length: \r\n",
        b"Content-Length: 0\r\ncontent-length: 11\r\n",
        b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked, chunked\r\n",
        b"Transfer-Encoding: \r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Transfer-Encoding: chunked\r\n ,identity\r\n",
        b"Content-Length: 11\r\n 0\r\n",
        b"X-Any: x\rContent-Length: 11\r\n",
        b"X-Any: \0\r\n",
        b"Host: elsewhere\r\n",
        b"X Any: x\r\n",
        b": x\r\n",
        b"x\r\n",
    ],
    ids=[
        "negative",
        "signed",
        "underscored",
        "no number",
        "two lengths",
        "beside chunks",
        "coding twice",
        "chunked twice",
        "no coding",
        "space before the colon",
        "folded coding",
        "folded length",
        "bare CR",
        "NUL",
        "two hosts",
        "space in a name",
        "no name",
        "no colon",
    ],
)
def test_a_request_that_a_proxy_may_see_end_elsewhere_is_refused_with_the_connection(framing: bytes) -> None:
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\n" + framing + b"\r\n"
    answer = exchange(refusing, head, b"1\r\nx\r\n0\r\n\r\n", b"GET /next HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer.count(b"HTTP/1.1 ") == answer.count(b"HTTP/1.1 400 Bad Request") == 1
    assert b"connection: close" in answer


@pytest.mark.parametrize("length", [b"Content-Length: 1, 1\r\n", b"Content-Length: 1\r\nContent-Length: 1\r\n"])
def test_a_length_that_is_repeated_is_that_length(length: bytes) -> None:
    """RFC 9112, 6.3: a server may take equal values for one."""
    answer = exchange(measuring, b"POST / HTTP/1.1\r\nHost: localhost\r\n" + length + b"\r\n", b"x", LAST)
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert b"1 in 1" in answer


def test_a_line_may_end_with_lf_alone() -> None:
    """RFC 9112, 2.2: what follows is a field of its own."""
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nX-Any: x\nContent-Length: 3\r\n\r\n"
    answer = exchange(measuring, head, b"xyz", LAST)
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert b"3 in 3" in answer


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"identity", b"chunked;q=1"])
def test_a_body_in_a_coding_that_is_not_known_is_refused_with_the_connection(coding: bytes) -> None:
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: " + coding + b"\r\n\r\n"
    answer = exchange(refusing, head, b"1\r\nx\r\n0\r\n\r\n", b"GET /next HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer.count(b"HTTP/1.1 ") == answer.count(b"HTTP/1.1 400 ") == 1
    assert b"connection: close" in answer


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n Host: localhost\r\n\r\n",
        CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0"),
    ],
    ids=["no host", "space before the first", "chunks in HTTP 1.0"],
)
def test_a_request_that_is_none_of_its_version_is_refused_with_the_connection(head: bytes) -> None:
    answer = exchange(refusing, head, b"GET /next HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer.count(b"HTTP/1.1 ") == answer.count(b"HTTP/1.1 400 Bad Request") == 1


def test_fields_that_are_lists_may_be_repeated_and_one_with_an_underscore_is_none() -> None:
    seen: queue.Queue[dict[str, str]] = queue.Queue()

    def noting(environ: Any, start_response: Any) -> list[bytes]:
        seen.put({name: value for name, value in environ.items() if name.startswith(("HTTP_", "CONTENT_"))})
        return refusing(environ, start_response)

    fields = b"openstack-api-version: compute 2.1\r\nOpenStack-API-Version:placement 1.39\r\n"
    exchange(noting, b"GET / HTTP/1.0\r\n", fields, b"Content_Length: 7\r\nX_Auth_Token: mine\r\n\r\n")
    assert seen.get(timeout=5) == {"HTTP_OPENSTACK_API_VERSION": "compute 2.1, placement 1.39"}


@pytest.mark.parametrize(
    "fields",
    [b"Connection: Close\r\n", b"Connection: TE, close\r\n", b"Connection: TE\r\nConnection: close\r\n"],
    ids=["in capitals", "one of two", "in a second field"],
)
def test_who_wants_the_connection_closed_is_hung_up_on_however_he_says_so(fields: bytes) -> None:
    request = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
    answer = exchange(refusing, request, fields, b"\r\n", request, b"\r\n")
    assert answer.count(b"HTTP/1.1 ") == answer.count(b"connection: close") == 1


def test_http_1_0_gets_one_answer_a_connection() -> None:
    request = b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    answer = exchange(refusing, request, request)
    assert answer.count(b"HTTP/1.1 403 ") == answer.count(b"connection: close") == 1


def test_a_body_that_waits_for_a_word_is_asked_for_whatever_the_case_of_its_letters() -> None:
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nExpect: 100-Continue\r\n\r\n"
    assert exchange(measuring, head, b"x", LAST).startswith(b"HTTP/1.1 100 Continue\r\n")


def test_a_refused_body_that_waits_for_a_word_is_not_asked_for() -> None:
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nExpect: 100-Continue\r\n\r\n"
    assert exchange(refusing, head).startswith(b"HTTP/1.1 403 ")


def test_who_speaks_http_1_0_gets_no_answer_that_he_would_take_for_the_last() -> None:
    head = b"POST / HTTP/1.0\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n"
    assert exchange(refusing, head, b"x").startswith(b"HTTP/1.1 403 ")


def test_a_refused_body_of_any_length_is_refused_and_not_kept_in_memory() -> None:
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % 10**15
    answer = exchange(refusing, head, b"x")
    assert answer.startswith(b"HTTP/1.1 403 Forbidden")
    assert b"connection: close" in answer


PROFILE = b'[{"name": "whole", "groups": [{"resources:FPGA": "1"}]}]'
POST_CHUNKS = CHUNKED.replace(b"POST /", b"POST /v2/device_profiles").replace(
    b"\r\n\r\n", b"\r\nContent-Type: application/json\r\n\r\n"
)


@pytest.mark.parametrize("broken", [b"zz\r\nxxx", b"-5\r\nxx", b"2\r\nxxxx\r\n0\r\n\r\n"])
def test_a_chunked_body_that_breaks_off_is_its_senders_fault(tmp_path: Path, broken: bytes) -> None:
    world = World(tmp_path)
    answer = exchange(world.app, POST_CHUNKS, broken)
    assert answer.startswith(b"HTTP/1.1 400 Bad Request")
    assert b"connection: close" in answer
    world.close()


@pytest.mark.parametrize(
    "head",
    [
        POST_CHUNKS + b"%x\r\n" % len(PROFILE),
        POST_CHUNKS.replace(b"Transfer-Encoding: chunked", b"Content-Length: 100000"),
    ],
    ids=["no last chunk", "shorter than announced"],
)
def test_a_body_that_breaks_off_is_not_taken_for_a_whole_one(tmp_path: Path, head: bytes) -> None:
    world = World(tmp_path)
    reading = threading.Event()
    answered: queue.Queue[str] = queue.Queue()

    class Noting(io.RawIOBase):
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def read(self, size: int = -1) -> bytes:
            reading.set()
            return bytes(self.inner.read(size))

    def noting(environ: Any, start_response: Any) -> Any:
        environ["wsgi.input"] = Noting(environ["wsgi.input"])

        def start(status: str, *rest: Any) -> Any:
            answered.put(status)
            return start_response(status, *rest)

        return world.app(environ, start)

    with connected(noting) as connection:
        connection.sendall(head + PROFILE + b"\r\n")
        assert reading.wait(60)
        connection.close()
        assert answered.get(timeout=60).startswith("400 ")
    world.close()


@pytest.mark.parametrize("broken", [b"zz\r\n\r\n0\r\n\r\n", b"1\r\nxyz\r\n0\r\n\r\n", b"f" * 21 + b"\r\n"])
def test_behind_a_chunk_that_is_none_nothing_is_taken_for_a_request(tmp_path: Path, broken: bytes) -> None:
    world = World(tmp_path)
    answer = exchange(world.app, POST_CHUNKS, broken, b"GET /v2/devices HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 Bad Request")
    assert b"connection: close" in answer
    assert answer.count(b"HTTP/1.1 ") == 1
    world.close()


def measuring(environ: Any, start_response: Any) -> list[bytes]:
    """An application that reads a body by pieces, and tells how many there were and how large the largest was."""
    pieces = list(iter(lambda: len(environ["wsgi.input"].read(1000)), 0))
    said = f"{sum(pieces)} in {max(pieces, default=0)}".encode()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(said)))])
    return [said]


def test_of_a_chunk_of_any_size_no_more_is_taken_than_the_application_asks_for() -> None:
    read: queue.Queue[bytes] = queue.Queue()

    def tasting(environ: Any, start_response: Any) -> list[bytes]:
        read.put(environ["wsgi.input"].read(1000))
        return refusing(environ, start_response)

    with connected(tasting) as connection:
        connection.sendall(CHUNKED + b"%x\r\n" % 10**12 + b"x" * 1000)
        assert read.get(timeout=60) == b"x" * 1000  # while the rest of the chunk is still awaited


def test_chunks_extensions_and_trailers_are_a_body_and_what_follows_is_the_next_request() -> None:
    body = b"5;name=value\r\nhello\r\n%X\r\n%s\r\n0\r\nExpires: never\r\n\r\n" % (4000, b"x" * 4000)
    answer = exchange(measuring, CHUNKED, body, CHUNKED, b"1\r\nx\r\n0\r\n\r\n", LAST)
    assert answer.count(b"200 OK") == 3
    assert b"4005 in 1000" in answer
    assert b"1 in 1" in answer


@pytest.mark.parametrize("head", [b"GET /%s HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nX-Long: %s\r\n"], ids=["uri", "header"])
def test_headers_of_a_mebibyte_are_refused_before_they_are_kept_in_memory(head: bytes) -> None:
    answer = b""
    with connected(refusing) as connection, contextlib.suppress(ConnectionError):  # it is closed on its sender
        connection.sendall(head % (b"x" * (1 << 20)))
        connection.sendall(b"Host: localhost\r\n\r\n")
        answer = rest(connection)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")


UPLOADS = [b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n", CHUNKED + b"3B9ACA00\r\n"]


@pytest.mark.parametrize("head", UPLOADS, ids=["length", "chunked"])
def test_the_sender_of_a_refused_body_reads_the_answer(patient: None, head: bytes) -> None:
    with connected(refusing) as connection:
        connection.sendall(head)
        assert connection.recv(1, socket.MSG_PEEK) == b"H"  # it has been answered
        for _ in range(20):
            connection.sendall(b"x" * (1 << 16))
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize("head", UPLOADS, ids=["length", "chunked"])
def test_a_sender_that_never_stops_is_disconnected(head: bytes) -> None:
    with connected(refusing) as connection:
        connection.sendall(head)
        with pytest.raises(ConnectionError):
            collections.deque(map(connection.sendall, itertools.repeat(b"x" * (1 << 16), 1 << 14)), maxlen=0)


def test_a_broken_chunk_behind_an_answer_is_logged_in_a_line(caplog: pytest.LogCaptureFixture) -> None:
    with connected(refusing) as connection:
        connection.sendall(CHUNKED + b"5\r\nhe")
        assert connection.recv(1, socket.MSG_PEEK) == b"H"  # it has been answered
        connection.sendall(b"zz\r\n\r\nzzzz\r\n")
        assert rest(connection).startswith(b"HTTP/1.1 403 ")
    assert not [record for record in caplog.records if record.exc_info]


def test_an_offer_of_http_2_is_passed_over_silently(caplog: pytest.LogCaptureFixture) -> None:
    """curl --http2 sends it with every request; uvicorn would ask the operator for a WebSocket library each time."""
    offer = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n"
    answer = exchange(refusing, offer, LAST)
    assert answer.count(b"HTTP/1.1 403 ") == 2
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def breaking(*pieces: bytes) -> Any:
    """An application whose disk fails after *pieces* of 200,000 bytes."""

    def answer() -> Iterator[bytes]:
        yield from pieces
        raise PermissionError(errno.EACCES, "Permission denied", "/images/x")

    def app(_environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Length", "200000")])
        return answer()

    return app


def test_an_answer_that_fails_at_its_start_is_a_500_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    answer = exchange(breaking(), LAST)
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"its log tells why" in answer
    [record] = [record for record in caplog.records if record.exc_info]
    assert (record.getMessage(), record.exc_info[0]) == ("GET / failed", PermissionError)  # type: ignore[index]


def test_an_answer_that_fails_halfway_is_cut_off_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    answer = b""
    with connected(breaking(b"x" * 70_000, b"x" * 70_000)) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(LAST.replace(b"Connection: close\r\n", b""))
        while piece := connection.recv(1 << 16):
            answer += piece
    assert len(answer.partition(b"\r\n\r\n")[2]) < 200_000
    assert [record.getMessage() for record in caplog.records if record.exc_info] == ["GET / failed"]


def test_headers_cannot_be_replaced_after_they_are_sent() -> None:
    """PEP 3333: start_response raises the application's own exception then."""
    raised: queue.Queue[Exception] = queue.Queue()

    def app(_environ: Any, start_response: Any) -> Iterator[bytes]:
        def answer() -> Iterator[bytes]:
            yield b"x" * 70_000
            yield b"x" * 70_000
            try:
                raise ValueError("late")
            except ValueError:
                try:
                    start_response("500 Internal Server Error", [], sys.exc_info())
                except ValueError as error:
                    raised.put(error)
            yield b"x" * 60_000

        start_response("200 OK", [("Content-Length", "200000")])
        return answer()

    answer = exchange(app, LAST)
    assert str(raised.get(timeout=60)) == "late"
    assert len(answer.partition(b"\r\n\r\n")[2]) == 200_000


def get(world: World, host: str, path: str = "/v2/devices") -> Any:
    return world.http.simulate_get(path, headers={"Host": host})


@pytest.mark.parametrize(
    "path", ["/v2/devices", "/healthcheck", "/placement/resource_providers", "/autoclave/v1/devices"]
)
def test_a_page_whose_name_leads_to_this_machine_is_served_nothing(tmp_path: Path, path: str) -> None:
    seen: list[str] = []

    def mount(environ: Any, start_response: Any) -> list[bytes]:
        seen.append(environ["PATH_INFO"])
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b""]

    world = World(tmp_path, mounts={"/placement": mount})
    for name in ("evil.example.com:6666", "localhost.evil.example.com", "127.0.0.1.evil.example.com", "10.0.0.1", "["):
        answer = get(world, name, path)
        assert answer.status_code == 403
        assert name in fault(answer)
    forwarded = {"Host": "evil.example.com", "X-Forwarded-Host": "localhost"}
    assert world.http.simulate_get(path, headers=forwarded).status_code == 403
    assert seen == []
    for name in ("localhost", "LOCALHOST:6666", "127.0.0.1:6666", "[::1]:6666"):
        assert get(world, name, path).status_code == 200
    world.close()


def test_the_public_endpoint_is_a_good_name_too(tmp_path: Path) -> None:
    world = World(tmp_path, {("api", "public_endpoint"): "https://Autoclave.example.com/x"})
    assert get(world, "autoclave.example.com").status_code == 200
    assert get(world, "example.com").status_code == 403
    world.close()


def test_who_serves_other_machines_serves_addresses_but_no_names(tmp_path: Path) -> None:
    world = World(tmp_path, {("api", "noauth_beyond_loopback"): True})
    assert get(world, "10.0.0.1:6666").status_code == 200
    assert get(world, "evil.example.com").status_code == 403
    world.close()
