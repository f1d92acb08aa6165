"""Simulated hosts: laid out as the kernel does, changed by hands and guests, zeroed by the kernel and by shred."""

import subprocess
import threading
import time

import pytest

from autoclave.conf import new_config
from autoclave.exceptions import DeviceVanished, EraseFailed, HardwareError, SimulatorError
from autoclave.hardware.block import open_block
from autoclave.simulator import drive_spec, tools
from autoclave.simulator.drive_spec import MIB, DriveSpec, default_drives
from autoclave.simulator.faults import EVERY_DRIVE, Fault, FaultKind
from autoclave.simulator.host import Fleet, SimulatedHost
from autoclave.simulator.host_volumes import LVM_LABEL, MD_SUPERBLOCK

SYSTEM, SANITIZING, ZEROING = "0000:01:00.0", "0000:41:00.0", "0000:42:00.0"
LEFT, RIGHT, LONE = "0000:51:00.0", "0000:52:00.0", "0000:61:00.0"
SECRET = b"tenant A's secret"


@pytest.fixture
def host(tmp_path):
    return SimulatedHost.create(tmp_path / "host", "h1", default_drives(1))


def plugged(tmp_path, *drives):
    return SimulatedHost.create(tmp_path / "host", "h1", drives)


def text(path):
    return path.read_text().strip()


def function(host, address):
    return host.paths.sysfs / "bus/pci/devices" / address


def nodes(host):
    return {path.name for path in host.paths.dev.iterdir()}


