"""Which tools of this host would take the disks that guests give back, and what to do against it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from autoclave.exceptions import HardwareError, ToolMissing
from autoclave.hardware import attribute
from autoclave.hardware.command import Commands
from autoclave.hardware.deadline import Deadline
from autoclave.hardware.host import HostPaths
from autoclave.rules.host_setup import lvm_accepts, md_assembles, multipath_takes, names_of, udisks_ignores
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.plain_text import excerpt

_SHOWN_SLOTS = 4
_LVMCONFIG = (
    "lvmconfig", "--typeconfig", "full", "devices/global_filter", "devices/filter", "devices/use_devicesfile"
)  # fmt: skip


class HostSetup:
    """Looks at the settings of this host. What is not installed is not asked anything.

    :param slots: those of the guests' drives.
    :param timeout: seconds for one command.
    """

    def __init__(self, paths: HostPaths, commands: Commands, slots: Sequence[PCIAddress], timeout: float) -> None:
        self._etc = paths.etc
        self._commands = commands
        self._slots = slots
        self._timeout = timeout

    def lacks(self) -> list[str]:
        """Return what would take the drives, a line for each tool; empty: nothing that is known of."""
        found: list[str] = []
        for tool, name, look in _TOOLS if self._slots else ():
            try:
                lack = look(self) if self._has(tool) else None
            except (HardwareError, ValueError) as error:
                lack = f"it is not known whether it takes the guests' drives: {error}"
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
        """:raises HardwareError: lvmconfig fails. :raises ValueError: its answer is not understood."""
        done = self._commands.run(_LVMCONFIG, deadline=Deadline.after(self._timeout))
        said = dict(line.strip().split("=", 1) for line in done.stdout.splitlines() if "=" in line)
        # LVM before 2.03.12 has no list of devices, says so, and exits with 5.
        if "global_filter" not in said:
            words = excerpt(done.stderr.strip() or done.stdout.strip()) or "nothing"
            raise HardwareError(f"lvmconfig exited with {done.returncode} and said {words}")
        if said.get("use_devicesfile") == "1" and attribute.is_there(self._etc / "lvm/devices/system.devices"):
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
        """:raises HardwareError: a file cannot be read."""
        text = self._text("mdadm/mdadm.conf", "mdadm.conf", "mdadm/mdadm.conf.d/*", "mdadm.conf.d/*")
        if not md_assembles(text):
            return None
        return (
            "it would assemble arrays on the guests' drives: begin with AUTO -all in mdadm.conf, and name your arrays"
        )

    def _multipath(self) -> str | None:
        """:raises HardwareError: a file cannot be read. :raises ValueError: a pattern is not understood."""
        if not multipath_takes(self._text("multipath.conf", "multipath/conf.d/*.conf")):
            return None
        return 'it may put maps on the guests\' drives: add blacklist { devnode "^nvme" } to multipath.conf'

    def _udisks(self) -> str | None:
        """:raises HardwareError: a file cannot be read."""
        rules = self._text("udev/rules.d/*.rules")
        taken = [slot for slot in self._slots if not udisks_ignores(rules, slot)]
        if not taken:
            return None
        return (
            f'it may mount what is on the drives of {_shown(taken)}: set ENV{{UDISKS_IGNORE}}="1" for these slots in '
            "/etc/udev/rules.d"
        )

    def _text(self, *patterns: str) -> str:
        """The text of all files of these names, one after the other."""
        return "\n".join(attribute.read(path) for pattern in patterns for path in self._files(pattern))

    def _files(self, pattern: str) -> Iterator[Path]:
        directory, _, name = pattern.rpartition("/")
        place = self._etc / directory
        if "*" not in name:
            yield from [place / name] if attribute.is_there(place / name) else []
        elif attribute.is_there(place):
            yield from (path for path in attribute.entries(place) if path.match(name))


def _shown(slots: Sequence[PCIAddress]) -> str:
    more = f" and {len(slots) - _SHOWN_SLOTS} more" if len(slots) > _SHOWN_SLOTS else ""
    return ", ".join(str(slot) for slot in slots[:_SHOWN_SLOTS]) + more


_TOOLS: Sequence[tuple[str, str, Callable[[HostSetup], str | None]]] = (
    ("lvmconfig", "LVM", HostSetup._lvm),
    ("mdadm", "mdadm", HostSetup._md),
    ("multipath", "multipath", HostSetup._multipath),
    ("udisksctl", "udisks", HostSetup._udisks),
)
