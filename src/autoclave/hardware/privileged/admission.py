"""Admit the operations of the privileged process. Every request of the agent passes these checks first."""

import os
import re
import stat
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from autoclave.exceptions import HardwareError, ToolMissing
from autoclave.hardware import sysfs
from autoclave.hardware.command import Commands
from autoclave.hardware.erase.methods import FUNCTION_METHODS, METHODS
from autoclave.hardware.host import HostPaths
from autoclave.hardware.nvme import CONTROLLER_NODE, DISK_NODE
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.reclaim import program_fault

_FUNCTION = r"(?:[0-9a-f]{4}|[1-9a-f][0-9a-f]{4,7})(?::[0-9a-f]{2}){2}\.[0-7]"
_NODE = (
    rf"{CONTROLLER_NODE}|{DISK_NODE}(?:p[0-9]+)?|/dev/ng[0-9]+n[0-9]+"
    r"|/dev/vfio/(?:(?:noiommu-)?[0-9]+|devices/vfio[0-9]+)"
)

_UUID = r"[A-Za-z0-9]{6}(?:-[A-Za-z0-9]{4}){5}-[A-Za-z0-9]{6}"
_FILTER = rf'\[(?:"a\|\^(?:{DISK_NODE}(?:p[0-9]+)?)\$\|",)+"r\|\.\*\|"\]'
_GROUP = (
    rf"--select vg_uuid={_UUID} "
    rf'--config devices\{{filter={_FILTER}global_filter={_FILTER}hints="none"use_devicesfile=0\}}'
)
"""The arguments that select one volume group, restricted to NVMe drives."""

_SHARED = {
    "lvmconfig": "--typeconfig full devices/global_filter devices/filter devices/use_devicesfile",
    "mdadm": r"--stop /dev/md[0-9]+",
    "nvme": r"version|(?:id-ctrl|id-ns|id-ns-granularity|list-ns|create-ns|attach-ns|delete-ns|ns-rescan)"
    rf" {CONTROLLER_NODE}(?: -a| -[nc] [0-9]+| -o json| --(?:nsze|ncap|flbas|dps)=[0-9]+)*",
    "vgchange": f"-an {_GROUP}",
    "vgs": f"--noheadings -o vg_missing_pv_count {_GROUP}",
}
"""Regular expressions for the arguments of tools that are run outside of the erase methods."""


def _commands() -> dict[str, re.Pattern[str]]:
    admitted = defaultdict(set)
    for commands in (_SHARED, *(method.commands for method in METHODS.values())):
        for name, arguments in commands.items():
            admitted[name].add(arguments)
    return {name: re.compile("|".join(sorted(arguments))) for name, arguments in admitted.items()}


COMMANDS = _commands()
"""The admitted tools by name, with the arguments that each may get."""

_SOUGHT = frozenset({"multipath", "setpriv", "udisksctl"})
"""The tools whose existence the agent may query, but which it may not run."""


def command(argv: Sequence[str], sysfs: Path = HostPaths.sysfs) -> None:
    """Admit a command.

    :param sysfs: the root of sysfs, which lists the members of an array.
    :raises HardwareError: Autoclave does not need such a command.
    """
    if not argv or argv[0] not in COMMANDS:
        known = ", ".join(sorted(COMMANDS))
        raise HardwareError(f"the privileged helper refuses to run {' '.join(argv)!r}; it runs only {known}")
    arguments = argv[1:]
    if any(" " in argument for argument in arguments) or not COMMANDS[argv[0]].fullmatch(" ".join(arguments)):
        raise HardwareError(f"the privileged helper refuses to run {argv[0]} with the arguments {list(arguments)}")
    if argv[0] == "mdadm":
        _on_drives(sysfs / "block" / os.path.basename(argv[-1]) / "slaves")


