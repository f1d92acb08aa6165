"""Builds the /sys, /dev and /proc of a host as the kernel lays them out (seen on Linux 6.1)."""

import os
from pathlib import Path

from autoclave.hardware.host import HostPaths
from autoclave.simulator import disk

DISK_BYTES = 1024 * 1024


class SysfsTree:
    """A host in *root*, with nothing plugged in."""

    def __init__(self, root: Path) -> None:
        self.sys, self.dev, self.proc = root / "sys", root / "dev", root / "proc"
        self.paths = HostPaths(sysfs=self.sys, dev=self.dev, proc=self.proc, hold_disk=disk.hold_file)
        for directory in ("bus/pci/devices", "class/block", "class/nvme", "class/nvme-subsystem"):
            (self.sys / directory).mkdir(parents=True)
        self.dev.mkdir()
        (self.proc / "self").mkdir(parents=True)
        self.mounted()
        self.swapping_to()

    def function(self, address: str, *, driver: str | None = None, **attributes: str) -> Path:
        """Plug in a PCI function; return its directory. A class attribute is given as ``class_``."""
        directory = self.sys / "devices/pci0000:00" / address
        defaults = {"vendor": "0x144d", "device": "0xa80a", "class_": "0x010802", "numa_node": "0"}
        _write(directory, {name.rstrip("_"): text for name, text in (defaults | attributes).items()})
        link(self.sys / "bus/pci/devices" / address, directory)
        if driver is not None:
            self.bind(address, driver)
        return directory

    def bind(self, address: str, driver: str) -> None:
        target = self.sys / "bus/pci/drivers" / driver
        target.mkdir(parents=True, exist_ok=True)
        link(self.sys / "bus/pci/devices" / address / "driver", target)

    def virtual_function(self, address: str, physical: str, **attributes: str) -> Path:
        """Plug in a virtual function; return its directory. See :meth:`function`."""
        directory = self.function(address, **attributes)
        link(directory / "physfn", (self.sys / "bus/pci/devices" / physical).resolve())
        return directory

    def interface(self, address: str, name: str, *, up: bool, master: str | None = None) -> None:
        """A network interface of a function."""
        directory = (self.sys / "bus/pci/devices" / address).resolve() / "net" / name
        _write(directory, {"flags": "0x1003" if up else "0x1002"})
        link(self.sys / "class/net" / name, directory)
        if master is not None:
            link(directory / "master", self.sys / "devices/virtual/net" / master)

    def iommu_group(self, number: int, *addresses: str) -> None:
        group = self.sys / "kernel/iommu_groups" / str(number)
        for address in addresses:
            function = (self.sys / "bus/pci/devices" / address).resolve()
            link(group / "devices" / address, function)
            link(function / "iommu_group", group)

    def controller(self, address: str, name: str, subsystem: str, **attributes: str) -> Path:
        """A function with the nvme driver and its controller; return the controller's directory."""
        directory = self.function(address, driver="nvme") / "nvme" / name
        defaults = {
            "serial": f"S-{name}".ljust(20),
            "model": "Fine Drive 3000".ljust(40),
            "firmware_rev": "1.0".ljust(8),
            "state": "live",
            "cntlid": "7",
            "subsysnqn": f"nqn.2014-08.org.example:{subsystem}",
        }
        _write(directory, defaults | attributes)
        (self.dev / name).touch()
        subsystem_directory = self.sys / "devices/virtual/nvme-subsystem" / subsystem
        subsystem_directory.mkdir(parents=True, exist_ok=True)
        link(subsystem_directory / name, directory)
        link(self.sys / "class/nvme-subsystem" / subsystem, subsystem_directory)
        link(self.sys / "class/nvme" / name, directory)
        return directory

    def disk(self, parent: Path, name: str, *, nsid: int = 1, number: str = "259:0", wwid: str | None = None) -> Path:
        """A namespace's block device below a controller or a subsystem, with its node."""
        directory = self._block(parent / name, number, DISK_BYTES)
        _write(directory, {"nsid": str(nsid), **({"wwid": wwid} if wwid else {})})
        return directory

    def hidden_path(self, controller: Path, name: str, *, nsid: int = 1, wwid: str | None = None) -> None:
        _write(controller / name, {"nsid": str(nsid), "size": "0", **({"wwid": wwid} if wwid else {})})

    def partition(self, disk: Path, name: str, number: str) -> Path:
        directory = self._block(disk / name, number, DISK_BYTES // 2)
        _write(directory, {"partition": "1"})
        return directory

    def virtual(self, name: str, number: str, below: list[Path], **attributes: str) -> Path:
        """A device that is built on others: LVM, RAID, encryption."""
        directory = self._block(self.sys / "devices/virtual/block" / name, number, DISK_BYTES)
        _write(directory, {key.replace("__", "/"): text for key, text in attributes.items()})
        for lower in below:
            link(lower / "holders" / name, directory)
            link(directory / "slaves" / lower.name, lower)
        return directory

    def subsystem(self, name: str) -> Path:
        return self.sys / "devices/virtual/nvme-subsystem" / name

    def mounted(self, *lines: str) -> None:
        """Set what is mounted: ``major:minor target fstype source`` each."""
        text = ""
        for index, line in enumerate(lines):
            number, target, fstype, source = line.split(" ")
            text += f"{30 + index} 1 {number} / {target} rw,relatime shared:1 - {fstype} {source} rw\n"
        (self.proc / "self/mountinfo").write_text(text)

    def swapping_to(self, *nodes: str) -> None:
        head = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
        (self.proc / "swaps").write_text(
            head + "".join(f"{node}            partition\t1024\t\t0\t\t-2\n" for node in nodes)
        )

    def program(self, pid: int, name: str, node: str, *, flags: str) -> None:
        """A process that has *node* open as descriptor 3, with the open flags in octal."""
        _write(self.proc / str(pid), {"comm": name, "fdinfo/3": f"pos:\t0\nflags:\t{flags}"})
        link_text(self.proc / str(pid) / "fd/3", node)

    def _block(self, directory: Path, number: str, size: int) -> Path:
        _write(directory, {"dev": number, "size": str(size // 512)})
        (directory / "holders").mkdir()
        node = self.dev / directory.name
        node.touch()
        os.truncate(node, size)
        link(self.sys / "class/block" / directory.name, directory)
        return directory


def link(place: Path, target: Path) -> None:
    """Make a relative link, as sysfs has them; one that is there already is replaced."""
    link_text(place, os.path.relpath(target, place.parent))


def link_text(place: Path, text: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(text)


def _write(directory: Path, attributes: dict[str, str]) -> None:
    for name, text in attributes.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
