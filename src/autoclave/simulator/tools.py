"""Stand in for nvme-cli, shred, LVM and mdadm, as far as the agent uses them."""

import errno
import getopt
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from autoclave.exceptions import SimulatorError
from autoclave.simulator import zeroing
from autoclave.simulator.faults import FaultBook, FaultKind
from autoclave.simulator.host_volumes import HostVolumes, Volume
from autoclave.simulator.nvme_commands import COMMANDS, Call, Refused
from autoclave.simulator.nvme_dialect import Answer, Dialect, Options, UsageError, parse
from autoclave.simulator.nvme_status import CommandFailed
from autoclave.simulator.slots import DeviceNode, DriveSlots, find_node
from autoclave.simulator.zeroing import Zeroing

_GARBAGE = Answer(out='{\n  "nvme0":{\n    "sprog":\x00')
_LOOK_AGAIN = 0.05


def run_nvme(root: str, argv: Sequence[str]) -> int:
    """Run one nvme command on the simulated host in *root*, and return its exit code."""
    host = DriveSlots.open(Path(root))
    answer = NvmeTool(host).run(argv)
    sys.stdout.write(answer.out)
    sys.stderr.write(answer.err)
    return answer.code


class NvmeTool:
    """Implement the command ``nvme`` of one simulated host."""

    def __init__(self, host: DriveSlots) -> None:
        self._host = host
        self._dialect = Dialect(host.inventory.style)

    def run(self, argv: Sequence[str]) -> Answer:
        """Return the answer to one command line, with the faults of its drive."""
        command = argv[0] if argv else "help"
        if command == "version":
            zeroing.delay(self._host, [])
            garbage = FaultKind.NVME_GARBAGE in self._host.faults.active([])
            return _GARBAGE if garbage else Answer(out=self._dialect.version_text)
        if command not in COMMANDS:
            return Answer(err=f"ERROR: Invalid sub-command '{command}' for nvme\n", code=1)
        try:
            options = parse(self._dialect, command, argv[1:])
            answer = self._on_device(command, options)
        except UsageError as error:
            text = f"{error}\n"
            if not str(error).startswith("Expected "):
                text += self._dialect.usage(command)
            answer = Answer(err=text, code=self._dialect.usage_error_code)
        return replace(answer, err=self._dialect.warning(command) + answer.err)

    def _on_device(self, command: str, options: Options) -> Answer:
        if not options.arguments:
            raise UsageError(f"{command}: device path not specified")
        path = options.arguments[0]
        node = find_node(self._host, path)
        if node is None:
            return self._no_device(command, path, options)
        zeroing.delay(self._host, [node.slot.address])
        faults = self._host.faults.active([node.slot.address])
        if FaultKind.NVME_GARBAGE in faults:
            return _GARBAGE
        if FaultKind.NVME_BUSY in faults:
            error = Refused(f"{path}: {os.strerror(errno.EAGAIN)}", errno.EAGAIN)
            as_json = self._dialect.errors_as_json(as_json=options.as_json)
            return self._dialect.refused(str(error), as_json=as_json, code=self._dialect.error_code(error.errno))
        as_json = self._dialect.errors_as_json(as_json=options.as_json) or FaultKind.NVME_JSON_ERRORS in faults
        try:
            answer = self._execute(command, node, options)
        except CommandFailed as error:
            answer = self._dialect.failed(command, error, as_json=as_json)
        except Refused as error:
            answer = self._dialect.refused(str(error), as_json=as_json, code=self._dialect.error_code(error.errno))
        except SimulatorError:  # pulled after the lookup
            answer = self._no_device(command, path, options)
        if FaultKind.NVME_EXITS_ZERO in faults:
            answer = replace(answer, code=0)
        return answer

    def _execute(self, command: str, node: DeviceNode, options: Options) -> Answer:
        address = node.slot.address
        if command == "format":
            zeroing.hang_format(self._host, address, (options.number("timeout") or 0) / 1000)
        with self._host.drive(address) as drive:
            if zeroing.vanish(self._host, address, drive.progress):
                raise SimulatorError(f"{address}: the drive has vanished")
            answer = COMMANDS[command](Call(self._host, self._dialect, node, drive, options))
        if command == "sanitize" and "wait" in options:
            self._wait_for_sanitize(address)
            answer = replace(answer, out="Waiting for sanitize completion...\n")
        return answer

    def _wait_for_sanitize(self, address: str) -> None:
        while True:
            with self._host.drive(address) as drive:
                if drive.progress is None:
                    return
            time.sleep(_LOOK_AGAIN)

    def _no_device(self, command: str, path: str, options: Options) -> Answer:
        message = f"{path}: {os.strerror(errno.ENOENT)}"
        as_json = self._dialect.errors_as_json(as_json=options.as_json)
        answer = self._dialect.refused(message, as_json=as_json, code=self._dialect.error_code(errno.EINVAL))
        return replace(answer, err=answer.err + self._dialect.usage(command))


