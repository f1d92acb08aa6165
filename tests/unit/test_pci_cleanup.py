"""The drivers of PCI functions clean a device by the method of its entry, or end in an error that says why not."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from autoclave.conf import new_config
from autoclave.drivers.base import CleanupControl, DiscoveredDevice, Progress
from autoclave.drivers.pci import FunctionDriver, PCIDeviceSpecDriver, PCIDriver
from autoclave.exceptions import (
    DeviceInUse,
    EraseFailed,
    EraseTimeout,
    EraseUnsupported,
    HardwareError,
    SlotEmpty,
    WrongDrive,
)
from autoclave.hardware import function_access
from autoclave.hardware.erase.methods import FUNCTION_METHODS
from autoclave.hardware.host import Deadline, HostPaths
from autoclave.hardware.pci_functions import HostFunctions
from autoclave.hardware.sysfs import PCIFunction
from autoclave.rules.cleanup_policy import MATRIX
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.pci_inventory import matches, parse_pci_device_spec
from autoclave.rules.reclaim import Reclaim
from autoclave.simulator.drive_spec import DriveSpec
from autoclave.simulator.faults import Fault, FaultKind
from autoclave.simulator.functions import FunctionSpec
from autoclave.simulator.host import SimulatedHost

GPU, NIC, VF = "0000:81:00.0", "0000:82:00.0", "0000:82:02.0"
RAID, DRIVE = "0000:83:00.0", "0000:42:00.0"
UUID = "5d0e64c1-6a1c-4a3b-8b53-0d7c1f2a9e44"
CLEAR = "/etc/autoclave/clear.d/clear"
RESET = {"reclaim": "erase", "clear_action": "reset"}
COMMAND = {"reclaim": "erase", "clear_action": "command", "clear_command": [CLEAR, "--all", "a b"]}
DRIVERS: list[type[FunctionDriver]] = [PCIDriver, PCIDeviceSpecDriver]


@dataclass
class Row:
    """The fields of a device row that a driver may read."""

    cleanup_action: str | None
    pci_address: str = GPU
    drive_model: str | None = "10de:25b6"
    uuid: str = UUID
    serial: str | None = None
    layout: str | None = None


class Watched:
    """Collects what a cleaning reports."""

    def __init__(self) -> None:
        self.seen: list[Progress] = []
        self.argvs: list[tuple[str, ...]] = []
        self.running: set[int] = set()

    def control(self, seconds: float = 60) -> CleanupControl:
        return CleanupControl(Deadline.after(seconds), self.seen.append, self)

    def started(self, pid: int, argv: Any) -> None:
        self.argvs.append(tuple(argv))
        self.running.add(pid)

    def ended(self, pid: int) -> None:
        self.running.discard(pid)


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    functions = (
        FunctionSpec(GPU, "10de", "25b6", driver="nouveau"),
        FunctionSpec(NIC, "8086", "1572", class_code="020000", driver="i40e", interface="ens2"),
        FunctionSpec(VF, "8086", "154c", class_code="020000", driver="vfio-pci", physfn=NIC),
        FunctionSpec(RAID, "1000", "0014", class_code="010400"),
    )
    drive = DriveSpec(address=DRIVE, serial="SIM1", size_bytes=1 << 20)
    return SimulatedHost.create(tmp_path / "host", "h1", [drive], functions)


def made(kind: type[FunctionDriver], host: SimulatedHost, *entries: dict[str, Any]) -> FunctionDriver:
    option = "passthrough_whitelist" if kind is PCIDriver else "device_spec"
    overrides: dict[tuple[str | None, str], Any] = {
        ("pci", option): [json.dumps(entry) for entry in entries],
        ("agent", "rebind_timeout"): 0.2,
        ("nvme", "poll_interval"): 0.05,
    }
    return kind(new_config([], overrides), host.paths)


def on_gpu(host: SimulatedHost, kind: type[FunctionDriver], keys: dict[str, Any]) -> FunctionDriver:
    return made(kind, host, {"vendor_id": "10de"} | keys)


def program(host: SimulatedHost, script: str) -> Path:
    """Replace the operator's program."""
    path = host.root / "etc/autoclave/clear.d/clear"
    path.write_text(f"#!/bin/sh\n{script}\n")
    return path


def discovered(host: SimulatedHost, *entries: dict[str, Any]) -> DiscoveredDevice:
    [found] = made(PCIDriver, host, *entries).discover()
    assert isinstance(found, DiscoveredDevice)
    return found


