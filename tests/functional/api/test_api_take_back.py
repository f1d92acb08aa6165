"""A device whose instance another service has forgotten comes back: by a late DELETE, or by an operator's command."""

import pytest
from api_world import HOST, World, said

from autoclave.cli.main import main
from autoclave.conductor.manager import ConductorManager
from autoclave.db import arqs as arq_rows
from autoclave.db import devices as device_rows
from autoclave.db import history as events
from autoclave.db.columns import utcnow
from autoclave.db.tables import arqs, devices
from autoclave.lifecycle.guests_seen import UNSEEN
from autoclave.rules.device_lifecycle import ARQState, DeviceState
from dbfixtures import make_arq

INSTANCE = "11111111-2222-4333-8444-555555555555"
PATH = "/v2/accelerator_requests"
OURS = "/autoclave/v1/devices"


@pytest.fixture
def held(world: World) -> World:
    """A drive is bound to an instance of another service."""
    world.add_profile()
    [device] = [world.add_device()]
    assert world.bind(world.add_arq(), device, INSTANCE).status_code == 202
    return world


def states(world: World) -> list[ARQState]:
    with world.db.read() as tx:
        return [arq.state for arq in arq_rows.of_instance(tx, INSTANCE)]


def the_device(world: World) -> dict[str, object]:
    [device] = world.call("GET", OURS).json["devices"]
    return dict(device)


@pytest.mark.parametrize("by_instance", [True, False])
def test_a_deletion_without_a_conductor_is_done_later(held: World, by_instance: bool) -> None:
    """It is recorded when it is answered; the next sweep of any conductor carries it out."""
    with held.db.read() as tx:
        [arq] = arq_rows.of_instance(tx, INSTANCE)
    held.conductor.stop()
    held.conductor.wait()

    query = f"instance={INSTANCE}" if by_instance else f"arqs={arq.uuid}"
    assert held.call("DELETE", f"{PATH}?{query}").status_code == 204
    assert states(held) == [ARQState.DELETING]
    assert held.reserved(held.device(str(the_device(held)["uuid"]))) == 1

    ConductorManager(held.ports, "conductor-2", 240).sweep()
    assert states(held) == []
    assert the_device(held)["arqs"] == []


def test_an_unfinished_bind_is_recorded_and_not_answered(held: World) -> None:
    """Nothing says yet that reserved=total stands, so the caller must keep its allocation."""
    with held.db.write() as tx:
        [arq] = arq_rows.of_instance(tx, INSTANCE)
        arq_rows.swap(tx, arq.uuid, [ARQState.BOUND], ARQState.BIND_STARTED)
    held.conductor.stop()
    held.conductor.wait()

    assert held.call("DELETE", f"{PATH}?arqs={arq.uuid}").status_code in (503, 504)
    assert states(held) == [ARQState.DELETING]


def test_an_operator_takes_a_device_back(held: World) -> None:
    uuid = the_device(held)["uuid"]
    answer = held.call("POST", f"{OURS}/{uuid}/take-back", {"reason": "its server is gone"}, token="ann:ops")

    assert answer.status_code == 200
    assert states(held) == []
    with held.db.read() as tx:
        told = [(each.event, each.reason) for each in events.history(tx, str(uuid))]
    assert ("take_back", "its server is gone") in told
    again = held.call("POST", f"{OURS}/{uuid}/take-back", {})
    assert again.status_code == 409
    assert "no accelerator request" in said(again)


def test_a_device_being_bound_is_not_taken_back(held: World) -> None:
    with held.db.write() as tx:
        [arq] = arq_rows.of_instance(tx, INSTANCE)
        arq_rows.swap(tx, arq.uuid, [ARQState.BOUND], ARQState.BIND_STARTED)
    answer = held.call("POST", f"{OURS}/{HOST}/{the_device(held)['pci_address']}/take-back", {})
    assert answer.status_code == 409
    assert states(held) == [ARQState.BIND_STARTED]


def test_a_device_in_error_is_taken_back_and_stays_in_error(held: World) -> None:
    """As an audit advises for a request whose device was made available by hand and then put into error."""
    uuid = str(the_device(held)["uuid"])
    with held.db.write() as tx:
        tx.execute(devices.update().where(devices.c.uuid == uuid).values(device_state=DeviceState.ERROR))
    assert held.call("POST", f"{OURS}/{uuid}/take-back", {}).status_code == 200
    assert states(held) == []
    assert the_device(held)["device_state"] == "error"


