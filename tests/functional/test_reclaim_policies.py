"""Each reclaim policy, for devices that profiles ask for and for those that flavors ask for."""

import itertools
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from agentworld import SECRET, sanitizing_drive
from hostworld import GPU, HOST, NIC
from instanceworld import FLAVOR, InstanceWorld
from moments import Death, Moments, ports_of
from tenant import Tenant

from autoclave.agent.manager import AgentManager
from autoclave.audit.auditor import Auditor, Scope
from autoclave.audit.remedies import Remedies
from autoclave.db import devices as device_rows
from autoclave.db import history
from autoclave.db.devices import DeviceRecord
from autoclave.exceptions import Conflict, InvalidConfiguration, NotFound
from autoclave.lifecycle import operator
from autoclave.placement.records import ConsumerAllocations
from autoclave.rules.device_lifecycle import ARQState, DeviceState
from autoclave.rules.flavor_image import Flavor
from autoclave.rules.instance_states import VMState
from autoclave.rules.pci_alias import PCIAlias, parse_pci_alias
from autoclave.rules.reclaim import Reclaim, RequestedBy, cleaned_by
from autoclave.rules.resource_names import OWNER_CYBORG, OWNER_NOVA
from autoclave.rules.resource_request import ALIAS_KEY, build_request
from autoclave.simulator.faults import Fault, FaultKind
from autoclave.simulator.functions import FunctionSpec
from autoclave.testing.placement.faults import lose_answer, refuse
from burnedrows import OPERATOR

DRIVE = "0000:41:00.0"
PATIENCE = 60.0
CLEAR = "/etc/autoclave/clear.d/clear"
FUNCTIONS = (FunctionSpec(GPU, "10de", "25b6"), FunctionSpec(NIC, "15b3", "1015", class_code="020000"))
HOLD = {"reclaim": "hold"}
RESET = {"reclaim": "erase", "clear_action": "reset"}
COMMAND = {"reclaim": "erase", "clear_action": "command", "clear_command": [CLEAR, "--all"]}
FAULTS = {"reset": FaultKind.RESET_FAILS, "command": FaultKind.CLEAR_FAILS}


