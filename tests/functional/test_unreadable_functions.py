"""PCI functions for flavors that their agent cannot look at: not offered after a while, and nothing else follows."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hostworld import CARD, GPU, HOST, NIC, NIC_CLASS, PATIENCE, VF_CLASS, VFS, HostWorld
from moments import Death
from test_pci_spec_changes import ONE, allocate, delete_guest, start_guest, whole

from autoclave.agent.compute.claims import ResourceTracker
from autoclave.agent.compute.host import ComputeTree
from autoclave.db import devices as device_rows
from autoclave.db import history
from autoclave.db.columns import utcnow
from autoclave.exceptions import ClaimRefused
from autoclave.placement.records import Inventory
from autoclave.rules.reclaim import BurnState
from burnedrows import OPERATOR, ask_release


class Agent:
    """An agent whose clock can be ahead."""

    def __init__(self, world: HostWorld) -> None:
        self._ahead = 0.0
        clock = lambda: utcnow() + timedelta(seconds=self._ahead)  # noqa: E731
        self._tree: ComputeTree = world.tree(replace(world.ports, clock=clock))
        self._tree.sync(starting=True)
        self._tree.sync()

    def period(self, ahead: float = 0.0) -> None:
        """Look once, so many seconds after the start."""
        self._ahead = ahead
        self._tree.sync()

    def past_the_patience(self) -> None:
        self.period()
        self.period(PATIENCE + 1)


@pytest.fixture
def agent(host_world: HostWorld) -> Agent:
    return Agent(host_world)


def spoil(world: HostWorld, address: str) -> Callable[[], object]:
    """Let the device answer with nothing but ones, and return what ends that."""
    file = world.sim.paths.sysfs / "bus/pci/devices" / address / "vendor"
    before = file.read_text()
    file.write_text("0xffff\n")
    return lambda: file.write_text(before)


def give_back(world: HostWorld, instance: str) -> None:
    """What the agent does at the end of a guest, up to the end of its allocation."""
    tracker = ResourceTracker(world.ports, HOST)
    tracker.settle(instance)
    tracker.withhold(tracker.free(instance))
    world.onlooker.delete_allocations(instance)


def test_a_function_that_stays_unreadable_is_not_offered(
    host_world: HostWorld, agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    mend = spoil(host_world, NIC)
    agent.period()
    agent.period(PATIENCE - 1)
    assert host_world.offered(NIC) == 1
    agent.period(PATIENCE + 1)
    assert host_world.records(NIC) == {NIC_CLASS: whole(1, 1)}
    assert host_world.row(NIC).device.unreadable_reason == (
        f"{NIC} answers with nothing but ones: the device is dead or has no power"
    )
    assert f"{NIC} of {HOST} is not offered until it can be read" in caplog.text
    assert host_world.offered(GPU) == 1
    Agent(host_world)  # another run of the agent cannot read it either
    assert host_world.offered(NIC) == 0
    mend()
    agent.period(PATIENCE + 2)
    assert host_world.records(NIC) == {NIC_CLASS: whole(1)}
    assert (host_world.row(NIC).device.unreadable_reason, host_world.row(NIC).device.withheld) == (None, False)
    with host_world.db.read() as tx:
        assert [each.event for each in history.history(tx, host_world.row(NIC).uuid)][1:] == [
            "unreadable",
            "readable",
        ]


def test_an_unreadable_function_is_never_taken_for_gone(host_world: HostWorld, agent: Agent) -> None:
    uuid = host_world.row(NIC).uuid
    spoil(host_world, NIC)
    agent.past_the_patience()
    agent.period(10 * PATIENCE)
    assert host_world.provider(NIC).uuid == uuid
    assert not host_world.function(NIC).missing


def test_a_function_that_can_be_read_in_between_is_offered(host_world: HostWorld, agent: Agent) -> None:
    mend = spoil(host_world, NIC)
    agent.period()
    mend()
    agent.period(PATIENCE - 1)
    spoil(host_world, NIC)
    agent.period(PATIENCE + 1)
    assert host_world.offered(NIC) == 1


def test_no_function_is_offered_while_the_bus_cannot_be_listed(host_world: HostWorld, agent: Agent) -> None:
    bus: Path = host_world.sim.paths.sysfs / "bus/pci/devices"
    bus.rename(bus.with_name("elsewhere"))
    agent.period()
    assert [host_world.offered(each) for each in (GPU, NIC, CARD)] == [1, 1, 2]
    agent.period(PATIENCE + 1)
    assert [host_world.offered(each) for each in (GPU, NIC, CARD)] == [0, 0, 0]
    assert "bus/pci/devices" in (host_world.row(GPU).device.unreadable_reason or "")
    bus.with_name("elsewhere").rename(bus)
    agent.period(PATIENCE + 2)
    assert [host_world.offered(each) for each in (GPU, NIC, CARD)] == [1, 1, 2]


def test_a_burned_function_stays_burned_when_it_is_read_again(host_world: HostWorld, agent: Agent) -> None:
    start_guest(host_world, ONE, GPU, "CUSTOM_PCI_10DE_25B6")
    delete_guest(host_world)
    agent.period()
    mend = spoil(host_world, GPU)
    agent.past_the_patience()
    mend()
    agent.period(PATIENCE + 2)
    assert host_world.row().burn_state is BurnState.CONFIRMED
    assert (host_world.offered(), host_world.row().device.burned_for) == (0, ONE)


def test_a_function_burned_while_unreadable_is_seen_idle(host_world: HostWorld, agent: Agent) -> None:
    start_guest(host_world, ONE, GPU, "CUSTOM_PCI_10DE_25B6")
    spoil(host_world, GPU)
    agent.past_the_patience()
    delete_guest(host_world)
    agent.period(PATIENCE + 2)
    assert host_world.row().burn_state is BurnState.CONFIRMED


@pytest.mark.parametrize("by_hand", [False, True], ids=["by command", "in Placement"])
def test_a_released_function_is_offered_when_it_is_read_again(
    host_world: HostWorld, agent: Agent, by_hand: bool
) -> None:
    start_guest(host_world, ONE, GPU, "CUSTOM_PCI_10DE_25B6")
    delete_guest(host_world)
    agent.period()
    mend = spoil(host_world, GPU)
    agent.past_the_patience()
    if by_hand:
        host_world.by_hand(reserved=0)
    else:
        ask_release(host_world.db, host_world.onlooker, host_world.row().uuid, OPERATOR)
    agent.period(PATIENCE + 2)
    assert (host_world.offered(), host_world.row().burn_state) == (0, BurnState.RELEASED)
    mend()
    agent.period(PATIENCE + 3)
    assert (host_world.offered(), host_world.row().burn_state) == (1, BurnState.NOT_BURNED)


def test_a_release_that_is_overtaken_by_the_doubt_offers_nothing(
    host_world: HostWorld, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Placement is about to be told of the release when the agent finds that the function cannot be read."""
    start_guest(host_world, ONE, GPU, "CUSTOM_PCI_10DE_25B6")
    delete_guest(host_world)
    agent.period()
    mend = spoil(host_world, GPU)
    agent.period()
    put, overtaken = host_world.onlooker.put_inventories, []

    def overtake(rp_uuid: str, generation: int, records: dict[str, Inventory]) -> object:
        if not overtaken:
            overtaken.append(True)
            agent.period(PATIENCE + 1)
        return put(rp_uuid, generation, records)

    monkeypatch.setattr(host_world.onlooker, "put_inventories", overtake)
    ask_release(host_world.db, host_world.onlooker, host_world.row().uuid, OPERATOR)
    assert host_world.row().device.unreadable_reason is not None
    assert (host_world.offered(), host_world.row().burn_state) == (0, BurnState.RELEASED)
    mend()
    agent.period(PATIENCE + 2)
    assert (host_world.offered(), host_world.row().burn_state) == (1, BurnState.NOT_BURNED)