def tool(host, name, *arguments):
    argv = [str(host.paths.tools[0] / name), *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


def kernel(host, node):
    """Have the kernel zero all of a disk; what it says of a failure."""
    with open_block(host.paths, host.paths.dev / node) as disk:
        try:
            disk.zero(0, disk.size)
        except HardwareError as error:
            return error
    return None


def shred(host, node):
    return tool(host, "shred", "--iterations=0", "--zero", "--verbose", host.paths.dev / node)


def test_a_controller_is_found_from_its_pci_function_as_in_a_real_sysfs(host):
    controller = function(host, SANITIZING) / "nvme/nvme1"
    assert {name: (controller / name).read_text() for name in ("serial", "model", "address", "state", "cntlid")} == {
        "serial": "SIM0001A            \n",
        "model": "Simulated NVMe Sanitizing               \n",
        "address": f"{SANITIZING}\n",
        "state": "live\n",
        "cntlid": "0\n",
    }
    assert text(function(host, SANITIZING) / "class") == "0x010802"
    assert (function(host, SANITIZING) / "driver").resolve().name == "nvme"
    assert (host.paths.sysfs / "class/nvme/nvme1").resolve() == controller.resolve()
    assert (controller / "device").resolve() == function(host, SANITIZING).resolve()
    disk = controller / "nvme1n1"
    assert (host.paths.sysfs / "block/nvme1n1").resolve() == disk.resolve()
    assert int(text(disk / "size")) * 512 == (host.paths.dev / "nvme1n1").stat().st_size == 64 * MIB


def test_every_link_in_sysfs_leads_somewhere_inside_it(host):
    for path in host.paths.sysfs.rglob("*"):
        if path.is_symlink():
            assert path.exists(), path
            assert path.resolve().is_relative_to(host.paths.sysfs.resolve()), path


def test_iommu_groups_name_their_members(tmp_path):
    host = plugged(
        tmp_path,
        DriveSpec(LEFT, "S1", iommu_group=7),
        DriveSpec(RIGHT, "S2", iommu_group=7),
        DriveSpec(LONE, "S3", iommu=False),
    )
    members = {path.name for path in (function(host, LEFT) / "iommu_group" / "devices").iterdir()}
    assert members == {LEFT, RIGHT}
    assert not (function(host, LONE) / "iommu_group").exists()


def test_the_hosts_own_disk_is_mounted_and_never_among_those_to_manage(host):
    device = text(host.paths.sysfs / "block/nvme0n1/nvme0n1p1/dev")
    assert f" {device} / / " in (host.paths.proc / "self/mountinfo").read_text().splitlines()[0]
    conf = new_config(overrides=host.conf_overrides(device_spec=True))
    assert conf.nvme.device_spec == [f'{{"address": "{address}"}}' for address in (SANITIZING, ZEROING)]
    assert conf.agent.resource_provider_name == "h1"
    assert conf.agent.sysfs_root == str(host.paths.sysfs)


def test_serial_numbers_differ_between_hosts():
    serials = [drive.serial for index in range(20) for drive in default_drives(index)]
    assert len(set(serials)) == len(serials) == 60


def shared(tmp_path):
    nqn = "nqn.2019-08.org.example:shared"
    return plugged(tmp_path, DriveSpec(LEFT, "S1", subsystem=nqn), DriveSpec(RIGHT, "S1", subsystem=nqn))


def test_a_shared_drive_has_one_block_device_whose_number_is_not_the_controllers(tmp_path):
    host = shared(tmp_path)
    left, right = function(host, LEFT) / "nvme/nvme0", function(host, RIGHT) / "nvme/nvme1"
    assert {path.name for path in left.glob("nvme*")} == {"nvme1c0n1"}
    assert {path.name for path in right.glob("nvme*")} == {"nvme1c1n1"}
    assert text(left / "nvme1c0n1/hidden") == "1"
    disk = (host.paths.sysfs / "block/nvme1n1").resolve()
    assert disk == (host.paths.sysfs / "devices/virtual/nvme-subsystem/nvme-subsys1/nvme1n1").resolve()
    assert nodes(host) == {"nvme0", "nvme1", "nvme1n1", "ng1n1"}


def test_a_shared_drive_stays_while_one_of_its_controllers_does(tmp_path):
    host = shared(tmp_path)
    host.give_to_guest(RIGHT)
    assert nodes(host) == {"nvme0", "nvme1n1", "ng1n1"}
    host.pull(LEFT)
    assert nodes(host) == set()
    host.put_back(LEFT)
    assert [path.name for path in (function(host, LEFT) / "nvme").iterdir()] == ["nvme0"]


def test_a_number_is_not_given_again_while_a_block_device_has_it(tmp_path):
    host = shared(tmp_path)
    host.give_to_guest(RIGHT)
    host.insert(LONE, DriveSpec(LONE, "S2"))
    assert nodes(host) == {"nvme0", "nvme1n1", "ng1n1", "nvme2", "nvme2n1", "ng2n1"}


def test_virtual_functions_point_to_their_physical_one_and_have_no_controller(tmp_path):
    virtual = "0000:51:00.1"
    host = plugged(tmp_path, DriveSpec(LEFT, "S1"), DriveSpec(virtual, "", physfn=LEFT))
    assert (function(host, virtual) / "physfn").resolve() == function(host, LEFT).resolve()
    assert (function(host, LEFT) / "virtfn0").resolve() == function(host, virtual).resolve()
    assert not (function(host, virtual) / "nvme").exists()
    with pytest.raises(SimulatorError, match="no drive of its own"):
        host.write(virtual, 0, SECRET)


def test_a_guests_drive_has_no_controller_on_the_host_and_keeps_what_the_guest_wrote(host):
    host.give_to_guest(SANITIZING)
    assert (function(host, SANITIZING) / "driver").resolve().name == "vfio-pci"
    assert not (function(host, SANITIZING) / "nvme").exists()
    assert nodes(host).isdisjoint({"nvme1", "nvme1n1", "ng1n1"})
    host.write(SANITIZING, 4096, SECRET)
    with pytest.raises(SimulatorError, match="a guest has it already"):
        host.give_to_guest(SANITIZING)
    host.give_back(SANITIZING)
    with (host.paths.dev / "nvme1n1").open("rb") as disk:
        disk.seek(4096)
        assert disk.read(len(SECRET)) == SECRET


def test_a_pulled_drive_is_gone_and_comes_back_with_its_data(host):
    host.write(SANITIZING, 0, SECRET)
    host.pull(SANITIZING)
    left = [path for path in host.paths.sysfs.rglob("*") if SANITIZING in path.name or "nvme1" in path.name]
    assert left == []
    assert nodes(host).isdisjoint({"nvme1", "nvme1n1", "ng1n1"})
    with pytest.raises(SimulatorError, match="empty"):
        host.read(SANITIZING, 0, 1)
    host.put_back(SANITIZING)
    assert host.read(SANITIZING, 0, len(SECRET)) == SECRET


def test_another_drive_in_the_slot_has_its_own_data_and_the_first_can_be_put_back(host):
    host.write(SANITIZING, 0, SECRET)
    host.insert(SANITIZING, DriveSpec(SANITIZING, "OTHER", size_bytes=MIB))
    assert text(function(host, SANITIZING) / "nvme/nvme1/serial") == "OTHER"
    assert not host.find(SANITIZING, SECRET)
    host.put_back(SANITIZING)
    assert text(function(host, SANITIZING) / "nvme/nvme1/serial") == "SIM0001A"
    assert host.find(SANITIZING, SECRET)


def test_a_drive_moved_to_another_slot_takes_its_data_along(host):
    host.write(SANITIZING, 0, SECRET)
    there = "0000:43:00.0"
    with pytest.raises(SimulatorError, match=f"SIM0001A is in {SANITIZING}"):
        host.insert(there, DriveSpec(there, "SIM0001A"))
    host.pull(SANITIZING)
    host.insert(there, DriveSpec(there, "SIM0001A"))
    assert host.read(there, 0, len(SECRET)) == SECRET


def test_whoever_looks_meanwhile_finds_a_drive_whole_or_not_at_all(tmp_path):
    host = plugged(tmp_path, DriveSpec(LONE, "S1", size_bytes=MIB))
    torn, stop = [], threading.Event()

    def look():
        while not stop.is_set():
            try:
                serial = text(function(host, LONE) / "nvme/nvme0/serial")
                size = text(function(host, LONE) / "nvme/nvme0/nvme0n1/size")
                disk = (host.paths.dev / "nvme0n1").stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                continue  # gone, or going
            if (serial, size, disk) != ("S1", "2048", MIB):
                torn.append((serial, size, disk))

    watcher = threading.Thread(target=look)
    watcher.start()
    for _ in range(20):
        host.pull(LONE)
        host.put_back(LONE)
    stop.set()
    watcher.join()
    assert torn == []


def test_a_host_lives_in_its_directory(host, tmp_path):
    host.write(SANITIZING, 0, SECRET)
    assert SimulatedHost.open(host.root).find(SANITIZING, SECRET)
    with pytest.raises(SimulatorError, match="already"):
        SimulatedHost.create(host.root, "h2", [])
    with pytest.raises(SimulatorError, match="no simulated host"):
        SimulatedHost.open(tmp_path / "elsewhere")
    with pytest.raises(SimulatorError, match=r"2\.99.*2\.13"):
        SimulatedHost.create(tmp_path / "h2", "h2", [], style="2.99")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"address": "41:00.0"}, "at '41:00.0'"),
        ({"address": "0000:4A:00.0"}, "0000:4a:00.0"),
        ({"vendor": "0x144d"}, "'144d' instead of '0x144d'"),
        ({"product": "nvme"}, "not a PCI id"),
        ({"serial": ""}, "serial number"),
        ({"serial": "S" * 21}, "at most 20"),
        ({"model": "M" * 41}, "at most 40"),
    ],
)
def test_a_drive_that_cannot_be_is_refused(wrong, words):
    with pytest.raises(SimulatorError, match=words):
        DriveSpec(**({"address": LONE, "serial": "S1"} | wrong))