def _on_drives(members: Path) -> None:
    """Admit an array that is on NVMe drives alone.

    :raises HardwareError: it has other members, or the kernel shows none.
    """
    names = [member.name for member in sysfs.entries(members)]
    others = [name for name in names if not re.fullmatch(rf"{DISK_NODE}(?:p[0-9]+)?", f"/dev/{name}")]
    if others or not names:
        raise HardwareError(
            f"the privileged helper refuses to run mdadm: {members} lists {names}, not NVMe drives alone"
        )


def tool(name: str) -> None:
    """Admit the lookup of a tool.

    :raises HardwareError: Autoclave does not need such a tool.
    """
    if name not in _SOUGHT.union(COMMANDS):
        raise HardwareError(f"the privileged helper refuses to look for {name!r}")


def disk(path: str) -> Path:
    """Admit the node of a namespace's block device.

    :raises HardwareError: it is another kind of path.
    """
    return _matching(path, DISK_NODE)


def nodes(paths: Sequence[str]) -> list[Path]:
    """Admit NVMe nodes of any kind, including partitions, and nodes of VFIO groups and devices.

    :raises HardwareError: one is another kind of path.
    """
    return [_matching(path, _NODE) for path in paths]


def function(address: str) -> PCIAddress:
    """Admit the address of a PCI function in the kernel's format.

    :raises HardwareError: it has another format.
    """
    if not re.fullmatch(_FUNCTION, address):
        raise HardwareError(f"the privileged helper refuses to inspect {address!r}: it is not a PCI address")
    return PCIAddress.parse(address)


def attribute(name: str, text: str) -> None:
    """Admit a write to a sysfs attribute of a PCI function.

    :raises HardwareError: no method writes it.
    """
    admitted = [method.attributes[name] for method in FUNCTION_METHODS.values() if name in method.attributes]
    if not any(re.fullmatch(pattern, text) for pattern in admitted):
        raise HardwareError(f"the privileged helper does not write {text!r} to the attribute {name!r}")


def program(argv: Sequence[str]) -> None:
    """Admit a program of the operator, by its path alone. Its file is verified when it is executed.

    :raises HardwareError: it is not in the directory of such programs.
    """
    fault = program_fault(argv)
    if fault is not None:
        raise HardwareError(f"the privileged helper does not run {list(argv)}: the command {fault}")


def device(device_uuid: str) -> str:
    """Admit the UUID of a device.

    :raises HardwareError: it is none.
    """
    if not re.fullmatch(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", device_uuid):
        raise HardwareError(f"the privileged helper does not take {device_uuid!r} for the UUID of a device")
    return device_uuid


def _matching(path: str, pattern: str) -> Path:
    if not re.fullmatch(pattern, path):
        raise HardwareError(f"the privileged helper refuses {path!r}: it is not a device node of this kind")
    return Path(path)


class RootsCommands(Commands):
    """Run only executables that only root can change or replace."""

    def find(self, name: str) -> str:
        """Return the path of an executable as :class:`Commands` does.

        :raises ToolMissing: also if the file, or a directory or link that leads to it, can be changed without root.
        """
        found = super().find(name)
        try:
            doubtful = _not_roots_alone(Path(found))
        except OSError as e:
            raise ToolMissing(f"{found} cannot be inspected: {e.strerror}", [name]) from e
        if doubtful is not None:
            raise ToolMissing(
                f"the privileged helper refuses to run {found}: a user other than root can change {doubtful}", [name]
            )
        return found


def _not_roots_alone(path: Path) -> Path | None:
    """Return the first component of *path*, resolving all links, that users other than root can change, or None."""
    os.stat(path)  # raises an error for a loop of links
    here = Path("/")
    ahead = list(reversed(path.parts[1:]))
    while True:
        found = os.lstat(here)
        if found.st_uid != 0 or (not stat.S_ISLNK(found.st_mode) and found.st_mode & 0o022):
            return here
        if stat.S_ISLNK(found.st_mode):
            target = Path(os.readlink(here))
            here = Path("/") if target.is_absolute() else here.parent
            ahead += reversed(target.parts[1:] if target.is_absolute() else target.parts)
        if not ahead:
            return None
        step = ahead.pop()
        here = here.parent if step == ".." else here / step
