"""Volume groups and RAID arrays that this host has activated from what a guest left on its drive."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autoclave.exceptions import HardwareError
from autoclave.hardware import attribute
from autoclave.hardware.command import Commands
from autoclave.hardware.deadline import Deadline
from autoclave.hardware.host import HostPaths
from autoclave.hardware.nvme import Controller, block_directory
from autoclave.hardware.tool import Completed, ToolSink
from autoclave.hardware.usage import HostUses, partitions
from autoclave.rules.plain_text import excerpt

_VOLUME = re.compile(r"LVM-([A-Za-z0-9]{32})[A-Za-z0-9]{32}(?:-.*)?")
"""``dm/uuid`` of a logical volume: the UUIDs of its group and its own, and the layer of a thin pool and the like."""
_ARRAY = re.compile(r"md\d+")
"""Other names of arrays are chosen by what is on the disk."""
_GROUPS = (6, 4, 4, 4, 4, 4, 6)
"""Lengths between the dashes of an LVM UUID, as LVM writes and reads it."""


@dataclass(frozen=True)
class _Use:
    """A volume group or an array.

    :param words: what to call it.
    :param blocks: its block devices.
    :param group: the UUID of the volume group; None: it is an array.
    """

    words: str
    blocks: Sequence[Path]
    group: str | None = None


@dataclass
class EndedUses:
    """What became of the volume groups and arrays on a drive, in words.

    :param ended: what this host no longer has.
    :param kept: what it still has, each with the reason.
    """

    ended: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


class GuestVolumes:
    """Ends the volume groups and arrays that stand on one drive alone, and that nothing uses.

    Not for a drive that could have the host's own: what is found is taken for the guest's.

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
        """End what may be ended, each by one command. What fails is kept, and with it its users."""
        outcome = EndedUses()
        try:
            found = list(self._found())
        except HardwareError as error:
            outcome.kept.append(f"volume groups and RAID arrays on the drive were not ended: {error}")
            return outcome
        for use in found:
            try:
                why_not = self._objection(use) or self._end(use, tools)
            except HardwareError as error:
                why_not = str(error)
            if why_not is None:
                outcome.ended.append(use.words)
            else:
                outcome.kept.append(f"{use.words} was not ended: {why_not}")
        return outcome

    def _found(self) -> Iterator[_Use]:
        """What is built on the drive directly. What stands on an array keeps that in use."""
        holders = {each.name: each for part in self._own.values() for each in attribute.entries(part / "holders")}
        groups = dict.fromkeys(group for each in holders.values() if (group := _group(each)) is not None)
        for group in groups:
            volumes = [each for each in attribute.entries(self._blocks) if _group(each) == group]
            yield _Use(f"volume group {_dashed(group)}", volumes, group)
        for name, array in holders.items():
            if attribute.is_there(array / "md"):
                yield _Use(f"RAID array {name}", [array])

    def _objection(self, use: _Use) -> str | None:
        """Why it must not be ended; None: it stands on this drive alone and sysfs shows no use of it.

        :raises HardwareError: the kernel does not say.
        """
        names = {block.name for block in use.blocks}
        uses = HostUses.of(self._paths)
        for block in use.blocks:
            below = [lower.name for lower in attribute.entries(block / "slaves")]
            elsewhere = [name for name in below if name not in self._own and name not in names]
            if elsewhere or not below:
                return f"{block.name} is also on {', '.join(elsewhere)}" if below else f"{block.name} is on nothing"
            for part in (block, *partitions(block)):
                above = [each.name for each in attribute.entries(part / "holders") if each.name not in names]
                if users := [*uses.direct(part), *(f"belongs to {name}" for name in above)]:
                    return f"{part.name} {', '.join(users)}"
        if use.group is None and not _ARRAY.fullmatch(use.blocks[0].name):
            return "its name is not one that the kernel chose"
        return None

    def _end(self, use: _Use, tools: ToolSink) -> str | None:
        """End it, and return why it is still there; None: it is not.

        :raises HardwareError: a command did not end by itself, or is not installed.
        """
        if use.group is None:
            done = self._run(tools, "mdadm", "--stop", str(self._paths.dev / use.blocks[0].name))
        else:
            # Whatever lvm.conf says, LVM reads nothing but this drive: another disk may have the same names or UUIDs.
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
        # vgchange may report success and have deactivated nothing.
        left = [block.name for block in use.blocks if attribute.is_there(self._blocks / block.name)]
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
    """The UUID of the volume group that a block device is of, without its dashes."""
    found = _VOLUME.fullmatch(attribute.read_if_there(block / "dm/uuid") or "")
    return None if found is None else found[1]


def _dashed(group: str) -> str:
    ends = [sum(_GROUPS[: index + 1]) for index in range(len(_GROUPS))]
    return "-".join(group[end - length : end] for end, length in zip(ends, _GROUPS, strict=True))


def _said(done: Completed) -> str:
    words = excerpt(done.stderr.strip() or done.stdout.strip()) or "nothing"
    return f"{Path(done.argv[0]).name} exited with {done.returncode} and said {words}"
