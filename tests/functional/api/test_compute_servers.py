"""Servers: who sees them, what is refused, and what is true when nobody takes a request over."""

import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from api_world import HOST, World, new_uuid, said

from autoclave.db import instances as instance_rows
from autoclave.db.columns import utcnow
from autoclave.rules.instance_states import PowerState, TaskState, VMState
from autoclave.virt.guest import domain_name

SOME_UUID = "6d5b4c33-9d1c-4a52-8a0e-6f7f8f0a1b2c"
MEMBER = "mia:blue:member"
OTHER = "otto:red:member"


@pytest.fixture
def ready(world: World) -> World:
    world.add_host()
    return world


def act(world: World, server: str, action: str, value: Any = None, token: str | None = None) -> Any:
    return world.compute("POST", f"/servers/{server}/action", {action: value}, token=token)


def asked(world: World) -> list[str]:
    return [method for method, _ in world.agent.messages]


def forbidding(world: World) -> str:
    """A flavor that forbids a trait."""
    world.ports.placement.ensure_traits(["CUSTOM_X"])
    flavor = world.add_flavor("forbids")
    world.compute("POST", f"/flavors/{flavor}/os-extra_specs", {"extra_specs": {"trait:CUSTOM_X": "forbidden"}})
    return flavor


# asking for one


def test_a_server_is_checked_then_kept_then_handed_over(ready: World) -> None:
    uuid = ready.add_server("vm1", metadata={"k": "v"}, description="d", tags=["t"])
    assert asked(ready) == ["build_instance"]
    kept = ready.server(uuid)
    assert kept is not None
    assert (kept.name, kept.metadata, kept.description, kept.tags) == ("vm1", {"k": "v"}, "d", ["t"])
    assert (kept.flavor["name"], kept.image["name"], kept.image["properties"]) == ("flavor-of-vm1", "cirros", {})
    assert (kept.project_id, kept.user_id, kept.requested_host) == ("admin", "admin", None)


def test_what_nothing_can_satisfy_is_400_and_nothing_is_kept(ready: World) -> None:
    image = ready.add_image(**{"trait:CUSTOM_X": "required"})
    answer = ready.compute("POST", "/servers", ready.new_server(flavorRef=forbidding(ready), imageRef=image))
    assert answer.status_code == 400
    assert "CUSTOM_X" in said(answer)
    assert ready.compute("GET", "/servers").json["servers"] == []


def test_without_a_conductor_it_is_503_and_nothing_was_done(ready: World) -> None:
    body = ready.new_server()
    ready.conductor.stop()
    answer = ready.compute("POST", "/servers", body)
    assert answer.status_code == 503
    assert "nothing was done" in said(answer)
    assert ready.compute("GET", "/servers").json["servers"] == []


def test_a_request_that_no_conductor_takes_leaves_no_server(ready: World) -> None:
    body = ready.new_server(max_count=3)
    ready.casts.room = 0
    answer = ready.compute("POST", "/servers", body)
    assert answer.status_code == 503
    assert ready.compute("GET", "/servers").json["servers"] == []


