"""Both promises, by looking at the database, Placement and the drives after every step."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autoclave.db import arqs as arq_rows
from autoclave.db import devices as device_rows
from autoclave.db import handles as handle_rows
from autoclave.db.arqs import ARQRecord
from autoclave.db.devices import DeviceRecord
from autoclave.db.engine import Database
from autoclave.rules.device_lifecycle import IDLE_STATES, ARQState, DeviceState

if TYPE_CHECKING:
    from promises.world import World

UNFINISHED = (ARQState.BIND_STARTED, ARQState.DELETING)


class Broken(AssertionError):
    """A promise was broken."""


class Meddling:
    """What people did behind the system's back. It promises again from the next whole period of the agent on.

    For a slot, that is a period that found the device idle: nobody looks at a drive that others work with, and those
    who erase one look for themselves.
    """

    def __init__(self) -> None:
        self._in_placement: Counter[str] = Counter()
        self._in_slot: Counter[str] = Counter()
        self.raised: set[str] = set()
        """Devices that somebody once held by hand in Placement."""

    def in_placement(self, device_uuid: str) -> None:
        self._in_placement[device_uuid] += 1

    def in_slot(self, device_uuid: str) -> None:
        self._in_slot[device_uuid] += 1

    def period_begins(self, rows: dict[str, DeviceRecord]) -> "Period":
        return Period(dict(self._in_placement), dict(self._in_slot), dict(rows))

    def proved(self, device_uuid: str) -> None:
        """A proof looks into the slot as a period does, and closer."""
        self._in_slot.pop(device_uuid, None)

    def period_ended(self, period: "Period", rows: dict[str, DeviceRecord], looked_into: Callable[[str], bool]) -> None:
        """All of it was done, and nothing failed.

        :param rows: the devices as they are now.
        :param looked_into: whether the slot at an address was.
        """
        for device_uuid, times in period.in_placement.items():
            if self._in_placement[device_uuid] == times:
                del self._in_placement[device_uuid]
        for device_uuid, times in period.in_slot.items():
            was, row = period.rows[device_uuid], rows[device_uuid]
            undisturbed = row.state_version == was.state_version or row.device_state is DeviceState.ERROR
            if not looked_into(row.pci_address):
                continue
            if self._in_slot[device_uuid] == times and was.device_state in IDLE_STATES and undisturbed:
                del self._in_slot[device_uuid]

    def excuses_offer(self, device_uuid: str) -> bool:
        return device_uuid in self._in_placement or self.excuses_drive(device_uuid)

    def excuses_drive(self, device_uuid: str) -> bool:
        return device_uuid in self._in_slot


@dataclass(frozen=True)
class Period:
    """What had been done, and how the devices were, when a period of the agent began."""

    in_placement: dict[str, int]
    in_slot: dict[str, int]
    rows: dict[str, DeviceRecord]


class Watch:
    """Looks only where something was written since the last look."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._seen = (-1, -1)
        self.offered: dict[str, int] = {}
        self.rows: dict[str, DeviceRecord] = {}
        self._holders: dict[str, list[ARQRecord]] = {}
        self._bound: dict[str, int | None] = {}
        """Requests that were bound, with their attach handles."""
        self.released: set[str] = set()
        """Devices whose hold an operator may just have ended."""
        self._blind: set[str] = set()
        """Requests that got a drive that had been changed, and nobody could have known."""

    def look(self) -> None:
        """:raises Broken: one of the promises does not hold at this moment."""
        world = self._world
        seen = world.writes
        if seen[1] != self._seen[1]:
            self.offered = {device.uuid: world.free(deployable) for device, deployable in world.devices}
        if seen[0] != self._seen[0]:
            self._read()
        self._seen = seen
        for device_uuid, row in self.rows.items():
            self._look_at(row, self._holders[device_uuid])

    def _read(self) -> None:
        with Database.read(self._world.db) as tx:
            for device, deployable in self._world.devices:
                row = device_rows.get_by_id(tx, device.id)
                if row is None:
                    raise Broken("never lost for good: a device was forgotten")
                was = self.rows.get(device.uuid, row)
                if was.held and not row.held and device.uuid not in self.released:
                    raise Broken("never lost for good: a hold ended by itself")
                self.rows[device.uuid] = row
                holders = self._holders[device.uuid] = arq_rows.active_of_device(tx, device.id)
                known = {use.handle.id for use in handle_rows.of_deployables(tx, [deployable.id])[deployable.id]}
                self._look_at_handles(holders, known)

    def _look_at_handles(self, holders: list[ARQRecord], known: set[int]) -> None:
        """What is in use keeps its handle, and has it alone.

        :raises Broken: it does not.
        """
        given = [arq.attach_handle_id for arq in holders if arq.attach_handle_id is not None]
        if len(given) != len(set(given)):
            raise Broken("given to two")
        for arq in holders:
            if arq.state is not ARQState.BOUND:
                continue
            if arq.uuid not in self._bound:
                self._world.tally["bound"] += 1
                self._bound[arq.uuid] = arq.attach_handle_id
            if arq.attach_handle_id not in known or arq.attach_handle_id != self._bound[arq.uuid]:
                raise Broken("what is in use lost its handle")

    def _look_at(self, row: DeviceRecord, holders: list[ARQRecord]) -> None:
        world = self._world
        clean = world.host.is_clean(row.pci_address)
        unseen = [arq for arq in holders if arq.uuid not in world.guests]
        if world.meddling.excuses_drive(row.uuid):
            self._blind.update(arq.uuid for arq in unseen)
        else:
            deceived = [arq for arq in unseen if arq.uuid not in self._blind]
            if deceived and not clean:
                raise Broken(f"never bound dirty: {deceived[0].state} of a dirty device")
            if row.device_state is DeviceState.AVAILABLE and not clean:
                raise Broken("never bound dirty: available without being clean")
        if self.offered[row.uuid] > 0 and not self._is_excused(row):
            unfinished = row.device_state is DeviceState.ALLOCATED and any(arq.state in UNFINISHED for arq in unseen)
            if not clean or not (row.device_state is DeviceState.AVAILABLE or unfinished):
                raise Broken(f"never offered dirty: offered while {row.device_state}, clean={clean}")
        if row.pci_address in world.host.erasing and any(arq.state is ARQState.BOUND for arq in holders):
            raise Broken("erased while bound")
        if row.supports_cleaning and world.host.is_with_guest(row.pci_address):
            if row.pci_address in world.host.erasing:
                raise Broken("erased while a guest has it")
            if row.device_state is DeviceState.AVAILABLE and not world.meddling.excuses_drive(row.uuid):
                raise Broken("never bound dirty: available while a guest has it")

    def _is_excused(self, row: DeviceRecord) -> bool:
        """Whether nobody can keep the promise for *row* now.

        A clean drive that several rows have on record loses its offer by what happens to another of them, and
        Placement is told in the next write.
        """
        several = [other for other in self.rows.values() if other.serial is not None and other.serial == row.serial]
        lost_offer = row.device_state is DeviceState.ERROR and self._world.host.is_clean(row.pci_address)
        return self._world.meddling.excuses_offer(row.uuid) or (lost_offer and len(several) > 1)