REPORT_EVERY = 5.0
"""Seconds between two lines of progress."""

_UNITS = ("", "KiB", "MiB", "GiB", "TiB")


def run_shred(root: str, argv: Sequence[str]) -> int:
    """Run shred on the simulated host in *root*, and return its exit code."""
    long_options = ["iterations=", "zero", "verbose", "force", "exact"]
    try:
        options, arguments = getopt.gnu_getopt(list(argv), "n:zvfx", long_options)
    except getopt.GetoptError as error:
        sys.stderr.write(f"shred: {error}\n")
        return 1
    given = {name.lstrip("-"): value for name, value in options}
    if len(arguments) != 1 or "0" not in (given.get("iterations"), given.get("n")) or not {"z", "zero"} & given.keys():
        sys.stderr.write("shred: only --iterations=0 --zero of one device is simulated\n")
        return 1
    path = arguments[0]
    try:
        zeroing = Zeroing(DriveSlots.open(Path(root)), path)
    except OSError as error:
        reason = "invalid file type" if error.errno == errno.ENOTBLK else None
        sys.stderr.write(f"shred: {path}: {reason or 'failed to open for writing: ' + os.strerror(errno.ENOENT)}\n")
        return 1
    return _overwrite(path, zeroing, verbose=bool({"v", "verbose"} & given.keys()))


def _overwrite(path: str, zeroing: Zeroing, *, verbose: bool) -> int:
    heading = f"shred: {path}: pass 1/1 (000000)..."
    if verbose:
        sys.stderr.write(f"{heading}\n")
    done, reported, due = 0, False, time.monotonic() + REPORT_EVERY
    try:
        for offset, length in zeroing.run():
            done = offset + length
            if verbose and (time.monotonic() >= due or (reported and done == zeroing.size)):
                percent = done * 100 // zeroing.size
                sys.stderr.write(f"{heading}{_human(done)}/{_human(zeroing.size)} {percent}%\n")
                reported, due = True, time.monotonic() + REPORT_EVERY
    except OSError as error:
        reason = os.strerror(error.errno or errno.EIO)
        sys.stderr.write(f"shred: {path}: error writing at offset {done}: {reason}\n")
        return 1
    return 0


def _human(size: int) -> str:
    """Format a size as shred does: one decimal below ten, none above."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    text = f"{value:.1f}" if unit and value < 10 else f"{value:.0f}"
    return f"{text}{_UNITS[unit]}"


_LVM_DEFAULTS = {"global_filter": '["a|.*|"]', "filter": '["a|.*|"]', "use_devicesfile": "0"}
"""The defaults of Debian."""
_LVM_ERROR = 5
_LVM_USAGE = 3


def run_clear(root: str, argv: Sequence[str]) -> int:  # noqa: ARG001
    """Run the operator's program of the simulated host in *root*, and return its exit code."""
    address = os.environ["AUTOCLAVE_PCI_ADDRESS"]
    faults = FaultBook(Path(root)).active([address])
    sys.stdout.write(f"progress 50 clearing {address}\n")
    sys.stdout.flush()
    while FaultKind.CLEAR_HANGS in faults:
        time.sleep(_LOOK_AGAIN)
    if FaultKind.CLEAR_FAILS in faults:
        sys.stderr.write(f"{address} cannot be cleared\n")
        return int(faults[FaultKind.CLEAR_FAILS] or 1)
    sys.stdout.write("progress 100\n")
    return 0


def lvmconfig(root: str, argv: Sequence[str]) -> int:
    """Run lvmconfig on the simulated host in *root*, and return its exit code."""
    return _print(lvm_settings(Path(root), argv))


def lvm_settings(root: Path, argv: Sequence[str]) -> Answer:
    """Return the settings of ``etc/lvm/lvm.conf``, one on each line, or their defaults."""
    if list(argv[:2]) != ["--typeconfig", "full"]:
        return Answer(err="  lvmconfig: only --typeconfig full of single settings is simulated\n", code=_LVM_USAGE)
    try:
        text = (root / "etc/lvm/lvm.conf").read_text(encoding="utf-8")
    except OSError as error:
        return Answer(err=f"  {error.filename}: open failed: {error.strerror}\n", code=_LVM_ERROR)
    settings = _LVM_DEFAULTS | dict(
        re.findall(r"^\s*(\w+)\s*=\s*(\S.*?)\s*$", text.replace("\\", "\\\\"), re.MULTILINE)
    )
    out = "".join(
        f"{name}={settings[name]}\n" for setting in argv[2:] if (name := setting.partition("/")[2]) in settings
    )
    return Answer(out=out)