def test_of_several_servers_those_that_nobody_takes_become_errors_that_say_so(ready: World) -> None:
    ready.casts.room = 2  # the first, and what the conductor hands over of it
    uuid = ready.add_server("vm", max_count=3)
    servers = ready.compute("GET", "/servers/detail?sort_key=display_name&sort_dir=asc").json["servers"]
    assert [(one["name"], one["status"]) for one in servers] == [
        ("vm-1", "ACTIVE"),
        ("vm-2", "ERROR"),
        ("vm-3", "ERROR"),
    ]
    assert servers[0]["id"] == uuid
    assert all("ask again later" in one["fault"]["message"] for one in servers[1:])


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"imageRef": new_uuid()}, "No image found with ID"),
        ({"flavorRef": "nobody"}, "Flavor nobody could not be found"),
        ({"networks": [{"uuid": new_uuid()}]}, "there are no networks"),
        ({"block_device_mapping_v2": []}, "there are no volumes"),
        ({"user_data": "eA=="}, "user_data"),
        ({"key_name": "k"}, "there are no key pairs"),
        ({"config_drive": True}, "there are no config drives"),
        ({"security_groups": [{"name": "default"}]}, "security_groups"),
        ({"availability_zone": "mars"}, "zone mars does not exist"),
        ({"availability_zone": "nova:nobody"}, "Compute host nobody could not be found"),
        ({"host": "nobody"}, "Compute host nobody could not be found"),
        ({"host": HOST, "availability_zone": ":other"}, "compute-1 and other"),
        ({"min_count": 3, "max_count": 2}, "min_count"),
        ({"max_count": 65}, "from 1 to 64"),
        ({"name": "  "}, "not all of them spaces"),
        ({"metadata": {f"k{n}": "v" * 255 for n in range(128)} | {"k": "ü" * 256}}, "metadata"),
        ({"metadata": {"k" * 400: "v"}}, "has 1 to 255 characters"),
        ({"tags": ["a,b"]}, "tags"),
        ({"nonsense": 1}, "nonsense"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_server_that_cannot_be_is_400_and_the_reason_is_named(
    ready: World, values: dict[str, Any], named: str
) -> None:
    body = ready.new_server()
    body["server"] |= values
    if "imageRef" in values:
        body["server"]["block_device_mapping_v2"][0]["uuid"] = values["imageRef"]
    answer = ready.compute("POST", "/servers", body)
    assert answer.status_code == 400, answer.text
    assert named in said(answer)
    assert asked(ready) == []


@pytest.mark.parametrize("place", ["os:scheduler_hints", "OS-SCH-HNT:scheduler_hints"])
def test_scheduler_hints_are_refused_rather_than_ignored(ready: World, place: str) -> None:
    body = {**ready.new_server(), place: {"same_host": new_uuid()}}
    answer = ready.compute("POST", "/servers", body)
    assert answer.status_code == 400
    assert "no scheduler hints are heeded" in said(answer)
    assert ready.compute("POST", "/servers", {**ready.new_server("vm2"), place: {}}).status_code == 202


def test_the_boot_device_must_be_the_image(ready: World) -> None:
    body = ready.new_server()
    other = ready.add_image("other")
    body["server"]["block_device_mapping_v2"][0]["uuid"] = other
    answer = ready.compute("POST", "/servers", body)
    assert answer.status_code == 400
    assert other in said(answer)
    body["server"]["imageRef"] = ""  # as clients say that a volume is to be started from
    assert "there are no volumes" in said(ready.compute("POST", "/servers", body))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"min_ram": 1024}, "Flavor small has 512 MiB of memory, and image {image} needs 1024."),
        ({"min_disk": 2}, "Flavor small has a disk of 1 GiB, and image {image} needs 2."),
        ({"data": None}, "has no data yet"),
        ({"hw_firmware_type": "coreboot"}, "'coreboot'; guests here can have 'bios' or 'uefi'."),
        ({"hw_machine_type": "pc"}, "'hw_machine_type' is 'pc'; guests here can have 'q35'."),
    ],
    ids=["memory", "disk", "empty", "firmware", "machine"],
)
def test_an_image_that_no_guest_of_the_flavor_can_be_made_of_is_400(
    ready: World, values: dict[str, Any], named: str
) -> None:
    image = ready.add_image(**values)
    answer = ready.compute("POST", "/servers", ready.new_server(imageRef=image, flavorRef=ready.add_flavor()))
    assert answer.status_code == 400
    assert named.format(image=image) in said(answer)


def test_a_flavor_without_a_disk_of_its_own_is_large_enough_for_any_image(ready: World) -> None:
    body = ready.new_server(imageRef=ready.add_image(min_disk=2), flavorRef=ready.add_flavor(disk=0))
    assert ready.compute("POST", "/servers", body).status_code == 202