# Discovery


@pytest.mark.parametrize(
    ("keys", "reclaim", "action", "guarantee"),
    [
        ({}, Reclaim.NONE, None, "returns uncleaned"),
        ({"reclaim": "hold"}, Reclaim.HOLD, None, "held until released"),
        (RESET, Reclaim.ERASE, "reset", "returns uncleaned (reset)"),
        (COMMAND, Reclaim.ERASE, "command", "cleaned by the operator's command"),
    ],
)
def test_a_device_has_the_policy_of_its_entry(
    host: SimulatedHost, keys: dict[str, Any], reclaim: Reclaim, action: str | None, guarantee: str
) -> None:
    device = discovered(host, {"vendor_id": "10de"} | keys)
    assert (device.reclaim, device.cleanup_action, device.excluded) == (reclaim, action, None)
    [inspected] = on_gpu(host, PCIDriver, keys).inspect()
    assert inspected.action == guarantee


def withheld(host: SimulatedHost, address: str, keys: dict[str, Any]) -> str | None:
    """Why an entry of [pci] device_spec with *keys* does not offer a function."""
    functions = HostFunctions(host.paths)
    specs = parse_pci_device_spec([json.dumps({"address": address} | keys)])
    [match] = [each for each in matches(functions.functions, specs) if str(each.function.address) == address]
    return str(match.fault) if match.fault else functions.withheld(match, frozenset(), set())


def both(host: SimulatedHost, address: str, keys: dict[str, Any]) -> list[str | None]:
    """Return the reasons of both options."""
    return [discovered(host, {"address": address} | keys).excluded, withheld(host, address, keys)]


def test_a_function_without_a_reset_file_is_refused_at_discovery(host: SimulatedHost) -> None:
    (host.root / "sys/bus/pci/devices" / GPU / "reset").unlink()
    for why in both(host, GPU, RESET):
        assert why is not None
        assert why.startswith("clear_action=reset cannot be used: ")
        assert "the kernel knows no way to reset it" in why


def test_a_function_whose_reset_methods_are_off_is_refused(host: SimulatedHost) -> None:
    (host.root / "sys/bus/pci/devices" / GPU / "reset_method").write_text("\n")
    for why in both(host, GPU, RESET):
        assert "no way to reset it is enabled" in str(why)


def test_a_kernel_without_reset_method_is_no_obstacle(host: SimulatedHost) -> None:
    (host.root / "sys/bus/pci/devices" / GPU / "reset_method").unlink()
    assert both(host, GPU, RESET) == [None, None]
    evidence = on_gpu(host, PCIDriver, RESET).cleanup(Row("reset"))
    assert evidence["reset_method"] is None


def test_storage_is_never_reset(host: SimulatedHost) -> None:
    for why in both(host, RAID, RESET):
        assert "a storage controller" in str(why)
    driver = made(PCIDriver, host, {"address": RAID} | RESET)
    with pytest.raises(EraseFailed, match="storage controller"):
        driver.cleanup(Row("reset", RAID, "1000:0014"))
    assert host.functions.all()[RAID].resets == 0


@pytest.mark.parametrize("keys", [RESET, COMMAND])
def test_an_nvme_drive_with_erase_is_sent_to_its_own_option(host: SimulatedHost, keys: dict[str, Any]) -> None:
    profile, flavor = both(host, DRIVE, keys)
    assert "name it in [nvme] device_spec" in str(profile)
    assert '[nvme] device_spec, with "requested_by": "flavor"' in str(flavor)


def test_an_nvme_drive_with_hold_is_offered(host: SimulatedHost) -> None:
    keys = {"reclaim": "hold"}
    assert both(host, DRIVE, keys) == [None, None]
    assert discovered(host, {"address": "0000:42:*.*"} | keys).excluded is None


@pytest.mark.parametrize("keys", [RESET, COMMAND, {"reclaim": "hold"}])
def test_virtual_functions_cannot_be_erased_or_held(host: SimulatedHost, keys: dict[str, Any]) -> None:
    for why in both(host, VF, keys):
        assert "is a virtual function. Only whole" in str(why)
    assert "key 'reclaim'" in str(withheld(host, VF, keys))


def test_a_missing_program_is_refused_at_discovery(host: SimulatedHost) -> None:
    for why in both(host, GPU, COMMAND | {"clear_command": ["/etc/autoclave/clear.d/missing"]}):
        assert why is not None
        assert why.startswith("clear_action=command cannot be used: /etc/autoclave/clear.d/missing cannot be run")
        assert why.endswith("No such file or directory")


