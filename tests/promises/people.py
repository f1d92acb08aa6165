"""Those who use the cloud: Nova for its instances, and an operator, whose hand is sometimes quicker than his head."""

import random
import uuid
from collections.abc import Callable, Mapping

from autoclave.db import devices as device_rows
from autoclave.db.devices import DeployableRecord, DeviceRecord
from autoclave.exceptions import Conflict, PlacementError
from autoclave.lifecycle import operator
from autoclave.objects.base import RequestContext
from autoclave.placement.provider_tree import whole_record
from autoclave.placement.records import ConsumerAllocations, Inventory
from autoclave.rules.device_lifecycle import ARQState, DeviceState
from dbfixtures import make_arq
from promises.host import CARD, Entry
from promises.simulated import SimulatedSlot, Way
from promises.world import OPERATOR, World

PATIENCE = (0, 1, 3, 10, 20, 20, 20, 20)
"""How often Nova looks whether its requests are bound."""


VANISHES = 0.2
"""How often Nova deletes a server and forgets its requests."""

_NOVAS = frozenset({"COMPUTE_MANAGED_PCI_DEVICE", "OWNER_NOVA"})


class Nova:
    """An instance's life: allocated, bound, run, given back; Nova may give up at any time.

    :param rng: says what is asked for, and when Nova gives up.
    """

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world, self._rng = world, rng

    def live(self) -> None:
        world, rng = self._world, self._rng
        wanted = self._choose()
        instance = str(uuid.uuid4())
        world.add_instance(instance, [])
        claim: dict[str, dict[str, int]] = {}
        for _, deployable in wanted:
            amounts = claim.setdefault(deployable.rp_uuid, {deployable.resource_class: 0})
            amounts[deployable.resource_class] += 1
        try:
            world.placement.put_allocations(ConsumerAllocations(instance, claim, project_id="p", user_id="u"))
        except PlacementError:
            world.deallocate(instance)
            return
        with world.db.write() as tx:
            arqs = [make_arq(tx, project_id="p").uuid for _ in wanted]
            world.instances[instance] = arqs
        requests = [
            {
                "arq_uuid": arq,
                "hostname": world.hostname,
                "device_rp_uuid": deployable.rp_uuid,
                "instance_uuid": instance,
            }
            for arq, (_, deployable) in zip(arqs, wanted, strict=True)
        ]
        number = rng.randrange(2)
        conductor = world.conductors[number]
        world.spawn("bind", f"conductor-{number}", lambda: conductor.arq_bind(RequestContext.admin(), requests))
        if self._bound(arqs):
            world.guests.update(arqs)
            world.host.start_guest(instance, [device.pci_address for device, _ in wanted])
        world.stage.gate("lived")
        if rng.random() < VANISHES:
            world.vanish(instance)
        else:
            world.give_back(instance, rng.choice(world.conductors))

    def _choose(self) -> list[tuple[DeviceRecord, DeployableRecord]]:
        """One device, or two of them, or two handles of one."""
        one = self._rng.choice(self._world.devices)
        if self._rng.random() < 0.5:
            return [one]
        others = [d for d in self._world.devices if d is not one or self._world.host.drivers[d[0].pci_address] == CARD]
        return [one, *self._rng.sample(others, min(1, len(others)))]

    def _bound(self, arqs: list[str]) -> bool:
        for _ in range(self._rng.choice(PATIENCE)):
            self._world.stage.gate("waiting")
            states = {self._world.arq_state(arq) for arq in arqs}
            if states == {ARQState.BOUND}:
                return True
            if ARQState.BIND_FAILED in states:
                return False
        return False


