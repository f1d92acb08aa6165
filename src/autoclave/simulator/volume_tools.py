"""The stand-ins for the tools of LVM and mdadm, as far as an agent uses them."""

import getopt
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from autoclave.simulator.faults import FaultKind
from autoclave.simulator.host_volumes import HostVolumes, Volume
from autoclave.simulator.nvme_dialect import Answer
from autoclave.simulator.slots import DriveSlots

_LVM_DEFAULTS = {"global_filter": '["a|.*|"]', "filter": '["a|.*|"]', "use_devicesfile": "0"}
"""Those of Debian."""
_LVM_ERROR = 5
_LVM_USAGE = 3


def lvmconfig(root: str, argv: Sequence[str]) -> int:
    """Run lvmconfig on the simulated host in *root*, and return its exit code."""
    return _print(lvm_settings(Path(root), argv))


def lvm_settings(root: Path, argv: Sequence[str]) -> Answer:
    """The settings of ``etc/lvm/lvm.conf``, one a line, and the defaults of others."""
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
    """Names of the block devices that the filter accepts."""
    found = re.search(r'\bglobal_filter=\[(.*?"r\|\.\*\|")\]', options.get("config", ""))
    patterns = re.findall(r'"a\|(.*?)\|"', found[1]) if found else [".*"]
    names = [entry.name for entry in (root / "sys/class/block").iterdir()]
    return {name for name in names if any(re.search(pattern, str(root / "dev" / name)) for pattern in patterns)}


def _stays(root: Path, volume: Volume) -> bool:
    """Whether a drive below says that it is in use."""
    host = DriveSlots(root)
    heads = {f"nvme{host.inventory.heads[slot.spec.drive_id]}n": slot.address for slot in host.inventory.bound()}
    addresses = [address for head, address in heads.items() if any(disk.startswith(head) for disk in volume.disks)]
    return FaultKind.VOLUMES_STAY in host.faults.active(addresses)


def _print(answer: Answer) -> int:
    sys.stdout.write(answer.out)
    sys.stderr.write(answer.err)
    return answer.code
