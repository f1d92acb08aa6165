"""/autoclave/v1/hosts: a host goes into maintenance by one request, and every view shows it."""

import json

import pytest
from api_world import HOST, World, fault, new_uuid

from autoclave.cli.main import main
from autoclave.db import history as events
from autoclave.lifecycle.maintenance import follow_hosts
from autoclave.lifecycle.reserve import Withdrawals
from autoclave.lifecycle.sweep import pay_debts
from autoclave.lifecycle.transitions import Cause
from autoclave.rules.device_lifecycle import Actor, DeviceState
from autoclave.testing.placement import faults as effects

PATH = f"/autoclave/v1/hosts/{HOST}"


def maintain(world: World, status: int = 200) -> None:
    answer = world.call("POST", f"{PATH}/maintenance", {"reason": "new cables"})
    assert answer.status_code == status, answer.text


def resume(world: World, status: int = 200) -> None:
    answer = world.call("POST", f"{PATH}/resume", {})
    assert answer.status_code == status, answer.text


def waiting(world: World, uuid: str) -> str:
    return str(world.call("GET", f"/autoclave/v1/devices/{uuid}").json["waiting_for"])


def test_host_in_maintenance_offers_no_device_until_resumed(ready: World) -> None:
    """One request reserves every device of the host, of no other host, and the end of it offers them again."""
    own = [ready.add_device("0000:01:00.0"), ready.add_device("0000:02:00.0", kind="GPU")]
    other = ready.add_device("0000:01:00.0", host="compute-2", serial="S-2")
    maintain(ready)
    assert [ready.reserved(device) for device in [*own, other]] == [1, 1, 0]
    shown = ready.call("GET", PATH).json
    assert (shown["in_maintenance"], shown["reason"], shown["devices_offered"]) == (True, "new cables", 0)
    assert f"autoclave host resume {HOST}" in waiting(ready, own[0].uuid)
    resume(ready)
    assert [ready.reserved(device) for device in own] == [0, 0]
    assert waiting(ready, own[0].uuid) == "None"
    with ready.db.read() as tx:
        history = [line.event for line in events.history(tx, own[0].uuid)]
    assert history[-2:] == ["host_maintenance", "host_resumed"]


def test_maintenance_is_seen_by_clients_of_nova_and_cyborg(ready: World) -> None:
    """The compute service and the hypervisor read disabled with the reason, and the accelerator maintaining."""
    device = ready.add_device()
    maintain(ready)
    [service] = ready.compute("GET", "/os-services").json["services"]
    assert (service["status"], service["disabled_reason"]) == ("disabled", "in maintenance: new cables")
    [hypervisor] = ready.compute("GET", "/os-hypervisors").json["hypervisors"]
    assert hypervisor["status"] == "disabled"
    assert ready.call("GET", f"/v2/devices/{device.uuid}").json["status"] == "maintaining"
    resume(ready)
    [service] = ready.compute("GET", "/os-services").json["services"]
    assert (service["status"], service["disabled_reason"]) == ("enabled", None)
    assert ready.call("GET", f"/v2/devices/{device.uuid}").json["status"] == "enabled"


def test_host_in_maintenance_gets_no_new_server(ready: World) -> None:
    """The scheduler skips the host; a server that it has stays active."""
    kept = ready.add_server("kept")
    maintain(ready)
    refused = ready.add_server("refused")
    found = ready.server(refused)
    assert found is not None
    assert found.vm_state.value == "error"
    before = ready.server(kept)
    assert before is not None
    assert before.vm_state.value != "error"


def test_bound_device_stays_bound_during_maintenance(ready: World) -> None:
    """Maintenance ends no bind; a new bind of another device is refused and names the maintenance."""
    first, second = ready.add_device("0000:01:00.0"), ready.add_device("0000:02:00.0")
    ready.add_profile()
    arq, late = ready.add_arq(), ready.add_arq()
    ready.bind(arq, first, new_uuid())
    maintain(ready)
    assert ready.device(first.uuid).device_state is DeviceState.ALLOCATED
    assert ready.bind(late, second, new_uuid()).status_code == 409
    assert ready.device(second.uuid).device_state is DeviceState.AVAILABLE