def _writable(path: Path) -> None:
    path.chmod(0o775)


def _in_writable(path: Path) -> None:
    path.parent.chmod(0o757)


def _linked(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to("other")


def _in_linked(path: Path) -> None:
    path.parent.rename(path.parent.with_name("other.d"))
    path.parent.symlink_to("other.d")


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o755)


def _plain(path: Path) -> None:
    path.chmod(0o644)


def _foreign(path: Path) -> None:
    os.chown(path, 65534, 65534)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_writable, "a user other than root can change"),
        (_in_writable, "a user other than root can change"),
        (_linked, "it is a symbolic link"),
        (_in_linked, "it is a symbolic link"),
        (_directory, "it is not a regular file"),
        (_pipe, "it is not a regular file"),
        (_plain, "it is not executable"),
        pytest.param(
            _foreign,
            "a user other than root can change",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away"),
        ),
    ],
)
def test_a_program_that_others_can_change_is_refused_twice(host: SimulatedHost, damage: Any, words: str) -> None:
    """At discovery, and again at the erase."""
    driver = on_gpu(host, PCIDriver, COMMAND)
    damage(host.root / "etc/autoclave/clear.d/clear")
    for why in both(host, GPU, COMMAND):
        assert words in str(why)
    with pytest.raises(HardwareError, match=words):
        driver.cleanup(Row("command"))


# Reset


@pytest.mark.parametrize("kind", DRIVERS)
def test_a_reset_is_recorded_as_no_proof(host: SimulatedHost, kind: type[FunctionDriver]) -> None:
    watched = Watched()
    evidence = on_gpu(host, kind, RESET).cleanup(Row("reset"), watched.control())

    assert host.functions.all()[GPU].resets == 1
    assert evidence["reset_method"] == ["flr", "bus"]
    assert (evidence["action"], evidence["device"], evidence["address"]) == ("reset", "10de:25b6", GPU)
    assert evidence["verified"].startswith("nothing: ")
    assert watched.seen[0].step == "reset"


def test_a_refused_reset_is_an_error_with_the_kernels_reason(host: SimulatedHost) -> None:
    host.set_fault(GPU, Fault(FaultKind.RESET_FAILS))
    with pytest.raises(HardwareError, match=r"cannot write '1' to .*/reset: Inappropriate ioctl"):
        on_gpu(host, PCIDriver, RESET).cleanup(Row("reset"))


def test_a_function_that_is_dead_after_its_reset_is_an_error(host: SimulatedHost) -> None:
    (host.root / "sys/bus/pci/devices" / GPU / "config").write_bytes(b"\xff" * 64)
    with pytest.raises(EraseFailed, match="does not answer after the reset"):
        on_gpu(host, PCIDriver, RESET).cleanup(Row("reset"))


def test_no_policy_of_drives_selects_these_methods() -> None:
    assert not {str(action) for allowed in MATRIX.values() for action in allowed} & set(FUNCTION_METHODS)


# Command


@pytest.mark.parametrize("kind", DRIVERS)
def test_exit_0_of_the_program_is_the_operators_word(host: SimulatedHost, kind: type[FunctionDriver]) -> None:
    watched = Watched()
    evidence = on_gpu(host, kind, COMMAND).cleanup(Row("command"), watched.control())

    assert evidence["verified"] == "operator's command, exit 0"
    assert (evidence["exit_code"], evidence["command"]) == (0, [CLEAR, "--all", "a b"])
    assert evidence["seconds"] >= 0
    assert evidence["stdout"] == f"progress 50 clearing {GPU}\nprogress 100\n"
    assert (watched.argvs, watched.running) == ([(CLEAR, "--all", "a b")], set())
    assert [each.percent for each in watched.seen] == [None, 50, 100]
    assert watched.seen[1].step == f"operator's command: clearing {GPU}"


