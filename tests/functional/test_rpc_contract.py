"""What services may expect of RPC, promised by both transports."""

import queue
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from autoclave import exceptions
from autoclave.conf import new_config
from autoclave.exceptions import RPCError, RPCTimeout, RPCUnavailable
from autoclave.objects.base import Device, RequestContext
from autoclave.rpc.inprocess import InProcessTransport
from autoclave.rpc.messaging import MessagingTransport
from autoclave.rpc.port import Client, Transport

PATIENCE = 60
"""Seconds after which a test that waits for a message gives up."""


class Ward:
    """An endpoint that shows what reached it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.arrived: queue.Queue[Any] = queue.Queue()
        self.may_go_on = threading.Event()
        self.error: Exception | None = None

    def who(self, context: RequestContext) -> str:
        return self.name

    def echo(self, context: RequestContext, value: Any) -> Any:
        return value

    def note(self, context: RequestContext, value: Any) -> None:
        self.arrived.put(value)

    def caller(self, context: RequestContext) -> dict[str, Any]:
        return {
            "request_id": context.request_id,
            "user_id": context.user_id,
            "project_id": context.project_id,
            "roles": context.roles,
            "service_roles": context.service_roles,
            "is_admin": context.is_admin,
            "auth_token": context.auth_token,
        }

    def state_of(self, context: RequestContext, devices: list[Device]) -> list[Any]:
        return [[type(device).__name__, device.device_state, device.state_version] for device in devices]

    def device(self, context: RequestContext) -> Device:
        return a_device(state_version=9)

    def fail(self, context: RequestContext) -> None:
        assert self.error is not None
        raise self.error

    def unspeakable(self, context: RequestContext) -> object:
        return object()

    def slow(self, context: RequestContext, value: Any) -> None:
        self.arrived.put("begun")
        assert self.may_go_on.wait(PATIENCE)
        self.arrived.put(value)

    def _private(self, context: RequestContext) -> None:
        self.arrived.put("private")


class Bench:
    """A transport with one topic and two servers on it, both of version 1.1.

    :param hurried: to the same servers, for who does not wait long for an answer.
    """

    servers = ("host1", "host2")

    def __init__(self, transport: Transport, hurried: Transport, topic: str) -> None:
        self.transport = transport
        self.hurried = hurried
        self.topic = topic
        self.wards = {name: Ward(name) for name in self.servers}

    def client(self, server: str | None = "host1", version: str = "1.1") -> Client:
        return self.transport.client(self.topic, server=server, version=version)

    @property
    def ward(self) -> Ward:
        return self.wards["host1"]


def recorded(topic: str, server: str) -> str | None:
    """What the database says the servers of these tests speak."""
    return {"host1": "1.1", "host2": "1.1", "old": "1.0"}.get(server)


CAPS = {"autoclave-capped": "1.0"}


@pytest.fixture(scope="module", params=["in-process", pytest.param("rabbitmq", marks=pytest.mark.integration)])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    transport: Transport
    hurried: Transport
    if request.param == "in-process":
        transport = hurried = InProcessTransport(version_caps=CAPS, remote_version=recorded)
        topic = "autoclave-test"
    else:
        transport, hurried = (
            MessagingTransport(
                new_config(
                    overrides={
                        (None, "transport_url"): request.getfixturevalue("rabbitmq_url"),
                        ("conductor", "rpc_timeout"): seconds,
                    }
                ),
                version_caps=CAPS,
                remote_version=recorded,
            )
            for seconds in (PATIENCE, 1)
        )
        topic = request.getfixturevalue("rabbitmq_topic")(*Bench.servers, "passing", "away")
    made = Bench(transport, hurried, topic)
    servers = [transport.serve(topic, name, ward, "1.1") for name, ward in made.wards.items()]
    for server in servers:
        server.start()
    yield made
    for server in servers:
        server.stop()
    for server in servers:
        server.wait()
    hurried.close()
    transport.close()


@pytest.fixture
def context() -> RequestContext:
    return RequestContext(
        user_id="anna",
        project_id="lab",
        roles=["manager"],
        service_roles=["service"],
        auth_token="a-token-that-stays-here",
    )


def a_device(**changes: Any) -> Device:
    values: dict[str, Any] = {"uuid": str(uuid.uuid4()), "type": "NVME", "device_state": "allocated"}
    return Device(**(values | changes))


def test_values_arrive_and_return_as_json_knows_them(bench, context):
    value = {"text": "Größe", "none": None, "list": [1, 2.5, True], "nested": {"deep": [{}]}}

    assert bench.client().call(context, "echo", value=value) == value
    assert bench.client().call(context, "echo", value=(1, (2, 3))) == [1, [2, 3]]


def test_a_value_is_copied_even_inside_one_process(bench, context):
    value = {"list": [1]}

    returned = bench.client().call(context, "echo", value=value)

    assert returned == value
    assert returned is not value
    assert returned["list"] is not value["list"]


def test_a_device_arrives_as_a_device(bench, context):
    devices = [a_device(state_version=4), a_device(device_state=None, state_version=0)]

    assert bench.client().call(context, "state_of", devices=devices) == [
        ["Device", "allocated", 4],
        ["Device", None, 0],
    ]
    returned = bench.client().call(context, "device")
    assert isinstance(returned, Device)
    assert returned.state_version == 9


def test_the_other_side_knows_who_asks_but_not_the_token(bench, context):
    assert bench.client().call(context, "caller") == {
        "request_id": context.request_id,
        "user_id": "anna",
        "project_id": "lab",
        "roles": ["manager"],
        "service_roles": ["service"],
        "is_admin": False,
        "auth_token": None,
    }
    assert bench.client().call(RequestContext.admin(), "caller")["is_admin"] is True


@pytest.mark.parametrize(
    "error",
    [
        exceptions.NotFound("device 7c8a does not exist"),
        exceptions.Conflict("device 7c8a is not available"),
        exceptions.StateConflict("device 7c8a is at version 5, not 4"),
        exceptions.PlacementConflict("the generation moved", code="placement.concurrent_update"),
        exceptions.ToolFailed("nvme sanitize failed", ["nvme", "sanitize", "/dev/nvme0"], 1, status=0x2002),
        exceptions.InvalidConfiguration("is no address", option="[nvme] device_spec", entry=2, key="address"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_ours_is_raised_again_at_the_caller(bench, context, error):
    bench.ward.error = error

    with pytest.raises(type(error)) as raised:
        bench.client().call(context, "fail")

    assert type(raised.value) is type(error)
    assert str(raised.value) == str(error)
    assert vars(raised.value) == vars(error)


def test_a_class_that_only_the_server_knows_arrives_as_the_nearest_that_both_know(bench, context):
    class QuotaExceeded(exceptions.Forbidden):
        pass

    bench.ward.error = QuotaExceeded("three devices are enough")

    with pytest.raises(exceptions.Forbidden, match=r"^three devices are enough$") as raised:
        bench.client().call(context, "fail")
    assert type(raised.value) is exceptions.Forbidden


def test_a_fault_keeps_its_text_and_traceback_in_the_log_of_the_server(bench, context, caplog):
    bench.ward.error = ValueError("SELECT secret FROM devices")

    with pytest.raises(RPCError) as raised:
        bench.client().call(context, "fail")

    assert type(raised.value) is RPCError
    assert context.request_id in str(raised.value)
    assert "secret" not in str(raised.value)
    assert "Traceback" not in str(raised.value)
    logged = [record for record in caplog.records if record.exc_info and record.name == "autoclave.rpc.port"]
    assert [record.exc_info[1].args for record in logged] == [("SELECT secret FROM devices",)]


def test_a_result_that_cannot_be_sent_is_a_fault_of_the_server(bench, context):
    with pytest.raises(RPCError, match="its log shows the cause"):
        bench.client().call(context, "unspeakable")


@pytest.mark.parametrize(
    "inner", [RPCUnavailable("no broker"), RPCTimeout("no answer")], ids=["unavailable", "timeout"]
)
def test_a_message_that_the_method_could_not_send_is_not_taken_for_the_callers_own(bench, context, inner):
    bench.ward.error = inner

    with pytest.raises(RPCError, match=str(inner)) as raised:
        bench.client().call(context, "fail")

    assert type(raised.value) is RPCError


@pytest.mark.parametrize("method", ["no_such_method", "_private", "name", "__init__"])
def test_only_public_methods_can_be_run(bench, context, method):
    with pytest.raises(RPCUnavailable):
        bench.client().call(context, method)
    assert bench.ward.arrived.empty()


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_server_understands_every_minor_up_to_its_own(bench, context, version):
    assert bench.client(version=version).call(context, "who") == "host1"


@pytest.mark.parametrize("version", ["1.2", "2.0", "0.9"])
def test_a_version_that_the_server_does_not_speak_is_not_run(bench, context, version):
    with pytest.raises(RPCUnavailable):
        bench.client(version=version).call(context, "note", value="of another version")
    assert bench.ward.arrived.empty()


@pytest.mark.parametrize("value", [object(), {"deep": [b"bytes"]}, Ward], ids=["object", "bytes", "class"])
def test_an_argument_that_cannot_be_sent_is_refused_before_sending(bench, context, value):
    with pytest.raises(TypeError):
        bench.client().call(context, "note", value=value)
    with pytest.raises(TypeError):
        bench.client().cast(context, "note", value=value)
    assert bench.ward.arrived.empty()


def test_a_cast_is_run_once_at_the_server_named(bench, context):
    bench.client("host2").cast(context, "note", value=[1, 2])

    assert bench.wards["host2"].arrived.get(timeout=PATIENCE) == [1, 2]
    assert bench.client("host2").call(context, "who") == "host2"
    assert bench.wards["host2"].arrived.empty()
    assert bench.ward.arrived.empty()


def test_a_cast_does_not_wait_for_the_method(bench, context):
    bench.ward.may_go_on.clear()

    bench.client().cast(context, "slow", value="done")

    assert bench.ward.arrived.get(timeout=PATIENCE) == "begun"
    assert bench.ward.arrived.empty()
    bench.ward.may_go_on.set()
    assert bench.ward.arrived.get(timeout=PATIENCE) == "done"


def test_a_cast_that_fails_over_there_leaves_the_server_at_work(bench, context):
    bench.ward.error = ValueError("unforeseen")

    bench.client().cast(context, "fail")
    bench.client().cast(context, "no_such_method")
    bench.client(version="1.9").cast(context, "note", value="of another version")
    bench.client().cast(context, "note", value="next")

    assert bench.ward.arrived.get(timeout=PATIENCE) == "next"


def test_servers_of_one_topic_share_the_calls(bench, context):
    client = bench.client(None)

    served: set[str] = set()
    for _ in range(200):  # the broker passes over who is still busy with the last one
        if served == {"host1", "host2"}:
            break
        served.add(client.call(context, "who"))
    assert served == {"host1", "host2"}


def test_a_call_to_a_server_that_is_away_is_an_error(bench, context):
    with pytest.raises((RPCUnavailable, RPCTimeout), match="away"):
        bench.hurried.client(bench.topic, server="away", version="1.1").call(context, "who")


def test_a_cast_to_a_server_that_is_away_is_taken_and_expires(bench, context):
    bench.client("away").cast(context, "note", value="late")

    assert bench.client().call(context, "who") == "host1"
    assert all(ward.arrived.empty() for ward in bench.wards.values())


def test_a_server_that_stops_ends_what_it_has_begun(bench, context):
    ward = Ward("passing")
    server = bench.transport.serve(bench.topic, "passing", ward, "1.1")
    server.start()
    bench.client("passing").cast(context, "slow", value="ended")
    assert ward.arrived.get(timeout=PATIENCE) == "begun"

    server.stop()
    ward.may_go_on.set()
    server.wait()

    assert ward.arrived.get_nowait() == "ended"


def test_a_server_that_never_started_stops_at_once(bench):
    server = bench.transport.serve(bench.topic, "stillborn", Ward("stillborn"), "1.1")

    def end() -> None:
        server.stop()
        server.wait()

    ended = threading.Thread(target=end, daemon=True)
    ended.start()
    ended.join(PATIENCE)
    assert not ended.is_alive()


@pytest.mark.parametrize(
    ("server", "version", "understood"),
    [
        ("host1", "1.0", True),
        ("host1", "1.1", True),
        ("host1", "1.2", False),
        ("host1", "2.0", False),
        ("old", "1.0", True),
        ("old", "1.1", False),
        ("never-heard-of", "1.0", False),
    ],
)
def test_a_server_is_sent_only_what_it_said_it_understands(bench, server, version, understood):
    assert (bench.client(server).refusal(version) is None) is understood


def test_a_version_cap_holds_whatever_the_servers_say(bench, context):
    capped = bench.transport.client("autoclave-capped", server="host1", version="1.1")

    assert capped.refusal("1.0") is None
    assert capped.refusal("1.1") is not None
    assert bench.transport.client("autoclave-capped", version="1.0").refusal("1.1") is not None
    with pytest.raises(RPCUnavailable, match=r"cap is 1\.0"):
        capped.cast(context, "note", value=1)
    with pytest.raises(RPCUnavailable, match=r"cap is 1\.0"):
        capped.call(context, "note", value=1)