@pytest.mark.parametrize(
    "where",
    [
        {"availability_zone": f"nova:{HOST}"},
        {"availability_zone": f":{HOST}"},
        {"availability_zone": f"nova:{HOST}:{HOST}"},
        {"host": HOST},
        {"hypervisor_hostname": HOST},
        {"host": HOST, "hypervisor_hostname": HOST, "availability_zone": "nova"},
    ],
    ids=str,
)
def test_an_administrator_may_say_where_a_server_runs_and_nobody_else(ready: World, where: dict[str, str]) -> None:
    kept = ready.server(ready.add_server(**where))
    assert kept is not None
    assert kept.requested_host == HOST
    answer = ready.compute("POST", "/servers", ready.new_server("vm2", **where), token=MEMBER)
    assert answer.status_code == 403
    assert ready.compute("POST", "/servers", ready.new_server("vm3"), token=MEMBER).status_code == 202


# looking at them


def test_another_projects_servers_are_nobodys(ready: World) -> None:
    uuid = ready.add_server(token=MEMBER)
    for method, path, body in [
        ("GET", f"/servers/{uuid}", None),
        ("DELETE", f"/servers/{uuid}", None),
        ("PUT", f"/servers/{uuid}", {"server": {"name": "n"}}),
        ("POST", f"/servers/{uuid}/action", {"os-stop": None}),
        ("POST", f"/servers/{uuid}/action", {"forceDelete": None}),
        ("GET", f"/servers/{uuid}/metadata", None),
        ("POST", f"/servers/{uuid}/metadata", {"metadata": {"k": "v"}}),
        ("GET", f"/servers/{uuid}/os-instance-actions", None),
    ]:
        answer = ready.compute(method, path, body, token=OTHER)
        assert (answer.status_code, said(answer)) == (404, f"Instance {uuid} could not be found.")
    assert ready.compute("GET", f"/servers?marker={uuid}", token=OTHER).status_code == 400
    assert ready.compute("GET", "/servers", token=OTHER).json["servers"] == []
    kept = ready.server(uuid)
    assert kept is not None
    assert (kept.vm_state, kept.task_state) == (VMState.ACTIVE, None)


def test_only_administrators_see_where_a_server_is(ready: World) -> None:
    uuid = ready.add_server(token=MEMBER)
    mine = ready.compute("GET", f"/servers/{uuid}", token=MEMBER).json["server"]
    all_of_it = ready.compute("GET", f"/servers/{uuid}").json["server"]
    assert set(all_of_it) - set(mine) == {
        "autoclave:hostdevs",
        "host_status",
        "OS-EXT-SRV-ATTR:host",
        "OS-EXT-SRV-ATTR:hypervisor_hostname",
        "OS-EXT-SRV-ATTR:instance_name",
    }
    assert (all_of_it["OS-EXT-SRV-ATTR:host"], all_of_it["host_status"]) == (HOST, "UP")
    assert all_of_it["OS-EXT-SRV-ATTR:instance_name"] == domain_name(uuid)
    assert HOST not in str(mine)
    assert mine["hostId"] not in ("", HOST)


def test_the_details_of_a_fault_are_for_administrators(ready: World) -> None:
    uuid = ready.add_server(token=MEMBER)
    kept = ready.server(uuid)
    assert kept is not None
    with ready.db.write() as tx:
        fault = {"fault_code": 500, "fault_message": "It failed.", "fault_details": "host h1 said no"}
        instance_rows.swap(tx, kept, expect_task=None, vm_state=VMState.ERROR, fault_at=utcnow(), **fault)
    mine = ready.compute("GET", f"/servers/{uuid}", token=MEMBER).json["server"]
    assert (mine["status"], mine["fault"]["message"], "details" in mine["fault"]) == ("ERROR", "It failed.", False)
    assert ready.compute("GET", f"/servers/{uuid}").json["server"]["fault"]["details"] == "host h1 said no"