class Operator:
    """What an operator does to one device, by our commands or behind our back."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._device, self._deployable = world.devices[number]

    @property
    def device(self) -> DeviceRecord:
        """As the last look found it."""
        return self._world.watch.rows[self._device.uuid]

    def hold(self) -> None:
        if not any(actor.name.startswith("release-") for actor in self._world.stage.actors):
            self._world.watch.released.discard(self._device.uuid)
        operator.hold(self._world.ports, self._device.uuid, OPERATOR)

    def release(self) -> None:
        self._world.watch.released.add(self._device.uuid)
        operator.release(self._world.ports, self._device.uuid, OPERATOR)

    def disable(self) -> None:
        operator.disable(self._world.ports, self._device.uuid, OPERATOR)

    def enable(self) -> None:
        operator.enable(self._world.ports, self._device.uuid, OPERATOR)

    def mend(self) -> None:
        """Accept the drive that was found, and have it cleaned if that was not enough, or was refused."""
        ports, host, address = self._world.ports, self._world.host, self._device.pci_address
        # A drive that programs of the host write to is cleaned, not accepted.
        if self.device.found_serial is not None and (address not in host.simulated or host.is_clean(address)):
            try:
                operator.accept(ports, self._device.uuid, OPERATOR)
            except Conflict as error:
                self._world.steps.append(f"  accept: {error}")
        with ports.db.read() as tx:
            found = device_rows.get(tx, self._device.uuid)
        if found is not None and found.device_state is DeviceState.ERROR:
            if found.supports_cleaning:
                ports.cleaners.clean(RequestContext.admin(), found)
            else:
                operator.accept(ports, self._device.uuid, OPERATOR)

    def exchange_drive(self) -> None:
        self._note("exchanges the drive")
        self._world.host.exchange(self._device.pci_address)
        self._world.meddling.in_slot(self._device.uuid)

    def pull_drive(self) -> None:
        self._note("pulls the drive")
        self._world.host.pull(self._device.pci_address)
        self._world.meddling.in_slot(self._device.uuid)

    def edit_entry(self, entry: Entry) -> None:
        """Change what the configuration says of the device; the agent reads it at its next start."""
        self._note(f"configures {entry} for the entry")
        self._world.tally["configured"] += 1
        self._world.entries[self._device.pci_address] = entry

    def raise_by_hand(self) -> None:
        self._by_hand("raises", lambda: self._reserve(self._deployable.num_accelerators))
        self._world.meddling.raised.add(self._device.uuid)

    def lower_by_hand(self) -> None:
        self._by_hand("lowers", lambda: self._reserve(0))

    def write_as_nova(self) -> None:
        """A second service takes the provider for its own: whole records, then all traits."""
        self._by_hand("writes, as Nova, the provider", self._write_as_nova)

    def _write_as_nova(self) -> None:
        placement, rp_uuid = self._world.placement, self._deployable.rp_uuid
        placement.ensure_resource_class("CUSTOM_PCI_NOVAS")
        self._write({"CUSTOM_PCI_NOVAS": whole_record(1, 0)})
        placement.ensure_traits(_NOVAS)
        placement.put_traits(rp_uuid, placement.get_traits(rp_uuid).generation, _NOVAS)

    def delete_inventory(self) -> None:
        self._by_hand("deletes the inventory", lambda: self._write({}))

    def delete_provider(self) -> None:
        """Only while nobody holds a generation of it: with the provider, its count of them starts again."""
        self._by_hand("deletes the provider", lambda: self._world.placement.delete_provider(self._deployable.rp_uuid))

    def _reserve(self, reserved: int) -> None:
        self._write({self._deployable.resource_class: whole_record(self._deployable.num_accelerators, reserved)})

    def _write(self, records: Mapping[str, Inventory]) -> None:
        placement, provider = self._world.placement, self._deployable.rp_uuid
        placement.put_inventories(provider, placement.get_inventories(provider).generation, records)

    def _by_hand(self, deed: str, work: Callable[[], None]) -> None:
        self._world.meddling.in_placement(self._device.uuid)
        self._note(deed)
        try:
            work()
        except PlacementError as error:
            self._world.steps.append(f"  by hand: {type(error).__name__}")
        self._world.check()

    def _note(self, deed: str) -> None:
        self._world.tally["by hand"] += 1
        self._world.steps.append(f"somebody {deed} of {self._device.pci_address}")


class Writer:
    """A program of the host that has to do with a drive of ours, and does not ask."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._device, _ = world.devices[number]
        self.slot: SimulatedSlot = world.host.simulated[self._device.pci_address]

    def open(self, way: Way) -> None:
        if self.slot.open(way):
            self._note(f"opens by {way}")

    def write(self) -> None:
        if self.slot.write():
            self._note("writes")

    def close(self) -> None:
        self._world.steps.append(f"a program closes {self._device.pci_address}")
        self.slot.close()

    def write_and_close(self) -> None:
        """So quick that nothing comes in between."""
        self.open(Way.BLOCK)
        self.write()
        self.close()

    def _note(self, deed: str) -> None:
        at_work = self.slot.at_work
        self._world.steps.append(f"a program {deed}: {self._device.pci_address}{', at work' if at_work else ''}")
        self._world.tally["programs at work" if at_work else "programs"] += 1
        if not at_work:
            # Nothing but the next look can tell; an erase has to see to it itself.
            self._world.meddling.in_slot(self._device.uuid)
