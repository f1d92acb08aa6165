"""The NVMe driver offers what the operator named and nothing else, says why, and erases only the right drive."""

import json
import logging
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from erase_doubles import Watcher

from autoclave.conf import new_config
from autoclave.drivers import pci
from autoclave.drivers.base import CleanupControl, Sighting
from autoclave.drivers.nvme import NVMeDriver
from autoclave.exceptions import (
    DeviceInUse,
    DeviceVanished,
    DriverMismatch,
    EraseUnsupported,
    HardwareError,
    InvalidConfiguration,
    ToolMissing,
    WrongDrive,
)
from autoclave.hardware import usage
from autoclave.hardware.block import open_block
from autoclave.rules.device_spec import parse_device_spec
from autoclave.simulator.drive_spec import MIB, DriveSpec
from autoclave.simulator.faults import EVERY_DRIVE, Fault, FaultKind
from autoclave.simulator.functions import FunctionSpec
from autoclave.simulator.host import STYLES, SimulatedHost
from autoclave.simulator.host_volumes import LVM_LABEL

ONE, TWO, THREE = "0000:41:00.0", "0000:42:00.0", "0000:43:00.0"
SECRET = b"what the tenant left"


def drive(address, serial, **spec):
    return DriveSpec(address=address, serial=serial, **({"size_bytes": 4 * MIB, "sanitize_seconds": 0.1} | spec))


@pytest.fixture
def make(tmp_path):
    """Makes a driver on a host with *drives*, and the host; *specs* are the entries of device_spec."""

    def make(*drives, specs=({"address": "*"},), **options):
        host = SimulatedHost.create(tmp_path / "host", "h1", drives)
        overrides = host.conf_overrides() | {
            ("nvme", "device_spec"): [json.dumps(spec) for spec in specs],
            ("nvme", "poll_interval"): 0.01,
            ("agent", "rebind_timeout"): 0.0,
        }
        for name, value in options.items():
            group = "agent" if name in ("allow_host_device", "rebind_timeout") else "nvme"
            overrides[group, name] = value
        return NVMeDriver(new_config(overrides=overrides), host.paths), host

    return make


def row(address=ONE, serial="S1", model="Simulated NVMe Drive", action="sanitize_block", layout=None):
    return SimpleNamespace(
        uuid="7c8a5f3b", pci_address=address, serial=serial, drive_model=model, cleanup_action=action, layout=layout
    )


def control(watcher, *, returned=False):
    return CleanupControl(watcher.deadline, watcher.progress, watcher, returned)


def only(findings):
    (finding,) = findings
    return finding


def test_a_drive_is_reported_with_all_that_placement_and_libvirt_need(make):
    driver, _ = make(drive(ONE, "S1", vendor="144d", product="a808", crypto=True, block=True))
    device = only(driver.discover())
    assert (device.pci_address, device.device_type, device.vendor, device.product) == (ONE, "NVME", "144d", "a808")
    assert device.resource_class == "CUSTOM_NVME_144D_A808"
    assert device.traits == ("HW_NVME_CES", "HW_NVME_BES", "HW_NVME_WZS")
    assert device.std_board_info == {"product_id": "a808", "pci_address": ONE}
    assert (device.serial, device.drive_model) == ("S1", "Simulated NVMe Drive")
    assert device.cleanup_action == "sanitize_crypto"
    handle = only(device.attach_handles)
    assert handle.attach_type == "PCI"
    assert handle.attach_info == {"domain": "0000", "bus": "41", "device": "00", "function": "0"}
    assert handle.identity == ONE
    assert (device.excluded, device.unreadable, device.exposed) == (None, None, None)


def test_traits_say_what_the_drive_can_do_and_not_what_the_policy_uses(make):
    driver, _ = make(drive(ONE, "S1", crypto=True), specs=[{"address": "*", "clear_action": "zero"}])
    device = only(driver.discover())
    assert device.cleanup_action == "write_zeroes"
    assert "HW_NVME_CES" in device.traits


def test_no_drive_is_no_error(make):
    driver, _ = make()
    driver.init_host()
    assert driver.discover() == []