@pytest.mark.parametrize("query", ["all_tenants=True", f"host={HOST}", "project_id=red", "user_id=otto"])
def test_what_only_administrators_may_ask_for_is_403_rather_than_ignored(ready: World, query: str) -> None:
    assert ready.compute("GET", f"/servers/detail?{query}", token=MEMBER).status_code == 403
    assert ready.compute("GET", f"/servers/detail?{query}").status_code == 200


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(Path(tmp_path_factory.mktemp("three")))
    made.add_host()
    flavor, image = made.add_flavor(id="f1"), made.add_image()
    for name in ("web-1", "WEB-2", "db_1"):
        made.add_server(name, flavorRef=flavor, imageRef=image)
    made.add_server("theirs", flavorRef=flavor, imageRef=image, token=MEMBER)
    stopped = made.compute("GET", "/servers?name=db_1").json["servers"][0]["id"]
    act(made, stopped, "os-stop")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("flavor=f1", ["db_1", "WEB-2", "web-1"]),
        ("flavor=f2", []),
        ("", ["db_1", "WEB-2", "web-1"]),
        ("deleted=False", ["db_1", "WEB-2", "web-1"]),
        ("deleted=True", []),
        ("all_tenants=True", ["theirs", "db_1", "WEB-2", "web-1"]),
        ("all_tenants=1&project_id=blue", ["theirs"]),
        ("name=web", ["WEB-2", "web-1"]),
        ("name=^web-1$", ["web-1"]),
        ("name=^1", []),
        ("name=1$", ["db_1", "web-1"]),
        ("name=%25", []),
        ("name=b_1", ["db_1"]),
        ("name=.*", []),
        ("status=ACTIVE", ["WEB-2", "web-1"]),
        ("status=shutoff", ["db_1"]),
        ("status=SUSPENDED", []),
        ("vm_state=stopped", ["db_1"]),
        ("power_state=4", ["db_1"]),
        ("task_state=deleting", []),
        (f"host={HOST}", ["db_1", "WEB-2", "web-1"]),
        ("host=other", []),
        ("availability_zone=nova", ["db_1", "WEB-2", "web-1"]),
        ("availability_zone=mars", []),
        pytest.param(f"uuid={new_uuid()}", [], id="another uuid"),
        pytest.param(f"image={new_uuid()}", [], id="another image"),
        ("changes-since=2020-01-01T00:00:00Z", ["db_1", "WEB-2", "web-1"]),
        ("changes-since=2999-01-01T00:00:00%2B02:00", []),
        ("changes-before=2020-01-01T00:00:00", []),
        ("sort_key=display_name&sort_dir=asc", ["WEB-2", "db_1", "web-1"]),
        ("limit=1", ["db_1"]),
    ],
)
def test_a_list_has_what_was_asked_for(three: World, query: str, names: list[str]) -> None:
    for path in ("/servers", "/servers/detail"):
        found = three.compute("GET", f"{path}?{query}").json["servers"]
        assert [one["name"] for one in found] == names


def test_a_full_page_says_where_the_next_one_is(three: World) -> None:
    for path in ("/servers", "/servers/detail"):
        page = three.compute("GET", f"{path}?name=WEB&limit=1").json
        [link] = page["servers_links"]
        assert ([one["name"] for one in page["servers"]], link["rel"]) == (["WEB-2"], "next")
        root, _, following = link["href"].partition("/compute/v2.1")
        assert root.startswith("http://")
        assert [one["name"] for one in three.compute("GET", following).json["servers"]] == ["web-1"]
        assert set(three.compute("GET", f"{path}?limit=4").json) == {"servers"}


@pytest.mark.parametrize(
    "query", ["nam=x", "vm_state=up", "power_state=9", "changes-since=yesterday", "image=x", "sort_key=host", "limit=0"]
)
def test_a_question_that_is_not_understood_is_400_rather_than_everything(three: World, query: str) -> None:
    answer = three.compute("GET", f"/servers/detail?{query}")
    assert answer.status_code == 400
    assert query.partition("=")[0] in said(answer)


def test_a_list_in_detail_costs_the_same_for_one_server_and_for_many(three: World) -> None:
    statements: list[str] = []

    def count(query: str) -> int:
        statements.clear()
        three.compute("GET", f"/servers/detail?all_tenants=True&{query}")
        return len(statements)

    sa.event.listen(three.db._reader, "before_cursor_execute", lambda *arguments: statements.append(str(arguments[2])))
    assert count("name=^web-1$") == count("limit=100") > 0


# what is done with them