def test_reading_outside_the_namespace_is_refused(host):
    for offset, length in ((-1, 1), (64 * MIB, 1), (0, -1)):
        with pytest.raises(SimulatorError, match="LBA_OUT_OF_RANGE"):
            host.read(ZEROING, offset, length)
    with pytest.raises(SimulatorError, match="INVALID_NAMESPACE"):
        host.read(ZEROING, 0, 1, nsid=2)


def test_an_unknown_slot_is_named_along_with_those_there_are(host):
    with pytest.raises(SimulatorError, match=f"h1 has no slot 0000:99:00.0; it has {SYSTEM}, {SANITIZING}, {ZEROING}"):
        host.pull("0000:99:00.0")


def test_a_write_past_the_end_or_during_a_sanitize_is_refused(host):
    with pytest.raises(SimulatorError, match="LBA_OUT_OF_RANGE"):
        host.write(SANITIZING, 64 * MIB - 1, b"xx")
    host.set_fault(SANITIZING, Fault(FaultKind.SANITIZE_SECONDS, 600))
    assert tool(host, "nvme", "sanitize", host.paths.dev / "nvme1", "-a", "2").returncode == 0
    with pytest.raises(SimulatorError, match="SANITIZE_IN_PROGRESS"):
        host.write(SANITIZING, 0, SECRET)


def test_a_text_is_found_across_the_pieces_in_which_media_is_read(tmp_path):
    path = tmp_path / "media"
    drive_spec.make(path, 8 * MIB)
    with path.open("r+b") as file:
        file.write(b"\xff" * 4 * MIB)
        file.seek(MIB - 5)
        file.write(SECRET)
    assert drive_spec.find(path, SECRET) == MIB - 5
    assert drive_spec.find(path, b"another secret") is None


# zeroing by the kernel and by shred


def test_shred_really_zeroes_and_says_so_in_coreutils_words(host):
    host.fill(ZEROING, SECRET)
    done = shred(host, "nvme2n1")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"shred: {host.paths.dev / 'nvme2n1'}: pass 1/1 (000000)...\n"
    assert (host.paths.dev / "nvme2n1").read_bytes() == bytes(64 * MIB)


