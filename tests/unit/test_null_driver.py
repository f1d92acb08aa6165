"""Guests that are only told of: what they take from a simulated host, and what goes wrong with them."""

import io
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from cliff.app import App
from cliff.commandmanager import CommandManager

from autoclave.cli import sim
from autoclave.conf import new_config
from autoclave.exceptions import GuestError, InvalidConfiguration, SimulatorError
from autoclave.hardware.sysfs import pci_function
from autoclave.rules.instance_states import PowerState
from autoclave.rules.pci_address import PCIAddress
from autoclave.simulator.faults import EVERY_DRIVE, Fault, FaultKind
from autoclave.simulator.guests import Guests
from autoclave.simulator.host import Fleet, SimulatedHost
from autoclave.virt.driver import ComputeDriver, load_compute_driver
from autoclave.virt.guest import GuestSpec

ONE, OTHER = (f"{digit}0000000-0000-4000-8000-000000000000" for digit in "12")
DRIVE, CARD, VF_VFIO, VF_HOST = "0000:41:00.0", "0000:81:00.0", "0000:82:02.0", "0000:82:02.1"


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return Fleet(tmp_path).ensure("sim-1", 1)


@pytest.fixture
def driver(host: SimulatedHost) -> ComputeDriver:
    return load(host)


def load(host: SimulatedHost, **compute: Any) -> ComputeDriver:
    overrides: dict[tuple[str | None, str], Any] = {("agent", "data_dir"): str(host.root.parent.parent)}
    overrides |= host.conf_overrides() | {("compute", name): value for name, value in compute.items()}
    return load_compute_driver(new_config(overrides=overrides))


def guest(uuid: str = ONE, *addresses: str, **more: bool) -> GuestSpec:
    hostdevs = tuple(PCIAddress.parse(address).as_attach_info() | more for address in addresses)
    return GuestSpec(uuid, "web", 1, 128, hostdevs=hostdevs)


def kernel_driver(host: SimulatedHost, address: str) -> str | None:
    return pci_function(host.paths, PCIAddress.parse(address)).driver


@pytest.mark.parametrize(("address", "before"), [(DRIVE, "nvme"), (CARD, "nouveau"), (VF_HOST, "iavf")])
def test_a_running_guest_has_its_functions_and_the_host_gets_them_back(
    host: SimulatedHost, driver: ComputeDriver, address: str, before: str
) -> None:
    driver.spawn(guest(ONE, address))
    assert kernel_driver(host, address) == "vfio-pci"
    driver.stop(ONE)
    assert kernel_driver(host, address) == before
    driver.start(ONE)
    assert kernel_driver(host, address) == "vfio-pci"
    driver.destroy(ONE)
    assert kernel_driver(host, address) == before


def test_an_unmanaged_function_stays_with_the_driver_that_its_operator_gave_it(
    host: SimulatedHost, driver: ComputeDriver
) -> None:
    driver.spawn(guest(ONE, VF_VFIO, managed=False))
    driver.destroy(ONE)
    assert kernel_driver(host, VF_VFIO) == "vfio-pci"


def test_an_unmanaged_function_that_nobody_prepared_starts_no_guest(host: SimulatedHost, driver: ComputeDriver) -> None:
    with pytest.raises(GuestError, match=f"unmanaged PCI device {VF_HOST} is not bound to vfio-pci"):
        driver.spawn(guest(ONE, VF_HOST, managed=False))
    assert kernel_driver(host, VF_HOST) == "iavf"


def test_a_function_of_a_running_guest_goes_to_no_other(driver: ComputeDriver) -> None:
    driver.spawn(guest(ONE, CARD))
    with pytest.raises(GuestError, match=f"PCI device {CARD} is in use by guest {ONE}"):
        driver.spawn(guest(OTHER, DRIVE, CARD))
    assert driver.state(OTHER) is PowerState.SHUTDOWN
    driver.stop(ONE)
    driver.start(OTHER)
    with pytest.raises(GuestError, match=f"in use by guest {OTHER}"):
        driver.start(ONE)


def test_a_function_that_is_not_there_starts_no_guest(driver: ComputeDriver) -> None:
    with pytest.raises(GuestError, match=r"there is no PCI function 0000:99:00\.0"):
        driver.spawn(guest(ONE, "0000:99:00.0"))


def test_a_guest_ends_although_its_function_was_pulled(host: SimulatedHost, driver: ComputeDriver) -> None:
    driver.spawn(guest(ONE, CARD, DRIVE))
    host.functions.pull(CARD)
    driver.destroy(ONE)
    assert driver.state(ONE) is None
    assert kernel_driver(host, DRIVE) == "nvme"


def test_a_spawn_fails_as_long_as_it_is_told_to(host: SimulatedHost, driver: ComputeDriver) -> None:
    host.set_fault(EVERY_DRIVE, Fault(FaultKind.SPAWN_FAILS))
    for ask in (driver.spawn, driver.rebuild):
        with pytest.raises(GuestError, match="spawn-fails"):
            ask(guest(ONE, DRIVE))
    assert kernel_driver(host, DRIVE) == "nvme"
    driver.destroy(ONE)
    host.clear_faults()
    driver.spawn(guest(ONE, DRIVE))


def test_a_spawn_that_hangs_fails_when_its_time_is_over(host: SimulatedHost, driver: ComputeDriver) -> None:
    host.set_fault(EVERY_DRIVE, Fault(FaultKind.SPAWN_HANGS, 0.3))
    begun = time.monotonic()
    with pytest.raises(GuestError, match="spawn-hangs"):
        driver.spawn(guest())
    assert time.monotonic() - begun >= 0.3


