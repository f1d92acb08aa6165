"""Simulate a host: one directory that an agent takes for a machine.

:class:`Fleet` manages the hosts of one data directory, where ``autoclave up --simulate`` creates them. The stand-in
tools are programs. :class:`ToolAnswers` answers quick commands without a process, since starting an interpreter takes
far longer.
"""

import errno
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import autoclave
from autoclave.exceptions import SimulatorError
from autoclave.hardware.host import Completed, HostPaths
from autoclave.simulator.disk import SimulatedDisk, hold
from autoclave.simulator.drive import Drive
from autoclave.simulator.drive_spec import DriveSpec, Inventory, default_drives
from autoclave.simulator.faults import FaultKind
from autoclave.simulator.functions import FunctionSpec, default_functions
from autoclave.simulator.nvme_commands import COMMANDS
from autoclave.simulator.nvme_status import CommandFailed
from autoclave.simulator.slots import DriveSlots
from autoclave.simulator.tools import NvmeTool, lvm_settings

CLEAR = "clear"
"""The name of the operator's program, which stands in for any that clears a device."""
TOOLS = {
    CLEAR: ("tools", "run_clear"),
    "lvmconfig": ("tools", "lvmconfig"),
    "mdadm": ("tools", "mdadm"),
    "nvme": ("tools", "run_nvme"),
    "shred": ("tools", "run_shred"),
    "vgchange": ("tools", "vgchange"),
    "vgs": ("tools", "vgs"),
}
"""The module and the function of each stand-in."""
_NOT_INSTALLED = ("multipath", "udisksctl")
"""The files that cannot be executed, to hide the tools of this machine."""
_ETC = {
    "lvm/devices/system.devices": "",
    "lvm/lvm.conf": "devices {\n    use_devicesfile = 1\n}\n",
    "mdadm/mdadm.conf": "AUTO -all\n",
}
"""The configuration files of a host that ignores the data of guests on drives."""

# -I and -S ignore the environment and site-packages. So the tools start as fast as real ones, and need only this
# package and the standard library.
_TOOL = """#!{python} -IS
import sys
sys.path.append({package!r})
from autoclave.simulator.{module} import {function}
sys.exit({function}({root!r}, sys.argv[1:]))
"""


def write_tools(root: Path) -> None:
    """Write a program for each tool into the ``bin`` of the host in *root*, and their settings into its ``etc``."""
    for name in TOOLS:
        script = root / ("etc/autoclave/clear.d" if name == CLEAR else "bin") / name
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(program(root, name))
        script.chmod(0o755)
    for name in _NOT_INSTALLED:
        (root / "bin" / name).touch(mode=0o644)
    for name, text in _ETC.items():
        (root / "etc" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "etc" / name).write_text(text)


def program(root: Path, name: str) -> str:
    """Return the program that stands in for the tool *name* on the host in *root*."""
    package = str(Path(autoclave.__file__).parent.parent)
    module, function = TOOLS[name]
    return _TOOL.format(python=sys.executable, package=package, module=module, function=function, root=str(root))


_AT_ONCE = frozenset({"version", *COMMANDS}) - {"format", "write-zeroes"}
"""The commands that end at once. As on a real host, the others take time and can be killed."""
_TAKE_TIME = frozenset({FaultKind.NVME_SLOW, FaultKind.NVME_HANGS})


@dataclass(frozen=True)
class ToolAnswers:
    """Answer for the programs in ``bin`` of one simulated host.

    :param root: the directory of the host.
    """

    root: Path

    def __call__(self, argv: Sequence[str]) -> Completed | None:
        """Return the result of the program *argv*.

        None: the program has to be run, because it takes time or is another one.
        """
        path, *words = argv
        if path not in self._programs or Path(path).read_text() != self._programs[path]:
            return None
        if path == self._nvme:
            if not words or words[0] not in _AT_ONCE or "--wait" in words or self._takes_time:
                return None
            answer = NvmeTool(self._host).run(words)
        else:
            answer = lvm_settings(self.root, words)
        return Completed(tuple(argv), answer.code, _as_read(answer.out), _as_read(answer.err))

    @cached_property
    def _host(self) -> DriveSlots:
        return DriveSlots(self.root)

    @property
    def _nvme(self) -> str:
        return str(self.root / "bin" / "nvme")

    @cached_property
    def _programs(self) -> Mapping[str, str]:
        return {str(self.root / "bin" / name): program(self.root, name) for name in ("lvmconfig", "nvme")}

    @property
    def _takes_time(self) -> bool:
        return any(kind in _TAKE_TIME for kinds in self._host.faults.read().values() for kind in kinds)