class PolicyWorld(InstanceWorld):
    """A host with a graphics card, a network card and a drive, whose agent serves profiles and flavors."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path, functions=FUNCTIONS, drives=[sanitizing_drive(DRIVE)])
        self.specs = []
        self.overrides = {
            ("agent", "enabled_drivers"): ["nvme_driver", "pci_driver"],
            ("nvme", "poll_interval"): 0.05,
            ("agent", "rebind_timeout"): 0.2,
        }

    def of_profiles(self, **keys: Any) -> None:
        """Let profiles ask for the graphics card."""
        self.overrides["pci", "passthrough_whitelist"] = [json.dumps({"vendor_id": "10de", **keys})]

    def of_flavors(self, **keys: Any) -> None:
        """Let flavors ask for the graphics card."""
        self.specs = [{"vendor_id": "10de", "product_id": "25b6", **keys}]

    def drive_of_flavors(self) -> None:
        self.overrides["nvme", "device_spec"] = [json.dumps({"address": DRIVE, "requested_by": "flavor"})]

    def device(self, address: str = GPU) -> DeviceRecord:
        with self.db.read() as tx:
            found = [row for row in device_rows.list_all(tx, hostname=HOST) if row.pci_address == address]
        assert len(found) == 1, f"{address} is {len(found)} devices"
        return found[0]

    def state(self, address: str = GPU) -> DeviceState | None:
        return self.device(address).device_state

    def outcome(self, address: str = GPU) -> DeviceRecord:
        """Wait until no worker has the device, and return it."""
        busy = (DeviceState.PENDING_CLEANING, DeviceState.CLEANING)
        self.wait(lambda: self.state(address) not in busy)
        device = self.device(address)
        self.wait(lambda: not any(agent._cleanup.works_on(device.uuid) for agent in self._agents))
        return self.device(address)

    def wait(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, "waited in vain"
            time.sleep(0.01)

    def clean(self, address: str = GPU) -> DeviceRecord:
        """``autoclave device clean``."""
        self.ports.cleaners.clean(self.context, self.device(address))
        self.casts.deliver()
        return self.outcome(address)

    def unbind(self, tenant: Tenant) -> None:
        """Delete the accelerator requests and then the allocation, as Nova does."""
        tenant.delete()
        while self.casts.pending:
            self.casts.deliver()
        tenant.give_up()

    def events(self, address: str = GPU) -> list[str]:
        with self.db.read() as tx:
            return [each.event for each in history.history(tx, self.device(address).uuid)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[PolicyWorld]:
    made = PolicyWorld(tmp_path)
    yield made
    made.sim.clear_faults()
    made.close()


# Profiles


def spent(world: PolicyWorld) -> tuple[AgentManager, Tenant]:
    """A graphics card of profiles that an instance has used up; its agent has not looked since."""
    world.of_profiles(**HOLD)
    agent = world.start()
    tenant = Tenant(world, GPU)  # type: ignore[arg-type]
    tenant.bind()
    device = world.device()
    assert (tenant.states(), device.device_state) == ({ARQState.BOUND}, DeviceState.ALLOCATED)
    assert (device.burned_for, world.reserved()) == (tenant.instance, 1)
    world.unbind(tenant)
    assert (world.state(), world.reserved()) == (DeviceState.SPENT, 1)
    assert world.device().reclaim is Reclaim.HOLD
    return agent, tenant


def refused_bind(world: PolicyWorld) -> str:
    """Return why an instance does not get the graphics card."""
    tenant = Tenant(world, GPU, claim=False)  # type: ignore[arg-type]
    with pytest.raises(Conflict) as refused:
        tenant.bind()
    assert tenant.states() == {ARQState.BIND_FAILED}
    return str(refused.value)


def test_held_device_of_a_profile_stays_reserved_until_confirmed(world: PolicyWorld) -> None:
    agent, _ = spent(world)
    assert not world.device().burn_confirmed
    assert "it is spent" in refused_bind(world)
    agent.period()
    assert world.device().burn_confirmed
    assert (world.state(), world.reserved(), world.offered()) == (DeviceState.SPENT, 1, 0)
    assert "it is spent" in refused_bind(world)


def test_lowered_reserved_before_the_confirmation_is_no_release(world: PolicyWorld) -> None:
    agent, _ = spent(world)
    world.by_hand(0)
    agent.period()
    assert (world.state(), world.reserved()) == (DeviceState.SPENT, 1)


def test_operator_releases_a_held_device_of_a_profile(world: PolicyWorld) -> None:
    agent, _ = spent(world)
    agent.period()
    assert operator.release(world.ports, world.device().uuid, OPERATOR)
    again(world, agent)
    assert world.events().count("release") == 1


def test_placement_releases_a_held_device_of_a_profile(world: PolicyWorld) -> None:
    agent, _ = spent(world)
    agent.period()
    world.by_hand(0)
    agent.period()
    again(world, agent)
    assert "release_seen" in world.events()


def again(world: PolicyWorld, agent: AgentManager) -> None:
    """The device is offered, and a second life ends as the first one did."""
    device = world.device()
    assert (device.device_state, device.burned_at, device.release_pending) == (DeviceState.AVAILABLE, None, False)
    assert world.offered() == 1
    agent.period()
    tenant = Tenant(world, GPU)  # type: ignore[arg-type]
    tenant.bind()
    assert world.device().burned_for == tenant.instance
    world.unbind(tenant)
    agent.period()
    assert (world.state(), world.device().burn_confirmed, world.offered()) == (DeviceState.SPENT, True, 0)


def test_operator_releases_no_device_that_an_instance_has(world: PolicyWorld) -> None:
    world.of_profiles(**HOLD)
    world.start()
    tenant = Tenant(world, GPU)  # type: ignore[arg-type]
    tenant.bind()
    with pytest.raises(Conflict, match=f"in use by instance {tenant.instance}"):
        operator.release_spent(world.ports, world.device().uuid, OPERATOR)
    assert (world.state(), world.reserved()) == (DeviceState.ALLOCATED, 1)


@pytest.mark.parametrize("keys", [HOLD, {}], ids=["hold", "none"])
def test_failed_bind_burns_nothing(world: PolicyWorld, keys: dict[str, Any]) -> None:
    world.of_profiles(**keys)
    agent = world.start()
    tenant = Tenant(world, GPU)  # type: ignore[arg-type]
    world.faults.add(refuse, method="PUT", path="/inventories$")
    with pytest.raises(Conflict):
        tenant.bind()
    device = world.device()
    assert (device.device_state, device.burned_at, device.burned_for) == (DeviceState.AVAILABLE, None, None)
    world.faults.clear()
    tenant.give_up()
    agent.period()
    device = world.device()
    assert tenant.states() == {ARQState.BIND_FAILED}
    assert (device.device_state, device.burned_at, device.burned_for) == (DeviceState.AVAILABLE, None, None)
    assert world.offered() == 1


def test_device_of_a_profile_with_none_returns_uncleaned(world: PolicyWorld) -> None:
    world.of_profiles()
    agent = world.start()
    assert (world.device().reclaim, world.device().requested_by) == (Reclaim.NONE, RequestedBy.PROFILE)
    tenant = Tenant(world, GPU)  # type: ignore[arg-type]
    tenant.bind()
    assert (world.state(), world.reserved()) == (DeviceState.ALLOCATED, 1)
    world.unbind(tenant)
    assert (world.state(), world.device().burned_at, world.offered()) == (DeviceState.AVAILABLE, None, 1)
    agent.period()
    assert world.offered() == 1


def erased_profile(world: PolicyWorld, keys: Mapping[str, Any]) -> Callable[[], None]:
    """Return the whole life of an instance with the graphics card of profiles."""
    world.of_profiles(**keys)
    world.start()

    def live() -> None:
        tenant = Tenant(world, GPU)  # type: ignore[arg-type]
        tenant.bind()
        assert (tenant.states(), world.offered()) == ({ARQState.BOUND}, 0)
        world.unbind(tenant)

    return live


def erased_flavor(world: PolicyWorld, keys: Mapping[str, Any]) -> Callable[[], None]:
    """Return the whole life of an instance with the graphics card of flavors."""
    world.of_flavors(**keys)
    world.start()

    def live() -> None:
        instance = world.create(GPU)
        assert (world.instance(instance).vm_state, world.offered()) == (VMState.ACTIVE, 0)
        assert world.reserved() == 1
        world.delete(instance)
        assert world.find(instance) is None

    return live


LIVES = pytest.mark.parametrize("life", [erased_profile, erased_flavor], ids=["profile", "flavor"])
METHODS = pytest.mark.parametrize("keys", [RESET, COMMAND], ids=["reset", "command"])


@LIVES
@METHODS
def test_erased_device_returns_by_itself(
    world: PolicyWorld, life: Callable[..., Callable[[], None]], keys: dict[str, Any]
) -> None:
    live = life(world, keys)
    for number in (1, 2):
        live()
        device = world.outcome()
        assert (device.device_state, device.state_reason) == (
            DeviceState.AVAILABLE,
            cleaned_by(keys["clear_action"]),
        )
        assert world.offered() == 1
        assert world.events().count("cleaned") == number
    assert world.sim.functions.all()[GPU].resets == (2 if keys is RESET else 0)


def test_function_of_a_flavor_that_lost_its_policy_is_not_offered_unerased(world: PolicyWorld) -> None:
    world.of_flavors(**RESET)
    world.start()
    instance = world.create(GPU)
    world.end_all()
    world.of_flavors()
    agent = world.start()
    agent.period()
    assert world.device().reclaim is Reclaim.ERASE
    world.delete(instance)
    assert (world.outcome().device_state, world.offered()) == (DeviceState.ERROR, 0)
    agent.period()
    assert (world.device().reclaim, world.offered()) == (Reclaim.ERASE, 0)
    world.end_all()
    world.of_flavors(**RESET)
    world.start()
    assert world.clean().device_state is DeviceState.AVAILABLE
    assert world.offered() == 1


def test_function_of_a_profile_that_lost_its_policy_is_not_offered_unerased(world: PolicyWorld) -> None:
    world.of_profiles(**RESET)
    world.start()
    tenant = Tenant(world, GPU)  # type: ignore[arg-type]
    tenant.bind()
    world.end_all()
    world.of_profiles()
    agent = world.start()
    agent.period()
    assert world.device().reclaim is Reclaim.ERASE
    world.unbind(tenant)
    assert (world.outcome().device_state, world.offered()) == (DeviceState.ERROR, 0)
    agent.period()
    assert (world.device().reclaim, world.offered()) == (Reclaim.ERASE, 0)
    world.end_all()
    world.of_profiles(**RESET)
    world.start()
    assert world.clean().device_state is DeviceState.AVAILABLE
    assert world.offered() == 1


@LIVES
@METHODS
def test_failed_erase_ends_in_error_and_clean_repeats_it(
    world: PolicyWorld, life: Callable[..., Callable[[], None]], keys: dict[str, Any]
) -> None:
    live = life(world, keys)
    world.sim.set_fault(GPU, Fault(FAULTS[keys["clear_action"]]))
    live()
    assert world.outcome().device_state is DeviceState.ERROR
    assert (world.reserved(), world.offered()) == (1, 0)
    assert world.clean().device_state is DeviceState.ERROR
    for agent in world._agents:
        agent.period()
    assert (world.state(), world.offered()) == (DeviceState.ERROR, 0)
    world.sim.clear_faults()
    assert world.clean().device_state is DeviceState.AVAILABLE
    assert world.offered() == 1


# Functions of flavors


def test_function_of_a_flavor_with_none_returns_uncleaned(world: PolicyWorld) -> None:
    world.of_flavors()
    agent = world.start()
    instance = world.create(GPU)
    assert (world.state(), world.reserved(), world.offered()) == (DeviceState.ALLOCATED, 0, 0)
    agent.period()
    assert (world.state(), world.reserved(), world.offered()) == (DeviceState.ALLOCATED, 0, 0)
    world.delete(instance)
    assert (world.state(), world.device().burned_at, world.offered()) == (DeviceState.AVAILABLE, None, 1)


@pytest.mark.parametrize("keys", [HOLD, {"one_time_use": True}], ids=["hold", "one_time_use"])
def test_function_of_a_flavor_with_hold_is_spent_until_released(world: PolicyWorld, keys: dict[str, Any]) -> None:
    world.of_flavors(**keys)
    agent = world.start()
    assert world.device().reclaim is Reclaim.HOLD
    instance = world.create(GPU)
    assert (world.state(), world.device().burned_for, world.reserved()) == (DeviceState.ALLOCATED, instance, 1)
    world.delete(instance)
    device = world.device()
    assert (device.device_state, device.burn_confirmed, world.reserved()) == (DeviceState.SPENT, True, 1)
    agent.period()
    assert world.offered() == 0
    assert operator.release(world.ports, device.uuid, OPERATOR)
    assert (world.state(), world.offered()) == (DeviceState.AVAILABLE, 1)
    agent.period()
    assert (world.state(), world.offered()) == (DeviceState.AVAILABLE, 1)


def test_released_device_that_is_no_longer_held_is_not_spent_again(world: PolicyWorld) -> None:
    world.of_flavors(**HOLD)
    world.start()
    world.delete(world.create(GPU))
    world.faults.add(lose_answer, method="PUT", path="/inventories$")
    assert not operator.release(world.ports, world.device().uuid, OPERATOR)
    world.faults.clear()
    with world.db.write() as tx:
        device_rows.update(tx, world.device(), {"reclaim": Reclaim.NONE})
    assert (world.state(), world.device().burned_at is None, world.reserved()) == (DeviceState.AVAILABLE, False, 0)
    instance = world.create(GPU)
    assert (world.state(), world.device().burned_at) == (DeviceState.ALLOCATED, None)
    world.delete(instance)
    assert (world.state(), world.device().burned_at, world.offered()) == (DeviceState.AVAILABLE, None, 1)


def test_clean_of_a_spent_device_does_nothing(world: PolicyWorld) -> None:
    spent(world)
    assert world.clean().device_state is DeviceState.SPENT


# A drive of a flavor


def aliases(world: PolicyWorld) -> Mapping[str, PCIAlias]:
    device = world.device(DRIVE)
    return parse_pci_alias([json.dumps({"name": "drive", "vendor_id": device.vendor, "product_id": device.model})])


def ask(world: PolicyWorld) -> tuple[str, Mapping[str, Sequence[str]]] | None:
    """Do what the scheduler does for a flavor with the alias; return the instance, and the providers of its groups."""
    extra_specs = {ALIAS_KEY: "drive:1"}
    query = build_request(Flavor("m1", 2, 512, 1, 0, 0, extra_specs), {}, aliases(world)).query()
    candidates = world.onlooker.allocation_candidates(query).candidates
    if not candidates:
        return None
    instance = str(uuid.uuid4())
    found = candidates[0]
    world.onlooker.put_allocations(ConsumerAllocations(instance, found.allocations, None, "project", "user"))
    world.insert(instance, host=HOST, flavor={**FLAVOR, "extra_specs": extra_specs})
    return instance, found.mappings


def create(world: PolicyWorld) -> str:
    """A whole create of a server by the alias; its guest writes on the drive."""
    asked = ask(world)
    assert asked is not None, "no drive is offered"
    instance, groups = asked
    world.agents.build_instance(world.context, HOST, instance, {name: list(uuids) for name, uuids in groups.items()})
    world.casts.deliver()
    if world.instance(instance).vm_state is VMState.ACTIVE:
        world.sim.fill(DRIVE, SECRET)
    return instance


def dirty(world: PolicyWorld) -> bool:
    return world.sim.find(DRIVE, SECRET)


def look(world: PolicyWorld) -> None:
    """The promise: a dirty drive is neither offered nor available."""
    if dirty(world):
        assert world.offered(DRIVE) == 0, "a dirty drive is offered"
        assert world.state(DRIVE) is not DeviceState.AVAILABLE, "a dirty drive is available"


def test_drive_of_a_flavor_has_the_traits_of_novas_functions(world: PolicyWorld) -> None:
    world.drive_of_flavors()
    agent = world.start()
    device = world.device(DRIVE)
    assert (device.requested_by, device.reclaim) == (RequestedBy.FLAVOR, Reclaim.ERASE)
    traits = world.onlooker.get_traits(world.provider(DRIVE).uuid).names
    assert {"COMPUTE_MANAGED_PCI_DEVICE", OWNER_NOVA} <= traits
    assert OWNER_CYBORG not in traits
    assert list(world.records(DRIVE)) == [aliases(world)["drive"].resource_class]
    agent.period()
    assert (world.state(DRIVE), world.offered(DRIVE)) == (DeviceState.AVAILABLE, 1)
    assert not device.rewritten


@pytest.mark.parametrize("before", [{}, {"requested_by": "flavor"}], ids=["profile", "flavor"])
def test_drive_follows_a_changed_entry(world: PolicyWorld, before: dict[str, Any]) -> None:
    """Its former class, and the trait OWNER_NOVA of its own, are no sign of another service."""
    world.overrides["nvme", "device_spec"] = [json.dumps({"address": DRIVE, **before})]
    world.start()
    world.end_all()
    now = {"address": DRIVE, "requested_by": "flavor", "resource_class": "CUSTOM_FAST"}
    world.overrides["nvme", "device_spec"] = [json.dumps(now)]
    agent = world.start()
    agent.period()
    device = world.device(DRIVE)
    assert (device.device_state, device.requested_by, device.rewritten) == (
        DeviceState.AVAILABLE,
        RequestedBy.FLAVOR,
        False,
    )
    assert (list(world.records(DRIVE)), world.offered(DRIVE)) == (["CUSTOM_FAST"], 1)


def test_drive_that_returns_to_profiles_is_cleaned_first(world: PolicyWorld) -> None:
    """Its provider reads as one of Nova's: the agent cannot tell who has used it."""
    world.drive_of_flavors()
    world.start()
    world.end_all()
    world.overrides["nvme", "device_spec"] = [json.dumps({"address": DRIVE})]
    agent = world.start()
    agent.period()
    assert (world.state(DRIVE), world.offered(DRIVE)) == (DeviceState.ERROR, 0)
    assert world.clean(DRIVE).device_state is DeviceState.AVAILABLE
    agent.period()
    traits = world.onlooker.get_traits(world.provider(DRIVE).uuid).names
    assert OWNER_CYBORG in traits
    assert OWNER_NOVA not in traits
    assert (world.state(DRIVE), world.offered(DRIVE)) == (DeviceState.AVAILABLE, 1)


