"""What every compute driver promises: the null driver, and libvirt by its own test hypervisor, which starts nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autoclave.conf import new_config
from autoclave.exceptions import GuestError
from autoclave.rules.instance_states import PowerState
from autoclave.rules.pci_address import PCIAddress
from autoclave.simulator.drive_spec import default_drives
from autoclave.simulator.faults import EVERY_DRIVE, Fault, FaultKind
from autoclave.simulator.functions import default_functions
from autoclave.simulator.guests import Guests
from autoclave.simulator.host import SimulatedHost
from autoclave.virt.driver import ComputeDriver, load_compute_driver
from autoclave.virt.guest import GuestSpec, domain_name

ONE, OTHER = (f"{digit}0000000-0000-4000-8000-000000000000" for digit in "12")
CARD = PCIAddress.parse("0000:81:00.0").as_attach_info()
RUNNING, SHUTDOWN = PowerState.RUNNING, PowerState.SHUTDOWN


class NullWorld:
    """A simulated host with the null driver."""

    def __init__(self, root: Path) -> None:
        self.host = SimulatedHost.create(root / "host", "h1", default_drives(1), default_functions())
        self.overrides: dict[tuple[str | None, str], Any] = {
            **self.host.conf_overrides(),
            ("agent", "data_dir"): str(root),
        }

    def driver(self, **reserved: int) -> ComputeDriver:
        """As an agent that has just started loads it."""
        return load_compute_driver(
            new_config(overrides=self.overrides | {("compute", name): value for name, value in reserved.items()})
        )

    def die(self, uuid: str) -> None:
        Guests(self.host).end(uuid, crashed=True)

    def vanish(self, uuid: str) -> None:
        Guests(self.host).vanish(uuid)

    def refuse(self, uuid: str) -> None:
        """Let the hypervisor refuse the guest when it is to be made."""
        self.host.set_fault(EVERY_DRIVE, Fault(FaultKind.SPAWN_FAILS))

    def relent(self) -> None:
        self.host.clear_faults()


class LibvirtWorld:
    """The hypervisor of ``test:///default``, which is one for the whole process."""

    def __init__(self, root: Path) -> None:
        libvirt = pytest.importorskip("libvirt", reason="no libvirt-python: pip install 'autoclave[libvirt]'")
        self.root = root
        driver = self.driver()  # before we connect: it keeps libvirt's errors off stderr
        self.connection = libvirt.open("test:///default")
        self.blocking: list[Any] = []
        for uuid in (ONE, OTHER):
            driver.destroy(uuid)

    def driver(self, **reserved: int) -> ComputeDriver:
        overrides: dict[tuple[str | None, str], Any] = {
            ("agent", "data_dir"): str(self.root),
            ("compute", "libvirt_uri"): "test:///default",
            ("compute", "virt_type"): "test",
        }
        return load_compute_driver(
            new_config(overrides=overrides | {("compute", name): value for name, value in reserved.items()})
        )

    def die(self, uuid: str) -> None:
        self.connection.lookupByUUIDString(uuid).destroy()

    def vanish(self, uuid: str) -> None:
        self.die(uuid)
        self.connection.lookupByUUIDString(uuid).undefine()

    def refuse(self, uuid: str) -> None:
        xml = (
            f"<domain type='test'><name>{domain_name(uuid)}</name><memory>1</memory><os><type>hvm</type></os></domain>"
        )
        self.blocking.append(self.connection.defineXML(xml))

    def relent(self) -> None:
        while self.blocking:
            self.blocking.pop().undefine()


World = NullWorld | LibvirtWorld


