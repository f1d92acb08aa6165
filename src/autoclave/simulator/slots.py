"""Manage the drive slots of a simulated host, with their faults, device nodes and ``/proc``."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from autoclave.exceptions import SimulatorError
from autoclave.simulator import files
from autoclave.simulator.drive import Drive
from autoclave.simulator.drive_spec import DriveSpec, Inventory, Slot
from autoclave.simulator.faults import EVERY_DRIVE, OF_THE_HOST, Fault, FaultBook, FaultKind
from autoclave.simulator.functions import Functions
from autoclave.simulator.host_volumes import HostVolumes
from autoclave.simulator.sysfs import SysfsTree


def write_proc(root: Path, inventory: Inventory) -> None:
    """Write the mounts of the host in *root*: those on its own drive."""
    mounts = [
        "21 26 0:20 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw",
        "22 26 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw",
    ]
    for slot in inventory.bound():
        if slot.spec.mounted:
            disk = f"nvme{inventory.heads[slot.spec.drive_id]}n1p1"
            device = (root / "sys/class/block" / disk / "dev").read_text().strip()
            mounts.insert(0, f"26 1 {device} / / rw,relatime shared:1 - ext4 /dev/{disk} rw,errors=remount-ro")
    files.write_text(root / "proc/self/mountinfo", "\n".join(mounts) + "\n")
    files.write_text(root / "proc/swaps", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n")


class DriveSlots:
    """Manage the slots of one simulated host. Several processes may open it concurrently.

    Every method with a PCI address raises :class:`~autoclave.exceptions.SimulatorError` for an unknown slot. It also
    does so if the content of the slot does not allow the operation.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.faults = FaultBook(root)
        self.tree = SysfsTree(root)
        self.functions = Functions(root, self.tree)

    @classmethod
    def open(cls, root: Path) -> Self:
        """Open the host that :meth:`create` made in *root*.

        :raises SimulatorError: it does not exist.
        """
        root = root.absolute()
        if not (root / "state" / "host.json").exists():
            raise SimulatorError(f"{root}: there is no simulated host")
        return cls(root)

    @property
    def inventory(self) -> Inventory:
        """Return the current content of the slots."""
        return Inventory.load(self.root)

    @property
    def sysfs(self) -> Path:
        return self.root / "sys"

    @property
    def dev(self) -> Path:
        return self.root / "dev"

    def pull(self, address: str) -> None:
        """Pull the drive: its function, controller and device nodes vanish. It keeps its data."""
        with Inventory.change(self.root) as inventory:
            self._pull(inventory, self._occupied(inventory, address))

    def insert(self, address: str, spec: DriveSpec) -> None:
        """Put a drive into the slot, after pulling its current one.

        A serial number that this host has seen refers to the same drive, with its data.

        :raises SimulatorError: that drive is in another slot.
        """
        if spec.address != address:
            raise SimulatorError(f"{address}: the drive to insert was made for {spec.address}")
        with Inventory.change(self.root) as inventory:
            slot = inventory.slots.get(address)
            if slot is not None and slot.present:
                self._pull(inventory, slot)
            self._plug(inventory, spec)

    def put_back(self, address: str) -> None:
        """Reinsert the last drive that was pulled from the slot, or that another one replaced."""
        with Inventory.change(self.root) as inventory:
            slot = self._slot(inventory, address)
            if slot.present and slot.previous is None:
                raise SimulatorError(f"{address}: nothing was pulled from it")
            spec = slot.previous if slot.present and slot.previous else slot.spec
            if slot.present:
                self._pull(inventory, slot)
            self._plug(inventory, spec)

    def set_fault(self, address: str, *faults: Fault) -> None:
        """Activate faults from now on, for the drive or function at *address* or for every drive (``*``).

        :raises SimulatorError: a fault of the whole host was given for one drive.
        """
        addresses = self._settle(address)
        for fault in faults:
            if fault.kind in OF_THE_HOST and addresses != [EVERY_DRIVE]:
                raise SimulatorError(f"fault {fault.kind} affects the whole host: use the address '*'")
        self.faults.set(address, *faults)

    def clear_faults(self, address: str | None = None, kind: FaultKind | None = None) -> None:
        """Clear faults: all, or those of one address, of one kind, or of both."""
        self._settle(EVERY_DRIVE if address is None else address)
        late = self._late()
        self.faults.clear(address, kind)
        for each in late - self._late():
            with self.drive(each) as drive:
                self.sync_namespaces(drive)

    @contextmanager
    def drive(self, address: str) -> Iterator[Drive]:
        """Lock the drive in the slot, advance it to the current time, and yield it.

        :raises SimulatorError: there is none.
        """
        inventory = self.inventory
        slot = self._occupied(inventory, address)
        if slot.spec.physfn is not None:
            raise SimulatorError(f"{address}: a virtual function has no drive of its own")
        addresses = [other.address for other in inventory.sharing(slot.spec.drive_id)]
        with Drive.open(self._drive_directory(slot.spec), self.faults.active(addresses)) as drive:
            yield drive

    def sync_namespaces(self, drive: Drive) -> None:
        """Adapt the block devices of *drive* to its namespaces, after namespace management."""
        drive.save()
        if FaultKind.BLOCK_DEVICES_LATE in drive.faults:
            return
        with Inventory.change(self.root) as inventory:
            for slot in inventory.bound():
                if self._drive_directory(slot.spec) == drive.directory:
                    media = {nsid: drive.media(nsid) for nsid in drive.state.namespaces}
                    self.tree.sync_namespaces(slot, drive.state, inventory, media)

    def _late(self) -> set[str]:
        """Return the slots of drives whose changes the host does not show yet."""
        drives = [slot for slot in self.inventory.slots.values() if slot.present and slot.spec.physfn is None]
        return {slot.address for slot in drives if FaultKind.BLOCK_DEVICES_LATE in self.faults.active([slot.address])}

    def _settle(self, address: str) -> list[str]:
        """Advance drives to the current time, so that a change of faults does not affect the past."""
        inventory = self.inventory
        if address == EVERY_DRIVE:
            for slot in inventory.slots.values():
                if slot.present and slot.spec.physfn is None:
                    with self.drive(slot.address):
                        pass
            return [EVERY_DRIVE]
        if address in self.functions:
            return [address]
        if self._slot(inventory, address).present:
            with self.drive(address):
                pass
        return [address]

    def _slot(self, inventory: Inventory, address: str) -> Slot:
        try:
            return inventory.slots[address]
        except KeyError:
            known = ", ".join(sorted(inventory.slots)) or "none"
            raise SimulatorError(f"host {inventory.name} has no slot {address}; it has {known}") from None

    def _occupied(self, inventory: Inventory, address: str) -> Slot:
        slot = self._slot(inventory, address)
        if not slot.present:
            raise SimulatorError(f"{address}: the slot is empty")
        return slot

    def _drive_directory(self, spec: DriveSpec) -> Path:
        return self.root / "state" / "drives" / spec.drive_id

    def _plug(self, inventory: Inventory, *specs: DriveSpec) -> None:
        slots = []
        functions = self.functions.all()
        for spec in specs:
            if spec.address in functions and functions[spec.address].present:
                raise SimulatorError(f"{spec.address}: the slot has a function that is not a drive; pull it first")
            sharing = inventory.sharing(spec.drive_id)
            if sharing and spec.subsystem is None and spec.physfn is None:
                raise SimulatorError(f"{spec.address}: drive {spec.serial} is in {sharing[0].address}")
            before = inventory.slots.get(spec.address)
            cntlid = next(n for n in range(len(sharing) + 1) if n not in {slot.cntlid for slot in sharing})
            slot = Slot(spec, cntlid, driver=spec.driver if spec.physfn is None else None)
            if before is not None:
                slot.previous = before.spec if before.spec != spec else before.previous
            inventory.slots[spec.address] = slot
            slots.append(slot)
        for slot in slots:
            directory = self._drive_directory(slot.spec)
            if slot.spec.physfn is None and not directory.exists():
                cntlids = [other.cntlid for other in inventory.sharing(slot.spec.drive_id)]
                Drive.make(directory, slot.spec, cntlids)
        for slot in slots:
            self.tree.add_function(slot)
            if slot.driver != "nvme":
                self.tree.set_driver(slot)
        self._bind(inventory, *(slot for slot in slots if slot.driver == "nvme"))
        for slot in slots:
            self.tree.announce(slot)
        write_proc(self.root, inventory)

    def _pull(self, inventory: Inventory, slot: Slot) -> None:
        self.tree.hide(slot)
        self._unbind(inventory, slot, None)
        self.tree.remove_function(slot)
        slot.present = False

    def _bind(self, inventory: Inventory, *slots: Slot) -> None:
        inventory.bind(*slots)
        for slot in slots:
            directory = self._drive_directory(slot.spec)
            state = Drive.peek_state(directory)
            media = {nsid: directory / f"ns{nsid}" for nsid in state.namespaces}
            self.tree.set_driver(slot)
            self.tree.add_controller(slot, state, inventory, media)
            faults = self.faults.active([slot.address])
            for disk, nsid in self.tree.disks(slot, inventory).items():
                HostVolumes(self.root).appear(disk, media[nsid], faults)

    def _unbind(self, inventory: Inventory, slot: Slot, driver: str | None) -> None:
        if slot.instance is not None:
            self.tree.remove_controller(slot, inventory)
            HostVolumes(self.root).drop_stranded()
        inventory.unbind(slot, driver)
        self.tree.set_driver(slot)


_CONTROLLER = re.compile(r"nvme(\d+)")
_NAMESPACE = re.compile(r"(?:nvme|ng)(\d+)n\d+")


@dataclass(frozen=True)
class DeviceNode:
    """Describe the target of a device node.

    :param name: the node's name.
    :param slot: a slot that leads to it.
    :param nsid: the namespace, or None for a controller.
    """

    name: str
    slot: Slot
    nsid: int | None


def find_node(host: DriveSlots, path: str) -> DeviceNode | None:
    """Return the node at *path*, or None. Only nodes of *host* count, never those of the real ``/dev``."""
    node = Path(path)
    try:
        if not node.exists() or not node.parent.samefile(host.dev):
            return None
        inventory = host.inventory
        if match := _CONTROLLER.fullmatch(node.name):
            slot = inventory.by_controller(int(match[1]))
            return DeviceNode(node.name, slot, None) if slot else None
        if match := _NAMESPACE.fullmatch(node.name):
            slot = inventory.by_head(int(match[1]))
            disk = host.sysfs / "class/block" / node.name.replace("ng", "nvme")
            return DeviceNode(node.name, slot, int((disk / "nsid").read_text())) if slot else None
    except FileNotFoundError:  # it vanished during the lookup
        return None
    return None