def vgs(root: str, argv: Sequence[str]) -> int:
    """Run vgs on the simulated host in *root*, and return its exit code."""
    try:
        _, options = _lvm_options(argv)
    except getopt.GetoptError as error:
        return _print(Answer(err=f"  vgs: {error}\n", code=_LVM_USAGE))
    volumes = _selected(Path(root), options)
    seen = _seen(Path(root), options)
    missing = len({disk for volume in volumes for disk in volume.disks} - seen)
    found = any(seen.intersection(volume.disks) for volume in volumes)
    return _print(Answer(out=f"            {missing}\n" if found else ""))


def vgchange(root: str, argv: Sequence[str]) -> int:
    """Run vgchange on the simulated host in *root*, and return its exit code."""
    try:
        activate, options = _lvm_options(argv)
    except getopt.GetoptError as error:
        return _print(Answer(err=f"  vgchange: {error}\n", code=_LVM_USAGE))
    if activate != "n":
        return _print(Answer(err="  vgchange: only -an is simulated\n", code=_LVM_USAGE))
    seen = _seen(Path(root), options)
    for volume in _selected(Path(root), options):
        if seen.issuperset(volume.disks):
            if _stays(Path(root), volume):
                return _print(Answer(err="  Logical volume vg0/data in use.\n", code=_LVM_ERROR))
            HostVolumes(Path(root)).remove(volume)
    return _print(Answer(out='  0 logical volume(s) in volume group "vg0" now active\n'))


def mdadm(root: str, argv: Sequence[str]) -> int:
    """Run mdadm on the simulated host in *root*, and return its exit code."""
    if len(argv) != 2 or argv[0] != "--stop":  # the option and its array
        return _print(Answer(err="mdadm: only --stop of one array is simulated\n", code=2))
    node = Path(argv[1])
    arrays = {each.directory.name: each for each in HostVolumes(Path(root)).all() if each.group is None}
    if node.name not in arrays:
        return _print(Answer(err=f"mdadm: error opening {node}: No such file or directory\n", code=1))
    if _stays(Path(root), arrays[node.name]):
        return _print(Answer(err=f"mdadm: Cannot get exclusive access to {node}\n", code=1))
    HostVolumes(Path(root)).remove(arrays[node.name])
    return _print(Answer(err=f"mdadm: stopped {node}\n"))


def _lvm_options(argv: Sequence[str]) -> tuple[str | None, dict[str, str]]:
    given, arguments = getopt.getopt(list(argv), "a:o:", ["noheadings", "select=", "config="])
    if arguments:
        raise getopt.GetoptError(f"only --select is simulated, not {arguments[0]}")
    options = {name.lstrip("-"): value for name, value in given}
    return options.get("a"), options


def _selected(root: Path, options: dict[str, str]) -> list[Volume]:
    group = options.get("select", "").removeprefix("vg_uuid=").replace("-", "")
    return [volume for volume in HostVolumes(root).all() if volume.group == group]


def _seen(root: Path, options: dict[str, str]) -> set[str]:
    """Return the names of the block devices that the filter accepts."""
    found = re.search(r'\bglobal_filter=\[(.*?"r\|\.\*\|")\]', options.get("config", ""))
    patterns = re.findall(r'"a\|(.*?)\|"', found[1]) if found else [".*"]
    names = [entry.name for entry in (root / "sys/class/block").iterdir()]
    return {name for name in names if any(re.search(pattern, str(root / "dev" / name)) for pattern in patterns)}


def _stays(root: Path, volume: Volume) -> bool:
    """Return whether a fault keeps a drive of the volume in use."""
    host = DriveSlots(root)
    heads = {f"nvme{host.inventory.heads[slot.spec.drive_id]}n": slot.address for slot in host.inventory.bound()}
    addresses = [address for head, address in heads.items() if any(disk.startswith(head) for disk in volume.disks)]
    return FaultKind.VOLUMES_STAY in host.faults.active(addresses)


def _print(answer: Answer) -> int:
    sys.stdout.write(answer.out)
    sys.stderr.write(answer.err)
    return answer.code