def test_only_what_an_entry_matches_is_reported_and_the_rest_says_so(make):
    driver, _ = make(drive(ONE, "S1"), drive(TWO, "S2"), specs=[{"address": TWO}])
    assert [device.pci_address for device in driver.discover()] == [TWO]
    first, second = driver.findings()
    assert first.refused == "no device_spec entry matches"
    assert first.device is None
    assert (second.refused, second.entry.entry) == (None, 1)


def test_the_first_entry_that_matches_decides(make):
    driver, _ = make(
        drive(ONE, "S1", crypto=True),
        specs=[{"address": TWO}, {"address": ONE, "clear_strategy": "block"}, {"vendor_id": "1b36"}],
    )
    finding = only(driver.findings())
    assert finding.entry.entry == 2
    assert finding.resolution.action == "write_zeroes"


def test_the_hosts_own_disk_is_refused_with_the_reason_and_the_way_out(make, caplog):
    driver, _ = make(drive(ONE, "SYS", mounted=True), drive(TWO, "S2"))
    with caplog.at_level(logging.ERROR):
        seen, device = driver.discover()
    assert isinstance(seen, Sighting)
    assert (seen.pci_address, device.pci_address) == (ONE, TWO)
    assert "mounted" in seen.exposed
    finding = driver.findings()[0]
    assert "mounted" in finding.refused
    assert f"allow_host_device = {ONE}" in finding.refused
    assert finding.holders
    assert f"{ONE} (device_spec entry 1) is not offered" in caplog.text


def test_the_hosts_own_disk_is_offered_if_the_operator_insists_but_not_erased_while_in_use(make):
    driver, host = make(drive(ONE, "SYS", mounted=True, block=True), allow_host_device=[ONE])
    device = only(driver.discover())
    assert device.serial == "SYS"
    assert driver.findings()[0].holders
    with pytest.raises(DeviceInUse, match="not touched") as refused:
        driver.cleanup(row(serial="SYS"))
    assert refused.value.holders
    with host.drive(ONE) as state:
        assert state.state.operation is None


def test_a_drive_that_is_open_exclusively_may_be_one_that_autoclave_erases(make):
    """An operator who asks for the plan at that moment must not allow the host's drive."""
    driver, host = make(drive(ONE, "S1"))
    [disk] = host.paths.dev.glob("nvme*n1")
    with open_block(host.paths, disk):
        [finding] = driver.findings()
    assert "check `autoclave device list` first" in finding.refused


def test_a_mount_during_the_erase_is_no_clean_drive(make):
    """An automounter of the host mounts the namespace as soon as the sanitize has ended."""
    driver, host = make(drive(ONE, "S1", block=True))
    [disk] = [path.name for path in host.paths.dev.glob("nvme*n1")]

    class Automounter(Watcher):
        def progress(self, progress):
            super().progress(progress)
            if progress.percent == 100.0:
                device = (host.paths.sysfs / "class/block" / disk / "dev").read_text().strip()
                mounts = host.paths.proc / "self/mountinfo"
                mounts.write_text(mounts.read_text() + f"99 1 {device} / /media/x rw shared:9 - ext4 /dev/{disk} rw\n")

    with pytest.raises(DeviceInUse, match="was erased, but this host uses it") as refused:
        driver.cleanup(row(), control(Automounter()))
    assert "/media/x" in str(refused.value)


def test_a_write_after_the_sanitize_is_no_clean_drive(make):
    """A journal is flushed to the namespace once the sanitize has ended, and before its log page is read."""
    driver, host = make(drive(ONE, "S1", block=True, sanitize_seconds=0.0))
    # The end of a command can be watched only if it is a process.
    host.set_fault("*", Fault(FaultKind.NVME_SLOW, 0))

    class Journal(Watcher):
        def ended(self, pid):
            if "sanitize" in self.running[pid]:
                host.write(ONE, 0, SECRET)
            super().ended(pid)

    with pytest.raises(HardwareError, match="data was written since"):
        driver.cleanup(row(), control(Journal()))


def returned_with_a_volume_group(host):
    """Let a guest make a volume group on the drive in the first slot, and the host activate it."""
    host.set_fault(ONE, Fault(FaultKind.HOST_ACTIVATES))
    host.give_to_guest(ONE)
    host.write(ONE, *LVM_LABEL)
    host.give_back(ONE)


