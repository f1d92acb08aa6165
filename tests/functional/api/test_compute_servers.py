"""Servers: who may ask for one and who sees it, what is refused, and what is true when nobody takes a request over."""

from typing import Any

import pytest
from api_world import HOST, World, new_uuid, said
from server_requests import MEMBER, asked, forbidding

from autoclave.db import instances as instance_rows
from autoclave.db.columns import utcnow
from autoclave.rules.instance_states import VMState
from autoclave.virt.guest import domain_name

pytestmark = pytest.mark.matrix

OTHER = "otto:red:member"


# asking for one


def test_a_server_is_checked_then_kept_then_handed_over(ready: World) -> None:
    uuid = ready.add_server("vm1", metadata={"k": "v"}, description="d", tags=["t"])
    assert asked(ready) == ["build_instance"]
    kept = ready.server(uuid)
    assert kept is not None
    assert (kept.name, kept.metadata, kept.description, kept.tags) == ("vm1", {"k": "v"}, "d", ["t"])
    assert (kept.flavor["name"], kept.image["name"], kept.image["properties"]) == ("flavor-of-vm1", "cirros", {})
    assert (kept.project_id, kept.user_id, kept.requested_host) == ("admin", "admin", None)


def test_tags_of_a_new_server_are_shown_as_they_were_sent(ready: World) -> None:
    """Clients send them; there are no paths that change them."""
    uuid = ready.add_server(tags=["b", "a"])
    assert ready.compute("GET", f"/servers/{uuid}").json["server"]["tags"] == ["b", "a"]
    for method, path in [("GET", "tags"), ("PUT", "tags"), ("PUT", "tags/c"), ("DELETE", "tags/a")]:
        assert ready.compute(method, f"/servers/{uuid}/{path}").status_code == 404


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
    servers = ready.compute("GET", "/servers/detail").json["servers"][::-1]
    assert [(one["name"], one["status"]) for one in servers] == [
        ("vm-1", "ACTIVE"),
        ("vm-2", "ERROR"),
        ("vm-3", "ERROR"),
    ]
    assert servers[0]["id"] == uuid
    assert all("create it again later" in one["fault"]["message"] for one in servers[1:])


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
        ({"name": "  "}, "not only spaces"),
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
    assert "scheduler hints are not supported" in said(answer)
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


@pytest.mark.parametrize("query", ["all_tenants=True", f"host={HOST}", "project_id=red"])
def test_what_only_administrators_may_ask_for_is_403_rather_than_ignored(ready: World, query: str) -> None:
    assert ready.compute("GET", f"/servers/detail?{query}", token=MEMBER).status_code == 403
    assert ready.compute("GET", f"/servers/detail?{query}").status_code == 200