def test_a_server_stops_starts_and_reboots_at_its_hosts_agent(ready: World) -> None:
    uuid = ready.add_server(token=MEMBER)
    for action, value, method, state, power in [
        ("os-stop", None, "stop_instance", "SHUTOFF", PowerState.SHUTDOWN),
        ("os-start", None, "start_instance", "ACTIVE", PowerState.RUNNING),
        ("reboot", {"type": "SOFT"}, "reboot_instance", "ACTIVE", PowerState.RUNNING),
        ("reboot", {"type": "Hard"}, "reboot_instance", "ACTIVE", PowerState.RUNNING),
    ]:
        assert act(ready, uuid, action, value, token=MEMBER).status_code == 202
        assert ready.agent.messages[-1] == (method, uuid)
        shown = ready.compute("GET", f"/servers/{uuid}", token=MEMBER).json["server"]
        assert (shown["status"], shown["OS-EXT-STS:power_state"]) == (state, power)


def assert_nothing_but_deletion_may_be_asked(ready: World, uuid: str, reason: str) -> None:
    for action, value in [
        ("os-stop", None),
        ("reboot", {"type": "HARD"}),
        ("rebuild", {"imageRef": ready.add_image()}),
    ]:
        answer = act(ready, uuid, action, value)
        assert answer.status_code == 409
        assert reason in said(answer)
    assert ready.compute("DELETE", f"/servers/{uuid}").status_code == 204


def test_while_something_is_done_nothing_else_but_deletion_may_be_asked(ready: World) -> None:
    ready.agent.finish = False
    uuid = ready.add_server()
    assert ready.compute("GET", f"/servers/{uuid}").json["server"]["status"] == "BUILD"
    assert_nothing_but_deletion_may_be_asked(ready, uuid, "while it is building and scheduling is under way")
    assert ready.agent.messages[-1] == ("delete_instance", uuid)


def test_a_server_that_its_host_could_not_start_can_only_be_deleted(ready: World) -> None:
    ready.agent.finish = False
    uuid = ready.add_server()
    with ready.db.write() as tx:
        taken = instance_rows.get(tx, uuid)
        assert taken is not None
        failed = {"task_state": None, "vm_state": VMState.ERROR}
        assert instance_rows.swap(tx, taken, expect_task=TaskState.SCHEDULING, **failed)
    assert_nothing_but_deletion_may_be_asked(ready, uuid, "it has never run; delete it")


