"""Who may do what: with Keystone, and without it on one machine."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from api_world import REMOVE_OPS, World, fault, new_uuid, said
from keystone_double import Keystone
from keystone_world import USERS, ask, cloud, keystone

from autoclave.api.policy import ADMIN, BASE_RULES, COMPUTE_RULES, MEMBER_OR_ADMIN, READER_OR_ADMIN, list_rules
from autoclave.exceptions import InvalidConfiguration
from autoclave.rules.device_lifecycle import DeviceState

pytestmark = pytest.mark.matrix

__all__ = ["cloud", "keystone"]

ARQS = "/v2/accelerator_requests"
PUBLIC = ["/", "/v2", "/v2/", "/accelerator", "/accelerator/v2", "/healthcheck"]
PUBLIC += ["/compute", "/compute/v2.1", "/compute/v2.1/", "/image", "/image/v2/"]


def test_finding_the_service_needs_no_token(cloud: World) -> None:
    for path in PUBLIC:
        assert ask(cloud, None, "GET", path).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/v2/devices",
        "/accelerator/v2/devices",
        ARQS,
        "/v2/nothing",
        "/metrics",
        "/autoclave/v1/devices",
        "/compute/v2.1/flavors",
        "/image/v2/images",
        "/x",
    ],
)
def test_everything_else_does_and_the_refusal_says_where_to_get_one(
    cloud: World, keystone: Keystone, path: str
) -> None:
    for token in (None, "forged"):
        answer = ask(cloud, token, "GET", path)
        assert answer.status_code == 401
        assert keystone.url in answer.headers["WWW-Authenticate"]
        assert answer.headers["x-openstack-request-id"]


def test_headers_of_the_caller_do_not_make_anybody_somebody(cloud: World) -> None:
    forged = {"X-Roles": "admin", "X-User-Id": "root", "X-Project-Id": "ops", "X-Identity-Status": "Confirmed"}
    assert cloud.http.simulate_get("/v2/devices", headers=forged).status_code == 401
    mine = {**forged, "X-Auth-Token": "reader-token", "X-Service-Roles": "service"}
    assert cloud.http.simulate_get("/v2/devices", headers=mine).status_code == 403


def test_a_keystone_that_is_away_is_503_and_no_way_in(tmp_path: Path) -> None:
    gone = Keystone()
    gone.stop()
    config = tmp_path / "autoclave.conf"
    config.write_text(gone.config() + "http_connect_timeout = 1\nhttp_request_max_retries = 0\n")
    world = World(tmp_path, {("api", "auth_strategy"): "keystone"}, (str(config),))
    answer = ask(world, "admin", "GET", "/v2/devices")
    assert answer.status_code == 503
    assert ask(world, None, "GET", "/healthcheck").status_code == 200
    world.close()


def test_an_unusable_answer_of_keystone_is_503(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = Keystone()
    broken.own_token = None
    config = tmp_path / "autoclave.conf"
    config.write_text(broken.config())
    world = World(tmp_path, {("api", "auth_strategy"): "keystone"}, (str(config),))
    assert ask(world, "admin", "GET", "/v2/devices").status_code == 503
    assert "see [keystone_authtoken] auth_url, and what Keystone answers: KeyError" in caplog.text
    world.close()
    broken.stop()


def test_prometheus_needs_no_token_where_the_operator_says_so_and_gets_nothing_else(
    tmp_path: Path, keystone: Keystone
) -> None:
    config = tmp_path / "autoclave.conf"
    config.write_text(f"{keystone.config()}\n[api]\npublic_metrics = true\n")
    world = World(tmp_path, {("api", "auth_strategy"): "keystone"}, (str(config),))
    world.add_device()
    for path in ("/metrics", "/metrics/"):
        answer = ask(world, None, "GET", path)
        assert answer.status_code == 200
        assert 'state="available"' in answer.text
    assert ask(world, None, "GET", "/v2/devices").status_code == 401
    assert ask(world, None, "GET", "/metrics/x").status_code == 401
    world.close()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", r"\[keystone_authtoken\] auth_type: is not set"),
        ("auth_url = http://127.0.0.1:1", r"\[keystone_authtoken\] auth_type: is not set"),
        ("auth_section = other", r"\[other\] auth_type: is not set"),
        ("auth_type = password", r"\[keystone_authtoken\]: Keystone is unavailable: .*auth_url"),
        ("auth_type = pasword", r"\[keystone_authtoken\]: Keystone is unavailable: .*pasword"),
        ("auth_type = password\nauth_url = http://k\ncafile = /x", r"\[keystone_authtoken\] cafile: /x cannot be read"),
    ],
)
def test_a_service_that_could_not_check_any_token_does_not_start(tmp_path: Path, lines: str, message: str) -> None:
    config = tmp_path / "autoclave.conf"
    config.write_text(f"[keystone_authtoken]\n{lines}\n")
    with pytest.raises(InvalidConfiguration, match=message):
        World(tmp_path, {("api", "auth_strategy"): "keystone"}, (str(config),))


# rule -> (method, path, body, the roles that may)
HARDWARE = {"admin", "manager"}
READERS = {"admin", "manager", "member", "reader", "other"}
WRITERS = {"admin", "manager", "member", "other", "nova"}
RULES: dict[str, tuple[str, str, Any, set[str]]] = {
    "cyborg:device:get_all": ("GET", "/v2/devices", None, HARDWARE),
    "cyborg:device:get_one": ("GET", f"/v2/devices/{new_uuid()}", None, HARDWARE),
    "cyborg:device:disable": ("POST", f"/v2/devices/{new_uuid()}/disable", None, {"admin"}),
    "cyborg:device:enable": ("POST", f"/v2/devices/{new_uuid()}/enable", None, {"admin"}),
    "cyborg:device:clean": ("POST", f"/v2/devices/{new_uuid()}/clean", None, {"admin"}),
    "cyborg:deployable:get_all": ("GET", "/v2/deployables", None, HARDWARE),
    "cyborg:deployable:get_one": ("GET", f"/v2/deployables/{new_uuid()}", None, HARDWARE),
    "cyborg:deployable:program": ("PATCH", f"/v2/deployables/{new_uuid()}/program", [], {"admin"}),
    "cyborg:attribute:get_all": ("GET", "/v2/attributes", None, HARDWARE),
    "cyborg:attribute:get_one": ("GET", f"/v2/attributes/{new_uuid()}", None, HARDWARE),
    "cyborg:attribute:create": ("POST", "/v2/attributes", {}, {"admin"}),
    "cyborg:attribute:delete": ("DELETE", f"/v2/attributes/{new_uuid()}", None, {"admin"}),
    "cyborg:device_profile:get_all": ("GET", "/v2/device_profiles", None, READERS),
    "cyborg:device_profile:get_one": ("GET", f"/v2/device_profiles/{new_uuid()}", None, READERS),
    "cyborg:device_profile:create": ("POST", "/v2/device_profiles", [], {"admin"}),
    "cyborg:device_profile:delete": ("DELETE", f"/v2/device_profiles/{new_uuid()}", None, {"admin"}),
    "cyborg:arq:get_all": ("GET", ARQS, None, READERS),
    "cyborg:arq:get_one": ("GET", f"{ARQS}/{new_uuid()}", None, READERS),
    "cyborg:arq:create": ("POST", ARQS, {}, WRITERS),
    "cyborg:arq:update": ("PATCH", ARQS, {}, WRITERS),
    "cyborg:arq:delete": ("DELETE", f"{ARQS}/{new_uuid()}", None, WRITERS),
    "autoclave:device:get": ("GET", "/autoclave/v1/devices", None, {"admin"}),
    "autoclave:device:act": ("POST", f"/autoclave/v1/devices/{new_uuid()}/release", {}, {"admin"}),
    "autoclave:burned:get": ("GET", "/autoclave/v1/burned", None, {"admin"}),
    "autoclave:burned:release": ("POST", f"/autoclave/v1/burned/{new_uuid()}/release", {}, {"admin"}),
    "autoclave:function:get": ("GET", "/autoclave/v1/functions", None, {"admin"}),
    "autoclave:host:get": ("GET", "/autoclave/v1/hosts", None, {"admin"}),
    "autoclave:host:act": ("POST", "/autoclave/v1/hosts/nowhere/resume", {}, {"admin"}),
    "autoclave:explain": ("GET", "/autoclave/v1/explain?flavor=f&image=i", None, {"admin"}),
    "autoclave:metrics:get": ("GET", "/metrics", None, {"admin"}),
}


BODIES: dict[str, Any] = {
    "os_compute_api:servers:start": {"os-start": None},
    "os_compute_api:servers:stop": {"os-stop": None},
    "os_compute_api:servers:reboot": {"reboot": {"type": "SOFT"}},
    "os_compute_api:servers:rebuild": {"rebuild": {"imageRef": new_uuid()}},
    "os_compute_api:os-deferred-delete:force": {"forceDelete": None},
}
WHO = {ADMIN: {"admin"}, READER_OR_ADMIN: READERS, MEMBER_OR_ADMIN: WRITERS - {"nova"}}
RULES |= {
    rule.name: (
        rule.operations[0]["method"],
        re.sub(r"\{\w+\}", new_uuid(), rule.operations[0]["path"]),
        BODIES.get(rule.name, {}),
        WHO[rule.check_str],
    )
    for rule in COMPUTE_RULES
}


def test_every_rule_is_tried_below() -> None:
    assert {rule.name for rule in list_rules()} - {rule.name for rule in BASE_RULES} == set(RULES)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_lets_through_whom_it_names_and_nobody_else(cloud: World, rule: str) -> None:
    method, path, body, allowed = RULES[rule]
    for user in USERS:
        answer = ask(cloud, user, method, path, body)
        assert (answer.status_code != 403) == (user in allowed), f"{user}: {answer.status_code}"
        if user not in allowed:
            assert said(answer) == f"Access was denied to the following resource: {rule}"


def test_who_may_not_clean_is_not_told_whether_the_device_exists(cloud: World) -> None:
    device = cloud.add_device(device_state=DeviceState.ERROR)
    for uuid in (device.uuid, new_uuid()):
        assert ask(cloud, "manager", "POST", f"/v2/devices/{uuid}/clean").status_code == 403
    assert cloud.agent.asked == []
    assert ask(cloud, "admin", "POST", f"/v2/devices/{device.uuid}/clean").status_code == 202


def with_policy(tmp_path: Path, keystone: Keystone, text: str, options: str = "") -> World:
    rules = tmp_path / "policy.yaml"
    rules.write_text(text)
    config = tmp_path / "autoclave.conf"
    config.write_text(f"{keystone.config()}[oslo_policy]\npolicy_file = {rules}\n{options}")
    return World(tmp_path, {("api", "auth_strategy"): "keystone"}, (str(config),))


def test_the_operator_may_change_a_rule_in_the_policy_file(tmp_path: Path, keystone: Keystone) -> None:
    world = with_policy(tmp_path, keystone, '"cyborg:device:get_all": "rule:project_reader_api"\n')
    assert ask(world, "reader", "GET", "/v2/devices").status_code == 200
    assert ask(world, "reader", "GET", f"/v2/devices/{new_uuid()}").status_code == 403
    world.close()


LOOSE = "".join(f'"cyborg:arq:{name}": "@"\n' for name in ("get_all", "get_one", "update", "delete"))


def test_a_rule_that_lets_everybody_in_shows_nobody_what_is_anothers(tmp_path: Path, keystone: Keystone) -> None:
    world = with_policy(tmp_path, keystone, LOOSE)
    arq, _ = bound_to_blue(world)
    for user in ("other", "nova"):
        listed = ask(world, user, "GET", ARQS)
        assert (listed.status_code, listed.json) == (200, {"arqs": []})
        for method, path, body in (
            ("GET", f"{ARQS}/{arq}", None),
            ("PATCH", ARQS, {arq: REMOVE_OPS}),
            ("DELETE", f"{ARQS}/{arq}", None),
        ):
            assert ask(world, user, method, path, body, service="nova").status_code == 404
    assert [one["uuid"] for one in ask(world, "nobody", "GET", ARQS).json["arqs"]] == [arq]
    assert state(world, arq) == "Bound"
    world.close()


def test_who_counts_as_an_administrator_is_a_rule_too_and_sees_every_project(
    tmp_path: Path, keystone: Keystone
) -> None:
    world = with_policy(tmp_path, keystone, '"admin_api": "role:admin or user_id:otto"\n')
    arq, _ = bound_to_blue(world)
    assert [one["uuid"] for one in ask(world, "other", "GET", ARQS).json["arqs"]] == [arq]
    assert ask(world, "other", "GET", "/autoclave/v1/devices").status_code == 200
    world.close()


def test_cyborgs_deprecated_defaults_let_nobody_in(tmp_path: Path, keystone: Keystone) -> None:
    """There, a reader of any project may list the hardware and ask for accelerators, unless this option is set."""
    world = with_policy(tmp_path, keystone, "", "enforce_new_defaults = false\n")
    assert ask(world, "reader", "GET", "/v2/devices").status_code == 403
    assert ask(world, "reader", "POST", ARQS, {}).status_code == 403
    assert ask(world, "nobody", "GET", ARQS).status_code == 403
    world.close()


def test_a_token_of_the_system_is_of_no_project_and_opens_nothing(cloud: World) -> None:
    for path in ("/autoclave/v1/devices", "/v2/devices", ARQS):
        assert ask(cloud, "system", "GET", path).status_code == 403


@pytest.mark.parametrize("text", [None, '"a": [', "- a\n- b\n"])
def test_a_policy_file_that_cannot_be_read_keeps_the_service_from_starting(tmp_path: Path, text: str | None) -> None:
    rules = tmp_path / "policy.yaml"
    if text is not None:
        rules.write_text(text)
    config = tmp_path / "autoclave.conf"
    config.write_text(f"[oslo_policy]\npolicy_file = {rules}\n")
    with pytest.raises(InvalidConfiguration, match=str(rules)):
        World(tmp_path, config_files=(str(config),))


# Service tokens


@pytest.fixture
def bound(cloud: World) -> tuple[str, str]:
    return bound_to_blue(cloud)


def bound_to_blue(cloud: World) -> tuple[str, str]:
    """An accelerator request of project blue, and the instance that it is bound to."""
    group = {"resources:CUSTOM_NVME_144D_A808": "1"}
    assert ask(cloud, "admin", "POST", "/v2/device_profiles", [{"name": "p", "groups": [group]}]).status_code == 201
    made = ask(cloud, "member", "POST", ARQS, {"device_profile_name": "p"})
    arq, instance = made.json["arqs"][0]["uuid"], new_uuid()
    body = {arq: cloud.add_ops(cloud.add_device(), instance)}
    for service in (None, "member", "forged"):
        refused = ask(cloud, "member", "PATCH", ARQS, body, service=service)
        assert refused.status_code in (401, 403)
    assert ask(cloud, "member", "PATCH", ARQS, body, service="nova").status_code == 202
    return arq, instance


def state(world: World, arq: str) -> str:
    return str(ask(world, "admin", "GET", f"{ARQS}/{arq}").json["state"])


def test_what_belongs_to_an_instance_is_touched_through_nova_only(cloud: World, bound: tuple[str, str]) -> None:
    arq, instance = bound
    tries: list[tuple[str, str, Any]] = [
        ("PATCH", ARQS, {arq: REMOVE_OPS}),
        ("PATCH", f"{ARQS}/{arq}", {arq: REMOVE_OPS}),
        ("DELETE", f"{ARQS}?instance={instance}", None),
        ("DELETE", f"{ARQS}?arqs={arq}", None),
        ("DELETE", f"{ARQS}/{arq}", None),
    ]
    for user in ("member", "admin", "nova"):
        for method, path, body in tries:
            answer = ask(cloud, user, method, path, body)
            assert answer.status_code in (403, 404)  # nova's own project has no such request
            assert answer.status_code == 404 or "Compute API" in fault(answer)
    # of an instance that has no requests in the caller's project, there is nothing to delete
    assert ask(cloud, "other", "DELETE", f"{ARQS}?instance={instance}", service="nova").status_code == 204
    assert state(cloud, arq) == "Bound"
    assert ask(cloud, "member", "DELETE", f"{ARQS}?instance={instance}", service="nova").status_code == 204
    assert ask(cloud, "admin", "GET", f"{ARQS}/{arq}").status_code == 404


def test_a_request_that_no_instance_has_is_its_owners_to_delete(cloud: World, bound: tuple[str, str]) -> None:
    made = ask(cloud, "member", "POST", ARQS, {"device_profile_name": "p"})
    assert ask(cloud, "member", "DELETE", f"{ARQS}/{made.json['arqs'][0]['uuid']}").status_code == 204


# Without Keystone


def test_without_keystone_every_caller_is_an_administrator(world: World) -> None:
    for token in (None, "notused", "admin", "gAAAAA", ":", "::"):
        assert world.call("GET", "/autoclave/v1/devices", token=token).status_code == 200


@pytest.mark.parametrize(
    ("token", "status"),
    [("u:p", 200), ("u:p:admin", 200), ("u:p:manager", 200), ("u:p:member", 403), ("u:p:reader", 403), ("u:p:x", 403)],
)
def test_without_keystone_a_token_may_play_somebody_else(world: World, token: str, status: int) -> None:
    assert world.call("GET", "/v2/devices", token=token).status_code == status


def test_without_keystone_headers_do_not_say_who_somebody_is(world: World) -> None:
    forged = {"X-Auth-Token": "u:p:reader", "X-Roles": "admin", "X-User-Roles": "admin", "X-Is-Admin-Project": "True"}
    assert world.http.simulate_get("/v2/devices", headers=forged).status_code == 403


def test_without_keystone_what_is_asked_for_belongs_to_the_project_that_asked(world: World) -> None:
    world.add_profile()
    arq = world.add_arq(token="u:blue:member")
    assert world.call("GET", f"{ARQS}/{arq}").json["project_id"] == "blue"
    assert json.loads(world.call("GET", ARQS, token="u:red").text)["arqs"][0]["uuid"] == arq