def test_audit_finds_nothing_wrong_with_a_drive_in_use(world: PolicyWorld) -> None:
    world.drive_of_flavors()
    world.start()
    auditor = Auditor(world.db, world.placement, [], sleep=lambda _: None)
    assert [each for each in auditor.audit(Scope(), 0) if each.counts] == []
    create(world)
    assert [each for each in auditor.audit(Scope(), 0) if each.counts] == []
    assert Remedies(world.db, world.placement, "ann").unproved(Scope()) == []


def test_drive_of_a_flavor_is_erased_after_its_server(world: PolicyWorld) -> None:
    world.drive_of_flavors()
    world.start()
    for _ in range(2):
        instance = create(world)
        assert world.instance(instance).vm_state is VMState.ACTIVE, world.instance(instance).fault_details
        assert world.function(DRIVE).instance_uuid == instance
        assert (world.state(DRIVE), world.reserved(DRIVE)) == (DeviceState.ALLOCATED, 1)
        assert ask(world) is None
        world.delete(instance)
        assert world.find(instance) is None
        look(world)
        assert world.outcome(DRIVE).device_state is DeviceState.AVAILABLE, world.device(DRIVE).state_reason
        assert not dirty(world)
        assert world.offered(DRIVE) == 1
    assert world.events(DRIVE).count("cleaned") == 2


