"""An agent says which guests have a function, and never "none" for want of an answer."""

from dataclasses import replace
from pathlib import Path

import pytest

from autoclave.agent.compute.functions import FunctionUsers
from autoclave.exceptions import HardwareError, ToolFailed
from autoclave.rules.pci_address import PCIAddress
from autoclave.simulator.drive_spec import DriveSpec
from autoclave.simulator.guests import GuestFunction, Guests
from autoclave.simulator.host import SimulatedHost
from autoclave.testing.ports import GivenDomains
from autoclave.virt.domains import Domain, Domains
from sysfs_tree import SysfsTree

A, B = "0000:01:00.0", "0000:02:00.0"
XML = """<domain><name>web</name><devices><hostdev><source>
<address domain="0x0000" bus="0x01" slot="0x00" function="0x0"/></source></hostdev></devices></domain>"""


@pytest.fixture
def host(tmp_path: Path) -> SysfsTree:
    made = SysfsTree(tmp_path)
    for number, address in enumerate((A, B)):
        made.controller(address, f"nvme{number}", f"nvme-subsys{number}")
    return made


def users(host: SysfsTree, domains: Domains | None, *addresses: str) -> dict[str, list[str]]:
    return FunctionUsers(host.paths, lambda _paths: domains).of(addresses)


@pytest.mark.parametrize(("running", "state"), [(True, "runs"), (False, "is off")])
def test_a_guest_has_a_function_whether_it_runs_or_not(host: SysfsTree, running: bool, state: str) -> None:
    domains = GivenDomains([Domain("uuid-1", "web", running, frozenset({PCIAddress.parse(A)}))])
    assert users(host, domains, A, B) == {A: [f"domain web (uuid-1), which {state}"], B: []}


def test_guests_that_cannot_be_listed_are_not_none(host: SysfsTree) -> None:
    with pytest.raises(HardwareError, match="cannot be listed: there is no virsh"):
        users(host, None, A)
    with pytest.raises(HardwareError, match="cannot be listed: virsh list failed"):
        users(host, GivenDomains(failure=ToolFailed("virsh list failed", ["virsh"], 1)), A)


def test_an_open_vfio_group_is_a_guest_that_libvirt_does_not_know(host: SysfsTree) -> None:
    host.iommu_group(12, A)
    host.program(4242, "qemu-system-x86", "/dev/vfio/12", flags="0100002")
    assert users(host, GivenDomains(), A, B) == {
        A: [f"{host.dev}/vfio/12 is open by qemu-system-x86 (pid 4242)"],
        B: [],
    }


def test_a_vfio_device_that_is_open_by_itself_is_a_guest_too(host: SysfsTree) -> None:
    """QEMU with an iommufd object opens the node of the device, and no group."""
    (host.sys / "bus/pci/devices" / A / "vfio-dev/vfio3").mkdir(parents=True)
    host.program(4242, "qemu-system-x86", "/dev/vfio/devices/vfio3", flags="0100002")
    assert users(host, GivenDomains(), A, B) == {
        A: [f"{host.dev}/vfio/devices/vfio3 is open by qemu-system-x86 (pid 4242)"],
        B: [],
    }


def test_a_program_whose_files_are_not_shown_may_have_the_function(host: SysfsTree) -> None:
    host.iommu_group(12, A)
    hidden = host.proc / "77"
    hidden.mkdir()
    (hidden / "fd").write_text("")  # also for root, it cannot be listed
    found = users(host, GivenDomains(), A, B)
    assert found[A] == ["it cannot be looked at: the open files of process 77 are not shown without CAP_SYS_PTRACE"]
    assert found[B] == [], "no VFIO node leads to it"


def test_programs_that_cannot_be_listed_are_not_none(host: SysfsTree) -> None:
    host.iommu_group(12, A)
    paths = replace(host.paths, proc=host.proc / "gone")
    [said] = FunctionUsers(paths, lambda _paths: GivenDomains()).of([A])[A]
    assert said.startswith("it cannot be looked at: cannot list ")


@pytest.mark.parametrize("address", ["0000:09:00.0", "no address"])
def test_a_function_that_cannot_be_looked_at_counts_as_used(host: SysfsTree, address: str) -> None:
    [said] = users(host, GivenDomains(), address)[address]
    assert said.startswith("it cannot be looked at: ")


def test_the_guests_of_a_simulated_host_are_seen(tmp_path: Path) -> None:
    """As the agent's service looks: no guests are given to it."""
    simulated = SimulatedHost.create(tmp_path / "host", "sim-1", [DriveSpec(A, "S1"), DriveSpec(B, "S2")])
    Guests(simulated).define("uuid-1", XML, (GuestFunction(A, managed=True),))
    assert FunctionUsers(simulated.paths).of([A, B]) == {A: ["domain web (uuid-1), which is off"], B: []}
