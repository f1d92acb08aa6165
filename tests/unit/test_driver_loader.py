"""Drivers are loaded by name, a vendor's as well as ours, and none that could not find its devices again."""

import json
from types import SimpleNamespace

import pytest
from stevedore import ExtensionManager

from autoclave.conf import new_config
from autoclave.drivers.loader import load_drivers
from autoclave.drivers.nvme import NVMeDriver
from autoclave.exceptions import InvalidConfiguration, WrongDrive
from autoclave.hardware.host import HostPaths
from autoclave.simulator.drive_spec import MIB, DriveSpec
from autoclave.simulator.host import SimulatedHost

SLOT = "0000:41:00.0"

VENDOR_DRIVER = """
from autoclave.drivers.base import Driver
from autoclave.drivers.nvme import NVMeDriver


class VendorDriver(NVMeDriver):
    name = "vendor_nvme_driver"

    def cleanup(self, device, control=None):
        control = control or self.own_control()
        with self.controller_to_erase(device, control) as controller:
            with open(controller.namespaces[0].path, "r+b") as disk:
                disk.write(bytes(controller.namespaces[0].size_bytes))
        return {"method": "vendor", "serial": device.serial}


class Misnamed(NVMeDriver):
    pass


def function(conf, paths):
    return None
"""


@pytest.fixture
def vendor_package(tmp_path, monkeypatch):
    """An installed package with a vendor's driver, as pip leaves it."""
    site = tmp_path / "site"
    info = site / "vendor_nvme-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "vendor_nvme.py").write_text(VENDOR_DRIVER)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vendor-nvme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[autoclave.drivers]\n"
        "vendor_nvme_driver = vendor_nvme:VendorDriver\n"
        "misnamed = vendor_nvme:Misnamed\n"
        "function = vendor_nvme:function\n"
        "broken = vendor_nvme_that_is_not_there:Driver\n"
    )
    monkeypatch.setattr(ExtensionManager, "ENTRY_POINT_CACHE", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(site)


def load(*names, overrides=None, paths=None):
    conf = new_config(overrides={("agent", "enabled_drivers"): list(names)} | (overrides or {}))
    return load_drivers(conf, paths or HostPaths())


def test_the_nvme_driver_is_installed_under_its_name():
    (driver,) = load("nvme_driver")
    assert type(driver) is NVMeDriver


def test_no_driver_is_no_error_but_is_said(caplog):
    assert load() == []
    assert "[agent] enabled_drivers lists no driver" in caplog.text


def test_an_unknown_driver_is_named_with_those_that_are_installed():
    with pytest.raises(InvalidConfiguration, match=r"\[agent\] enabled_drivers.*'nvme_drvier'.*nvme_driver"):
        load("nvme_drvier")


def test_a_driver_that_is_enabled_twice_is_refused():
    with pytest.raises(InvalidConfiguration, match=r"\[agent\] enabled_drivers.*nvme_driver.*more than once"):
        load("nvme_driver", "nvme_driver")


@pytest.mark.parametrize(
    ("name", "reason"),
    [("misnamed", "must be the same"), ("function", "not a device driver"), ("broken", "cannot be loaded")],
)
def test_an_entry_point_that_is_no_usable_driver_is_refused_by_name(vendor_package, name, reason):
    with pytest.raises(InvalidConfiguration, match=rf"{name}.*{reason}"):
        load(name)


@pytest.fixture
def vendor_host(tmp_path, vendor_package):
    host = SimulatedHost.create(tmp_path / "host", "h1", [DriveSpec(SLOT, "S1", size_bytes=MIB)])
    overrides = host.conf_overrides() | {("nvme", "device_spec"): [json.dumps({"address": SLOT})]}
    (driver,) = load("vendor_nvme_driver", overrides=overrides, paths=host.paths)
    return driver, host


def row(**changes):
    known = {"uuid": "u", "pci_address": SLOT, "serial": "S1", "drive_model": "Simulated NVMe Drive"}
    return SimpleNamespace(**known | {"cleanup_action": "shred"} | changes)


def test_a_vendors_driver_discovers_as_ours_does_and_erases_its_own_way(vendor_host):
    driver, host = vendor_host
    host.fill(SLOT, b"secret")
    assert [device.pci_address for device in driver.discover()] == [SLOT]
    assert driver.cleanup(row()) == {"method": "vendor", "serial": "S1"}
    assert not host.find(SLOT, b"secret")


def test_a_vendors_driver_is_kept_from_the_wrong_drive_by_ours(vendor_host):
    driver, host = vendor_host
    host.fill(SLOT, b"secret")
    with pytest.raises(WrongDrive):
        driver.cleanup(row(serial="S2"))
    assert host.find(SLOT, b"secret")