def test_volume_group_of_a_returned_drive_is_ended(make, caplog):
    driver, host = make(drive(ONE, "S1", block=True))
    returned_with_a_volume_group(host)
    watcher = Watcher()

    driver.cleanup(row(), control(watcher, returned=True))

    assert [Path(argv[0]).name for argv in watcher.argvs if "--select" in argv] == ["vgs", "vgchange"]
    assert not host.find(ONE, LVM_LABEL[1])
    assert f"{ONE} (nvme0): stopped the volume group" in caplog.text


def test_volume_group_that_cannot_be_ended_keeps_the_drive(make):
    driver, host = make(drive(ONE, "S1", block=True))
    returned_with_a_volume_group(host)
    host.set_fault(ONE, Fault(FaultKind.VOLUMES_STAY))

    with pytest.raises(DeviceInUse, match="LVM volume vg0-data on nvme0n1") as refused:
        driver.cleanup(row(), control(Watcher(), returned=True))

    assert "vgchange exited with 5: Logical volume vg0/data in use.; it was not touched" in str(refused.value)
    assert host.find(ONE, LVM_LABEL[1])


@pytest.mark.parametrize(
    ("returned", "options"), [(False, {}), (True, {"allow_host_device": [ONE]})], ids=["not returned", "host's own"]
)
def test_volume_group_that_may_be_the_hosts_is_not_ended(make, returned, options):
    """The operator may have made it since, or has said that the host itself uses the drive."""
    driver, host = make(drive(ONE, "S1", block=True), **options)
    returned_with_a_volume_group(host)
    watcher = Watcher()

    with pytest.raises(DeviceInUse, match="LVM volume vg0-data on nvme0n1; it was not touched"):
        driver.cleanup(row(), control(watcher, returned=returned))

    assert not any("--select" in argv for argv in watcher.argvs)


def test_drive_with_a_volume_group_of_the_host_is_not_offered(make):
    """What the host has on a drive before a guest had it is never taken for the guest's."""
    driver, host = make(drive(ONE, "S1", block=True))
    host.set_fault(ONE, Fault(FaultKind.HOST_ACTIVATES))
    host.write(ONE, *LVM_LABEL)
    host.pull(ONE)
    host.put_back(ONE)

    seen = only(driver.discover())

    assert isinstance(seen, Sighting)
    assert "LVM volume vg0-data on nvme0n1" in seen.exposed


def test_a_virtual_function_is_refused_with_its_physical_function(make):
    driver, _ = make(drive(ONE, "S1"), drive("0000:41:00.1", "S2", physfn=ONE))
    assert [device.pci_address for device in driver.discover()] == [ONE]
    assert f"virtual function of {ONE}" in driver.findings()[1].refused


def test_a_drive_with_enabled_virtual_functions_is_not_offered(make):
    driver, _ = make(drive(ONE, "S1"), drive("0000:41:00.1", "S2", physfn=ONE))
    assert "the virtual function 0000:41:00.1" in only(driver.discover()).exposed


def test_a_policy_that_the_drive_cannot_satisfy_excludes_it_and_is_logged_once_as_an_error(make, caplog):
    driver, _ = make(drive(ONE, "S1"), specs=[{"address": "*", "clear_action": "sanitize"}])
    with caplog.at_level(logging.ERROR):
        device = only(driver.discover())
        driver.discover()
    assert "Crypto Erase (SANICAP bit 0) or Block Erase (SANICAP bit 1)" in device.excluded
    assert device.cleanup_action is None
    assert caplog.text.count("is not offered") == 1


def test_contradictory_entry_excludes_its_drives_alone(make, caplog):
    contradictory = {"address": TWO, "clear_action": "zero", "clear_strategy": "crypto"}
    driver, _ = make(drive(ONE, "S1"), drive(TWO, "S2", crypto=True), specs=[contradictory, {"address": "*"}])
    with caplog.at_level(logging.ERROR):
        driver.init_host()
        sound, excluded = driver.discover()
    assert (sound.excluded, sound.cleanup_action) == (None, "write_zeroes")
    assert (excluded.serial, excluded.cleanup_action) == ("S2", None)
    assert "clear_action=zero cannot be done with clear_strategy=crypto" in excluded.excluded
    assert "entry 1" in excluded.excluded
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"], "at the start, and for the drive"
    inspected = driver.inspect()[1]
    assert (inspected.action, inspected.refused) == (None, [excluded.excluded])


