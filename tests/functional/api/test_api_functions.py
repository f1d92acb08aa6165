"""/autoclave/v1/functions, and the command over it: PCI functions for instances, and what waits until they are free."""

import json
from typing import Any

import pytest
from api_world import HOST, World

from autoclave.cli.main import main
from burnedrows import CLASS, OneTimeUse, describe

PATH = "/autoclave/v1/functions"
GPU = "0000:81:00.0"
WAITS = f"{GPU} stays as it is; [pci] device_spec takes effect later (class CUSTOM_GPU): instance 1 has it"


@pytest.fixture
def devices(world: World) -> OneTimeUse:
    return OneTimeUse(world.db, world.ports.placement, HOST)


@pytest.fixture
def waiting(world: World, devices: OneTimeUse) -> dict[str, Any]:
    """A function that an instance has, and whose entry was changed; as the list is to show it."""
    rp_uuid = devices.add()
    devices.add("0000:82:00.0")
    instance = devices.use(rp_uuid)
    with world.db.write() as tx:
        describe(tx, devices.row(rp_uuid), {"waiting_for": WAITS})
    return {
        "hostname": HOST,
        "pci_address": GPU,
        "dev_type": "type-PCI",
        "vendor_id": "10de",
        "product_id": "25b6",
        "managed": True,
        "rp_uuid": rp_uuid,
        "resource_class": CLASS,
        "traits": ["HW_PCI_ONE_TIME_USE"],
        "one_time_use": True,
        "burned": True,
        "instance_uuid": instance,
        "missing": False,
        "unreadable_reason": None,
        "waiting_for": WAITS,
    }


def test_a_claimed_function_says_what_waits_for_its_end(world: World, waiting: dict[str, Any]) -> None:
    first, second = world.call("GET", PATH).json["functions"]
    assert first == waiting
    assert (second["pci_address"], second["instance_uuid"], second["waiting_for"]) == ("0000:82:00.0", None, None)
    assert world.call("GET", f"{PATH}?hostname=elsewhere").json == {"functions": []}


def test_a_burned_device_in_use_says_what_waits(world: World, waiting: dict[str, Any]) -> None:
    assert world.call("GET", f"/autoclave/v1/burned/{waiting['rp_uuid']}").json["waiting_for"] == f"{WAITS}."


def test_a_function_that_cannot_be_looked_at_says_why(world: World, devices: OneTimeUse) -> None:
    rp_uuid = devices.add()
    devices.use_up(rp_uuid)
    with world.db.write() as tx:
        describe(tx, devices.row(rp_uuid), {"unreadable_reason": "it has no power"})
    [shown] = world.call("GET", PATH).json["functions"]
    assert shown["unreadable_reason"] == "it has no power"
    assert shown["waiting_for"] == "It cannot be looked at: it has no power; see to the cause."
    burned = world.call("GET", f"/autoclave/v1/burned/{rp_uuid}").json
    assert burned["waiting_for"] == (
        "It cannot be looked at: it has no power; see to the cause. Clean it, and release it."
    )
    assert f'autoclave_devices_condition{{condition="unreadable",host="{HOST}"}} 1.0' in (
        world.call("GET", "/metrics").text.splitlines()
    )


def test_a_released_device_says_what_keeps_it_from_being_offered(world: World, devices: OneTimeUse) -> None:
    rp_uuid = devices.add()
    devices.use_up(rp_uuid)
    with world.db.write() as tx:
        describe(tx, devices.row(rp_uuid), {"outdated": True})
    assert world.call("POST", f"/autoclave/v1/burned/{rp_uuid}/release", {}).status_code == 202
    burned = world.call("GET", f"/autoclave/v1/burned/{rp_uuid}").json
    assert burned["waiting_for"] == (
        "It was released: its agent follows the changed [pci] device_spec before it is offered."
    )


def test_the_command_lists_what_waits(
    world: World, waiting: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with world.served() as url:
        assert main(["function", "list", "--waiting", "--long", "-f", "json", "--url", url]) == 0
        assert json.loads(capsys.readouterr().out) == [{**waiting, "state": "in use"}]
        assert main(["function", "list", "--host", "elsewhere", "-f", "json", "--url", url]) == 0
        assert json.loads(capsys.readouterr().out) == []
        assert main(["function", "list", "--url", url]) == 0
    assert "stays as it is" in capsys.readouterr().out


def test_the_command_shows_the_state_of_each_function(
    world: World, waiting: dict[str, Any], devices: OneTimeUse, capsys: pytest.CaptureFixture[str]
) -> None:
    burned = devices.add("0000:83:00.0")
    devices.use_up(burned)
    with world.db.write() as tx:
        describe(tx, devices.row(burned), {"unreadable_reason": "it has no power"})
    with world.served() as url:
        assert main(["function", "list", "-f", "json", "-c", "pci_address", "-c", "state", "--url", url]) == 0
    shown = {each["pci_address"]: each["state"] for each in json.loads(capsys.readouterr().out)}
    assert shown == {waiting["pci_address"]: "in use", "0000:82:00.0": "free", "0000:83:00.0": "burned, unreadable"}