def test_a_hold_in_placement_outlasts_the_doubt(host_world: HostWorld, agent: Agent) -> None:
    host_world.by_hand(reserved=1, address=NIC)
    mend = spoil(host_world, NIC)
    agent.past_the_patience()
    mend()
    agent.period(PATIENCE + 2)
    agent.period(PATIENCE + 3)
    assert host_world.records(NIC) == {NIC_CLASS: whole(1, 1)}


def test_a_hold_written_at_the_same_moment_outlasts_the_doubt(
    host_world: HostWorld, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Autoclave records first that it reserves, and the write of another comes before its own."""
    mend = spoil(host_world, NIC)
    agent.period()
    note, noted = device_rows.note_withheld, []

    def hold_first(*args: Any, withheld: bool) -> bool:
        outcome = note(*args, withheld=withheld)
        if not noted:
            host_world.by_hand(reserved=1, address=NIC)
        noted.append(withheld)
        return outcome

    monkeypatch.setattr(device_rows, "note_withheld", hold_first)
    agent.period(PATIENCE + 1)
    assert noted == [True, False]
    mend()
    agent.period(PATIENCE + 2)
    assert host_world.records(NIC) == {NIC_CLASS: whole(1, 1)}


@pytest.mark.parametrize("answer", [True, False], ids=["before the write", "after the write"])
def test_a_death_while_a_function_is_withheld_leaves_no_hold(
    host_world: HostWorld, agent: Agent, monkeypatch: pytest.MonkeyPatch, answer: bool
) -> None:
    """What Autoclave has reserved, it lowers again, also if the agent died between the record and its answer."""
    mend = spoil(host_world, NIC)
    agent.period()

    def die(rp_uuid: str, generation: int, records: dict[str, Inventory]) -> None:
        if not answer:
            host_world.onlooker.put_inventories(rp_uuid, generation, records)
        raise Death

    monkeypatch.setattr(host_world.placement, "put_inventories", die)
    with pytest.raises(Death):
        agent.period(PATIENCE + 1)
    monkeypatch.undo()
    Agent(host_world)
    assert host_world.records(NIC) == {NIC_CLASS: whole(1, 1)}
    mend()
    agent.period(PATIENCE + 2)
    assert host_world.records(NIC) == {NIC_CLASS: whole(1)}


def test_a_reservation_that_is_lowered_by_hand_is_raised_again(host_world: HostWorld, agent: Agent) -> None:
    spoil(host_world, NIC)
    agent.past_the_patience()
    host_world.by_hand(reserved=0, address=NIC)
    agent.period(PATIENCE + 2)
    assert host_world.offered(NIC) == 0


def test_what_a_guest_has_is_withheld_and_stays_with_it(host_world: HostWorld, agent: Agent) -> None:
    start_guest(host_world, ONE, NIC, NIC_CLASS)
    assert host_world.records(NIC) == {NIC_CLASS: whole(1)}
    spoil(host_world, NIC)
    agent.past_the_patience()
    assert host_world.records(NIC) == {NIC_CLASS: whole(1, 1)}
    assert host_world.function(NIC).instance_uuid == ONE
    give_back(host_world, ONE)
    assert host_world.offered(NIC) == 0


def test_other_functions_of_the_card_are_not_offered(host_world: HostWorld, agent: Agent) -> None:
    """They share the provider. What the guest has of it stays with the guest."""
    start_guest(host_world, ONE, CARD, VF_CLASS)
    mend = spoil(host_world, VFS[1])
    agent.past_the_patience()
    assert host_world.records(CARD) == {VF_CLASS: whole(2, 2)}
    assert host_world.function(VFS[0]).instance_uuid == ONE
    assert f"{VFS[1]}: " in (host_world.row(CARD).device.unreadable_reason or "")
    mend()
    agent.period(PATIENCE + 2)
    assert host_world.records(CARD) == {VF_CLASS: whole(2)}


def test_a_function_allocated_before_the_doubt_is_not_claimed(host_world: HostWorld, agent: Agent) -> None:
    allocation = allocate(host_world, ONE, NIC, NIC_CLASS)
    spoil(host_world, NIC)
    agent.past_the_patience()
    groups = {"pci0": list(allocation.allocations)}
    with pytest.raises(ClaimRefused, match="nothing but ones"):
        ResourceTracker(host_world.ports, HOST).instance_claim(ONE, allocation, groups, at_least=1)


def test_a_function_of_unknown_users_is_withheld_at_once(host_world: HostWorld, agent: Agent) -> None:
    """It was not offered before either; but its provider, and with it a hold, was deleted."""
    uuid = host_world.row(NIC).uuid
    host_world.by_hand(reserved=1, address=NIC)
    host_world.sim.functions.bind(NIC, "mlx5_core")
    display = host_world.sim.paths.sysfs / "bus/pci/devices" / NIC / "boot_vga"
    display.mkdir()
    agent.period()
    assert "boot_vga" in (host_world.row(NIC).device.unreadable_reason or "")
    assert host_world.provider(NIC).uuid == uuid
    display.rmdir()
    agent.period(1)
    assert (host_world.row(NIC).device.unreadable_reason, host_world.reserved(NIC)) == (None, 1)
