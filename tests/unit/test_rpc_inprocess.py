"""The in-process transport's own promises: bounded waiting, and a network that tests can bend."""

import re
import threading

import pytest

from autoclave.exceptions import InvalidConfiguration, RPCUnavailable
from autoclave.objects.base import RequestContext
from autoclave.rpc import messaging
from autoclave.rpc.inprocess import InProcessTransport, PooledCasts
from autoclave.rpc.port import understands
from autoclave.testing.ports import HeldCasts

TOPIC = "autoclave-agent"
PATIENCE = 60


class Agent:
    def __init__(self) -> None:
        self.done: list[object] = []
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Event()

    def work(self, context: RequestContext, item: object) -> None:
        self.done.append((item, context.request_id))

    def slow(self, context: RequestContext) -> None:
        self.begun.release()
        assert self.go_on.wait(PATIENCE)
        self.done.append("slow")


@pytest.fixture
def context():
    return RequestContext.admin()


def served(transport, name="host1", version="1.1"):
    agent = Agent()
    server = transport.serve(TOPIC, name, agent, version)
    server.start()
    return agent, server


def test_when_too_much_waits_the_sender_is_told_and_what_waits_is_still_done(context):
    transport = InProcessTransport(casts=PooledCasts(workers=1, capacity=2))
    agent, server = served(transport)
    client = transport.client(TOPIC, server="host1", version="1.0")
    client.cast(context, "slow")
    assert agent.begun.acquire(timeout=PATIENCE)
    client.cast(context, "slow")
    client.cast(context, "slow")

    with pytest.raises(RPCUnavailable, match="slow was not sent to autoclave-agent: 2 messages"):
        client.cast(context, "slow")

    agent.go_on.set()
    assert agent.begun.acquire(timeout=PATIENCE)
    assert agent.begun.acquire(timeout=PATIENCE)
    server.stop()
    server.wait()
    assert agent.done == ["slow"] * 3


def test_nothing_can_be_cast_on_a_closed_transport(context):
    transport = InProcessTransport()
    served(transport)
    transport.close()

    with pytest.raises(RPCUnavailable, match="closed"):
        transport.client(TOPIC, server="host1", version="1.0").cast(context, "work", item=1)


def test_held_casts_wait_and_arrive_late_in_any_order(context):
    casts = HeldCasts()
    transport = InProcessTransport(casts=casts)
    agent, _ = served(transport)
    client = transport.client(TOPIC, server="host1", version="1.0")

    client.cast(context, "work", item="first")
    client.cast(context, "work", item="second")

    assert agent.done == []
    assert [(cast.method, cast.server, cast.arguments) for cast in casts.pending] == [
        ("work", "host1", '{"item": "first"}'),
        ("work", "host1", '{"item": "second"}'),
    ]
    casts.deliver(1)
    casts.deliver(0)
    assert agent.done == [("second", context.request_id), ("first", context.request_id)]
    assert casts.pending == ()


def test_a_held_cast_may_be_doubled_or_lost(context):
    casts = HeldCasts()
    transport = InProcessTransport(casts=casts)
    agent, _ = served(transport)
    client = transport.client(TOPIC, server="host1", version="1.0")
    client.cast(context, "work", item="doubled")
    client.cast(context, "work", item="lost")

    casts.duplicate(0)
    casts.drop(1)
    casts.deliver()
    casts.deliver()

    assert [item for item, _ in agent.done] == ["doubled", "doubled"]
    assert casts.pending == ()


def test_a_held_cast_sees_the_values_of_the_moment_it_was_sent(context):
    casts = HeldCasts()
    transport = InProcessTransport(casts=casts)
    agent, _ = served(transport)
    item = {"state_version": 1}
    transport.client(TOPIC, server="host1", version="1.0").cast(context, "work", item=item)

    item["state_version"] = 2
    casts.deliver()

    assert agent.done[0][0] == {"state_version": 1}


def test_a_cast_goes_to_whoever_serves_when_it_arrives(context, caplog):
    casts = HeldCasts()
    transport = InProcessTransport(casts=casts)
    client = transport.client(TOPIC, server="host1", version="1.1")
    client.cast(context, "work", item="before the agent")
    client.cast(context, "work", item="after the agent")

    agent, server = served(transport)
    casts.deliver()
    server.stop()
    casts.deliver()

    assert [item for item, _ in agent.done] == ["before the agent"]
    assert [record.getMessage() for record in caplog.records if "expired" in record.getMessage()] == [
        f"work expired: no server of autoclave-agent at host1 exists in this process (request {context.request_id})"
    ]


