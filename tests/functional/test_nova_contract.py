"""Nova is told in the words that it understands, and every answer of its is understood; over a socket, for real."""

import json
import threading
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from autoclave.exceptions import NovaUnavailable
from autoclave.nova.client import NovaClient, Outcome, Reception
from autoclave.testing.nova import FakeNova
from autoclave.testing.placement.faults import Faults, answer_raw, lose_answer, refuse, time_out
from nova_double import client_at, client_within, served

INSTANCE = str(uuid.uuid4())
ONE = Outcome("6f0a6d43-2d8c-4c54-8f6d-0c1f6f0b7a01", True)
TWO = Outcome("6f0a6d43-2d8c-4c54-8f6d-0c1f6f0b7a02", False)


@pytest.fixture
def nova() -> FakeNova:
    made = FakeNova()
    made.hosts[INSTANCE] = "compute-1"
    return made


@pytest.fixture
def client(nova: FakeNova) -> Iterator[NovaClient]:
    with served(nova) as url:
        yield client_at(url)


def test_one_request_tells_of_all_binds_of_an_instance_in_the_words_of_nova(nova: FakeNova, client: NovaClient) -> None:
    assert client.tell(INSTANCE, [ONE, TWO]) == {ONE.arq_uuid: Reception.TAKEN, TWO.arq_uuid: Reception.TAKEN}
    common = {"name": "accelerator-request-bound", "server_uuid": INSTANCE}
    assert nova.posts == [
        [
            {**common, "tag": ONE.arq_uuid, "status": "completed"},
            {**common, "tag": TWO.arq_uuid, "status": "failed"},
        ]
    ]


def test_the_request_itself_is_the_one_that_nova_knows(nova: FakeNova) -> None:
    seen: list[dict[str, Any]] = []

    def noting(environ: Any, start: Any) -> Iterable[bytes]:
        seen.append(dict(environ))
        return nova(environ, start)

    with served(noting) as url:
        client_at(url).tell(INSTANCE, [ONE])
    [request] = seen
    assert (request["REQUEST_METHOD"], request["PATH_INFO"]) == ("POST", "/v2.1/os-server-external-events")
    assert request["HTTP_OPENSTACK_API_VERSION"] == "compute 2.82"
    assert request["CONTENT_TYPE"] == "application/json"
    assert request["HTTP_X_AUTH_TOKEN"] == "a token"


def test_telling_twice_is_taken_twice(nova: FakeNova, client: NovaClient) -> None:
    for _ in range(2):
        assert client.tell(INSTANCE, [ONE]) == {ONE.arq_uuid: Reception.TAKEN}
    assert len(nova.taken) == 2


def test_an_instance_without_a_host_can_be_told_later(nova: FakeNova, client: NovaClient) -> None:
    nova.hosts[INSTANCE] = None
    assert client.tell(INSTANCE, [ONE]) == {ONE.arq_uuid: Reception.NO_HOST_YET}
    assert nova.taken == []
    nova.hosts[INSTANCE] = "compute-1"
    assert client.tell(INSTANCE, [ONE]) == {ONE.arq_uuid: Reception.TAKEN}


def test_an_instance_that_nova_does_not_know_is_told_apart(client: NovaClient) -> None:
    assert client.tell(str(uuid.uuid4()), [ONE]) == {ONE.arq_uuid: Reception.UNKNOWN_INSTANCE}


def test_what_nova_does_not_understand_is_told_apart(client: NovaClient) -> None:
    assert client.tell("web-1", [ONE, TWO]) == {
        ONE.arq_uuid: Reception.NOT_UNDERSTOOD,
        TWO.arq_uuid: Reception.NOT_UNDERSTOOD,
    }


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        (401, r"\[nova\] auth_type"),
        (403, "roles"),
        (404, "endpoint_override"),
        (406, "microversion 2.82"),
        (413, ""),
        (500, ""),
        (503, ""),
    ],
)
def test_any_other_status_is_no_answer_and_says_what_to_look_at(nova: FakeNova, status: int, hint: str) -> None:
    faults = Faults(nova)
    faults.add(answer_raw(status, b"<h1>as arranged</h1>"))
    with pytest.raises(NovaUnavailable, match=rf"answered {status}: <h1>as arranged</h1>.*{hint}"):
        client_within(faults).tell(INSTANCE, [ONE])


@pytest.mark.parametrize(
    "body",
    [
        b"<h1>It works!</h1>",
        b"",
        b"[]",
        b"7",
        b'{"events": 7}',
        b'{"events": [7]}',
        b'{"events": []}',
        b'{"events": [{"code": 200}]}',
        json.dumps({"events": [{"code": 418, "tag": ONE.arq_uuid}]}).encode(),
        json.dumps({"events": [{"code": [], "tag": ONE.arq_uuid}]}).encode(),
        json.dumps({"events": [{"code": 200, "tag": TWO.arq_uuid}]}).encode(),
    ],
)
@pytest.mark.parametrize("status", [200, 207])
def test_an_answer_that_is_not_novas_is_no_answer(nova: FakeNova, status: int, body: bytes) -> None:
    faults = Faults(nova)
    faults.add(answer_raw(status, body, "application/json"))
    with pytest.raises(NovaUnavailable, match=f"answered {status}, but not as Nova answers"):
        client_within(faults).tell(INSTANCE, [ONE])


@pytest.mark.parametrize(("effect", "taken"), [(refuse, 0), (time_out, 0), (lose_answer, 1)])
def test_no_answer_says_nothing_about_what_nova_did(nova: FakeNova, effect: Any, taken: int) -> None:
    faults = Faults(nova)
    faults.add(effect)
    with pytest.raises(NovaUnavailable, match="POST /os-server-external-events was not sent, or not answered"):
        client_within(faults).tell(INSTANCE, [ONE])
    assert len(nova.taken) == taken
    faults.clear()
    assert client_within(faults).tell(INSTANCE, [ONE]) == {ONE.arq_uuid: Reception.TAKEN}


def test_a_nova_that_is_not_there_is_no_answer() -> None:
    with pytest.raises(NovaUnavailable, match="refused"):
        client_at("http://127.0.0.1:1/v2.1").tell(INSTANCE, [ONE])


def test_a_nova_that_hangs_is_given_up(nova: FakeNova) -> None:
    let_go = threading.Event()

    def hangs(environ: Any, start: Any) -> Iterable[bytes]:
        let_go.wait(60)
        return nova(environ, start)

    with served(hangs) as url:
        try:
            with pytest.raises(NovaUnavailable, match="timed out"):
                client_at(url, timeout=0.2).tell(INSTANCE, [ONE])
        finally:
            let_go.set()