def test_drive_behind_vmd_is_excluded(make):
    """Neither Nova nor QEMU attaches a function of a domain above ffff."""
    driver, _ = make(drive("10000:e1:00.0", "S1", crypto=True), drive(ONE, "S2"))
    attachable, behind_vmd = driver.discover()
    assert attachable.excluded is None
    assert behind_vmd.pci_address == "10000:e1:00.0"
    assert "PCI domain 10000 is above ffff" in behind_vmd.excluded
    assert "VMD" in driver.inspect()[1].refused[0]


def test_other_functions_of_a_wide_entry_are_logged_in_one_line(make, caplog):
    driver, host = make(drive(ONE, "S1"))
    for address in ("0000:00:02.0", "0000:00:1f.3"):
        host.functions.plug(FunctionSpec(address, "8086", "1901", "040300"))
    with caplog.at_level(logging.INFO):
        driver.discover()
        driver.discover()
    told = [record for record in caplog.records if "0000:00:" in record.getMessage()]
    assert [record.levelname for record in told] == ["INFO"]
    assert "2 functions" in told[0].getMessage()


def test_function_that_an_entry_names_and_is_no_drive_is_an_error(make, caplog):
    driver, host = make(drive(ONE, "S1"), specs=[{"address": "0000:00:1f.3"}])
    host.functions.plug(FunctionSpec("0000:00:1f.3", "8086", "1901", "040300"))
    with caplog.at_level(logging.ERROR):
        driver.discover()
    assert "0000:00:1f.3 (device_spec entry 1) is not offered: it is not an NVMe controller" in caplog.text


def test_a_drive_with_a_second_way_to_it_is_exposed(make):
    driver, _ = make(drive(ONE, "S1", subsystem="nqn.ss0"), drive(TWO, "S2", subsystem="nqn.ss0"))
    first, second = driver.discover()
    assert "nvme1" in first.exposed
    assert "nvme0" in second.exposed


def test_a_drive_that_a_guest_has_is_kept_but_nothing_is_made_up_about_it(make):
    driver, host = make(drive(ONE, "S1", crypto=True), drive(TWO, "S2"))
    host.give_to_guest(ONE)
    first, second = driver.discover()
    assert "vfio-pci" in first.unreadable
    assert "vfio-pci" in first.exposed
    assert (first.serial, first.drive_model, first.cleanup_action, first.traits) == (None, None, None, ())
    assert second.unreadable is None


@pytest.mark.parametrize(
    ("fault", "patience"),
    [(FaultKind.NVME_GARBAGE, 60.0), (FaultKind.NVME_HANGS, 5.0)],
    ids=["talks nonsense", "does not answer"],
)
def test_one_broken_drive_does_not_hide_the_others(make, fault, patience):
    driver, host = make(drive(ONE, "S1"), drive(TWO, "S2"), drive(THREE, "S3"), command_timeout=patience)
    host.set_fault(TWO, Fault(fault))
    devices = driver.discover()
    assert [device.pci_address for device in devices] == [ONE, TWO, THREE]
    assert [device.unreadable is None for device in devices] == [True, False, True]