def test_failed_erase_of_a_flavors_drive_is_repeated(world: PolicyWorld) -> None:
    world.drive_of_flavors()
    agent = world.start()
    instance = create(world)
    world.sim.set_fault(DRIVE, Fault(FaultKind.SANITIZE_FAILS))
    world.delete(instance)
    assert world.outcome(DRIVE).device_state is DeviceState.ERROR
    agent.period()
    assert ask(world) is None
    look(world)
    world.sim.clear_faults()
    assert world.clean(DRIVE).device_state is DeviceState.AVAILABLE
    assert not dirty(world)
    assert ask(world) is not None


def test_drive_of_a_flavor_is_bound_by_no_accelerator_request(world: PolicyWorld) -> None:
    world.drive_of_flavors()
    world.start()
    tenant = Tenant(world, DRIVE, claim=False)  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        tenant.bind()
    assert (world.state(DRIVE), world.offered(DRIVE)) == (DeviceState.AVAILABLE, 1)


def test_dirty_drive_of_a_flavor_is_not_claimed(world: PolicyWorld) -> None:
    """Even if its reserved amount was lowered in Placement."""
    world.drive_of_flavors()
    world.start()
    instance = create(world)
    world.sim.set_fault(DRIVE, Fault(FaultKind.SANITIZE_FAILS))
    world.delete(instance)
    assert world.outcome(DRIVE).device_state is DeviceState.ERROR
    world.by_hand(0, DRIVE)
    refused = create(world)
    row = world.instance(refused)
    assert row.vm_state is VMState.ERROR
    assert "must not be claimed: it is error" in (row.fault_details or "")
    assert world.function(DRIVE).instance_uuid is None
    world.sim.clear_faults()


