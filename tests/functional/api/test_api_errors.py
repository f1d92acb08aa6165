"""What callers are told when something is wrong, and what they are never told."""

import io
import json
import logging
from typing import Any

import pytest
from api_world import World, fault, new_uuid
from documented import Documented
from falcon.testing import Result

from autoclave.api.app import create_app
from autoclave.exceptions import RPCTimeout
from autoclave.testing.placement import faults as effects

pytestmark = pytest.mark.matrix

ASK = "/v2/accelerator_requests"


def tells_nothing_of_the_inside(answer: Result) -> bool:
    text = answer.text
    return not any(word in text for word in ("Traceback", 'File "', "SELECT", "INSERT", "sqlite", "sqlalchemy"))


def send(world: World, raw: bytes, **headers: str) -> Result:
    return world.http.simulate_post("/v2/device_profiles", body=raw, headers=headers)


def test_an_error_is_encoded_twice_as_clients_expect(world: World) -> None:
    answer = world.call("GET", f"/v2/devices/{new_uuid()}")
    assert answer.status_code == 404
    assert list(answer.json) == ["error_message"]
    inner = json.loads(answer.json["error_message"])
    assert inner["faultcode"] == "Client"
    assert inner["debuginfo"] is None


@pytest.mark.parametrize("path", ["/v1", "/v2/gpus", "/gpus", "/nothing", "/accelerator/v3", "/autoclave/v2/devices"])
def test_an_unknown_path_is_404_in_the_same_shape(world: World, path: str) -> None:
    answer = world.call("GET", path)
    assert answer.status_code == 404
    assert path in fault(answer)


def test_a_method_that_a_path_does_not_take_is_405_and_the_others_are_named(world: World) -> None:
    answer = world.call("PUT", "/v2/device_profiles")
    assert answer.status_code == 405
    assert set(answer.headers["Allow"].split(", ")) >= {"GET", "POST", "DELETE"}
    assert "PUT" in fault(answer)