def test_of_two_who_stop_a_server_at_once_one_is_told_that_it_is_under_way(ready: World) -> None:
    uuid = ready.add_server()
    ready.agent.finish = False
    start, found = threading.Barrier(2), []

    def stop() -> None:
        start.wait()
        found.append(act(ready, uuid, "os-stop").status_code)

    threads = [threading.Thread(target=stop) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [202, 409]
    assert asked(ready).count("stop_instance") == 1


@pytest.mark.parametrize(
    ("action", "value"), [("os-stop", None), ("reboot", {"type": "HARD"}), ("rebuild", None), ("delete", None)]
)
def test_what_nobody_takes_over_is_not_begun(ready: World, action: str, value: Any) -> None:
    uuid, image = ready.add_server(), ready.add_image("new")
    before = ready.server(uuid)
    assert before is not None
    ready.casts.room = 0
    if action == "delete":
        answer = ready.compute("DELETE", f"/servers/{uuid}")
    elif action == "rebuild":
        answer = act(ready, uuid, "rebuild", {"imageRef": image, "name": "new", "metadata": {"new": "yes"}})
    else:
        answer = act(ready, uuid, action, value)
    assert answer.status_code == 503
    after = ready.server(uuid)
    assert after is not None
    assert (after.task_state, after.rebuild, after.name, after.metadata) == (None, None, before.name, before.metadata)
    assert after.vm_state is before.vm_state


def test_an_agent_that_is_too_old_is_not_asked_and_only_the_log_says_which(
    ready: World, caplog: pytest.LogCaptureFixture
) -> None:
    uuid = ready.add_server(token=MEMBER)
    ready.agent_server.version = "1.1"
    answer = act(ready, uuid, "os-stop", token=MEMBER)
    assert answer.status_code == 409
    assert "cannot be asked" in said(answer)
    assert HOST not in answer.text
    assert f"{HOST} speaks RPC 1.1, not 1.2: upgrade it" in caplog.text
    kept = ready.server(uuid)
    assert kept is not None
    assert kept.task_state is None


def test_a_rebuild_names_the_new_image_and_keeps_the_flavor(ready: World) -> None:
    uuid, image = ready.add_server(), ready.add_image("new", os_type="linux")
    ready.agent.finish = False
    wanted = {"imageRef": image, "metadata": {"k": "v"}, "preserve_ephemeral": False}
    answer = act(ready, uuid, "rebuild", wanted)
    assert answer.status_code == 202
    shown = answer.json["server"]
    assert (shown["id"], shown["status"], shown["metadata"]) == (uuid, "REBUILD", {"k": "v"})
    kept = ready.server(uuid)
    assert kept is not None
    assert (kept.task_state, kept.metadata) == (TaskState.REBUILDING, {"k": "v"})
    wanted = {"image_uuid": image, "image": {"name": "new", "properties": {"os_type": "linux"}}}
    assert kept.rebuild == {**wanted, "checked": True}
    assert asked(ready)[-1] == "rebuild_instance"
    assert ready.compute("GET", f"/servers/{uuid}").json["server"]["status"] == "REBUILD"


def test_a_server_in_error_is_shown_as_being_rebuilt_while_it_is(ready: World) -> None:
    """A client that waits for the end of the rebuild stops at the first ERROR that it is shown."""
    uuid, image = ready.add_server(), ready.add_image("new")
    kept = ready.server(uuid)
    assert kept is not None
    with ready.db.write() as tx:
        instance_rows.swap(tx, kept, expect_task=None, vm_state=VMState.ERROR)
    ready.agent.finish = False
    answer = act(ready, uuid, "rebuild", {"imageRef": image})
    assert answer.json["server"]["status"] == "REBUILD"
    assert [each["id"] for each in ready.compute("GET", "/servers?status=REBUILD").json["servers"]] == [uuid]
    assert ready.compute("GET", "/servers?status=ERROR").json["servers"] == []


def test_a_rebuild_that_the_flavor_forbids_is_400_and_not_begun(ready: World) -> None:
    uuid, image = (
        ready.add_server(flavorRef=forbidding(ready)),
        ready.add_image("new", **{"trait:CUSTOM_X": "required"}),
    )
    answer = act(ready, uuid, "rebuild", {"imageRef": image})
    assert answer.status_code == 400
    assert "CUSTOM_X" in said(answer)
    assert asked(ready) == ["build_instance"]
    kept = ready.server(uuid)
    assert kept is not None
    assert kept.task_state is None


def test_a_rebuild_that_its_host_cannot_satisfy_leaves_the_server_as_it_is_with_a_fault(ready: World) -> None:
    ready.ports.placement.ensure_traits(["CUSTOM_X"])
    uuid, image = ready.add_server(), ready.add_image("new", **{"trait:CUSTOM_X": "required"})
    assert act(ready, uuid, "rebuild", {"imageRef": image}).status_code == 202
    shown = ready.compute("GET", f"/servers/{uuid}").json["server"]
    assert (shown["status"], shown["image"]["id"] == image) == ("ACTIVE", False)
    assert "CUSTOM_X" in shown["fault"]["message"]


def test_a_server_is_rebuilt_as_often_as_it_is_asked_for(ready: World) -> None:
    uuid = ready.add_server()
    for name in ("second", "third"):
        image = ready.add_image(name)
        assert act(ready, uuid, "rebuild", {"imageRef": image}).status_code == 202
        shown = ready.compute("GET", f"/servers/{uuid}").json["server"]
        assert (shown["status"], shown["image"]["id"]) == ("ACTIVE", image)


def test_a_server_that_found_no_host_can_only_be_deleted(world: World) -> None:
    uuid = world.add_server()
    assert world.compute("GET", f"/servers/{uuid}").json["server"]["status"] == "ERROR"
    answer = act(world, uuid, "reboot", {"type": "SOFT"})
    assert answer.status_code == 409
    assert "on no host" in said(answer)
    assert world.compute("DELETE", f"/servers/{uuid}").status_code == 204
    assert world.compute("GET", f"/servers/{uuid}").status_code == 404


def test_a_deletion_that_is_asked_for_again_is_handed_over_again(ready: World) -> None:
    uuid = ready.add_server()
    ready.agent.finish = False
    for _ in range(2):
        assert ready.compute("DELETE", f"/servers/{uuid}").status_code == 204
    assert asked(ready)[-2:] == ["delete_instance"] * 2
    kept = ready.server(uuid)
    assert kept is not None
    assert kept.task_state is TaskState.DELETING


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"pause": None}, "does not implement"),
        ({"resize": {"flavorRef": "1"}}, "does not implement"),
        ({"fly": None}, "fly"),
        ({"os-start": None, "os-stop": None}, "too many"),
        ({}, "non-empty"),
        ({"reboot": {"type": "WARM"}}, "SOFT or HARD"),
        ({"rebuild": {"imageRef": ""}}, "uuid"),
        ({"rebuild": {"imageRef": SOME_UUID, "adminPass": "x"}}, "nothing is put into guests"),
        ({"rebuild": {"imageRef": SOME_UUID, "preserve_ephemeral": True}}, "must be false"),
    ],
    ids=str,
)
def test_an_action_that_is_none_is_400(ready: World, body: Any, named: str) -> None:
    answer = ready.compute("POST", f"/servers/{ready.add_server()}/action", body)
    assert answer.status_code == 400
    assert named in said(answer)