@pytest.fixture(params=[NullWorld, LibvirtWorld], ids=["null", "libvirt"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = request.param(tmp_path)
    yield made
    made.relent()


@pytest.fixture
def driver(world: World) -> ComputeDriver:
    return world.driver()


def guest(uuid: str = ONE, **fields: Any) -> GuestSpec:
    return GuestSpec(**{"uuid": uuid, "name": "web", "vcpus": 2, "memory_mb": 512, "hostdevs": (CARD,)} | fields)


def test_a_guest_that_nobody_made_is_unknown(driver: ComputeDriver) -> None:
    assert driver.state(ONE) is None


def test_a_guest_runs_from_its_spawn_until_it_is_destroyed(driver: ComputeDriver) -> None:
    driver.spawn(guest())
    assert driver.state(ONE) is RUNNING
    driver.destroy(ONE)
    assert driver.state(ONE) is None


def test_a_guest_outlives_the_agent(world: World, driver: ComputeDriver) -> None:
    driver.spawn(guest())
    assert world.driver().state(ONE) is RUNNING


def test_guests_of_one_name_live_side_by_side(driver: ComputeDriver) -> None:
    driver.spawn(guest(ONE))
    driver.spawn(guest(OTHER, hostdevs=()))
    driver.destroy(ONE)
    assert (driver.state(ONE), driver.state(OTHER)) == (None, RUNNING)


def test_destroy_may_be_repeated_and_takes_a_guest_that_is_off(driver: ComputeDriver) -> None:
    driver.destroy(ONE)
    driver.spawn(guest())
    driver.stop(ONE)
    driver.destroy(ONE)
    driver.destroy(ONE)
    assert driver.state(ONE) is None


def test_a_guest_that_is_there_is_not_made_again(driver: ComputeDriver) -> None:
    driver.spawn(guest())
    with pytest.raises(GuestError, match="exists already"):
        driver.spawn(guest())
    driver.stop(ONE)
    with pytest.raises(GuestError, match="exists already"):
        driver.spawn(guest())
    assert driver.state(ONE) is SHUTDOWN


def test_stop_and_start_may_be_repeated(driver: ComputeDriver) -> None:
    driver.spawn(guest())
    for ask, state in (
        (driver.stop, SHUTDOWN),
        (driver.stop, SHUTDOWN),
        (driver.start, RUNNING),
        (driver.start, RUNNING),
    ):
        ask(ONE)
        assert driver.state(ONE) is state


def test_a_reboot_leaves_a_guest_running_whether_it_ran_or_not(driver: ComputeDriver) -> None:
    driver.spawn(guest())
    driver.reboot(ONE)
    assert driver.state(ONE) is RUNNING
    driver.stop(ONE)
    driver.reboot(ONE)
    assert driver.state(ONE) is RUNNING


@pytest.mark.parametrize("ask", ["start", "stop", "reboot"])
def test_what_is_asked_of_an_unknown_guest_is_an_error_that_names_it(driver: ComputeDriver, ask: str) -> None:
    act: Callable[[str], None] = getattr(driver, ask)
    with pytest.raises(GuestError, match=ONE):
        act(ONE)


@pytest.mark.parametrize("before", ["running", "off", "vanished"])
def test_a_rebuilt_guest_runs_whatever_became_of_it_before(world: World, driver: ComputeDriver, before: str) -> None:
    driver.spawn(guest())
    if before == "off":
        driver.stop(ONE)
    elif before == "vanished":
        world.vanish(ONE)
    driver.rebuild(guest(disk=Path("/srv/other"), memory_mb=1024))
    assert driver.state(ONE) is RUNNING


def test_a_guest_that_died_is_off_and_known_and_starts_again(world: World, driver: ComputeDriver) -> None:
    driver.spawn(guest())
    world.die(ONE)
    assert driver.state(ONE) in (SHUTDOWN, PowerState.CRASHED)
    driver.start(ONE)
    assert driver.state(ONE) is RUNNING


def test_a_guest_that_vanished_is_unknown_and_its_end_is_no_error(world: World, driver: ComputeDriver) -> None:
    driver.spawn(guest())
    world.vanish(ONE)
    assert driver.state(ONE) is None
    driver.destroy(ONE)


def test_a_guest_that_is_refused_does_not_run_and_can_be_destroyed_and_made_again(
    world: World, driver: ComputeDriver
) -> None:
    world.refuse(ONE)
    with pytest.raises(GuestError):
        driver.spawn(guest())
    assert driver.state(ONE) is not RUNNING
    driver.destroy(ONE)
    assert driver.state(ONE) is None
    world.relent()
    driver.spawn(guest())
    assert driver.state(ONE) is RUNNING


def test_a_device_that_cannot_be_described_makes_no_guest(driver: ComputeDriver) -> None:
    with pytest.raises(GuestError, match=f"device 1 of guest {ONE} cannot be passed through"):
        driver.spawn(guest(hostdevs=(CARD | {"managed": "false"},)))
    assert driver.state(ONE) is None


def test_what_the_host_keeps_for_itself_is_not_offered(world: World) -> None:
    whole = world.driver(reserved_host_memory_mb=0).inventory()
    assert min(whole.vcpus, whole.memory_mb) > 0
    assert whole.local_gb >= 0
    less = world.driver(reserved_host_cpus=1, reserved_host_memory_mb=512).inventory()
    assert (less.vcpus, less.memory_mb, less.local_gb) == (whole.vcpus - 1, whole.memory_mb - 512, whole.local_gb)
    nothing = world.driver(
        reserved_host_cpus=10**6, reserved_host_memory_mb=10**9, reserved_host_disk_gb=10**9
    ).inventory()
    assert (nothing.vcpus, nothing.memory_mb, nothing.local_gb) == (0, 0, 0)


def test_an_inventory_says_who_runs_the_guests(driver: ComputeDriver) -> None:
    found = driver.inventory()
    assert found.hypervisor_type
    assert found.hypervisor_version > 0
    assert found.traits == frozenset()