def test_shred_reports_progress_from_time_to_time_and_then_the_end(host, monkeypatch, capsys):
    monkeypatch.setattr(tools, "REPORT_EVERY", 0.0)
    path = str(host.paths.dev / "nvme2n1")
    assert tools.run_shred(str(host.root), ["--iterations=0", "--zero", "--verbose", path]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == f"shred: {path}: pass 1/1 (000000)...4.0MiB/64MiB 6%"
    assert lines[3] == f"shred: {path}: pass 1/1 (000000)...12MiB/64MiB 18%"
    assert lines[-1] == f"shred: {path}: pass 1/1 (000000)...64MiB/64MiB 100%"


def test_shred_stops_where_the_drive_fails_and_says_so(host):
    host.fill(ZEROING, SECRET)
    host.set_fault(ZEROING, Fault(FaultKind.ZERO_FAILS))
    done = shred(host, "nvme2n1")
    assert done.returncode == 1
    assert f"error writing at offset {32 * MIB}: Input/output error" in done.stderr
    assert host.read(ZEROING, 0, 32 * MIB) == bytes(32 * MIB)
    assert host.find(ZEROING, SECRET)


def test_the_kernel_stops_where_the_drive_fails_and_says_of_which_request(host):
    host.fill(ZEROING, SECRET)
    host.set_fault(ZEROING, Fault(FaultKind.ZERO_FAILS))
    with open_block(host.paths, host.paths.dev / "nvme2n1") as disk:
        disk.zero(0, 24 * MIB)
        with pytest.raises(EraseFailed, match=f"offset {24 * MIB}: Input/output error"):
            disk.zero(24 * MIB, 24 * MIB)
    assert host.read(ZEROING, 0, 32 * MIB) == bytes(32 * MIB)
    assert host.read(ZEROING, 32 * MIB, 32 * MIB).count(SECRET[:4]) > 1000


def test_a_drive_that_lies_reports_success_and_leaves_the_data(host):
    host.write(ZEROING, 0, SECRET)
    host.set_fault(EVERY_DRIVE, Fault(FaultKind.ZERO_LEAVES_DATA))
    assert shred(host, "nvme2n1").returncode == 0
    assert kernel(host, "nvme2n1") is None
    assert host.find(ZEROING, SECRET)


def test_a_drive_that_vanishes_under_shred_is_an_io_error(host):
    host.fill(ZEROING, SECRET)
    host.set_fault(ZEROING, Fault(FaultKind.VANISHES, 25))
    done = shred(host, "nvme2n1")
    assert (done.returncode, "Input/output error" in done.stderr) == (1, True)
    assert_pulled_at_a_quarter(host)


def test_a_drive_that_vanishes_under_the_kernel_is_said_to_be_gone(host):
    host.fill(ZEROING, SECRET)
    host.set_fault(ZEROING, Fault(FaultKind.VANISHES, 25))
    assert isinstance(kernel(host, "nvme2n1"), DeviceVanished)
    assert_pulled_at_a_quarter(host)


def assert_pulled_at_a_quarter(host):
    assert not function(host, ZEROING).exists()
    host.put_back(ZEROING)
    assert host.read(ZEROING, 0, 16 * MIB) == bytes(16 * MIB)
    assert host.find(ZEROING, SECRET)


def test_a_sanitizing_drive_cannot_be_zeroed(host):
    host.set_fault(SANITIZING, Fault(FaultKind.SANITIZE_SECONDS, 600))
    tool(host, "nvme", "sanitize", host.paths.dev / "nvme1", "-a", "2")
    assert "Input/output error" in shred(host, "nvme1n1").stderr
    assert "Input/output error" in str(kernel(host, "nvme1n1"))


@pytest.mark.parametrize(("node", "words"), [("nvme9n1", "No such file or directory"), ("nvme2", "invalid file")])
def test_only_block_devices_of_the_simulated_host_can_be_zeroed(host, node, words):
    done = shred(host, node)
    assert done.returncode == 1
    assert words in done.stderr


def test_the_real_disk_at_the_same_name_is_never_touched(host, tmp_path):
    stranger = tmp_path / "nvme2n1"
    stranger.write_bytes(SECRET)
    assert tool(host, "shred", "-n0", "-z", stranger).returncode == 1
    assert stranger.read_bytes() == SECRET


# faults


def test_a_missing_nvme_cannot_be_run_until_it_is_back(host):
    with pytest.raises(SimulatorError, match="whole host"):
        host.set_fault(SANITIZING, Fault(FaultKind.NVME_MISSING))
    host.set_fault(EVERY_DRIVE, Fault(FaultKind.NVME_MISSING))
    with pytest.raises(PermissionError):
        tool(host, "nvme", "version")
    host.clear_faults()
    assert tool(host, "nvme", "version").returncode == 0


def test_a_drives_own_fault_goes_before_the_one_of_every_drive(host):
    host.set_fault(EVERY_DRIVE, Fault(FaultKind.SANITIZE_SECONDS, 1), Fault(FaultKind.NVME_SLOW, 0))
    host.set_fault(SANITIZING, Fault(FaultKind.SANITIZE_SECONDS, 2))
    assert host.faults.active([SANITIZING])[FaultKind.SANITIZE_SECONDS] == 2
    assert host.faults.active([ZEROING])[FaultKind.SANITIZE_SECONDS] == 1
    host.clear_faults(kind=FaultKind.SANITIZE_SECONDS)
    assert set(host.faults.active([SANITIZING])) == {FaultKind.NVME_SLOW}


def test_a_fault_acts_from_now_on_and_not_on_the_past(tmp_path):
    host = plugged(tmp_path, DriveSpec(LONE, "S1", block=True, sanitize_seconds=0.2, size_bytes=MIB))
    host.write(LONE, 0, SECRET)
    tool(host, "nvme", "sanitize", host.paths.dev / "nvme0", "-a", "2")
    time.sleep(0.25)
    host.set_fault(LONE, Fault(FaultKind.SANITIZE_FAILS))
    assert not host.find(LONE, SECRET)


@pytest.mark.parametrize("kind", [FaultKind.SANITIZE_SECONDS, FaultKind.NVME_SLOW, FaultKind.ZERO_BYTES_PER_SECOND])
def test_a_fault_that_needs_a_value_is_refused_without_one(kind):
    with pytest.raises(ValueError, match=f"{kind} needs a value"):
        Fault(kind)


def test_a_fleet_makes_a_host_once_and_names_those_it_has(tmp_path):
    fleet = Fleet(tmp_path)
    fleet.ensure("sim-1", 1).write(SANITIZING, 0, SECRET)
    assert fleet.ensure("sim-1", 1).find(SANITIZING, SECRET)
    with pytest.raises(SimulatorError, match=r"no simulated host 'sim-2'; it has sim-1"):
        fleet.host("sim-2")


@pytest.mark.parametrize(
    ("fault", "bytes_on_it", "name"),
    [
        (FaultKind.HOST_ACTIVATES, LVM_LABEL, "dm-0"),
        (FaultKind.HOST_ASSEMBLES, MD_SUPERBLOCK, "md127"),
    ],
)
def test_host_activates_what_a_guest_left_until_the_drive_goes(
    host: SimulatedHost, fault: FaultKind, bytes_on_it: tuple[int, bytes], name: str
) -> None:
    """Only with the fault, and only if the bytes are there."""
    block = host.paths.sysfs / "class/block" / name
    host.set_fault(SANITIZING, Fault(fault))
    visit(host)
    assert not block.exists()
    host.write(SANITIZING, *bytes_on_it)
    visit(host)
    [disk] = [path.name for path in (block / "slaves").iterdir()]
    assert (host.paths.sysfs / "class/block" / disk / "holders" / name).resolve() == block.resolve()
    assert (host.paths.dev / name).exists()
    host.give_to_guest(SANITIZING)
    assert not block.is_symlink()
    host.clear_faults()
    host.give_back(SANITIZING)
    assert not block.is_symlink()


def visit(host: SimulatedHost) -> None:
    host.give_to_guest(SANITIZING)
    host.give_back(SANITIZING)


def test_vgchange_ends_a_group_only_where_its_filter_lets_it_look(host: SimulatedHost) -> None:
    host.set_fault(SANITIZING, Fault(FaultKind.HOST_ACTIVATES))
    host.write(SANITIZING, *LVM_LABEL)
    visit(host)
    block = host.paths.sysfs / "class/block/dm-0"
    group = (block / "dm/uuid").read_text().removeprefix("LVM-")[:32]
    [disk] = [path.name for path in (block / "slaves").iterdir()]
    for seen, select, ended in (("other", group, False), (disk, "x" * 32, False), (disk, group, True)):
        only = f'["a|^{host.paths.dev}/{seen}$|","r|.*|"]'
        config = f"devices{{filter={only}global_filter={only}}}"
        argv = [host.root / "bin/vgchange", "-an", "--select", f"vg_uuid={select}", "--config", config]
        subprocess.run(argv, check=True, capture_output=True)
        assert block.exists() is not ended