def test_metadata_is_added_replaced_and_deleted_one_by_one(ready: World) -> None:
    uuid = ready.add_server(metadata={"a": "1"})
    path = f"/servers/{uuid}/metadata"
    assert ready.compute("POST", path, {"metadata": {"b": "2"}}).json == {"metadata": {"a": "1", "b": "2"}}
    assert ready.compute("PUT", f"{path}/b", {"meta": {"b": "3"}}).json == {"meta": {"b": "3"}}
    assert ready.compute("GET", f"{path}/b").json == {"meta": {"b": "3"}}
    assert ready.compute("PUT", f"{path}/b", {"meta": {"c": "3"}}).status_code == 400
    assert ready.compute("DELETE", f"{path}/a").status_code == 204
    assert ready.compute("DELETE", f"{path}/a").status_code == 404
    assert ready.compute("GET", path).json == {"metadata": {"b": "3"}}
    assert ready.compute("PUT", path, {"metadata": {}}).json == {"metadata": {}}
    assert ready.compute("DELETE", f"{path}/b").status_code == 404
    too_many = {f"k{number}": "v" for number in range(129)}
    assert ready.compute("PUT", path, {"metadata": too_many}).status_code == 400


def test_tags_are_given_replaced_taken_and_found(ready: World) -> None:
    flavor, image = ready.add_flavor(), ready.add_image()
    a = ready.add_server("a", flavorRef=flavor, imageRef=image, tags=["x"])
    b = ready.add_server("b", flavorRef=flavor, imageRef=image)
    assert ready.compute("PUT", f"/servers/{b}/tags", {"tags": ["x", "ü"]}).json == {"tags": ["x", "ü"]}
    made = ready.compute("PUT", f"/servers/{a}/tags/z 1")
    assert (made.status_code, made.headers["location"].endswith(f"/servers/{a}/tags/z%201")) == (201, True)
    assert ready.compute("PUT", f"/servers/{a}/tags/z 1").status_code == 204
    assert ready.compute("GET", f"/servers/{a}/tags").json == {"tags": ["x", "z 1"]}
    for query, found in [
        ("tags=x", "ba"),
        ("tags=x,ü", "b"),
        ("tags=X", ""),
        ("tags-any=ü,z 1", "ba"),
        ("not-tags=x,ü", "a"),
        ("not-tags-any=ü", "a"),
    ]:
        names = [one["name"] for one in ready.compute("GET", f"/servers?{query}").json["servers"]]
        assert "".join(names) == found, query
    assert [ready.compute("GET", f"/servers/{a}/tags/{tag}").status_code for tag in ("x", "y")] == [204, 404]
    assert [ready.compute("DELETE", f"/servers/{a}/tags/x").status_code for _ in range(2)] == [204, 404]
    assert ready.compute("DELETE", f"/servers/{b}/tags").status_code == 204
    assert ready.compute("GET", f"/servers/{b}").json["server"]["tags"] == []