def test_only_json_is_spoken(world: World) -> None:
    answer = world.http.simulate_get("/v2/devices", headers={"Accept": "application/xml"})
    assert answer.status_code == 406
    fault(answer)
    assert world.http.simulate_get("/v2/devices", headers={"Accept": "text/html, */*;q=0.1"}).status_code == 200


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (b"", "requires a JSON body"),
        (b"{", "not JSON"),
        (b"\xff\xfe[]", "not UTF-8"),
        (b'[{"name": "a", "name": "b"}]', "twice"),
        (b'[{"name": "a\\u0000b"}]', "NUL"),
        (b'[{"name": "\\ud800"}]', "half of a surrogate pair"),
        (b'["\\u0000"]', "NUL"),
        (b"[NaN]", "number"),
        (b"[1e999]", "number"),
        (b"9" * 5000, "number"),
        (b"[" * 20_000, "nested"),
        (b"[]", "exactly one"),
        (b"null", "exactly one"),
        (b"7", "exactly one"),
    ],
)
def test_a_body_that_cannot_be_used_is_400_and_says_why(world: World, raw: bytes, named: str) -> None:
    answer = send(world, raw, **{"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert named in fault(answer)


def test_a_wrong_type_is_named_by_its_place(world: World) -> None:
    answer = world.call("POST", "/v2/device_profiles", [{"name": 7, "groups": [{"resources:FPGA": "1"}]}])
    assert answer.status_code == 400
    assert "[0]['name']" in fault(answer)


def test_a_body_that_is_too_large_is_413_before_it_is_read(world: World) -> None:
    limit = world.conf.api.max_request_body_size
    answer = send(world, b" " * (limit + 1), **{"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert str(limit) in fault(answer)
    assert send(world, b" " * limit, **{"Content-Type": "application/json"}).status_code == 400


def test_a_body_without_a_length_is_bounded_too(world: World) -> None:
    limit = world.conf.api.max_request_body_size
    answer = world.http.simulate_post(
        "/v2/device_profiles",
        body=b" " * (limit + 1),
        headers={"Content-Type": "application/json", "Transfer-Encoding": "chunked", "Content-Length": ""},
    )
    assert answer.status_code == 413


class _HungUp(io.BytesIO):
    """A body whose sender goes away."""

    def read(self, size: int | None = -1, /) -> bytes:
        raise ConnectionResetError("the caller is gone")


@pytest.mark.parametrize(
    ("stream", "why"),
    [(_HungUp(), "did not arrive as a whole"), (io.BytesIO(b"[]"), "2 of 9 bytes")],
    ids=["hung up", "cut off"],
)
def test_a_body_that_is_not_whole_is_its_senders_fault(world: World, stream: io.BytesIO, why: str) -> None:
    answer = world.http.simulate_post(
        "/v2/device_profiles",
        headers={"Content-Type": "application/json", "Content-Length": "9"},
        extras={"wsgi.input": stream},
    )
    assert (answer.status_code, why in fault(answer)) == (400, True)


def test_a_form_is_not_json(world: World) -> None:
    assert send(world, b"a=b", **{"Content-Type": "application/x-www-form-urlencoded"}).status_code == 415


@pytest.mark.parametrize(
    "path",
    [
        "/v2/devices?limt=1",
        "/v2/devices?limit=0",
        "/v2/devices?limit=-1",
        "/v2/devices?limit=9999999999999999999999",
        "/v2/devices?limit=²",
        "/v2/devices?marker=nobody",
        "/v2/devices?type=NVME&type=GPU",
        "/v2/devices?vendor=%00",
        "/v2/deployables?marker=nobody",
        "/v2/deployables/not-a-uuid",
        "/v2/attributes?marker=nobody",
        "/v2/attributes?deployable_id=x",
        "/v2/attributes?deployable_id=0",
        "/v2/attributes?deployable_id=9999999999",
        "/v2/attributes?key=%00",
        "/v2/device_profiles?nam=x",
        "/v2/device_profiles?marker=nobody",
        "/v2/accelerator_requests?bind_state=bound",
        "/v2/accelerator_requests?instance=x",
        "/v2/accelerator_requests?marker=nobody",
        "/v2/accelerator_requests/not-a-uuid",
        "/autoclave/v1/devices?device_state=clean",
        "/autoclave/v1/devices/compute-1/01:00",
    ],
)
def test_a_question_that_is_not_understood_is_400_rather_than_everything(world: World, path: str) -> None:
    world.add_device()
    answer = world.call("GET", path)
    assert answer.status_code == 400
    fault(answer)


def test_what_nobody_expected_is_a_neutral_500_and_a_log_line(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with world.db.write() as tx:
        tx.exec_driver_sql("DROP TABLE device_profiles")
    answer = world.call("GET", "/v2/device_profiles")
    assert answer.status_code == 500
    assert tells_nothing_of_the_inside(answer)
    assert "log" in fault(answer)
    assert any(record.exc_info for record in caplog.records if record.levelno == logging.ERROR)


def test_a_database_that_is_away_is_503(world: World) -> None:
    world.db.dispose()
    for file in world.directory.glob("autoclave.sqlite*"):
        file.write_bytes(b"this is no database" * 100)
    assert world.call("GET", "/healthcheck").status_code == 503
    answer = world.call("GET", "/v2/devices")
    assert answer.status_code == 503
    assert "database" in fault(answer)
    assert "file is not" not in answer.text


def test_no_conductor_is_503_and_nothing_was_done(world: World) -> None:
    device = world.add_device()
    world.add_profile()
    arq = world.add_arq()
    world.conductor.stop()
    answer = world.bind(arq, device, new_uuid())
    assert answer.status_code == 503
    assert "nothing was done" in fault(answer)
    assert world.call("GET", f"{ASK}/{arq}").json["state"] == "Initial"


class SilentTransport:
    """A broker that takes messages which nobody ever answers."""

    def client(self, topic: str, *, server: str | None = None, version: str) -> "SilentTransport":
        return self

    def call(self, context: object, method: str, /, **arguments: Any) -> Any:
        raise RPCTimeout("no answer from rabbit@10.1.2.3 in 60 seconds")


def test_a_conductor_that_does_not_answer_is_504_and_says_that_it_may_be_done(world: World) -> None:
    device = world.add_device()
    world.add_profile()
    arq = world.add_arq()
    world.app = Documented(create_app(world.conf, world.ports, SilentTransport()), world.conf)  # type: ignore[arg-type]
    answer = world.bind(arq, device, new_uuid())
    assert answer.status_code == 504
    assert "may still be carried out" in fault(answer)
    assert "10.1.2.3" not in answer.text


def test_a_placement_that_is_away_fails_the_bind_and_names_no_address(world: World) -> None:
    device = world.add_device()
    world.add_profile()
    arq = world.add_arq()
    world.placement.add(effects.refuse)
    answer = world.bind(arq, device, new_uuid())
    assert answer.status_code == 409
    assert tells_nothing_of_the_inside(answer)
    assert world.call("GET", f"{ASK}/{arq}").json["state"] == "BindFailed"


def test_every_answer_has_a_request_id_of_our_own(world: World) -> None:
    given = "req-00000000-0000-0000-0000-000000000000"
    ids = {
        world.http.simulate_get(path, headers={"X-OpenStack-Request-ID": given}).headers["x-openstack-request-id"]
        for path in ("/", "/v2/devices", "/nothing", "/healthcheck")
    }
    assert len(ids) == 4
    assert given not in ids