def die(_app: Any, _environ: Any, _start: Any) -> Any:
    raise Death


def test_agent_killed_between_free_and_erase_cleans_later(world: PolicyWorld) -> None:
    world.drive_of_flavors()
    world.start()
    instance = create(world)
    world.faults.add(die, method="DELETE", path="/allocations/")
    with pytest.raises(Death):
        world.delete(instance)
    assert (world.function(DRIVE).instance_uuid, world.state(DRIVE)) == (None, DeviceState.ALLOCATED)
    assert (dirty(world), world.reserved(DRIVE), world.offered(DRIVE)) == (True, 1, 0)
    world.onlooker.delete_allocations(instance)
    assert ask(world) is None, "the drive is reserved without an allocation, too"
    world.end_all()
    world.faults.clear()
    world.start()
    look(world)
    assert world.outcome(DRIVE).device_state is DeviceState.AVAILABLE, world.device(DRIVE).state_reason
    assert "missed_cleanup" in world.events(DRIVE)
    assert (dirty(world), world.offered(DRIVE)) == (False, 1)


@pytest.mark.thorough
def test_agent_death_in_a_deletion_offers_no_dirty_drive(tmp_path: Path) -> None:
    """Between the free and the erase as well: the next agent finds the drive, and cleans it."""
    ends = set()
    for at in itertools.count():
        place = tmp_path / str(at)
        place.mkdir()
        world = PolicyWorld(place)
        try:
            died_in, after = death_at(world, at)
        finally:
            world.close()
        if died_in is None:
            break
        ends.add((died_in, after))
    assert (DeviceState.ALLOCATED, False) in ends, "the agent died before the function was freed"
    assert (DeviceState.ALLOCATED, True) in ends, "the agent died between the free and the erase"
    assert DeviceState.PENDING_CLEANING in {state for state, _ in ends}