def test_end_of_maintenance_keeps_hold_and_disable(ready: World) -> None:
    """A held and a disabled device stay reserved when the maintenance of their host ends."""
    held, disabled = ready.add_device("0000:01:00.0"), ready.add_device("0000:02:00.0")
    ready.call("POST", f"/autoclave/v1/devices/{held.uuid}/hold", {"reason": "bad fan"})
    ready.call("POST", f"/v2/devices/{disabled.uuid}/disable")
    maintain(ready)
    resume(ready)
    assert [ready.reserved(held), ready.reserved(disabled)] == [1, 1]


def test_device_found_during_maintenance_is_not_offered(ready: World) -> None:
    """A drive that is plugged in while its host is in maintenance follows its host."""
    ready.add_device("0000:01:00.0")
    maintain(ready)
    found = ready.add_device("0000:02:00.0")
    assert ready.reserved(found) == 1
    resume(ready)
    assert ready.reserved(found) == 0


def test_device_that_missed_its_host_is_mended_by_a_sweep(ready: World) -> None:
    """Discovery and maintenance that do not see each other leave a device without the flag until the next sweep."""
    device = ready.add_device()
    maintain(ready)
    ready.change(device.uuid, host_maintained=False, release_pending=True)
    pay_debts(ready.ports)
    assert ready.reserved(device) == 0
    follow_hosts(ready.ports, Cause(Actor.CONDUCTOR, "conductor-1"))
    assert ready.reserved(device) == 1


def test_placement_away_at_maintenance_is_reconciled_later(ready: World) -> None:
    """Both words are recorded with 202; any conductor raises, or lowers, what Placement did not hear of."""
    device = ready.add_device()
    ready.placement.add(effects.refuse)
    maintain(ready, 202)
    ready.placement.clear()
    Withdrawals(ready.ports).tell()
    assert ready.reserved(device) == 1
    ready.placement.add(effects.refuse)
    resume(ready, 202)
    ready.placement.clear()
    pay_debts(ready.ports)
    assert ready.reserved(device) == 0


def test_maintenance_of_unknown_or_idle_host_is_refused(ready: World) -> None:
    """The refusals name the host and the command that lists hosts."""
    for action in ("maintenance", "resume"):
        unknown = ready.call("POST", f"/autoclave/v1/hosts/nowhere/{action}", {"reason": "x"})
        assert unknown.status_code == 404
        assert "autoclave host list" in fault(unknown)
    idle = ready.call("POST", f"{PATH}/resume", {})
    assert idle.status_code == 409
    assert "not in maintenance" in fault(idle)


def test_disabled_compute_service_shows_in_its_devices(ready: World) -> None:
    """``openstack compute service set --disable`` shows in what each device of the host waits for."""
    device = ready.add_device()
    [service] = ready.compute("GET", "/os-services").json["services"]
    change = {"status": "disabled", "disabled_reason": "sold"}
    assert ready.compute("PUT", f"/os-services/{service['id']}", change).status_code == 200
    assert "disabled (sold)" in waiting(ready, device.uuid)


def test_host_commands_say_what_happened(ready: World, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``autoclave host`` lists, shows, and moves a host into maintenance and out of it."""
    ready.add_device()
    assert main(["host", "maintenance", HOST, "--reason", "new cables", "--url", url]) == 0
    assert f"{HOST}: in maintenance" in capsys.readouterr().out
    assert main(["host", "list", "--url", url, "-f", "json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row["hostname"], row["in_maintenance"], row["reason"]) == (HOST, True, "new cables")
    assert main(["host", "resume", HOST, "--url", url]) == 0
    assert f"{HOST}: out of maintenance" in capsys.readouterr().out
    assert main(["host", "show", HOST, "--url", url, "-f", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["in_maintenance"] is False
