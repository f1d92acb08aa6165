"""What is physically there. The code under test sees it through its drivers only."""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING

from autoclave.agent.cleaning import DeviceLocks
from autoclave.conf import new_config
from autoclave.drivers.base import AttachHandle, CleanableDevice, CleanupControl, DiscoveredDevice, Driver, Evidence
from autoclave.exceptions import EraseTimeout, HardwareError
from autoclave.hardware.host import HostPaths
from promises.gates import Died, Stage

if TYPE_CHECKING:
    from promises.simulated import SimulatedSlot
    from promises.world import World

NVME, CARD = "nvme_driver", "card_driver"
CLASSES = {NVME: "CUSTOM_NVME_144D_A808", CARD: "CUSTOM_FPGA_1234_5678"}
CARD_HANDLES = 2


class Entry(StrEnum):
    """What the configuration says of a device, once the agent is started again."""

    FIRST = "as at first"
    OTHER = "another way to clean it, or fewer of its functions"
    CONTRADICTORY = "a policy that contradicts itself"
    GONE = "nothing"


class Host:
    """Slots, the drives in them and beside them, and the truth about what is on those.

    :param drivers: the driver of each slot's device. A card is no drive: it keeps nothing, and stays.
    """

    def __init__(self, drivers: Sequence[str]) -> None:
        self.drivers = {f"0000:0{number}:00.0": driver for number, driver in enumerate(drivers, start=1)}
        self.slots: dict[str, str | None] = {
            address: f"S{number}" for number, address in enumerate(self.drivers) if self.drivers[address] == NVME
        }
        self.shelf = ["X0"]
        self.dirty = {"X0"}
        """The serial numbers of drives that nobody can vouch for."""
        self.erasing: set[str] = set()
        """Slots whose drive is being erased at this moment."""
        self.guests: dict[str, set[str]] = {}
        """The instances whose guest runs, with the slots of what it has."""
        self.simulated: dict[str, SimulatedSlot] = {}
        """Slots whose drive is not only thought of: see ``simulated.py``."""

    def is_clean(self, address: str) -> bool:
        if address in self.simulated:
            return self.simulated[address].is_clean
        return self.slots.get(address) not in self.dirty

    def write(self, address: str) -> None:
        """A guest writes to what it has been given."""
        if address in self.simulated:
            self.simulated[address].write_as_guest()
            return
        drive = self.slots.get(address)
        if drive is not None:
            self.dirty.add(drive)

    def start_guest(self, instance: str, addresses: Iterable[str]) -> None:
        """A guest starts, and writes to what it has been given."""
        self.guests[instance] = set(addresses)
        for address in self.guests[instance]:
            self.write(address)

    def is_with_guest(self, address: str) -> bool:
        return any(address in addresses for addresses in self.guests.values())

    def exchange(self, address: str) -> None:
        """Somebody takes the drive out, or puts in the one that lies there longest, or both."""
        out, self.slots[address] = self.slots[address], self.shelf.pop(0) if self.shelf else None
        if out is not None:
            self.shelf.append(out)

    def pull(self, address: str) -> None:
        drive = self.slots[address]
        if drive is not None:
            self.slots[address] = None
            self.shelf.append(drive)


@contextmanager
def erasing(world: "World", device: CleanableDevice) -> Iterator[None]:
    """Erase a device in the name of the worker that waits for it; the erase may fail, hang or die on the way.

    The agent runs an erase in a thread of its own, which goes on here as that worker.
    """
    world.stage.here.actor = world.worker_of(device.uuid)
    world.host.erasing.add(device.pci_address)

    def time_out() -> None:
        world.tally["timeouts"] += 1
        [attempt] = [a for a in world.agent.cleanup._attempts if a._thread is threading.current_thread()]
        attempt._outcome.put(EraseTimeout("the cleanup took too long, as arranged"))

    try:
        fate = world.stage.gate("erase")
        if fate == "hang":
            world.stage.part("late", "agent", time_out)
        elif fate is not None:
            raise HardwareError("the erase failed, as arranged")
        yield
        world.stage.after("erased")
    except Died:
        raise HardwareError("the process is dead") from None
    finally:
        world.host.erasing.discard(device.pci_address)


class _Configured(Driver):
    """:param entries: the configuration, by address, where it is not as at first."""

    def __init__(self, world: "World", entries: Mapping[str, Entry]) -> None:
        super().__init__(new_config((), {}), HostPaths())
        self._world, self._entries = world, entries


class Drives(_Configured):
    """NVMe drives, each of one handle. An erase takes two steps, and may fail or hang on the way."""

    name = NVME

    def discover(self) -> list[DiscoveredDevice]:
        if self._world.stage.gate("look") is not None:
            self._world.agent.blind = True
            raise HardwareError("nothing could be read, as arranged")
        return [
            self._found(address, serial, self._entries.get(address, Entry.FIRST))
            for address, serial in self._world.host.slots.items()
            if serial is not None and self._entries.get(address) is not Entry.GONE
        ]

    def _found(self, address: str, serial: str, entry: Entry) -> DiscoveredDevice:
        return DiscoveredDevice(
            pci_address=address,
            device_type="NVME",
            vendor="144d",
            product="a808",
            resource_class=CLASSES[NVME],
            traits=[],
            attach_handles=[AttachHandle("PCI", {"bus": address[5:7]}, address)],
            std_board_info={"product_id": "a808", "pci_address": address},
            serial=serial,
            drive_model="Model",
            cleanup_action="sanitize_block" if entry is Entry.OTHER else "sanitize_crypto",
            excluded="its entry contradicts itself" if entry is Entry.CONTRADICTORY else None,
        )

    def cleanup(self, device: CleanableDevice, control: CleanupControl | None = None) -> Evidence:
        host, address = self._world.host, device.pci_address
        if host.slots[address] != device.serial:
            raise HardwareError(f"the drive in the slot is {host.slots[address]}")
        with erasing(self._world, device):
            if host.slots[address] != device.serial:
                raise HardwareError("the drive went away")
            host.dirty.discard(device.serial)
        return {"method": "rehearsed"}


class Locks(DeviceLocks):
    """The agent's locks. An erase that came too late has really ended when it gives its lock back."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self._stage = stage

    def release(self, device_uuid: str) -> None:
        super().release(device_uuid)
        self._stage.leave()


class Cards(_Configured):
    """Devices of several handles, of a type that is not erased."""

    name = CARD

    def discover(self) -> list[DiscoveredDevice]:
        drivers = self._world.host.drivers
        entries = {address: self._entries.get(address, Entry.FIRST) for address in drivers if drivers[address] == CARD}
        return [self._found(address, entry) for address, entry in entries.items() if entry is not Entry.GONE]

    def _found(self, address: str, entry: Entry) -> DiscoveredDevice:
        handles = 1 if entry is Entry.OTHER else CARD_HANDLES
        functions = [f"{address[:-1]}{number}" for number in range(handles)]
        return DiscoveredDevice(
            pci_address=address,
            device_type="FPGA",
            vendor="1234",
            product="5678",
            resource_class=CLASSES[CARD],
            traits=[],
            attach_handles=[AttachHandle("PCI", {"function": function[-1]}, function) for function in functions],
            std_board_info={"product_id": "5678", "pci_address": address},
            excluded="its entry contradicts itself" if entry is Entry.CONTRADICTORY else None,
        )