def death_at(world: PolicyWorld, at: int) -> tuple[DeviceState | None, bool]:
    """Let the agent die at its call *at* while it deletes a server.

    :returns: the state in which the drive was left, None if there was no such call; and whether it was free.
    """
    moments = Moments()
    world.drive_of_flavors()
    world.start(ports_of(world, moments))
    instance = create(world)
    moments.arm(at, moments.die)
    with suppress(Death):
        world.delete(instance)
    busy = (DeviceState.PENDING_CLEANING, DeviceState.CLEANING)
    world.wait(lambda: moments.happened or world.state(DRIVE) not in busy)
    happened = moments.happened
    look(world)
    left, freed = world.state(DRIVE), world.function(DRIVE).instance_uuid is None
    world.end_all()
    agent = world.start()
    look(world)
    agent.period()
    device = world.outcome(DRIVE)
    look(world)
    if world.find(instance) is not None:
        world.delete(instance)
        device = world.outcome(DRIVE)
    if device.device_state is DeviceState.ERROR:
        assert "cut short" in (device.state_reason or ""), device.state_reason
        device = world.clean(DRIVE)
    assert device.device_state is DeviceState.AVAILABLE, device.state_reason
    agent.period()
    assert not dirty(world)
    assert world.offered(DRIVE) == 1
    return (left, freed) if happened else (None, False)


def test_drive_of_a_flavor_without_compute_is_refused(world: PolicyWorld) -> None:
    world.overrides["nvme", "device_spec"] = [
        json.dumps({"address": "0000:99:00.0"}),
        json.dumps({"address": DRIVE, "requested_by": "flavor"}),
    ]
    world.overrides["compute", "enabled"] = False
    with pytest.raises(InvalidConfiguration) as refused:
        world.start()
    error = refused.value
    assert (error.option, error.entry, error.key) == ("[nvme] device_spec", 2, "requested_by")
    assert "only an agent with [compute] enabled gives to instances" in str(error)