def test_the_program_gets_only_the_documented_environment(host: SimulatedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "1")
    program(host, 'env; pwd; printf "%s|" "$@"; cat; ps -o pid=,pgid=,sid= -p $$')
    evidence = on_gpu(host, PCIDriver, COMMAND).cleanup(Row("command"), Watched().control(90.5))

    *lines, where, last = evidence["stdout"].splitlines()
    seen = dict(line.split("=", 1) for line in lines)
    for ours in ("PWD", "OLDPWD", "SHLVL", "_"):  # set by the shell
        seen.pop(ours, None)
    assert seen == {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "AUTOCLAVE_PCI_ADDRESS": GPU,
        "AUTOCLAVE_VENDOR_ID": "10de",
        "AUTOCLAVE_PRODUCT_ID": "25b6",
        "AUTOCLAVE_DEVICE_UUID": UUID,
        "AUTOCLAVE_TIMEOUT": "90",
    }
    assert where == "/"
    arguments, _, numbers = last.rpartition("|")
    assert arguments == "--all|a b"
    pid, group, session = numbers.split()
    assert pid == group == session


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo busy >&2; exit 3", r"ended with exit code 3 after \d+\.\d s; its last lines: busy"),
        ("exit 255", "ended with exit code 255 after .*; it printed nothing"),
        ("echo gone; kill -SEGV $$", "was ended by signal SIGSEGV after .*; its last lines: gone"),
        ("echo progress 100; exit 1", "ended with exit code 1"),
    ],
)
def test_any_other_end_is_an_error(host: SimulatedHost, script: str, words: str) -> None:
    program(host, script)
    with pytest.raises(EraseFailed, match=words):
        on_gpu(host, PCIDriver, COMMAND).cleanup(Row("command"))


@pytest.mark.parametrize(("value", "code"), [(None, 1), (42.0, 42)])
def test_a_simulated_program_can_fail(host: SimulatedHost, value: float | None, code: int) -> None:
    host.set_fault(GPU, Fault(FaultKind.CLEAR_FAILS, value))
    with pytest.raises(EraseFailed, match=f"exit code {code} .* {GPU} cannot be cleared"):
        on_gpu(host, PCIDriver, COMMAND).cleanup(Row("command"))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_the_deadline_kills_the_program_with_its_children(host: SimulatedHost) -> None:
    watched = Watched()
    program(host, "sleep 1000 & echo $!; wait")
    with pytest.raises(EraseTimeout, match=r"within \[nvme\] cleanup_timeout: .*was killed; its last words: \d+") as e:
        on_gpu(host, PCIDriver, COMMAND).cleanup(Row("command"), watched.control(2))
    assert not watched.running
    child, patience = int(str(e.value).split()[-1]), Deadline.after(10)
    while _alive(child) and not patience.passed:
        time.sleep(0.01)
    assert not _alive(child)


def test_a_simulated_program_can_hang(host: SimulatedHost) -> None:
    host.set_fault(GPU, Fault(FaultKind.CLEAR_HANGS))
    with pytest.raises(EraseTimeout):
        on_gpu(host, PCIDriver, COMMAND).cleanup(Row("command"), Watched().control(2))