def test_a_spawn_that_hangs_goes_on_when_the_fault_is_cleared_and_stops_no_other_guest(
    host: SimulatedHost, driver: ComputeDriver
) -> None:
    driver.spawn(guest(OTHER))
    host.set_fault(EVERY_DRIVE, Fault(FaultKind.SPAWN_HANGS))
    hanging = threading.Thread(target=driver.spawn, args=(guest(),))
    hanging.start()
    driver.destroy(OTHER)
    assert hanging.is_alive()
    host.clear_faults(kind=FaultKind.SPAWN_HANGS)
    hanging.join(60)
    assert driver.state(ONE) is PowerState.RUNNING


def test_a_guest_that_cannot_be_ended_keeps_what_it_has(host: SimulatedHost, driver: ComputeDriver) -> None:
    driver.spawn(guest(ONE, DRIVE))
    host.set_fault(EVERY_DRIVE, Fault(FaultKind.DESTROY_FAILS))
    for ask in (driver.destroy, driver.stop):
        with pytest.raises(GuestError, match="destroy-fails"):
            ask(ONE)
    assert driver.state(ONE) is PowerState.RUNNING
    assert kernel_driver(host, DRIVE) == "vfio-pci"


@pytest.mark.parametrize("kind", [FaultKind.SPAWN_FAILS, FaultKind.SPAWN_HANGS, FaultKind.DESTROY_FAILS])
def test_the_faults_of_guests_are_of_the_whole_host(host: SimulatedHost, kind: FaultKind) -> None:
    with pytest.raises(SimulatorError, match=f"{kind} affects the whole host"):
        host.set_fault(DRIVE, Fault(kind))


def test_a_guest_that_died_and_one_that_was_stopped_are_told_apart(host: SimulatedHost, driver: ComputeDriver) -> None:
    driver.spawn(guest())
    Guests(host).end(ONE, crashed=True)
    assert driver.state(ONE) is PowerState.CRASHED
    driver.start(ONE)
    driver.stop(ONE)
    assert driver.state(ONE) is PowerState.SHUTDOWN


def test_guests_and_their_functions_outlive_the_agent(host: SimulatedHost, driver: ComputeDriver) -> None:
    driver.spawn(guest(ONE, CARD))
    again = load(host)
    with pytest.raises(GuestError, match="in use"):
        again.spawn(guest(OTHER, CARD))
    again.destroy(ONE)
    assert kernel_driver(host, CARD) == "nouveau"


def test_an_agent_killed_while_it_starts_a_guest_leaves_one_that_counts_as_running(
    host: SimulatedHost, driver: ComputeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(SimulatedHost, "give_to_guest", lambda host, address: sys.exit("killed"))
        with pytest.raises(SystemExit):
            driver.spawn(guest(ONE, DRIVE))
    again = load(host)
    assert again.state(ONE) is PowerState.RUNNING
    again.destroy(ONE)
    assert kernel_driver(host, DRIVE) == "nvme"


def run(host: SimulatedHost, kind: type, *arguments: str) -> str:
    out = io.StringIO()
    command = kind(App("autoclave", "0", CommandManager("no.such.namespace"), stdout=out), None)
    data_dir = str(host.root.parent.parent)
    assert command.run(command.get_parser("autoclave").parse_args(["--data-dir", data_dir, *arguments])) == 0
    return out.getvalue()


def test_an_operator_lists_guests_and_lets_them_die_and_vanish(host: SimulatedHost, driver: ComputeDriver) -> None:
    driver.spawn(guest(ONE, CARD, DRIVE))
    driver.spawn(guest(OTHER))
    run(host, sim.SimGuestDie, "sim-1", ONE)
    listed = {row["instance"]: row for row in json.loads(run(host, sim.SimGuestList, "-f", "json"))}
    assert listed[ONE] == {"host": "sim-1", "instance": ONE, "state": "crashed", "devices": f"{CARD}, {DRIVE}"}
    assert listed[OTHER]["state"] == "running"
    run(host, sim.SimGuestVanish, "sim-1", ONE)
    assert driver.state(ONE) is None
    with pytest.raises(SimulatorError, match=f"there is no guest {ONE} on this host; .autoclave sim guest list. "):
        run(host, sim.SimGuestDie, "sim-1", ONE)


def test_an_operator_reads_what_libvirt_would_have_been_told(host: SimulatedHost, driver: ComputeDriver) -> None:
    driver.spawn(guest(ONE, VF_VFIO, managed=False))
    shown = run(host, sim.SimGuestXml, "sim-1", ONE)
    assert '<hostdev mode="subsystem" type="pci" managed="no">' in shown


def test_an_operator_sets_the_faults_of_guests(host: SimulatedHost, driver: ComputeDriver) -> None:
    run(host, sim.SimFault, "sim-1", "*", "spawn-fails")
    with pytest.raises(GuestError):
        driver.spawn(guest())


def test_the_null_driver_is_refused_on_a_real_host() -> None:
    with pytest.raises(InvalidConfiguration, match=r"\[compute\] virt_driver: null is for simulated hosts"):
        load_compute_driver(new_config(overrides={("compute", "virt_driver"): "null"}))


def test_libvirt_is_refused_on_a_simulated_host_whose_addresses_are_other_devices_in_this_machine(
    host: SimulatedHost,
) -> None:
    with pytest.raises(
        InvalidConfiguration, match=r"\[compute\] virt_driver: libvirt cannot run guests on a simulated"
    ):
        load(host, virt_driver="libvirt")