def history(world: World) -> list[str]:
    with world.db.read() as tx:
        return [each.event for each in events.history(tx, str(the_device(world)["uuid"]))]


def test_a_device_that_a_guest_has_is_not_taken_back(held: World) -> None:
    """It was accepted, and the device ended in error, as the agent cleans nothing that a guest has."""
    held.see_agent()
    held.agent.users = ["domain instance-00000001 (1-2-3), which is off"]
    path, before = f"{OURS}/{the_device(held)['uuid']}/take-back", history(held)
    answer = held.call("POST", path, {})
    assert answer.status_code == 409
    assert "domain instance-00000001 (1-2-3), which is off. End and undefine that guest" in said(answer)
    assert (states(held), history(held)) == ([ARQState.BOUND], before)
    held.agent.users = []
    assert held.call("POST", path, {}).status_code == 200
    assert states(held) == []


def test_a_device_whose_agent_cannot_tell_is_taken_back(held: World) -> None:
    """The agent was never seen, so it is not asked; the operator's word counts."""
    held.agent.users = ["domain instance-00000001 (1-2-3), which runs"]
    assert held.call("POST", f"{OURS}/{the_device(held)['uuid']}/take-back", {}).status_code == 200
    assert states(held) == []


def test_a_device_that_is_not_in_its_slot_is_taken_back(held: World) -> None:
    held.see_agent()
    held.agent.users = [f"{UNSEEN}: there is no such function"]
    assert held.call("POST", f"{OURS}/{the_device(held)['uuid']}/take-back", {}).status_code == 200
    assert states(held) == []


def test_an_orphaned_device_waits_with_the_command(held: World) -> None:
    """What a conductor has found out stands in the list until the device was taken back."""
    uuid = str(the_device(held)["uuid"])
    with held.db.write() as tx:
        tx.execute(arqs.update().values(orphan_since=utcnow(), orphan_reason="its agent is away"))
    waits = str(the_device(held)["waiting_for"])
    assert f"Its server {INSTANCE} looks deleted" in waits
    assert "its agent is away" in waits
    assert f"`autoclave device take-back {HOST}/{the_device(held)['pci_address']}`" in waits
    assert held.call("POST", f"{OURS}/{uuid}/take-back", {}).status_code == 200
    assert the_device(held)["waiting_for"] is None


def test_of_several_servers_with_a_device_one_must_be_named(held: World) -> None:
    """The others live: their requests, and what their guests have, stay."""
    uuid = str(the_device(held)["uuid"])
    living = "99999999-2222-4333-8444-555555555555"
    with held.db.write() as tx:
        device = device_rows.get(tx, uuid)
        assert device is not None
        make_arq(tx, state=ARQState.BOUND, device_id=device.id, instance_uuid=living)
        tx.execute(arqs.update().where(arqs.c.instance_uuid == INSTANCE).values(orphan_reason="its agent is away"))
    answer = held.call("POST", f"{OURS}/{uuid}/take-back", {})
    assert answer.status_code == 409
    assert living in said(answer)
    assert INSTANCE in said(answer)
    assert f"--server {INSTANCE}`" in str(the_device(held)["waiting_for"])

    stranger = held.call("POST", f"{OURS}/{uuid}/take-back", {"instance_uuid": str(uuid)})
    assert (stranger.status_code, f"of server {uuid}" in said(stranger)) == (409, True)
    assert held.call("POST", f"{OURS}/{uuid}/take-back", {"instance_uuid": INSTANCE.upper()}).status_code == 200
    assert states(held) == []
    assert [each["instance_uuid"] for each in the_device(held)["arqs"]] == [living]  # type: ignore[attr-defined]


def test_the_command_names_the_server_that_is_gone(held: World, capsys: pytest.CaptureFixture[str]) -> None:
    place = f"{HOST}/{the_device(held)['pci_address']}"
    with held.served() as url:
        assert main(["device", "take-back", place, "--url", url, "--server", INSTANCE, "--reason", "gone"]) == 0
    assert "take-back recorded" in capsys.readouterr().out
    assert states(held) == []
