"""What Nova says of its servers is understood, and what it does not say is never taken for a deletion."""

import uuid
from typing import Any

import pytest

from autoclave.conf import new_config
from autoclave.exceptions import NovaUnavailable
from autoclave.nova.client import Presence, Server, http_adapter
from autoclave.nova.servers import NovaServers
from autoclave.testing.nova import FakeNova, FakeServer
from autoclave.testing.placement.faults import Faults, answer_raw, refuse, time_out
from nova_double import options, served, servers_within

LIVE, SOFT, GONE, UNREACHABLE, NEVER = (str(uuid.UUID(int=number)) for number in range(1, 6))


@pytest.fixture
def nova() -> FakeNova:
    made = FakeNova(page=2)
    made.servers[UNREACHABLE] = FakeServer("demo", cell_down=True)
    made.servers[GONE] = FakeServer("demo", "DELETED")
    made.servers[SOFT] = FakeServer("demo", "SOFT_DELETED")
    made.servers[LIVE] = FakeServer("demo", "SHUTOFF")
    return made


def ask(client: NovaServers) -> None:
    """Ask every question that the client has."""
    client.look_up(NEVER)
    client.not_listed([NEVER])


def test_a_list_of_several_pages_names_what_it_lacks(nova: FakeNova) -> None:
    for number in range(100, 105):
        nova.servers[str(uuid.UUID(int=number))] = FakeServer("other")
    faults = Faults(nova)
    wanted = [LIVE, SOFT, GONE, UNREACHABLE, NEVER]
    assert servers_within(faults).not_listed(wanted) == {GONE, UNREACHABLE, NEVER}
    assert len(faults.calls) == 4


def test_a_list_is_read_no_further_than_the_last_server_wanted(nova: FakeNova) -> None:
    faults = Faults(nova)
    assert servers_within(faults).not_listed([LIVE]) == frozenset()
    assert len(faults.calls) == 1
    assert servers_within(faults).not_listed([]) == frozenset()
    assert len(faults.calls) == 1


@pytest.mark.parametrize(
    ("server", "answer"),
    [
        (LIVE, Server(Presence.THERE, "demo")),
        (SOFT, Server(Presence.SOFT_DELETED, "demo")),
        (UNREACHABLE, Server(Presence.THERE, "demo")),
        (GONE, Server(Presence.DELETED, "demo")),
        (NEVER, Server(Presence.ABSENT, None)),
    ],
)
def test_each_state_of_a_server_is_told_from_the_others(nova: FakeNova, server: str, answer: Server) -> None:
    with served(nova) as url:
        assert NovaServers(http_adapter(new_config([], options(url)))).look_up(server) == answer


def test_a_caller_of_one_project_learns_nothing_of_another(nova: FakeNova) -> None:
    """Such a caller gets 404 for a server that is there: that must never read as deleted."""
    nova.sees_all_projects = False
    for question in (lambda client: client.look_up(LIVE), lambda client: client.not_listed([LIVE])):
        with pytest.raises(NovaUnavailable, match=r"403.*\[nova\] auth_type"):
            question(servers_within(nova))


def test_a_list_that_heeds_no_filter_says_nothing(nova: FakeNova) -> None:
    faults = Faults(nova)
    body = b'{"servers": [{"id": "%s", "status": "ACTIVE", "tenant_id": "demo"}]}' % LIVE.encode()
    faults.add(answer_raw(200, body, "application/json"), path="detail")
    with pytest.raises(NovaUnavailable, match="allow_all_filters"):
        servers_within(faults).look_up(NEVER)


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 406, 500, 503])
@pytest.mark.parametrize("path", ["/servers/0", "detail", r"/servers\?"])
def test_any_other_status_is_no_answer(nova: FakeNova, status: int, path: str) -> None:
    faults = Faults(nova)
    faults.add(answer_raw(status, b'{"itemNotFound": {"message": "as arranged"}}', "application/json"), path=path)
    with pytest.raises(NovaUnavailable, match=f"answered {status}"):
        ask(servers_within(faults))


@pytest.mark.parametrize("effect", [refuse, time_out])
def test_no_answer_is_no_answer(nova: FakeNova, effect: Any) -> None:
    faults = Faults(nova)
    faults.add(effect)
    for question in (lambda client: client.look_up(NEVER), lambda client: client.not_listed([NEVER])):
        with pytest.raises(NovaUnavailable, match="was not sent, or not answered"):
            question(servers_within(faults))


@pytest.mark.parametrize(
    "body",
    [
        b"<h1>It works!</h1>",
        b"[]",
        b"{}",
        b'{"servers": 7}',
        b'{"servers": [7]}',
        b'{"servers": [{}]}',
        b'{"server": []}',
        b'{"server": {"id": "another", "status": "ACTIVE", "tenant_id": "demo"}}',
    ],
)
@pytest.mark.parametrize("path", ["/servers/0", "detail", r"/servers\?"])
def test_an_answer_that_is_not_novas_is_no_answer(nova: FakeNova, body: bytes, path: str) -> None:
    faults = Faults(nova)
    faults.add(answer_raw(200, body, "application/json"), path=path)
    with pytest.raises(NovaUnavailable, match=r"not as Nova answers|without its"):
        ask(servers_within(faults))


def test_what_a_database_does_not_take_is_not_in_a_message(nova: FakeNova) -> None:
    """The message becomes the reason for which a device waits, and PostgreSQL takes no NUL."""
    faults = Faults(nova)
    faults.add(answer_raw(502, b"\x00\x1b[2J gateway"))
    with pytest.raises(NovaUnavailable, match=r"answered 502: \\x00\\x1b\[2J gateway"):
        servers_within(faults).look_up(NEVER)


def test_links_that_are_none_end_the_list(nova: FakeNova) -> None:
    faults = Faults(nova)
    faults.add(answer_raw(200, b'{"servers": [{"id": "another"}], "servers_links": 7}', "application/json"))
    assert servers_within(faults).not_listed([NEVER]) == {NEVER}


def test_a_list_that_changes_under_its_reader_is_no_answer(nova: FakeNova) -> None:
    """The server that ends a page is deleted before the next page is asked for."""
    faults = Faults(nova)
    nova.servers[str(uuid.UUID(int=200))] = FakeServer("demo")
    faults.add(answer_raw(400, b'{"badRequest": {"message": "marker not found"}}', "application/json"), path="marker")
    with pytest.raises(NovaUnavailable, match="marker not found"):
        servers_within(faults).not_listed([NEVER])