def test_tags_that_cannot_be_are_400(ready: World) -> None:
    server = ready.add_server(tags=[f"t{number}" for number in range(50)])
    assert ready.compute("PUT", f"/servers/{server}/tags/t7").status_code == 204
    for path, body, said_of_it in [
        ("tags/a,b", None, "a comma"),
        (f"tags/{'t' * 61}", None, "1 to 60"),
        ("tags/one more", None, "50 is the most"),
        ("tags", {"tags": ["t", "t"]}, "different"),
    ]:
        answer = ready.compute("PUT", f"/servers/{server}/{path}", body)
        assert (answer.status_code, said_of_it in said(answer)) == (400, True), answer.text


# the hosts


def test_a_host_whose_agent_is_silent_is_down_and_its_servers_say_that_it_is_unknown(ready: World) -> None:
    uuid = ready.add_server()
    with ready.db.write() as tx:
        tx.exec_driver_sql("UPDATE agents SET last_seen = '2020-01-01 00:00:00.000000'")
    [service] = ready.compute("GET", "/os-services").json["services"]
    assert (service["state"], service["status"]) == ("down", "enabled")
    assert ready.compute("GET", f"/servers/{uuid}").json["server"]["host_status"] == "UNKNOWN"
    assert ready.compute("GET", "/os-hypervisors").json["hypervisors"][0]["state"] == "down"
    ready.compute("PUT", f"/os-services/{service['id']}", {"forced_down": True})
    assert ready.compute("GET", f"/servers/{uuid}").json["server"]["host_status"] == "DOWN"


def test_hypervisors_are_filtered_paged_and_tell_of_their_servers(ready: World) -> None:
    uuid = ready.add_server()
    made = [ready.add_host(name) for name in ("h2", "h3")]
    found = ready.compute("GET", "/os-hypervisors?with_servers=true&hypervisor_hostname_pattern=compute").json
    assert [one["servers"] for one in found["hypervisors"]] == [[{"uuid": uuid, "name": "vm1"}]]
    found = ready.compute("GET", f"/os-hypervisors/detail?marker={made[0].uuid}").json["hypervisors"]
    assert [one["id"] for one in found] == [made[1].uuid]
    page = ready.compute("GET", "/os-hypervisors?limit=1").json
    assert page["hypervisors"][0]["hypervisor_hostname"] == HOST
    [link] = page["hypervisors_links"]
    following = ready.compute("GET", link["href"].partition("/compute/v2.1")[2]).json["hypervisors"]
    assert [one["hypervisor_hostname"] for one in following] == ["h2"]
    assert ready.compute("GET", "/os-hypervisors?marker=nobody").status_code == 400
    assert ready.compute("GET", f"/os-hypervisors/{HOST}").status_code == 404


def test_moments_have_no_zone_where_clients_of_nova_take_none(ready: World) -> None:
    uuid = ready.add_server()
    launched = ready.compute("GET", f"/servers/{uuid}").json["server"]["OS-SRV-USG:launched_at"]
    [service] = ready.compute("GET", "/os-services").json["services"]
    [zone] = ready.compute("GET", "/os-availability-zone/detail").json["availabilityZoneInfo"]
    for moment in (launched, service["updated_at"], zone["hosts"][HOST]["nova-compute"]["updated_at"]):
        assert datetime.strptime(moment, "%Y-%m-%dT%H:%M:%S.%f")


def test_a_reason_without_disabling_is_400(ready: World) -> None:
    [service] = ready.compute("GET", "/os-services?binary=nova-compute").json["services"]
    assert ready.compute("GET", "/os-services?binary=nova-conductor").json["services"] == []
    answer = ready.compute("PUT", f"/os-services/{service['id']}", {"disabled_reason": "r"})
    assert answer.status_code == 400
    assert ready.compute("PUT", f"/os-services/{new_uuid()}", {"status": "enabled"}).status_code == 404
