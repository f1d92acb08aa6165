"""Lay out the simulated ``/sys`` and ``/dev`` of a host, as the kernel does.

A concurrent reader sees a device completely or not at all: the link under ``bus/pci/devices`` is created last and
removed first.

A controller of a subsystem for several controllers has the layout of the kernel's native multipath. The block device
nvmeSnY belongs to the subsystem and has its number. Each controller has a hidden path nvmeScCnY to it.
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Protocol

from autoclave.simulator import files
from autoclave.simulator.drive_spec import Inventory, Slot
from autoclave.simulator.drive_state import DriveState, Namespace


class SysfsDirs:
    """Build directories in a staging area on the same file system, and rename them into place.

    :param staging: the staging directory, which must exist.
    """

    def __init__(self, staging: Path) -> None:
        self._staging = staging

    def add(self, target: Path, contents: Mapping[str, str]) -> None:
        """Create *target* atomically.

        :param contents: text by relative path; a path that ends in a slash is an empty directory.
        """
        aside = self._aside(target)
        aside.mkdir()
        for key, text in contents.items():
            path = aside / key
            if key.endswith("/"):
                path.mkdir(parents=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        aside.rename(target)

    def rewrite(self, target: Path, contents: Mapping[str, str]) -> None:
        """Change the text of existing attributes of *target*, each atomically."""
        for key, text in contents.items():
            path = target / key
            if path.read_text() != f"{text}\n":
                aside = self._aside(path)
                aside.write_text(f"{text}\n")
                aside.rename(path)

    def remove(self, target: Path) -> None:
        """Remove *target* atomically; do nothing if it does not exist."""
        aside = self._aside(target)
        try:
            target.rename(aside)
        except FileNotFoundError:
            return
        shutil.rmtree(aside)

    def _aside(self, target: Path) -> Path:
        aside = self._staging / f"{target.name}.{os.getpid()}"
        if aside.is_dir():  # left by a killed process with the same number
            shutil.rmtree(aside)
        return aside


_BLOCK_EXT_MAJOR = 259
_NVME_GENERIC_MAJOR = 237
_SECTOR = 512
_FIRST_PARTITION_SECTOR = 2048


@dataclass(frozen=True)
class ControllerPlace:
    """Locate a controller's namespaces.

    :param controller: the controller's directory.
    :param instance: the N of nvmeN.
    :param cntlid: the controller's id.
    :param head: the number in the names of its block devices.
    :param subsystem: the subsystem's directory for the multipath layout, or None.
    :param other_controllers: directories of the controllers that share the subsystem.
    :param mounted: this host has mounted the first partition of each namespace.
    """

    controller: Path
    instance: int
    cntlid: int
    head: int
    subsystem: Path | None
    other_controllers: tuple[Path, ...]
    mounted: bool

    @property
    def disks(self) -> Path:
        """Return the directory that contains the block devices."""
        return self.subsystem or self.controller


class NamespaceNodes:
    """Add and remove block devices.

    :param sys: the simulated ``/sys``.
    :param dev: the simulated ``/dev``.
    """

    def __init__(self, sys: Path, dev: Path, dirs: SysfsDirs) -> None:
        self._sys = sys
        self._dev = dev
        self._dirs = dirs

    def sync(self, place: ControllerPlace, state: DriveState, media: Mapping[int, Path]) -> None:
        """Adapt the controller's block devices to its attached namespaces.

        :param media: the file with the bytes of each namespace.
        """
        wanted = {nsid: ns for nsid, ns in state.namespaces.items() if place.cntlid in ns.attached}
        there = _by_nsid(place.disks, f"nvme{place.head}n*")
        for nsid, disk in there.items():
            if nsid not in wanted or not _same_file(self._dev / disk.name, media[nsid]):
                self._remove(place, nsid)
        for nsid, namespace in wanted.items():
            self._add(place, nsid, namespace, media[nsid])

    def disks(self, place: ControllerPlace) -> dict[str, int]:
        """Return the namespace ids of the block devices by their names."""
        return {disk.name: nsid for nsid, disk in _by_nsid(place.disks, f"nvme{place.head}n*").items()}

    def remove_all(self, place: ControllerPlace) -> None:
        """Remove the controller's nodes, and the block devices that no other controller reaches."""
        for nsid in _by_nsid(place.controller, "nvme*n*"):
            self._remove(place, nsid)

    def _add(self, place: ControllerPlace, nsid: int, namespace: Namespace, media: Path) -> None:
        there = _by_nsid(place.disks, f"nvme{place.head}n*")
        disk = there.get(nsid)
        if disk is None:
            # The kernel numbers namespaces in their order of appearance, whatever their ids.
            free = next(y for y in range(1, len(there) + 2) if not (place.disks / f"nvme{place.head}n{y}").exists())
            disk = place.disks / f"nvme{place.head}n{free}"
            self._add_disk(place, disk, free, nsid, namespace, media)
        else:
            self._dirs.rewrite(disk, _sizes(namespace))
        if place.subsystem is not None:
            number = disk.name.removeprefix(f"nvme{place.head}n")
            path = place.controller / f"nvme{place.head}c{place.instance}n{number}"
            if not path.exists():
                self._dirs.add(path, _block_files(nsid, namespace, hidden=True))
                files.link(self._sys / "block" / path.name, path)
            else:
                self._dirs.rewrite(path, _sizes(namespace))

    def _add_disk(
        self, place: ControllerPlace, disk: Path, number: int, nsid: int, namespace: Namespace, media: Path
    ) -> None:
        minor = place.head * 1024 + number * 4
        generic = _generic(disk)
        os.link(media, self._dev / disk.name)
        (self._dev / generic.name).touch()
        contents = _block_files(nsid, namespace, hidden=False) | {"dev": f"{_BLOCK_EXT_MAJOR}:{minor}"}
        partition = f"{disk.name}p1"
        if place.mounted:
            (self._dev / partition).touch()
            contents |= {
                f"{partition}/partition": "1",
                f"{partition}/start": str(_FIRST_PARTITION_SECTOR),
                f"{partition}/size": str(namespace.size // _SECTOR - _FIRST_PARTITION_SECTOR),
                f"{partition}/dev": f"{_BLOCK_EXT_MAJOR}:{minor + 1}",
                f"{partition}/holders/": "",
            }
        self._dirs.add(disk, contents)
        files.link(disk / "device", place.disks)
        self._dirs.add(generic, {"dev": f"{_NVME_GENERIC_MAJOR}:{minor}"})
        files.link(self._sys / "block" / disk.name, disk)
        files.link(self._sys / "class/block" / disk.name, disk)
        if place.mounted:
            files.link(self._sys / "class/block" / partition, disk / partition)

    def _remove(self, place: ControllerPlace, nsid: int) -> None:
        if place.subsystem is not None:
            path = _by_nsid(place.controller, "nvme*n*").get(nsid)
            if path is not None:
                (self._sys / "block" / path.name).unlink(missing_ok=True)
                self._dirs.remove(path)
            if any(nsid in _by_nsid(other, "nvme*n*") for other in place.other_controllers):
                return
        disk = _by_nsid(place.disks, f"nvme{place.head}n*").get(nsid)
        if disk is None:
            return
        for name in (disk.name, f"{disk.name}p1"):
            (self._sys / "block" / name).unlink(missing_ok=True)
            (self._sys / "class/block" / name).unlink(missing_ok=True)
            (self._dev / name).unlink(missing_ok=True)
        generic = _generic(disk)
        (self._dev / generic.name).unlink(missing_ok=True)
        self._dirs.remove(generic)
        self._dirs.remove(disk)


def _generic(disk: Path) -> Path:
    return disk.with_name(disk.name.replace("nvme", "ng"))


def _by_nsid(directory: Path, pattern: str) -> dict[int, Path]:
    return {int((child / "nsid").read_text()): child for child in directory.glob(pattern) if (child / "nsid").exists()}


def _same_file(node: Path, media: Path) -> bool:
    try:
        return node.samefile(media)
    except FileNotFoundError:
        return False


def _block_files(nsid: int, namespace: Namespace, *, hidden: bool) -> dict[str, str]:
    return {
        **_sizes(namespace),
        "nsid": str(nsid),
        "hidden": str(int(hidden)),
        "removable": "0",
        "ro": "0",
        "holders/": "",
        "slaves/": "",
    }


def _sizes(namespace: Namespace) -> dict[str, str]:
    """Return the attributes that a format changes."""
    return {
        "size": str(namespace.shown_size // _SECTOR),
        "queue/logical_block_size": str(namespace.block_size),
        "queue/physical_block_size": str(namespace.block_size),
    }


_DRIVERS = ("nvme", "vfio-pci")
_NVME_MAJOR = 239


class Kind(Protocol):
    """Define the attributes of a function."""

    @property
    def vendor(self) -> str: ...
    @property
    def product(self) -> str: ...
    @property
    def class_code(self) -> str: ...
    @property
    def iommu(self) -> bool: ...
    @property
    def iommu_group(self) -> int | None: ...
    @property
    def numa_node(self) -> int: ...
    @property
    def physfn(self) -> str | None: ...


class Function(Protocol):
    """Define a function in its slot, with its driver."""

    @property
    def address(self) -> str: ...
    @property
    def driver(self) -> str | None: ...
    @property
    def spec(self) -> Kind: ...


class SysfsTree:
    """Change ``sys`` and ``dev`` of the simulated host in *root*. The caller must hold the inventory's lock."""

    def __init__(self, root: Path) -> None:
        self.sys = root / "sys"
        self.dev = root / "dev"
        self._staging = root / "state" / "staging"
        self._dirs = SysfsDirs(self._staging)
        self._nodes = NamespaceNodes(self.sys, self.dev, self._dirs)

    def lay_out(self) -> None:
        """Create the directories that every host has."""
        for name in (
            "block",
            "bus/pci/devices",
            *(f"bus/pci/drivers/{driver}" for driver in _DRIVERS),
            "class/block",
            "class/net",
            "class/nvme",
            "class/nvme-subsystem",
            "devices/virtual/nvme-subsystem",
            "kernel/iommu_groups",
        ):
            (self.sys / name).mkdir(parents=True)
        self.dev.mkdir()
        self._staging.mkdir()

    def add_function(self, slot: Function) -> None:
        """Add a PCI function without a driver, and not yet on the bus."""
        spec, directory = slot.spec, self._function(slot.address)
        directory.parent.mkdir(parents=True, exist_ok=True)
        self._dirs.add(
            directory,
            {
                "vendor": f"0x{spec.vendor}",
                "device": f"0x{spec.product}",
                "subsystem_vendor": f"0x{spec.vendor}",
                "subsystem_device": "0x0001",
                "class": f"0x{spec.class_code}",
                "revision": "0x00",
                "numa_node": str(spec.numa_node),
                "driver_override": "(null)",
                "enable": "1",
            },
        )
        files.link(directory / "subsystem", self.sys / "bus/pci")
        if spec.iommu:
            group = self._iommu_group(slot)
            (group / "devices").mkdir(parents=True, exist_ok=True)
            files.write_text(group / "type", "DMA\n")
            files.link(group / "devices" / slot.address, directory)
            files.link(directory / "iommu_group", group)
        if spec.physfn is not None:
            self._link_virtual_function(directory, self._function(spec.physfn))

    def write_config(self, address: str, space: bytes) -> None:
        """Write the configuration space of a function."""
        (self._function(address) / "config").write_bytes(space)

    def add_reset(self, address: str, ways: str) -> None:
        """Add the attributes of a function that can be reset."""
        files.write_text(self._function(address) / "reset_method", f"{ways}\n")
        files.write_text(self._function(address) / "reset", "")

    def announce(self, slot: Function) -> None:
        """Show the function on the bus."""
        files.link(self._bus / slot.address, self._function(slot.address))

    def hide(self, slot: Function) -> None:
        """Hide the function from the bus."""
        (self._bus / slot.address).unlink(missing_ok=True)

    def remove_function(self, slot: Function) -> None:
        """Remove a function without a driver."""
        if slot.spec.iommu:
            (self._iommu_group(slot) / "devices" / slot.address).unlink(missing_ok=True)
        if slot.spec.physfn is not None:
            for virtfn in self._function(slot.spec.physfn).glob("virtfn*"):
                if virtfn.readlink().name == slot.address:
                    virtfn.unlink()
        self._dirs.remove(self._function(slot.address))

    def set_driver(self, slot: Function) -> None:
        """Create the links between the function and its driver."""
        directory = self._function(slot.address)
        for driver in (self.sys / "bus/pci/drivers").iterdir():
            if driver.name != slot.driver:
                (driver / slot.address).unlink(missing_ok=True)
        if slot.driver is None:
            (directory / "driver").unlink(missing_ok=True)
            return
        driver_dir = self.sys / "bus/pci/drivers" / slot.driver
        driver_dir.mkdir(exist_ok=True)
        files.link(directory / "driver", driver_dir)
        files.link(driver_dir / slot.address, directory)

    def add_interface(self, slot: Function, name: str) -> None:
        """Add the network interface of the function's driver; it is up."""
        directory = self._function(slot.address) / "net"
        self._dirs.add(directory, {f"{name}/flags": "0x1003", f"{name}/operstate": "up"})
        files.link(directory / name / "device", self._function(slot.address))
        files.link(self.sys / "class/net" / name, directory / name)

    def remove_interface(self, slot: Function, name: str) -> None:
        """Undo :meth:`add_interface`, if there is an interface."""
        (self.sys / "class/net" / name).unlink(missing_ok=True)
        self._dirs.remove(self._function(slot.address) / "net")

    def add_controller(self, slot: Slot, state: DriveState, inventory: Inventory, media: Mapping[int, Path]) -> None:
        """Add the controller and its namespaces, as the nvme driver does after it is bound.

        :param media: the file with the bytes of each namespace.
        """
        place = self._place(slot, inventory)
        identity = {
            "serial": state.serial.ljust(20),
            "model": state.model.ljust(40),
            "firmware_rev": state.firmware.ljust(8),
            "subsysnqn": state.nqn,
        }
        name = f"nvme{slot.instance}"
        own = {
            "state": "live",
            "transport": "pcie",
            "address": slot.address,
            "cntlid": str(slot.cntlid),
            "cntrltype": "io",
            "dev": f"{_NVME_MAJOR}:{slot.instance}",
            "numa_node": str(slot.spec.numa_node),
        }
        (self.dev / name).touch()
        contents = {f"{name}/{key}": text for key, text in (identity | own).items()}
        self._dirs.add(self._function(slot.address) / "nvme", contents)
        files.link(place.controller / "device", self._function(slot.address))
        files.link(place.controller / "subsystem", self.sys / "class/nvme")
        subsystem = self._subsystem(slot, inventory)
        if not subsystem.exists():
            self._dirs.add(subsystem, {**identity, "subsystype": "nvm", "iopolicy": "numa"})
        files.link(subsystem / name, place.controller)
        files.link(self.sys / "class/nvme-subsystem" / subsystem.name, subsystem)
        self._nodes.sync(place, state, media)
        files.link(self.sys / "class/nvme" / name, place.controller)

    def remove_controller(self, slot: Slot, inventory: Inventory) -> None:
        """Undo :meth:`add_controller` while the inventory still has the function bound to the nvme driver."""
        name, place, subsystem = f"nvme{slot.instance}", self._place(slot, inventory), self._subsystem(slot, inventory)
        (self.sys / "class/nvme" / name).unlink(missing_ok=True)
        self._nodes.remove_all(place)
        self._dirs.remove(self._function(slot.address) / "nvme")
        (subsystem / name).unlink(missing_ok=True)
        if not place.other_controllers:
            (self.sys / "class/nvme-subsystem" / subsystem.name).unlink(missing_ok=True)
            self._dirs.remove(subsystem)
        (self.dev / name).unlink(missing_ok=True)

    def sync_namespaces(self, slot: Slot, state: DriveState, inventory: Inventory, media: Mapping[int, Path]) -> None:
        """Adapt the block devices to the attached namespaces, after namespace management."""
        self._nodes.sync(self._place(slot, inventory), state, media)

    def disks(self, slot: Slot, inventory: Inventory) -> dict[str, int]:
        """Return the namespace ids of the controller's block devices by their names."""
        return self._nodes.disks(self._place(slot, inventory))

    @property
    def _bus(self) -> Path:
        return self.sys / "bus/pci/devices"

    def _function(self, address: str) -> Path:
        return self.sys / "devices" / f"pci{address.rpartition(':')[0]}" / address

    def _controller(self, slot: Slot) -> Path:
        return self._function(slot.address) / "nvme" / f"nvme{slot.instance}"

    def _subsystem(self, slot: Slot, inventory: Inventory) -> Path:
        return self.sys / "devices/virtual/nvme-subsystem" / f"nvme-subsys{inventory.heads[slot.spec.drive_id]}"

    def _iommu_group(self, slot: Function) -> Path:
        number = slot.spec.iommu_group
        if number is None:
            bus, device, function = slot.address.replace(".", ":").split(":")[-3:]
            number = int(bus, 16) << 8 | int(device, 16) << 3 | int(function)
        return self.sys / "kernel/iommu_groups" / str(number)

    def _place(self, slot: Slot, inventory: Inventory) -> ControllerPlace:
        assert slot.instance is not None
        others = [s for s in inventory.sharing(slot.spec.drive_id) if s.instance is not None and s is not slot]
        return ControllerPlace(
            controller=self._controller(slot),
            instance=slot.instance,
            cntlid=slot.cntlid,
            head=inventory.heads[slot.spec.drive_id],
            subsystem=self._subsystem(slot, inventory) if slot.spec.subsystem is not None else None,
            other_controllers=tuple(self._controller(other) for other in others),
            mounted=slot.spec.mounted,
        )

    def _link_virtual_function(self, directory: Path, physical: Path) -> None:
        index = next(n for n in count() if not (physical / f"virtfn{n}").is_symlink())
        files.link(directory / "physfn", physical)
        files.link(physical / f"virtfn{index}", directory)
        for name in ("sriov_numvfs", "sriov_totalvfs"):
            files.write_text(physical / name, f"{index + 1}\n")
