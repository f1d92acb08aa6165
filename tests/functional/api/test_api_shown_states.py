"""What is not to be had is nowhere called available: APIs, filters, errors, metrics."""

from typing import Any

import pytest
from api_world import HOST, World, fault

from autoclave.rules.device_lifecycle import DeviceState

OF_DRIVES = 'reclaim="erase",requested_by="profile"'
WITHHELD: list[tuple[dict[str, Any], str, tuple[str, str], str]] = [
    ({"excluded_reason": "it cannot sanitize"}, "excluded", ("enabled", "excluded"), "it cannot sanitize"),
    ({"unreadable_reason": "no driver has it"}, "unreadable", ("enabled", "unreadable"), "no driver has it"),
    ({"outdated": True, "waiting_for": "Its entry changed."}, "outdated", ("enabled", "outdated"), "Its entry changed"),
    ({"held": True, "hold_reason": "noisy fan"}, "held", ("enabled", "held"), "noisy fan"),
    ({"forgetting": True}, "held", ("enabled", "held"), "being forgotten"),
    ({"missing": True}, "missing", ("enabled", "missing"), "No driver"),
    ({"host_maintained": True}, "maintaining", ("maintaining", "available"), "host resume"),
    ({"status": "maintaining"}, "maintaining", ("maintaining", "available"), "accelerator device enable"),
]


@pytest.mark.parametrize(("changes", "shown", "accelerator", "why"), WITHHELD)
def test_withheld_device_is_not_called_available(
    world: World, changes: dict[str, Any], shown: str, accelerator: tuple[str, str], why: str
) -> None:
    offered = world.add_device("0000:01:00.0")
    device = world.add_device("0000:02:00.0", **changes)

    def listed(path: str) -> list[str]:
        return [each["uuid"] for each in next(iter(world.call("GET", path).json.values()))]

    answer = world.call("GET", f"/v2/devices/{device.uuid}").json
    assert (answer["status"], answer["device_state"]) == accelerator
    assert listed("/v2/devices?filters.field=availability&filters.value=available") == [offered.uuid]
    assert listed(f"/v2/devices?filters.field=availability&filters.value={shown}") == [device.uuid]
    assert listed("/v2/deployables?filters.field=availability&filters.value=available") == [
        world.provider(offered).uuid
    ]
    assert world.call("GET", f"/autoclave/v1/devices/{device.uuid}").json["device_state"] == shown
    assert listed("/autoclave/v1/devices?device_state=available") == [offered.uuid]
    assert listed(f"/autoclave/v1/devices?device_state={shown}") == [device.uuid]

    lines = world.call("GET", "/metrics").text.splitlines()
    for state in ("available", shown):
        assert f'autoclave_devices{{host="{HOST}",{OF_DRIVES},state="{state}",type="NVME"}} 1.0' in lines


@pytest.mark.parametrize(("changes", "shown", "accelerator", "why"), WITHHELD)
def test_refusals_name_what_withholds_a_device(
    world: World, changes: dict[str, Any], shown: str, accelerator: tuple[str, str], why: str
) -> None:
    device = world.add_device(**changes)
    cleaned = world.call("POST", f"/v2/devices/{device.uuid}/clean")
    accepted = world.call("POST", f"/autoclave/v1/devices/{device.uuid}/accept", {})
    for refused in (cleaned, accepted):
        assert refused.status_code == 409
        assert f"is {shown}" in fault(refused)
        assert "available" not in fault(refused)
    assert why in fault(cleaned)


@pytest.mark.parametrize("state", [state for state in DeviceState if state is not DeviceState.AVAILABLE])
def test_device_at_work_keeps_its_state_though_withheld(world: World, state: DeviceState) -> None:
    device = world.add_device(device_state=state, held=True, missing=True, excluded_reason="no erase")
    of_clients = DeviceState.ERROR if state is DeviceState.SPENT else state
    assert world.call("GET", f"/v2/devices/{device.uuid}").json["device_state"] == of_clients.value
    assert world.call("GET", f"/autoclave/v1/devices/{device.uuid}").json["device_state"] == state.value