@pytest.mark.parametrize(
    ("command", "before", "after"),
    [
        ("id-ctrl", r'"tnvmcap":[^,]*', '"tnvmcap":"' + "9" * 5000 + '"'),
        ("sanitize-log", r'"status":"([^"]*)"', '"status":"(' + "1" * 5000 + ')"'),
        ("sanitize-log", r'"sprog":[^,]*', '"sprog":1' + "0" * 400),
    ],
)
def test_number_of_thousands_of_digits_is_one_drives_trouble(make, command, before, after):
    driver, host = make(*(drive(address, address[5:], crypto=True) for address in (ONE, TWO, THREE)))
    [tools] = host.paths.tools
    (tools / "nvme").rename(tools / "real-nvme")
    node = f"/dev/{next((host.paths.sysfs / 'bus/pci/devices' / TWO / 'nvme').iterdir()).name}"
    (tools / "nvme").write_text(
        "#!/usr/bin/env python3\n"
        "import re, subprocess, sys\n"
        f"done = subprocess.run([{str(tools / 'real-nvme')!r}, *sys.argv[1:]], stdout=subprocess.PIPE, text=True)\n"
        f"if sys.argv[1] == {command!r} and sys.argv[2].endswith({node!r}):\n"
        f"    done.stdout = re.sub({before!r}, {after!r}, re.sub(r'\\s*([:,])\\s*', r'\\1', done.stdout))\n"
        "print(done.stdout, end='')\n"
        "sys.exit(done.returncode)\n"
    )
    (tools / "nvme").chmod(0o755)
    host.pull(THREE)

    devices = driver.discover()

    assert [(device.pci_address, device.unreadable is None) for device in devices] == [(ONE, True), (TWO, False)]
    assert "cannot be parsed" in devices[1].unreadable


@pytest.mark.parametrize("kind", ["nvme", "pci"])
def test_error_that_was_not_foreseen_is_one_functions_trouble(make, monkeypatch, caplog, kind):
    driver, host = make(drive(ONE, "S1"), drive(TWO, "S2"))
    if kind == "pci":
        specs = parse_device_spec([json.dumps({"address": ONE}), json.dumps({"address": TWO})])
    look = usage.holders

    def odd(paths, controller):
        if str(controller.address) == ONE:
            raise ZeroDivisionError("not thought of")
        return look(paths, controller)

    monkeypatch.setattr("autoclave.drivers.nvme_inspection.holders", odd)
    monkeypatch.setattr("autoclave.hardware.usage.holders", odd)
    if kind == "pci":
        cards, sightings = pci.look(host.paths, specs, frozenset())
        reported = [*sightings, *(card.device() for card in cards)]
    else:
        reported = driver.discover()

    assert [(seen.pci_address, seen.unreadable is None) for seen in reported] == [(ONE, False), (TWO, True)]
    assert "unexpectedly: ZeroDivisionError: not thought of" in reported[0].unreadable
    assert "Traceback" in caplog.text


def test_a_function_that_does_not_say_what_it_is_is_reported_as_being_there_and_no_more(make, caplog):
    driver, host = make(drive(ONE, "S1"), drive(TWO, "S2"))
    (host.paths.sysfs / "bus/pci/devices" / ONE / "vendor").write_text("0xffff\n")
    seen = driver.discover()[0]
    assert isinstance(seen, Sighting)
    assert seen.pci_address == ONE
    assert "nothing but ones" in seen.unreadable
    assert seen.exposed is None
    assert f"{ONE} cannot be identified now" in caplog.text


def test_a_drive_that_no_driver_has_cannot_be_identified_but_nobody_else_writes_to_it(make):
    driver, host = make(drive(ONE, "S1"))
    (host.paths.sysfs / "bus/pci/devices" / ONE / "driver").unlink()
    device = only(driver.discover())
    assert "no driver" in device.unreadable
    assert device.exposed is None


def test_a_controller_that_goes_while_it_is_looked_at_does_not_make_its_slot_empty(make, monkeypatch):
    driver, _ = make(drive(ONE, "S1"))

    def gone(*_):
        raise DeviceVanished("the controller nvme0 went away, as arranged")

    monkeypatch.setattr("autoclave.drivers.nvme_inspection.controller_at", gone)
    assert "went away" in only(driver.discover()).unreadable


def test_a_drive_that_was_pulled_is_not_reported(make):
    driver, host = make(drive(ONE, "S1"), drive(TWO, "S2"))
    driver.discover()
    host.pull(ONE)
    assert [device.pci_address for device in driver.discover()] == [TWO]


def test_the_other_functions_of_the_iommu_group_are_shown(make):
    driver, _ = make(drive(ONE, "S1", iommu_group=7), drive(TWO, "S2", iommu_group=7), drive(THREE, "S3"))
    assert [list(finding.iommu_group) for finding in driver.findings()] == [[TWO], [ONE], []]


