"""Find the tools of this host that would use disks that guests return.

:class:`HostSetup` reports their settings and the remedy. :class:`GuestVolumes` ends volume groups and RAID arrays that
this host has activated from the data of a guest.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autoclave.exceptions import HardwareError, ToolMissing
from autoclave.hardware import sysfs
from autoclave.hardware.command import Commands
from autoclave.hardware.host import Completed, Deadline, HostPaths, ToolSink
from autoclave.hardware.nvme import Controller, block_directory
from autoclave.hardware.usage import HostUses, partitions
from autoclave.rules.host_setup import lvm_accepts, md_assembles, multipath_takes, names_of, udisks_ignores
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.plain_text import excerpt

_SHOWN_SLOTS = 4
_LVMCONFIG = (
    "lvmconfig", "--typeconfig", "full", "devices/global_filter", "devices/filter", "devices/use_devicesfile"
)  # fmt: skip


class HostSetup:
    """Check the settings of this host's tools. Tools that are not installed are skipped.

    :param slots: the slots of the guests' drives.
    :param timeout: seconds for one command.
    """

    def __init__(self, paths: HostPaths, commands: Commands, slots: Sequence[PCIAddress], timeout: float) -> None:
        self._etc = paths.etc
        self._commands = commands
        self._slots = slots
        self._timeout = timeout

    def lacks(self) -> list[str]:
        """Return one line for each tool that would use the drives; empty if none is known."""
        found: list[str] = []
        for tool, name, look in _TOOLS if self._slots else ():
            try:
                lack = look(self) if self._has(tool) else None
            except (HardwareError, ValueError) as error:
                lack = f"cannot determine whether it takes the guests' drives: {error}"
            if lack is not None:
                found.append(f"{name}: {lack}")
        return found

    def _has(self, tool: str) -> bool:
        try:
            self._commands.find(tool)
        except ToolMissing:
            return False
        return True

    def _lvm(self) -> str | None:
        """Check lvmconfig.

        :raises HardwareError: lvmconfig fails.
        :raises ValueError: its output is not understood.
        """
        done = self._commands.run(_LVMCONFIG, deadline=Deadline.after(self._timeout))
        said = dict(line.strip().split("=", 1) for line in done.stdout.splitlines() if "=" in line)
        # LVM before 2.03.12 does not know use_devicesfile: lvmconfig reports that and exits with 5.
        if "global_filter" not in said:
            words = excerpt(done.stderr.strip() or done.stdout.strip()) or "no output"
            raise HardwareError(f"lvmconfig exited with {done.returncode}: {words}")
        if said.get("use_devicesfile") == "1" and sysfs.is_there(self._etc / "lvm/devices/system.devices"):
            return None
        filters = [said[name] for name in ("global_filter", "filter") if name in said]
        taken = [slot for slot in self._slots if all(lvm_accepts(each, names_of(slot)) for each in filters)]
        if not taken:
            return None
        return (
            f"it would activate volume groups on the drives of {_shown(taken)}: set use_devicesfile = 1 in lvm.conf, "
            "and list the host's own disks, or reject these slots in global_filter"
        )

    def _md(self) -> str | None:
        """Check mdadm.conf.

        :raises HardwareError: a file cannot be read.
        """
        text = self._text("mdadm/mdadm.conf", "mdadm.conf", "mdadm/mdadm.conf.d/*", "mdadm.conf.d/*")
        if not md_assembles(text):
            return None
        return (
            "it would assemble arrays on the guests' drives: begin with AUTO -all in mdadm.conf, and name your arrays"
        )

    def _multipath(self) -> str | None:
        """Check multipath.conf.

        :raises HardwareError: a file cannot be read.
        :raises ValueError: a pattern is not understood.
        """
        if not multipath_takes(self._text("multipath.conf", "multipath/conf.d/*.conf")):
            return None
        return 'it may put maps on the guests\' drives: add blacklist { devnode "^nvme" } to multipath.conf'

    def _udisks(self) -> str | None:
        """Check the udev rules for udisks.

        :raises HardwareError: a file cannot be read.
        """
        rules = self._text("udev/rules.d/*.rules")
        taken = [slot for slot in self._slots if not udisks_ignores(rules, slot)]
        if not taken:
            return None
        return (
            f'it may mount what is on the drives of {_shown(taken)}: set ENV{{UDISKS_IGNORE}}="1" for these slots in '
            "/etc/udev/rules.d"
        )

    def _text(self, *patterns: str) -> str:
        """Return the joined text of all files that match the patterns."""
        return "\n".join(sysfs.read(path) for pattern in patterns for path in self._files(pattern))

    def _files(self, pattern: str) -> Iterator[Path]:
        directory, _, name = pattern.rpartition("/")
        place = self._etc / directory
        if "*" not in name:
            yield from [place / name] if sysfs.is_there(place / name) else []
        elif sysfs.is_there(place):
            yield from (path for path in sysfs.entries(place) if path.match(name))


def _shown(slots: Sequence[PCIAddress]) -> str:
    more = f" and {len(slots) - _SHOWN_SLOTS} more" if len(slots) > _SHOWN_SLOTS else ""
    return ", ".join(str(slot) for slot in slots[:_SHOWN_SLOTS]) + more


_TOOLS: Sequence[tuple[str, str, Callable[[HostSetup], str | None]]] = (
    ("lvmconfig", "LVM", HostSetup._lvm),
    ("mdadm", "mdadm", HostSetup._md),
    ("multipath", "multipath", HostSetup._multipath),
    ("udisksctl", "udisks", HostSetup._udisks),
)

_VOLUME = re.compile(r"LVM-([A-Za-z0-9]{32})[A-Za-z0-9]{32}(?:-.*)?")
"""Matches the ``dm/uuid`` of a logical volume. It has the UUIDs of its group and its own, and an optional layer, such
as that of a thin pool.
"""
_ARRAY = re.compile(r"md\d+")
"""Matches names chosen by the kernel. Other names of arrays come from the data on the disk."""
_GROUPS = (6, 4, 4, 4, 4, 4, 6)
"""The lengths of the parts of an LVM UUID between its dashes."""


@dataclass(frozen=True)
class _Use:
    """Describe a volume group or an array.

    :param words: its name in messages.
    :param blocks: its block devices.
    :param group: the UUID of the volume group; None for an array.
    """

    words: str
    blocks: Sequence[Path]
    group: str | None = None


@dataclass
class EndedUses:
    """Report the volume groups and arrays of a drive that were ended, and those that were kept.

    :param ended: those that this host no longer has.
    :param kept: those that it still has, each with the reason.
    """

    ended: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


class GuestVolumes:
    """End unused volume groups and arrays that are on one drive alone.

    Do not use it for a drive that may hold the host's own. All of them are assumed to be the guest's.

    :param timeout: seconds for one command.
    """

    def __init__(
        self, paths: HostPaths, commands: Commands, controller: Controller, deadline: Deadline, timeout: float
    ) -> None:
        self._paths = paths
        self._commands = commands
        self._deadline = deadline
        self._timeout = timeout
        disks = [block_directory(paths, controller, namespace) for namespace in controller.namespaces]
        self._own: Mapping[str, Path] = {part.name: part for disk in disks for part in (disk, *partitions(disk))}

    def end(self, tools: ToolSink) -> EndedUses:
        """End each unused group or array by one command. After a failure it is kept, together with its users."""
        outcome = EndedUses()
        try:
            found = list(self._found())
        except HardwareError as error:
            outcome.kept.append(f"volume groups and RAID arrays on the drive were not stopped: {error}")
            return outcome
        for use in found:
            try:
                why_not = self._objection(use) or self._end(use, tools)
            except HardwareError as error:
                why_not = str(error)
            if why_not is None:
                outcome.ended.append(use.words)
            else:
                outcome.kept.append(f"{use.words} was not stopped: {why_not}")
        return outcome

    def _found(self) -> Iterator[_Use]:
        """Yield the groups and arrays directly on the drive. Those on top of an array keep that array in use."""
        holders = {each.name: each for part in self._own.values() for each in sysfs.entries(part / "holders")}
        groups = dict.fromkeys(group for each in holders.values() if (group := _group(each)) is not None)
        for group in groups:
            volumes = [each for each in sysfs.entries(self._blocks) if _group(each) == group]
            yield _Use(f"volume group {_dashed(group)}", volumes, group)
        for name, array in holders.items():
            if sysfs.is_there(array / "md"):
                yield _Use(f"RAID array {name}", [array])

    def _objection(self, use: _Use) -> str | None:
        """Return why the use must not be ended, or None.

        It may be ended if it is on this drive alone and sysfs shows no user.

        :raises HardwareError: the kernel does not show its users.
        """
        names = {block.name for block in use.blocks}
        uses = HostUses.of(self._paths)
        for block in use.blocks:
            below = [lower.name for lower in sysfs.entries(block / "slaves")]
            elsewhere = [name for name in below if name not in self._own and name not in names]
            if elsewhere or not below:
                where = f"is also on {', '.join(elsewhere)}" if below else "has no underlying device"
                return f"{block.name} {where}"
            for part in (block, *partitions(block)):
                above = [each.name for each in sysfs.entries(part / "holders") if each.name not in names]
                if users := [*uses.direct(part), *(f"belongs to {name}" for name in above)]:
                    return f"{part.name} {', '.join(users)}"
        if use.group is None and not _ARRAY.fullmatch(use.blocks[0].name):
            return "its name is not one that the kernel chose"
        return None

    def _end(self, use: _Use, tools: ToolSink) -> str | None:
        """End the use; return why it is still there, or None if it is gone.

        :raises HardwareError: a command did not end by itself, or is not installed.
        """
        if use.group is None:
            done = self._run(tools, "mdadm", "--stop", str(self._paths.dev / use.blocks[0].name))
        else:
            # Restrict LVM to this drive, whatever lvm.conf says: another disk may have the same names or UUIDs.
            nodes = "".join(f'"a|^{self._paths.dev / name}$|",' for name in sorted(self._own))
            alone = f'[{nodes}"r|.*|"]'
            config = f'devices{{filter={alone}global_filter={alone}hints="none"use_devicesfile=0}}'
            this = ("--select", f"vg_uuid={_dashed(use.group)}", "--config", config)
            asked = self._run(tools, "vgs", "--noheadings", "-o", "vg_missing_pv_count", *this)
            missing = asked.stdout.strip()
            if asked.returncode or missing != "0":
                counted = not asked.returncode and missing.isdigit()
                return f"it has {missing} members that are not on this drive" if counted else _said(asked)
            done = self._run(tools, "vgchange", "-an", *this)
        # vgchange may report success although it deactivated nothing.
        left = [block.name for block in use.blocks if sysfs.is_there(self._blocks / block.name)]
        if left:
            return f"{', '.join(left)} is still there; {_said(done)}"
        return _said(done) if done.returncode else None

    def _run(self, tools: ToolSink, *argv: str) -> Completed:
        deadline = Deadline.after(min(self._timeout, self._deadline.remaining()))
        return self._commands.run(argv, deadline=deadline, tools=tools)

    @property
    def _blocks(self) -> Path:
        return self._paths.sysfs / "class/block"


def _group(block: Path) -> str | None:
    """Return the UUID of the volume group of a block device, without its dashes, or None."""
    found = _VOLUME.fullmatch(sysfs.read_if_there(block / "dm/uuid") or "")
    return None if found is None else found[1]


def _dashed(group: str) -> str:
    ends = [sum(_GROUPS[: index + 1]) for index in range(len(_GROUPS))]
    return "-".join(group[end - length : end] for end, length in zip(ends, _GROUPS, strict=True))


def _said(done: Completed) -> str:
    words = excerpt(done.stderr.strip() or done.stdout.strip()) or "no output"
    return f"{Path(done.argv[0]).name} exited with {done.returncode}: {words}"