def test_the_executed_file_is_the_verified_one(host: SimulatedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that takes its name between the check and the execution does not run."""
    path = program(host, "echo verified")
    other = path.with_name("other")
    other.write_text("#!/bin/sh\necho swapped\n")
    other.chmod(0o755)
    checked = function_access.require_free

    def swap(paths: HostPaths, address: PCIAddress) -> PCIFunction:
        other.rename(path)
        return checked(paths, address)

    monkeypatch.setattr(function_access, "require_free", swap)
    evidence = on_gpu(host, PCIDriver, COMMAND).cleanup(Row("command"))
    assert evidence["stdout"] == "verified\n"
    assert "swapped" in path.read_text()


def test_evidence_keeps_only_the_end_of_an_output(host: SimulatedHost) -> None:
    program(host, "seq 100000; printf 'a\\033[2Jb'")
    evidence = on_gpu(host, PCIDriver, COMMAND).cleanup(Row("command"))
    assert evidence["stdout"].endswith("100000\na\\x1b[2Jb")
    assert len(evidence["stdout"]) < 5000


def test_an_output_without_an_end_ends_the_program(host: SimulatedHost) -> None:
    program(host, "exec yes")
    with pytest.raises(EraseFailed, match=r"wrote more than .* bytes and was killed"):
        on_gpu(host, PCIDriver, COMMAND).cleanup(Row("command"))


def test_only_well_formed_lines_are_progress(host: SimulatedHost) -> None:
    lines = ["progress", "progress x", "progress 101", "progress -1", "Progress 5", "xprogress 6", "progress 7%"]
    program(
        host,
        "echo progress 99 >&2\n" + "\n".join(f"echo '{line}'" for line in [*lines, "progress 12.5  bank\033[1m 1 "]),
    )
    watched = Watched()
    on_gpu(host, PCIDriver, COMMAND).cleanup(Row("command"), watched.control())
    assert [(each.percent, each.step) for each in watched.seen] == [
        (None, "operator's command"),
        (12.5, "operator's command: bank\\x1b[1m 1"),
    ]


def test_a_talkative_program_renames_its_step_once_a_second(host: SimulatedHost) -> None:
    """Each new name of a step is a write to the database."""
    program(host, "for each in $(seq 100); do echo progress $each bank $each; done")
    watched = Watched()
    began = time.monotonic()
    on_gpu(host, PCIDriver, COMMAND).cleanup(Row("command"), watched.control())
    assert len({each.step for each in watched.seen}) <= 2 + time.monotonic() - began
    assert watched.seen[-1].percent == 100


DOCUMENTED = Path(__file__).parents[2] / "docs/source/examples/clear-device"


@pytest.fixture
def documented(host: SimulatedHost) -> tuple[FunctionDriver, Path]:
    """A driver with the documented program, and the vendor's tool, which prints its arguments."""
    tool = host.root / "bin/vendor-tool"
    tool.write_text("#!/bin/sh\necho tool $*\n")
    tool.chmod(0o755)
    program(host, DOCUMENTED.read_text().removeprefix("#!/bin/sh\n").replace("/usr/local/sbin/vendor-tool", str(tool)))
    return made(PCIDriver, host, {"address": "*"} | COMMAND), tool


def test_the_documented_program_cleans_its_device(host: SimulatedHost, documented: tuple[FunctionDriver, Path]) -> None:
    driver, tool = documented
    watched = Watched()
    evidence = driver.cleanup(Row("command"), watched.control())
    assert evidence["stdout"].splitlines() == [
        "progress 5 overwriting the memory",
        f"tool --device {GPU} --scrub",
        "progress 90 verifying",
        f"tool --device {GPU} --verify",
        "progress 100",
    ]
    assert watched.seen[-1].percent == 100

    tool.write_text("#!/bin/sh\n[ $3 = --scrub ] || { echo dirty >&2; exit 9; }\n")
    with pytest.raises(EraseFailed, match=r"exit code 9 after .*; its last lines: dirty"):
        driver.cleanup(Row("command"))
    with pytest.raises(EraseFailed, match=f"exit code 2 after .*: {RAID} is no device of this program"):
        driver.cleanup(Row("command", RAID, "1000:0014"))


# Never while anything holds it


@pytest.fixture
def vfio_user(host: SimulatedHost) -> int:
    """A program that has the function open through VFIO."""
    host.functions.bind(GPU, "vfio-pci")
    group = os.path.basename(os.readlink(host.root / "sys/bus/pci/devices" / GPU / "iommu_group"))
    node = host.root / "dev/vfio" / group
    node.parent.mkdir()
    node.touch()
    process = host.root / "proc/4711"
    (process / "fd").mkdir(parents=True)
    (process / "fdinfo").mkdir()
    (process / "comm").write_text("qemu-kvm\n")
    (process / "fd/9").symlink_to(node)
    (process / "fdinfo/9").write_text("pos:\t0\nflags:\t02\n")
    return 4711


@pytest.mark.parametrize("kind", DRIVERS)
@pytest.mark.parametrize("keys", [RESET, COMMAND])
@pytest.mark.usefixtures("vfio_user")
def test_a_function_that_a_guest_has_is_not_touched(
    host: SimulatedHost, kind: type[FunctionDriver], keys: dict[str, Any]
) -> None:
    marker = host.root / "ran"
    program(host, f"touch {marker}")
    with pytest.raises(DeviceInUse, match=r"is open by qemu-kvm \(pid 4711\).*it was not touched"):
        on_gpu(host, kind, keys).cleanup(Row(keys["clear_action"]))
    assert host.functions.all()[GPU].resets == 0
    assert not marker.exists()


@pytest.mark.usefixtures("vfio_user")
def test_the_last_check_is_made_where_the_method_runs(host: SimulatedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest that comes after the driver's own check is found, too."""
    monkeypatch.setattr(PCIDriver, "_wait_until_free", lambda self, function, control: function)
    for keys in (RESET, COMMAND):
        with pytest.raises(DeviceInUse, match="qemu-kvm"):
            on_gpu(host, PCIDriver, keys).cleanup(Row(keys["clear_action"]))
    assert host.functions.all()[GPU].resets == 0


@pytest.mark.usefixtures("vfio_user")
def test_a_guest_that_is_still_ending_is_waited_for(host: SimulatedHost) -> None:
    seen: list[Progress] = []

    def progress(each: Progress) -> None:
        seen.append(each)
        (host.root / "proc/4711/fd/9").unlink(missing_ok=True)

    watched = Watched()
    control = CleanupControl(Deadline.after(60), progress, watched)
    on_gpu(host, PCIDriver, RESET).cleanup(Row("reset"), control)
    assert "waiting until nothing uses it" in seen[0].step
    assert host.functions.all()[GPU].resets == 1


def test_attributes_of_storage_and_bridges_are_not_written(host: SimulatedHost) -> None:
    with pytest.raises(HardwareError, match="has the PCI class 010400: reset is not written"):
        function_access.write_attribute(host.paths, PCIAddress.parse(RAID), "reset", "1")
    assert host.functions.all()[RAID].resets == 0


def test_a_function_bound_to_vfio_that_nothing_has_open_is_cleaned(host: SimulatedHost) -> None:
    host.functions.bind(GPU, "vfio-pci")
    on_gpu(host, PCIDriver, RESET).cleanup(Row("reset"))
    assert host.functions.all()[GPU].resets == 1


def test_a_card_with_virtual_functions_or_an_interface_in_use_is_not_touched(host: SimulatedHost) -> None:
    driver = made(PCIDeviceSpecDriver, host, {"vendor_id": "8086", "product_id": "1572"} | RESET)
    row = Row("reset", NIC, "8086:1572")
    with pytest.raises(DeviceInUse, match=r"interface ens2 is up; it has 1 virtual functions"):
        driver.cleanup(row)
    host.functions.pull(VF)
    host.functions.bind(NIC, None)
    driver.cleanup(row)
    assert host.functions.all()[NIC].resets == 1


def test_a_use_that_begins_during_the_cleaning_is_an_error(host: SimulatedHost) -> None:
    program(host, f"mkdir -p {host.root}/sys/devices/pci0000:81/{GPU}/virtfn0")
    with pytest.raises(DeviceInUse, match=r"was cleaned, but is in use: it has 1 virtual functions\. End that"):
        on_gpu(host, PCIDriver, COMMAND).cleanup(Row("command"))


# What the configuration has


@pytest.mark.parametrize("kind", DRIVERS)
@pytest.mark.parametrize(
    ("locked_in", "entries", "words"),
    [
        ("reset", [], "no entry matches it"),
        ("reset", [{"vendor_id": "10de"}], "entry 1 is "),
        ("command", [{"vendor_id": "10de"} | RESET], "to be cleaned by command, which"),
        ("reset", [{"vendor_id": "10de"} | COMMAND], "to be cleaned by reset, which"),
        (None, [{"vendor_id": "10de"} | RESET], "to be cleaned by no method"),
        ("sanitize_crypto", [{"vendor_id": "10de"} | RESET], "to be cleaned by sanitize_crypto"),
    ],
)
def test_a_locked_in_action_that_is_no_longer_configured_is_an_error(
    host: SimulatedHost, kind: type[FunctionDriver], locked_in: str | None, entries: list[dict[str, Any]], words: str
) -> None:
    driver = made(kind, host, *entries)
    with pytest.raises(EraseUnsupported, match=words) as caught:
        driver.cleanup(Row(locked_in))
    assert driver.option in str(caught.value)
    assert "Restore the entry, restart the agent, and clean the device again" in str(caught.value)
    assert host.functions.all()[GPU].resets == 0


def test_another_card_in_the_slot_is_not_touched(host: SimulatedHost) -> None:
    with pytest.raises(WrongDrive, match=r"the slot has 10de:25b6, but the device .* is 10de:2204; it was not touched"):
        on_gpu(host, PCIDriver, RESET).cleanup(Row("reset", drive_model="10de:2204"))
    assert host.functions.all()[GPU].resets == 0


def test_an_empty_slot_is_an_error_of_its_own(host: SimulatedHost) -> None:
    host.functions.pull(GPU)
    with pytest.raises(SlotEmpty):
        on_gpu(host, PCIDriver, RESET).cleanup(Row("reset"))


def test_pci_device_spec_discovers_nothing(host: SimulatedHost) -> None:
    driver = on_gpu(host, PCIDeviceSpecDriver, RESET)
    assert (driver.name, list(driver.discover()), list(driver.inspect())) == ("pci_device_spec", [], [])