def test_a_missing_nvme_cli_keeps_the_agent_from_starting(make, monkeypatch, tmp_path):
    driver, host = make(drive(ONE, "S1"))
    (host.root / "bin/nvme").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("autoclave.hardware.command._SYSTEM_DIRECTORIES", ())
    with pytest.raises(ToolMissing, match="nvme"):
        driver.init_host()


def test_a_typo_in_device_spec_keeps_the_agent_from_starting(make):
    driver, _ = make(drive(ONE, "S1"), specs=[{"address": ONE}, {"adress": TWO}])
    with pytest.raises(InvalidConfiguration, match=r"\[nvme\] device_spec, entry 2, key 'adress'"):
        driver.init_host()


def test_an_allowed_host_device_must_be_an_exact_address(make):
    driver, _ = make(drive(ONE, "S1"), allow_host_device=[ONE, "0000:42:*"])
    with pytest.raises(InvalidConfiguration, match=r"\[agent\] allow_host_device, entry 2"):
        driver.init_host()


@pytest.mark.parametrize("action", ["sanitize_crypto", "sanitize_block", "write_zeroes", "shred"])
def test_exactly_the_locked_in_action_is_done(make, action):
    driver, host = make(drive(ONE, "S1", crypto=True, block=True))
    host.fill(ONE, SECRET)
    assert driver.cleanup(row(action=action))["action"] == action
    assert not host.find(ONE, SECRET)


def test_an_action_that_fails_is_not_replaced_by_another(make):
    driver, host = make(drive(ONE, "S1", block=True))
    host.fill(ONE, SECRET)
    host.set_fault(ONE, Fault(FaultKind.SANITIZE_FAILS))
    with pytest.raises(HardwareError, match="Failed"):
        driver.cleanup(row())
    assert host.find(ONE, SECRET)


@pytest.mark.parametrize("action", [None, "", "format"])
def test_a_device_without_a_known_action_is_not_touched(make, action):
    driver, host = make(drive(ONE, "S1"))
    host.fill(ONE, SECRET)
    with pytest.raises(EraseUnsupported, match="a cleanup action that this driver does not support"):
        driver.cleanup(row(action=action))
    assert host.find(ONE, SECRET)


@pytest.mark.parametrize(
    "known", [{"serial": "S2"}, {"model": "Another Model"}, {"serial": None, "model": None}],
    ids=["serial", "model", "never identified"],
)  # fmt: skip
def test_another_drive_than_the_row_names_is_not_erased_and_both_are_named(make, known):
    driver, host = make(drive(ONE, "S1", block=True))
    host.fill(ONE, SECRET)
    with pytest.raises(WrongDrive) as wrong:
        driver.cleanup(row(**known))
    assert "Simulated NVMe Drive S1" in str(wrong.value)
    assert str(next(iter(known.values()))) in str(wrong.value)
    assert host.find(ONE, SECRET)


def test_a_drive_that_changed_behind_the_kernels_back_is_not_erased(make):
    driver, host = make(drive(ONE, "S1", block=True))
    nvme = host.root / "bin/nvme"
    nvme.rename(host.root / "bin/real-nvme")
    nvme.write_text(f"""#!/bin/sh\n{host.root}/bin/real-nvme "$@" | sed 's/"S1 /"S9 /'\n""")
    nvme.chmod(0o755)
    host.fill(ONE, SECRET)
    with pytest.raises(WrongDrive, match="as the drive reports it"):
        driver.cleanup(row())
    assert host.find(ONE, SECRET)


def test_a_drive_that_another_controller_reaches_is_not_erased(make):
    driver, host = make(
        drive(ONE, "S1", block=True, subsystem="nqn.ss0"), drive(TWO, "S2", block=True, subsystem="nqn.ss0")
    )
    host.fill(ONE, SECRET)
    with pytest.raises(HardwareError, match="nvme1"):
        driver.cleanup(row())
    assert host.find(ONE, SECRET)


def test_an_empty_slot_has_nothing_to_erase(make):
    driver, host = make(drive(ONE, "S1", block=True))
    host.pull(ONE)
    with pytest.raises(DeviceVanished):
        driver.cleanup(row())


