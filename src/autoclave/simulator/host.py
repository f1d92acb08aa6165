"""A simulated host: one directory that an agent takes for a machine."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from autoclave.exceptions import SimulatorError
from autoclave.hardware.host import HostPaths
from autoclave.simulator.disk import SimulatedDisk, hold
from autoclave.simulator.drive import Drive
from autoclave.simulator.drive_spec import DriveSpec
from autoclave.simulator.functions import FunctionSpec
from autoclave.simulator.inventory import Inventory
from autoclave.simulator.nvme_status import CommandFailed
from autoclave.simulator.slots import DriveSlots
from autoclave.simulator.tool_answers import ToolAnswers
from autoclave.simulator.tools import write_tools

STYLES = ("1.16", "2.3", "2.13", "2.16", "3.0")
"""The versions of nvme-cli that the stand-in can speak like."""


@dataclass(frozen=True)
class _HoldDisk:
    """Holds disks of the host in *root*; see :class:`~autoclave.hardware.host.HoldDisk`."""

    root: Path

    def __call__(self, paths: HostPaths, path: Path, *, writable: bool) -> SimulatedDisk:
        return hold(DriveSlots(self.root), paths, path, writable=writable)


class SimulatedHost(DriveSlots):
    """One simulated host: its slots, and all that an agent looks for on a machine."""

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
        """Make a host of *name* with *drives* and other *functions* in the directory *root*.

        Controllers are numbered in the order of *drives*. A virtual function must come after its
        physical function.

        :param style: the version of nvme-cli to speak like, one of :data:`STYLES`.
        :raises SimulatorError: there is one already, or *style* is not known.
        """
        root = root.absolute()
        if style not in STYLES:
            raise SimulatorError(f"nvme-cli {style} is not simulated; known are {', '.join(STYLES)}")
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
        """The host whose device nodes are in the directory *dev*; None: they are no simulated host's."""
        dev = dev.absolute()
        return cls(dev.parent) if dev.name == "dev" and (dev.parent / "state" / "host.json").exists() else None

    @property
    def name(self) -> str:
        return self.inventory.name

    @property
    def paths(self) -> HostPaths:
        """Where an agent finds the host's kernel interfaces."""
        return HostPaths(
            sysfs=self.root / "sys", dev=self.root / "dev", proc=self.root / "proc", etc=self.root / "etc",
            tools=(self.root / "bin",), hold_disk=_HoldDisk(self.root), answer_tool=ToolAnswers(self.root),
        )  # fmt: skip

    def conf_overrides(self, *, device_spec: bool = False) -> dict[tuple[str | None, str], Any]:
        """Options that make an agent run on this host, by (group, name).

        :param device_spec: also manage every drive but the host's own, by address.
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
        """Give the host another name, as an operator does with ``hostnamectl``."""
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
        """Bind the function to the host's driver again: a drive's controller and its namespaces are back."""
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
        """What is on the media now, whatever the drive would answer."""
        with self._command(address) as drive:
            return drive.peek(nsid, offset, length)

    def format(self, address: str, lba_format: int, *, nsid: int | None = None) -> None:
        """Format one namespace, or all, as a guest would that has the drive. The bytes stay what they are.

        :param lba_format: index into the drive's LBA formats.
        :raises SimulatorError: the drive refuses it.
        """
        with self._command(address) as drive:
            drive.format(nsid, lba_format, 0, 0)
            self.sync_namespaces(drive)

    def fill(self, address: str, pattern: bytes) -> None:
        """Write *pattern* over and over, until every namespace is full."""
        with self._command(address) as drive:
            block = pattern * max(1, (1 << 20) // len(pattern))
            for nsid, namespace in drive.state.namespaces.items():
                for offset in range(0, namespace.size, len(block)):
                    drive.write(nsid, offset, block[: namespace.size - offset])

    def find(self, address: str, data: bytes) -> bool:
        """Whether *data* is anywhere on the media, even where no namespace is."""
        with self._command(address) as drive:
            return drive.find(data)

    @contextmanager
    def _command(self, address: str) -> Iterator[Drive]:
        with self.drive(address) as drive:
            try:
                yield drive
            except CommandFailed as error:
                raise SimulatorError(f"{address}: the drive refuses: {error}") from error