def _as_read(text: str) -> str:
    """Return *text* as read from a program's pipe."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


STYLES = ("1.16", "2.3", "2.13", "2.16", "3.0")
"""The versions of nvme-cli that the stand-in can imitate."""


@dataclass(frozen=True)
class _HoldDisk:
    """Hold disks of the host in *root*; see :class:`~autoclave.hardware.host.HoldDisk`."""

    root: Path

    def __call__(self, paths: HostPaths, path: Path, *, writable: bool) -> SimulatedDisk:
        return hold(DriveSlots(self.root), paths, path, writable=writable)


@dataclass(frozen=True)
class _WriteAttribute:
    """Write attributes of functions on the host in *root*; see :class:`~autoclave.hardware.host.WriteAttribute`."""

    root: Path

    def __call__(self, path: Path, text: str) -> None:
        host, address = DriveSlots(self.root), path.parent.name
        if path.name != "reset" or text != "1" or FaultKind.RESET_FAILS in host.faults.active([address]):
            raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))
        host.functions.reset(address)


class SimulatedHost(DriveSlots):
    """Represent one simulated host: its slots, and all other interfaces of a machine for an agent."""

    @classmethod
    def create(
        cls,
        root: Path,
        name: str,
        drives: Sequence[DriveSpec],
        functions: Sequence[FunctionSpec] = (),
        *,
        style: str = "2.13",
    ) -> "SimulatedHost":
        """Create a host called *name* with *drives* and other *functions* in the directory *root*.

        Controllers are numbered in the order of *drives*. A virtual function must come after its physical function.

        :param style: the version of nvme-cli to imitate, one of :data:`STYLES`.
        :raises SimulatorError: the host exists already, or *style* is unknown.
        """
        root = root.absolute()
        if style not in STYLES:
            raise SimulatorError(f"nvme-cli {style} is not simulated; supported are {', '.join(STYLES)}")
        if (root / "state").exists():
            raise SimulatorError(f"{root}: there is a simulated host already")
        for directory in ("state/drives", "bin", "proc/self"):
            (root / directory).mkdir(parents=True)
        Inventory(name, style).save(root)
        host = cls(root)
        host.tree.lay_out()
        write_tools(root)
        with Inventory.change(root) as inventory:
            host._plug(inventory, *drives)
        host.functions.plug(*functions)
        return host

    @classmethod
    def of_nodes(cls, dev: Path) -> Self | None:
        """Return the host whose device nodes are in the directory *dev*, or None for another directory."""
        dev = dev.absolute()
        return cls(dev.parent) if dev.name == "dev" and (dev.parent / "state" / "host.json").exists() else None

    @property
    def name(self) -> str:
        return self.inventory.name

    @property
    def paths(self) -> HostPaths:
        """Return the paths of the host's kernel interfaces for an agent."""
        return HostPaths(
            sysfs=self.root / "sys", dev=self.root / "dev", proc=self.root / "proc", etc=self.root / "etc",
            tools=(self.root / "bin",), hold_disk=_HoldDisk(self.root), answer_tool=ToolAnswers(self.root),
            write_attribute=_WriteAttribute(self.root),
        )  # fmt: skip

    def conf_overrides(self, *, device_spec: bool = False) -> dict[tuple[str | None, str], Any]:
        """Return the options that make an agent run on this host, by (group, name).

        :param device_spec: also manage every drive except the host's own, by address.
        """
        inventory = self.inventory
        overrides: dict[tuple[str | None, str], Any] = {
            ("agent", "resource_provider_name"): inventory.name,
            ("agent", "sysfs_root"): str(self.paths.sysfs),
            ("agent", "dev_root"): str(self.paths.dev),
            ("agent", "proc_root"): str(self.paths.proc),
            ("agent", "etc_root"): str(self.paths.etc),
            ("agent", "tools_path"): [str(directory) for directory in self.paths.tools],
            ("compute", "virt_driver"): "null",
        }
        if device_spec:
            ours = [slot.address for slot in inventory.slots.values() if not slot.spec.mounted]
            overrides["nvme", "device_spec"] = [json.dumps({"address": address}) for address in ours]
        return overrides

    def rename(self, name: str) -> None:
        """Rename the host, as an operator does with ``hostnamectl``."""
        with Inventory.change(self.root) as inventory:
            inventory.name = name

    def give_to_guest(self, address: str) -> None:
        """Bind the function to vfio-pci, as libvirt does for a guest: the controller vanishes from the host."""
        if address in self.functions:
            self.functions.bind(address, "vfio-pci")
            return
        with Inventory.change(self.root) as inventory:
            slot = self._occupied(inventory, address)
            if slot.driver == "vfio-pci":
                raise SimulatorError(f"{address}: a guest has it already")
            self._unbind(inventory, slot, "vfio-pci")

    def give_back(self, address: str) -> None:
        """Bind the function to the host's driver again: a drive's controller and its namespaces reappear."""
        if address in self.functions:
            self.functions.give_back(address)
            return
        with Inventory.change(self.root) as inventory:
            slot = self._occupied(inventory, address)
            if slot.driver != "vfio-pci":
                raise SimulatorError(f"{address}: no guest has it")
            if slot.spec.physfn is None:
                self._bind(inventory, slot)
            else:
                self._unbind(inventory, slot, None)

    def write(self, address: str, offset: int, data: bytes, *, nsid: int = 1) -> None:
        """Write *data* at byte *offset* of a namespace, as a guest or the host would.

        :raises SimulatorError: the drive refuses it.
        """
        with self._command(address) as drive:
            drive.write(nsid, offset, data)

    def read(self, address: str, offset: int, length: int, *, nsid: int = 1) -> bytes:
        """Return the current bytes on the media, whatever the drive would return."""
        with self._command(address) as drive:
            return drive.peek(nsid, offset, length)

    def format(self, address: str, lba_format: int, *, nsid: int | None = None) -> None:
        """Format one namespace, or all, as a guest with the drive would. The bytes stay the same.

        :param lba_format: index into the drive's LBA formats.
        :raises SimulatorError: the drive refuses it.
        """
        with self._command(address) as drive:
            drive.format(nsid, lba_format, 0, 0)
            self.sync_namespaces(drive)

    def fill(self, address: str, pattern: bytes) -> None:
        """Write *pattern* repeatedly until every namespace is full."""
        with self._command(address) as drive:
            block = pattern * max(1, (1 << 20) // len(pattern))
            for nsid, namespace in drive.state.namespaces.items():
                for offset in range(0, namespace.size, len(block)):
                    drive.write(nsid, offset, block[: namespace.size - offset])

    def find(self, address: str, data: bytes) -> bool:
        """Return whether *data* is anywhere on the media, even outside of namespaces."""
        with self._command(address) as drive:
            return drive.find(data)

    @contextmanager
    def _command(self, address: str) -> Iterator[Drive]:
        with self.drive(address) as drive:
            try:
                yield drive
            except CommandFailed as error:
                raise SimulatorError(f"{address}: the drive refuses: {error}") from error


class Fleet:
    """Manage simulated hosts, each in ``<data directory>/sim/<name>``.

    :param data_dir: the data directory of their service.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir.absolute()
        self._directory = self._data_dir / "sim"

    def hosts(self) -> list[SimulatedHost]:
        """Return all hosts, sorted by name."""
        found = self._directory.glob("*/state/host.json")
        return [SimulatedHost.open(path.parent.parent) for path in sorted(found)]

    def require_hosts(self) -> list[SimulatedHost]:
        """Return all hosts, sorted by name.

        :raises SimulatorError: there are none.
        """
        hosts = self.hosts()
        if not hosts:
            raise SimulatorError(
                f"{self._data_dir} has no simulated hosts; name the directory of `autoclave up --simulate` with "
                "--data-dir, or AUTOCLAVE_DATA_DIR"
            )
        return hosts

    def host(self, name: str) -> SimulatedHost:
        """Return the host called *name*.

        :raises SimulatorError: it does not exist.
        """
        hosts = self.require_hosts()
        for host in hosts:
            if host.root.name == name:
                return host
        known = ", ".join(host.root.name for host in hosts)
        raise SimulatorError(f"{self._data_dir} has no simulated host {name!r}; it has {known}")

    def ensure(self, name: str, index: int) -> SimulatedHost:
        """Return the host called *name*; create it with the default drives and cards if necessary.

        :param index: makes its serial numbers unique in the fleet.
        """
        root = self._directory / name
        if (root / "state" / "host.json").exists():
            return SimulatedHost.open(root)
        return SimulatedHost.create(root, name, default_drives(index), default_functions())