def test_a_cast_that_its_server_does_not_understand_is_lost_and_logged(context, caplog):
    casts = HeldCasts()
    transport = InProcessTransport(casts=casts)
    agent, _ = served(transport, version="1.0")
    transport.client(TOPIC, server="host1", version="1.1").cast(context, "work", item=1)

    casts.deliver()

    assert agent.done == []
    assert "speaks RPC 1.0 and does not support 1.1" in caplog.text


def test_a_server_here_is_asked_itself_and_the_record_only_about_others():
    transport = InProcessTransport(remote_version=lambda topic, server: {"host1": "1.9", "gone": "1.1"}[server])
    _, server = served(transport, version="1.0")

    assert transport.client(TOPIC, server="host1", version="1.0").refusal("1.1") is not None
    assert transport.client(TOPIC, server="gone", version="1.0").refusal("1.1") is None
    server.stop()
    assert transport.client(TOPIC, server="host1", version="1.0").refusal("1.1") is None


def test_one_name_is_served_once_and_again_after_a_stop():
    transport = InProcessTransport()
    _, first = served(transport)

    with pytest.raises(ValueError, match="autoclave-agent at host1"):
        served(transport)
    first.stop()
    served(transport)


def test_a_crash_of_the_process_is_not_turned_into_a_reply(context):
    class Crash(BaseException):
        pass

    class Dying:
        def die(self, context):
            raise Crash

    transport = InProcessTransport()
    server = transport.serve(TOPIC, "host1", Dying(), "1.0")
    server.start()

    with pytest.raises(Crash):
        transport.client(TOPIC, server="host1", version="1.0").call(context, "die")
    server.stop()
    server.wait()


@pytest.mark.parametrize(
    ("spoken", "needed", "yes"),
    [("1.1", "1.0", True), ("1.1", "1.1", True), ("1.1", "1.2", False), ("1.10", "1.9", True), ("2.0", "1.0", False)],
)
def test_versions_are_compared_as_numbers_within_one_major(spoken, needed, yes):
    assert understands(spoken, needed) is yes


@pytest.mark.parametrize("url", ["rabbitt://guest@localhost/", "localhost:5672", "rabbit://guest@localhost:many/"])
def test_a_transport_url_that_cannot_be_used_is_named(url):
    from autoclave.conf import new_config
    from autoclave.rpc.messaging import MessagingTransport

    with pytest.raises(InvalidConfiguration, match=r"\[DEFAULT\] transport_url"):
        MessagingTransport(new_config(overrides={(None, "transport_url"): url}))


@pytest.mark.parametrize(
    "url",
    [
        "rabbit://user:secret/part@localhost/",
        "rabbit://user:secret,part@localhost/",
        "rabbit://user:secret#part@localhost/",
        "//user:secretpart@localhost/",
        "smoke://user:secretpart@localhost/",
    ],
    ids=["slash", "comma", "hash", "no scheme", "no such scheme"],
)
def test_a_transport_url_that_cannot_be_used_keeps_its_password(url: str) -> None:
    from autoclave.conf import new_config
    from autoclave.rpc.messaging import MessagingTransport

    with pytest.raises(InvalidConfiguration) as refused:
        MessagingTransport(new_config(overrides={(None, "transport_url"): url}))
    assert not re.search("secret|part", str(refused.value))


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("rabbit://u:secret@h:1/v", "rabbit://u:***@h:1/v"),
        ("rabbit://u:se@cret@h/", "rabbit://u:***@h/"),
        ("rabbit://u:se:cret@h1:1,u:secret@h2:2/v", "rabbit://u:***@h1:1,u:***@h2:2/v"),
        ("rabbit://h1:1,h2:2/v", "rabbit://h1:1,h2:2/v"),
    ],
    ids=["one host", "password with an at", "two hosts", "no password"],
)
def test_a_transport_url_is_shown_without_passwords(url: str, told: str) -> None:
    assert messaging.shown(url) == told