def test_a_drive_that_libvirt_does_not_give_back_names_who_has_it(make):
    driver, host = make(drive(ONE, "S1", block=True), rebind_timeout=0.1)
    host.give_to_guest(ONE)
    with pytest.raises(DriverMismatch, match=r"vfio-pci.*rebind_timeout") as mismatch:
        driver.cleanup(row())
    assert mismatch.value.driver == "vfio-pci"


def test_a_drive_that_libvirt_gives_back_late_is_waited_for(make):
    driver, host = make(drive(ONE, "S1", block=True), rebind_timeout=30.0)
    host.fill(ONE, SECRET)
    host.give_to_guest(ONE)
    watcher = Watcher()

    def give_back_once(progress):
        watcher.on_progress = lambda progress: None
        host.give_back(ONE)

    watcher.on_progress = give_back_once
    driver.cleanup(row(), control(watcher))
    assert "vfio-pci" in watcher.steps[0]
    assert not host.find(ONE, SECRET)


def test_discovery_leaves_a_drive_alone_that_is_being_erased_and_does_not_lose_it(make):
    driver, host = make(drive(ONE, "S1"), drive(TWO, "S2"))
    host.set_fault(ONE, Fault(FaultKind.ZERO_BYTES_PER_SECOND, 8 * MIB))
    watcher = Watcher()
    seen = []

    def look(progress):
        if progress.step.startswith("shred") and not seen:
            seen.extend(driver.discover())

    watcher.on_progress = look
    driver.cleanup(row(action="shred"), control(watcher))
    assert [device.pci_address for device in seen] == [ONE, TWO]
    assert "being erased" in seen[0].unreadable
    assert seen[1].unreadable is None
    assert only([device for device in driver.discover() if device.pci_address == ONE]).unreadable is None


def test_a_drive_that_is_being_erased_is_nothing_to_warn_of_but_one_that_cannot_be_identified_is(make, caplog):
    driver, host = make(drive(ONE, "S1", block=True), drive(TWO, "S2"))
    host.set_fault(TWO, Fault(FaultKind.NVME_GARBAGE))
    watcher = Watcher()
    watcher.on_progress = lambda _progress: driver.discover()
    with caplog.at_level(logging.INFO, "autoclave.drivers"):
        driver.cleanup(row(), control(watcher))
        driver.discover()
    assert watcher.steps
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert f"{TWO} cannot be identified now" in caplog.text


def test_discovery_at_any_moment_does_not_fail_an_erase(make):
    driver, _ = make(drive(ONE, "S1"))
    failures = []
    done = threading.Event()

    def look():
        while not done.is_set():
            try:
                driver.discover()
            except Exception as error:
                failures.append(error)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(5):
            driver.cleanup(row(action="write_zeroes"))
    finally:
        done.set()
        looking.join()
    assert failures == []


def test_an_nvme_cli_that_talks_nonsense_keeps_the_agent_from_starting(make):
    driver, host = make(drive(ONE, "S1"))
    host.set_fault(EVERY_DRIVE, Fault(FaultKind.NVME_GARBAGE))
    with pytest.raises(HardwareError, match="nvme version"):
        driver.init_host()


@pytest.mark.parametrize(
    ("spec", "fault", "command"),
    [({}, FaultKind.LIST_NS_REFUSED, "list-ns"), ({"block": True}, FaultKind.SANITIZE_LOG_REFUSED, "sanitize-log")],
)
def test_erase_that_the_drive_refuses_excludes_it(make, spec, fault, command):
    """Capability bits say that the drive can be erased, and a command that the erase needs is refused."""
    driver, host = make(drive(ONE, "S1", **spec), drive(TWO, "S2"))
    host.set_fault(ONE, Fault(fault))
    first, second = driver.discover()
    assert f"nvme {command} " in first.excluded
    assert "Invalid" in first.excluded
    assert second.excluded is None
    host.clear_faults(ONE)
    assert driver.discover()[0].excluded is None


@pytest.mark.parametrize("action", ["zero", "format"])
def test_drive_with_nothing_to_overwrite_is_excluded(make, action):
    driver, host = make(drive(ONE, "S1", format_crypto=True), specs=[{"address": "*", "clear_action": action}])
    with host.drive(ONE) as opened:
        opened.state.namespaces.clear()
        host.sync_namespaces(opened)
    assert only(driver.discover()).excluded == (
        "it has no namespace, and no Namespace Management (OACS bit 3) to create one: nothing to zero"
    )


