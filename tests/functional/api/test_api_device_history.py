"""The history of a device says whose instance had it; that of a drive, in which slots it was."""

import json
from typing import Any

import pytest
from api_world import World, fault, new_uuid

from autoclave.cli.main import main
from autoclave.db import devices as device_rows
from autoclave.drivers.base import AttachHandle
from autoclave.lifecycle.attach_handles import insert_handle
from autoclave.rules.device_lifecycle import DeviceState

PATH = "/autoclave/v1/devices"


def history(world: World, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = world.call("GET", f"{PATH}/{name}/history").json["events"]
    return found


def tenants(lines: list[dict[str, Any]]) -> list[tuple[str, str | None, str | None, str | None]]:
    return [(line["event"], line["instance_uuid"], line["project_id"], line["user_id"]) for line in lines]


def test_bind_and_unbind_name_instance_project_and_user(world: World) -> None:
    device = world.add_device()
    world.add_profile()
    instance = new_uuid()
    arq = world.add_arq(token="ann:finance")
    assert world.bind(arq, device, instance, token="ann:finance").status_code == 202
    assert world.call("DELETE", f"/v2/accelerator_requests?arqs={arq}", token="ann:finance").status_code == 204

    lines = [line for line in history(world, device.uuid) if line["event"] in ("bind", "unbind")]
    assert tenants(lines) == [(event, instance, "finance", "ann") for event in ("bind", "unbind")]
    assert [line["reason"] for line in lines] == [
        f"{what} instance {instance} of project finance, by user ann" for what in ("bound to", "returned by")
    ]


def test_each_handle_of_a_card_is_bound_with_a_line(world: World) -> None:
    """A device with several handles is allocated by the last; each of them has a tenant."""
    device = world.add_device(kind="PCI")
    with world.db.write() as tx:
        [deployable] = device_rows.deployables_of(tx, [device.id])
        where = {"domain": "0000", "bus": "01", "device": "00", "function": "1"}
        insert_handle(tx, deployable.id, AttachHandle("PCI", where, "0000:01:00.1"))
        device_rows.set_accelerators(tx, deployable, 2)
    world.add_profile()
    instances = [new_uuid(), new_uuid()]
    for instance in instances:
        assert world.bind(world.add_arq(), device, instance).status_code == 202
    lines = [line for line in history(world, device.uuid) if line["event"] == "bind"]
    assert [line["instance_uuid"] for line in lines] == instances
    assert [line["to_state"] for line in lines] == ["available", "allocated"]


def test_who_is_no_administrator_reads_no_history(world: World) -> None:
    device = world.add_device()
    assert world.call("GET", f"{PATH}/{device.uuid}/history", token="ann:finance:member").status_code == 403


def test_drive_has_a_history_over_all_its_slots(world: World) -> None:
    device = world.add_device("0000:01:00.0", missing=True)
    serial = device.serial
    assert world.call("POST", f"{PATH}/{device.uuid}/forget", {"reason": "moved"}).status_code == 200
    moved = world.add_device("0000:02:00.0", serial=serial)
    world.add_device("0000:03:00.0")
    lines = history(world, str(serial))
    assert {line["device_uuid"] for line in lines} == {device.uuid, moved.uuid}
    assert {line["serial"] for line in lines} == {serial}
    assert "forget" in [line["event"] for line in lines]

    unknown = world.call("GET", f"{PATH}/NEVER-SEEN/history")
    assert unknown.status_code == 404
    assert "serial number" in fault(unknown)


def test_command_shows_the_tenants_of_a_drive(world: World, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    device = world.add_device()
    world.add_profile()
    instance = new_uuid()
    world.bind(world.add_arq(), device, instance)
    assert main(["device", "history", str(device.serial), "--long", "-f", "json", "--url", url]) == 0
    [bound] = [line for line in json.loads(capsys.readouterr().out) if line["event"] == "bind"]
    assert (bound["instance_uuid"], bound["user_id"]) == (instance, "admin")
    assert world.device(device.uuid).device_state is DeviceState.ALLOCATED
