"""The libvirt driver: with libvirt's own test hypervisor, and with a libvirt that fails, hangs and goes away."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

from autoclave.conf import new_config
from autoclave.exceptions import GuestError, InvalidConfiguration
from autoclave.rules.flavor_image import DiskFormat, Firmware
from autoclave.rules.instance_states import PowerState
from autoclave.rules.pci_address import PCIAddress
from autoclave.virt import libvirt as libvirt_driver
from autoclave.virt.driver import ComputeDriver, load_compute_driver
from autoclave.virt.guest import GuestSpec
from autoclave.virt.libvirt import LibvirtConnection

GUEST, OTHER = (f"{digit}0000000-0000-4000-8000-0000000000ff" for digit in "34")
VF = PCIAddress.parse("0000:25:00.4").as_attach_info() | {"managed": False}


def load(data_dir: Path, **compute: Any) -> ComputeDriver:
    options = {"libvirt_uri": "test:///default", "virt_type": "test"} | compute
    overrides: dict[tuple[str | None, str], Any] = {("agent", "data_dir"): str(data_dir)}
    return load_compute_driver(
        new_config(overrides=overrides | {("compute", name): value for name, value in options.items()})
    )


def guest(uuid: str = GUEST, **fields: Any) -> GuestSpec:
    return GuestSpec(**{"uuid": uuid, "name": "web", "vcpus": 2, "memory_mb": 512} | fields)


def test_without_libvirt_python_the_operator_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "libvirt", None)
    with pytest.raises(InvalidConfiguration, match=r"\[compute\] virt_driver: .*pip install 'autoclave\[libvirt\]'"):
        load(tmp_path)


class TestRealLibvirt:
    """libvirt's library with its test hypervisor."""

    @pytest.fixture
    def libvirt(self) -> ModuleType:
        return pytest.importorskip("libvirt", reason="no libvirt-python: pip install 'autoclave[libvirt]'")

    @pytest.fixture
    def driver(self, libvirt: ModuleType, tmp_path: Path) -> Iterator[ComputeDriver]:
        made = load(tmp_path)
        yield made
        made.destroy(GUEST)

    def domain(self, libvirt: ModuleType) -> ElementTree.Element:
        return ElementTree.fromstring(libvirt.open("test:///default").lookupByUUIDString(GUEST).XMLDesc())

    def test_a_rebuilt_guest_has_its_new_disk_and_keeps_its_devices(
        self, libvirt: ModuleType, driver: ComputeDriver
    ) -> None:
        driver.spawn(guest(disk=Path("/srv/old"), hostdevs=(VF,)))
        driver.rebuild(guest(disk=Path("/srv/new"), disk_format=DiskFormat.QCOW2, hostdevs=(VF,)))
        domain = self.domain(libvirt)
        assert [disk.get("file") for disk in domain.findall("devices/disk/source")] == ["/srv/new"]
        assert [driver.get("type") for driver in domain.findall("devices/disk/driver")] == ["qcow2"]
        assert [hostdev.get("managed") for hostdev in domain.findall("devices/hostdev")] == ["no"]

    def test_the_console_of_a_guest_goes_into_its_instances_directory(
        self, libvirt: ModuleType, driver: ComputeDriver, tmp_path: Path
    ) -> None:
        driver.spawn(guest())
        serial = self.domain(libvirt).find("devices/serial/source")
        assert serial is not None
        assert serial.get("path") == str(tmp_path / "instances" / GUEST / "console.log")
        assert (tmp_path / "instances" / GUEST).is_dir()

    def test_a_paused_guest_runs_since_it_has_its_devices(self, libvirt: ModuleType, driver: ComputeDriver) -> None:
        driver.spawn(guest())
        libvirt.open("test:///default").lookupByUUIDString(GUEST).suspend()
        assert driver.state(GUEST) is PowerState.RUNNING

    def test_what_the_schema_does_not_know_is_refused_and_a_running_guest_goes_on(
        self, libvirt: ModuleType, driver: ComputeDriver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        driver.spawn(guest())
        broken = "<domain type='test'><name>x</name><nonsense/></domain>"
        monkeypatch.setattr(libvirt_driver, "domain_xml", lambda *args, **kwargs: broken)
        with pytest.raises(GuestError, match=f"cannot rebuild guest {GUEST}: .*XML document failed to validate"):
            driver.rebuild(guest())
        assert driver.state(GUEST) is PowerState.RUNNING

    def test_an_error_is_in_libvirts_own_words_and_not_on_stderr(
        self, libvirt: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(GuestError, match=r"cannot query the host: .*Failed to connect|cannot query .*no "):
            load(tmp_path, libvirt_uri="qemu+unix:///system?socket=/nowhere/libvirt-sock").inventory()
        assert capfd.readouterr().err == ""


class LibvirtError(Exception):
    """As libvirt-python's own."""

    def __init__(self, words: str, code: int) -> None:
        super().__init__(words)
        self._code = code

    def get_error_code(self) -> int:
        return self._code


NO_DOMAIN, INVALID, BUSY = 42, 55, 38
NOWHERE = Path("/nowhere")


class Domain:
    """A domain of the stand-in."""

    def __init__(self, host: "Libvirt") -> None:
        self.host = host
        self.active = False
        self.reason = 0

    def name(self) -> str:
        return "instance"

    def isActive(self) -> bool:
        return self.active

    def create(self) -> None:
        self.host.obey("create")
        if self.host.nvram != NOWHERE and not self.host.nvram.exists():
            self.host.nvram.write_text("as they come")
        self.active = True

    def destroy(self) -> None:
        self.host.obey("destroy")
        self.active = False

    def shutdown(self) -> None:
        self.host.obey("shutdown")

    def state(self) -> tuple[int, int]:
        self.host.obey("state")
        return (1, 1) if self.active else (5, self.reason)

    def undefineFlags(self, flags: int) -> None:
        self.host.obey("undefine")
        if self.host.checkpoints and not flags & Libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA:
            raise LibvirtError("cannot delete inactive domain with 1 checkpoints", INVALID)
        if self.host.nvram.exists():
            if not flags & Libvirt.VIR_DOMAIN_UNDEFINE_NVRAM:
                raise LibvirtError("cannot undefine domain with nvram", INVALID)
            self.host.nvram.unlink()
        self.host.domain = None


class Libvirt(ModuleType):
    """Stands for the library, where no library fails in these ways on demand. It has one domain at most.

    :attr orders: by the name of a call: what is done when it is made.
    """

    libvirtError = LibvirtError
    VIR_ERR_NO_DOMAIN, VIR_ERR_OPERATION_INVALID = NO_DOMAIN, INVALID
    VIR_DOMAIN_SHUTOFF, VIR_DOMAIN_CRASHED = 5, 6
    VIR_DOMAIN_SHUTOFF_CRASHED, VIR_DOMAIN_SHUTOFF_FAILED = 3, 6
    VIR_DOMAIN_UNDEFINE_NVRAM, VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA = 4, 16
    VIR_DOMAIN_DEFINE_VALIDATE = VIR_DOMAIN_UNDEFINE_MANAGED_SAVE = VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA = 1

    def __init__(self) -> None:
        super().__init__("libvirt")
        self.domain: Domain | None = None
        self.nvram = NOWHERE
        self.checkpoints = 0
        self.orders: dict[str, Callable[[], object]] = {}
        self.opened = 0

    def obey(self, call: str) -> None:
        self.orders.get(call, lambda: None)()

    def registerErrorHandler(self, handler: object, context: object) -> None:
        self.handler = handler

    def open(self, uri: str) -> "Libvirt":
        self.obey("open")
        self.opened += 1
        return self

    def getLibVersion(self) -> int:
        self.obey("ping")
        return 9_000_000

    def lookupByUUIDString(self, uuid: str) -> Domain:
        self.obey("lookup")
        if self.domain is None:
            raise LibvirtError("Domain not found", NO_DOMAIN)
        return self.domain

    def defineXMLFlags(self, xml: str, flags: int) -> Domain:
        self.obey("define")
        self.nvram = Path(ElementTree.fromstring(xml).findtext("os/nvram", str(NOWHERE)))
        self.domain = self.domain or Domain(self)
        return self.domain


def fail(words: str, code: int = 1) -> Callable[[], None]:
    def order() -> None:
        raise LibvirtError(words, code)

    return order


class TestFailingLibvirt:
    """A stand-in for the library."""

    @pytest.fixture
    def libvirt(self, monkeypatch: pytest.MonkeyPatch) -> Libvirt:
        module = Libvirt()
        monkeypatch.setitem(sys.modules, "libvirt", module)
        return module

    @pytest.fixture
    def driver(self, libvirt: Libvirt, tmp_path: Path) -> ComputeDriver:
        return load(tmp_path, shutdown_timeout=0.5)

    def test_a_guest_whose_qemu_does_not_end_is_still_there(self, libvirt: Libvirt, driver: ComputeDriver) -> None:
        driver.spawn(guest())
        libvirt.orders["destroy"] = fail("Failed to terminate process 4711 with SIGKILL: Device or resource busy", BUSY)
        with pytest.raises(GuestError, match=f"cannot end guest {GUEST}: Failed to terminate process 4711"):
            driver.destroy(GUEST)
        assert driver.state(GUEST) is PowerState.RUNNING

    def test_an_end_that_is_called_invalid_while_the_guest_runs_is_none(
        self, libvirt: Libvirt, driver: ComputeDriver
    ) -> None:
        driver.spawn(guest())
        libvirt.orders["destroy"] = fail("cannot acquire state change lock", INVALID)
        with pytest.raises(GuestError, match="cannot acquire state change lock"):
            driver.destroy(GUEST)

    @pytest.mark.parametrize("code", [INVALID, NO_DOMAIN])
    def test_a_guest_that_ends_at_the_same_moment_is_ended(
        self, libvirt: Libvirt, driver: ComputeDriver, code: int
    ) -> None:
        driver.spawn(guest())

        def end_first() -> None:
            assert libvirt.domain is not None
            libvirt.domain.active = False
            raise LibvirtError("domain is not running", code)

        libvirt.orders["destroy"] = end_first
        driver.destroy(GUEST)
        assert driver.state(GUEST) is None

    def test_a_guest_that_cannot_be_forgotten_is_an_error(self, libvirt: Libvirt, driver: ComputeDriver) -> None:
        driver.spawn(guest())
        libvirt.orders["undefine"] = fail("cannot remove its file")
        with pytest.raises(GuestError, match="cannot remove its file"):
            driver.destroy(GUEST)

    def test_a_guest_that_is_there_after_all_is_an_error(
        self, libvirt: Libvirt, driver: ComputeDriver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        driver.spawn(guest())
        monkeypatch.setattr(Domain, "undefineFlags", lambda domain, flags: None)
        with pytest.raises(GuestError, match=f"still has guest {GUEST} after it was destroyed and undefined"):
            driver.destroy(GUEST)

    def test_the_variables_of_a_guests_firmware_go_with_it_and_with_its_system(
        self, libvirt: Libvirt, tmp_path: Path
    ) -> None:
        driver = load(tmp_path, virt_type="kvm")
        driver.spawn(guest(firmware=Firmware.UEFI))
        nvram = tmp_path / "instances" / GUEST / "nvram.fd"
        assert nvram.exists()
        nvram.write_text("start the old system")
        driver.reboot(GUEST)
        assert nvram.read_text() == "start the old system"
        driver.rebuild(guest(firmware=Firmware.UEFI))
        assert nvram.read_text() == "as they come"
        driver.rebuild(guest())
        assert not nvram.exists()
        driver.rebuild(guest(firmware=Firmware.UEFI))
        driver.destroy(GUEST)
        assert not nvram.exists()

    def test_a_guest_of_which_a_backup_has_left_checkpoints_can_be_forgotten(
        self, libvirt: Libvirt, tmp_path: Path
    ) -> None:
        driver = load(tmp_path, virt_type="kvm")
        driver.spawn(guest())
        libvirt.checkpoints = 1
        driver.destroy(GUEST)
        assert driver.state(GUEST) is None

    def test_a_libvirt_that_cannot_say_is_no_unknown_guest(self, libvirt: Libvirt, driver: ComputeDriver) -> None:
        libvirt.orders["lookup"] = fail("cannot recv data")
        with pytest.raises(GuestError, match=f"cannot query the state of guest {GUEST}: cannot recv data"):
            driver.state(GUEST)

    @pytest.mark.parametrize(
        ("reason", "state"), [(1, PowerState.SHUTDOWN), (3, PowerState.CRASHED), (6, PowerState.CRASHED)]
    )
    def test_a_guest_that_crashed_and_one_that_was_shut_down_are_told_apart(
        self, libvirt: Libvirt, driver: ComputeDriver, reason: int, state: PowerState
    ) -> None:
        driver.spawn(guest())
        assert libvirt.domain is not None
        libvirt.domain.active, libvirt.domain.reason = False, reason
        assert driver.state(GUEST) is state

    def test_a_guest_that_goes_while_it_is_asked_for_is_unknown(self, libvirt: Libvirt, driver: ComputeDriver) -> None:
        driver.spawn(guest())
        libvirt.orders["state"] = fail("Domain not found", NO_DOMAIN)
        assert driver.state(GUEST) is None

    def test_a_guest_that_shuts_down_in_time_keeps_its_power_until_then(
        self, libvirt: Libvirt, driver: ComputeDriver
    ) -> None:
        driver.spawn(guest())
        domain = libvirt.domain
        assert domain is not None
        libvirt.orders["shutdown"] = lambda: threading.Timer(0.1, setattr, (domain, "active", False)).start()
        libvirt.orders["destroy"] = lambda: pytest.fail("its power was cut")
        driver.stop(GUEST)
        assert driver.state(GUEST) is PowerState.SHUTDOWN

    @pytest.mark.parametrize("ask", [lambda: None, fail("no ACPI")], ids=["ignored", "refused"])
    def test_a_guest_that_does_not_shut_down_loses_its_power(
        self, libvirt: Libvirt, driver: ComputeDriver, ask: Callable[[], None]
    ) -> None:
        driver.spawn(guest())
        libvirt.orders["shutdown"] = ask
        driver.stop(GUEST)
        assert driver.state(GUEST) is PowerState.SHUTDOWN

    def test_a_connection_that_broke_is_opened_again(self, libvirt: Libvirt, driver: ComputeDriver) -> None:
        driver.spawn(guest())
        assert libvirt.opened == 1
        libvirt.orders["ping"] = fail("Cannot recv data: Connection reset by peer")
        assert driver.state(GUEST) is PowerState.RUNNING
        assert libvirt.opened == 2

    def test_a_libvirt_that_is_not_there_is_asked_again_the_next_time(
        self, libvirt: Libvirt, driver: ComputeDriver
    ) -> None:
        libvirt.orders["open"] = fail("Failed to connect socket to '/var/run/libvirt/libvirt-sock'")
        with pytest.raises(GuestError, match="Failed to connect socket"):
            driver.state(GUEST)
        del libvirt.orders["open"]
        assert driver.state(GUEST) is None


class TestHangingLibvirt:
    """One connection to a stand-in that answers when it is allowed to."""

    @pytest.fixture
    def allowed(self) -> Iterator[threading.Event]:
        event = threading.Event()
        yield event
        event.set()  # or its thread would stay

    @pytest.fixture
    def connection(self) -> LibvirtConnection:
        return LibvirtConnection(Libvirt(), "test:///default")

    def test_a_call_without_an_answer_is_an_error_that_says_so(
        self, connection: LibvirtConnection, allowed: threading.Event
    ) -> None:
        with pytest.raises(GuestError, match=r"cannot start it: libvirt at .* within 0\.1 s; libvirt may still do it"):
            connection.ask("start it", GUEST, lambda _: allowed.wait(), within=0.1)

    def test_nothing_more_is_done_with_a_guest_until_the_answer_is_there(
        self, connection: LibvirtConnection, allowed: threading.Event
    ) -> None:
        done: list[str] = []

        def start(_: object) -> None:
            allowed.wait()
            done.append("started")

        with pytest.raises(GuestError):
            connection.ask("start it", GUEST, start, within=0.1)
        with pytest.raises(GuestError, match=r"cannot end it: .* has not answered yet to: start it"):
            connection.ask("end it", GUEST, lambda _: done.append("ended"), within=0.1)
        connection.ask("end the other", OTHER, lambda _: done.append("other ended"), within=60)
        allowed.set()
        connection.ask("end it", GUEST, lambda _: done.append("ended"), within=60)
        assert done == ["other ended", "started", "ended"]

    def test_a_connection_owes_until_the_answer_is_there(
        self, connection: LibvirtConnection, allowed: threading.Event
    ) -> None:
        assert not connection.owes
        with pytest.raises(GuestError):
            connection.ask("start it", GUEST, lambda _: allowed.wait(), within=0.1)
        assert connection.owes
        allowed.set()
        connection.ask("end it", GUEST, lambda _: None, within=60)
        assert not connection.owes

    def test_the_states_of_many_guests_are_given_up_quickly_when_libvirt_hangs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: threading.Event
    ) -> None:
        module = Libvirt()
        monkeypatch.setitem(sys.modules, "libvirt", module)
        monkeypatch.setattr(libvirt_driver, "_QUESTION", 1.0)
        monkeypatch.setattr(libvirt_driver, "_SHORT_QUESTION", 0.02)
        driver = load(tmp_path)
        module.orders["lookup"] = allowed.wait
        begun = time.monotonic()
        for number in range(50):
            with pytest.raises(GuestError, match="did not answer within"):
                driver.state(f"{number:08d}-0000-4000-8000-000000000000")
        assert time.monotonic() - begun < 40