def test_sanitize_needs_no_list_of_namespaces(make):
    """A controller of NVMe 1.0 does not know list-ns. A sanitize does not need it, and must not fail for it."""
    driver, host = make(drive(ONE, "S1", block=True))
    host.fill(ONE, SECRET)
    host.set_fault(ONE, Fault(FaultKind.LIST_NS_REFUSED))
    assert only(driver.discover()).excluded is None
    driver.cleanup(row())
    assert not host.find(ONE, SECRET)


def test_erase_trial_that_passed_is_not_repeated(make):
    driver, host = make(drive(ONE, "S1", block=True))
    driver.discover()
    host.set_fault(ONE, Fault(FaultKind.SANITIZE_LOG_REFUSED))
    assert only(driver.discover()).excluded is None


def test_layout_is_reported_with_the_drive(make):
    driver, host = make(drive(ONE, "S1", block=True, namespaces=2), drive(TWO, "S2", block=True))
    host.set_fault(TWO, Fault(FaultKind.LIST_NS_REFUSED))
    first, second = driver.discover()
    assert str(first.layout) == (
        "namespace 1: 4096 blocks in LBA format 0 (512+0); namespace 2: 4096 blocks in LBA format 0 (512+0)"
    )
    assert second.layout is None
    assert second.unreadable is None


def test_layout_is_read_once(make):
    """It costs a command for each namespace, so a look at an unchanged drive does without."""
    driver, host = make(drive(ONE, "S1", block=True, format_nvm=True))
    before = only(driver.discover()).layout
    host.set_fault(ONE, Fault(FaultKind.LIST_NS_REFUSED))
    assert only(driver.discover()).layout == before
    host.format(ONE, 4)
    assert only(driver.discover()).layout is None


@pytest.mark.parametrize("visit", ["a guest", "an erase"])
def test_layout_is_read_again_after_a_visit(make, visit):
    """Also where the host shows the same of the namespaces: in a format with metadata it shows no bytes."""
    driver, host = make(drive(ONE, "S1", block=True, format_nvm=True))
    host.format(ONE, 7)
    assert only(driver.discover()).layout.namespaces[0].metadata_bytes == 64
    if visit == "a guest":
        host.give_to_guest(ONE)
        assert only(driver.discover()).layout is None
        with host.drive(ONE) as opened:
            opened.format(1, 6, 0, 0)
        host.give_back(ONE)
    else:
        with driver.controller_to_erase(row(), driver.own_control()):
            host.format(ONE, 6)
    assert only(driver.discover()).layout.namespaces[0].metadata_bytes == 16


def test_layout_on_record_is_restored(make):
    driver, host = make(drive(ONE, "S1", block=True, format_nvm=True))
    layout = only(driver.discover()).layout
    host.format(ONE, 7)
    driver.cleanup(row(layout=layout.to_json()))
    assert only(driver.discover()).layout == layout


@pytest.mark.parametrize("style", STYLES)
def test_drive_with_control_characters_is_cleaned(tmp_path, style):
    """Its serial number and model colour a terminal, its firmware revision has a line end."""
    spec = drive(ONE, "S\x1b[31m1", model="Mo\x07del", firmware="1\n2", block=True)
    host = SimulatedHost.create(tmp_path / "host", "h1", [spec], style=style)
    overrides = host.conf_overrides(device_spec=True) | {("nvme", "poll_interval"): 0.01}
    driver = NVMeDriver(new_config(overrides=overrides), host.paths)
    device = only(driver.discover())
    assert (device.serial, device.drive_model, device.unreadable) == (r"S\x1b[31m1", r"Mo\x07del", None)
    host.fill(ONE, SECRET)
    driver.cleanup(row(serial=device.serial, model=device.drive_model))
    host.fill(ONE, SECRET)
    driver.cleanup(row(serial=spec.serial, model=spec.model))  # as earlier versions have recorded it
    assert not host.find(ONE, SECRET)
