"""The domain XML of guests, compared character by character with the files of ``tests/data/guests``.

A change that is wanted: run this file as a program, and read what has changed.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from autoclave.exceptions import GuestError
from autoclave.rules.flavor_image import DiskFormat, Firmware
from autoclave.rules.pci_address import PCIAddress
from autoclave.virt.guest import DomainType, GuestSpec, domain_name, domain_xml

GOLDEN = Path(__file__).parent.parent / "data" / "guests"
SCHEMAS = Path("/usr/share/libvirt/schemas")
UUID = "a11a5487-696b-4d4e-a487-6b9ec9d7e458"
DIRECTORY = Path("/var/lib/autoclave/instances", UUID)
CLAIMED = PCIAddress.parse("0000:81:00.0").as_attach_info()
ODD_NAME = "  <b>R&D</b> \"web\" 'ü' 名\n]]> \x00\x1b\ud800\uffff "


def guest(**fields: Any) -> GuestSpec:
    return GuestSpec(**{"uuid": UUID, "name": "web-1", "vcpus": 2, "memory_mb": 2048} | fields)


GUESTS = {
    "no-device": domain_xml(guest(disk=DIRECTORY / "disk"), console_log=DIRECTORY / "console.log"),
    "claim-and-arqs": domain_xml(
        guest(
            disk=DIRECTORY / "disk",
            disk_format=DiskFormat.QCOW2,
            hostdevs=(
                CLAIMED | {"managed": True},
                PCIAddress.parse("10000:e1:00.1").as_attach_info() | {"managed": False},
                {"domain": "0000", "bus": "25", "device": "00", "function": "4"},
            ),
        ),
        console_log=DIRECTORY / "console.log",
    ),
    "emulated": domain_xml(guest(disk=DIRECTORY / "disk", hostdevs=(CLAIMED,)), domain_type=DomainType.QEMU),
    "test-driver-no-disk": domain_xml(guest(hostdevs=(CLAIMED,)), domain_type=DomainType.TEST),
    "uefi": domain_xml(
        guest(disk=DIRECTORY / "disk", hostdevs=(CLAIMED,), firmware=Firmware.UEFI), nvram=DIRECTORY / "nvram.fd"
    ),
    "odd-names": domain_xml(guest(name=ODD_NAME, disk=Path("/srv/a&b/\"c\" 'd'<ü>/disk"), vcpus=1, memory_mb=1)),
}


def read(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


@pytest.mark.parametrize("name", sorted(GUESTS))
def test_a_guest_is_described_exactly_as_its_golden_file_says(name: str) -> None:
    assert GUESTS[name] == (GOLDEN / f"{name}.xml").read_text(encoding="utf-8")


def test_every_golden_file_is_some_guest() -> None:
    assert sorted(path.stem for path in GOLDEN.iterdir()) == sorted(GUESTS)


@pytest.mark.parametrize("name", sorted(GUESTS))
def test_the_schema_of_libvirt_accepts_the_guest(name: str) -> None:
    if shutil.which("virt-xml-validate") is None or shutil.which("xmllint") is None:
        pytest.skip("no virt-xml-validate: it is in the packages libvirt-clients and libxml2-utils")
    if not (SCHEMAS / "domain.rng").exists():
        pytest.skip(f"no schemas in {SCHEMAS}: they come with libvirt's library, the package libvirt0")
    command = ["virt-xml-validate", str(GOLDEN / f"{name}.xml"), "domain"]
    verdict = subprocess.run(command, capture_output=True, text=True)
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr


@pytest.mark.parametrize("told", [{}, {"managed": True}, {"managed": False}], ids=["absent", "true", "false"])
def test_a_claimed_function_and_one_of_an_accelerator_request_get_the_same_hostdev(told: dict[str, bool]) -> None:
    claim = PCIAddress.parse("0000:25:00.4").as_attach_info() | told
    arq = {"domain": "0000", "bus": "25", "device": "00", "function": "4"} | told
    one, two = read(domain_xml(guest(hostdevs=(claim, arq)))).findall("devices/hostdev")
    assert ElementTree.tostring(one) == ElementTree.tostring(two)
    assert one.get("managed") == ("no" if told.get("managed") is False else "yes")


def test_what_a_user_calls_an_instance_cannot_add_to_its_domain() -> None:
    domain = read(GUESTS["odd-names"])
    assert domain.findtext("title") == "<b>R&D</b> \"web\" 'ü' 名 ]]> ����"
    assert domain.findtext("name") == domain_name(UUID)
    assert domain.find("b") is None


@pytest.mark.parametrize("name", ["", "\n\t "])
def test_a_name_of_nothing_makes_no_title(name: str) -> None:
    assert read(domain_xml(guest(name=name))).find("title") is None


def test_guests_of_the_same_name_are_different_domains() -> None:
    other = UUID.replace("a", "b")
    assert domain_name(other) != domain_name(UUID)
    assert read(domain_xml(guest(uuid=other))).findtext("name") == domain_name(other)


@pytest.mark.parametrize("uuid", ["", "web-1", UUID.upper(), UUID.replace("-", ""), f"{UUID}\n", "../" + UUID])
def test_what_is_no_uuid_makes_no_guest(uuid: str) -> None:
    with pytest.raises(ValueError, match="UUID"):
        guest(uuid=uuid)


@pytest.mark.parametrize("size", [{"vcpus": 0}, {"memory_mb": 0}], ids=str)
def test_a_guest_of_nothing_is_refused(size: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=UUID):
        guest(**size)


@pytest.mark.parametrize("broken", [{"bus": "xyz"}, {"managed": "false"}], ids=str)
def test_a_device_that_cannot_be_described_is_told_of_by_its_place(broken: dict[str, str]) -> None:
    with pytest.raises(GuestError, match=rf"device 2 of guest {UUID} cannot be passed through"):
        domain_xml(guest(hostdevs=(CLAIMED, CLAIMED | broken)))


@pytest.mark.parametrize("name", ["a\x1bb", "a\nb", "a\udc80b"], ids=ascii)
def test_a_file_that_xml_cannot_name_is_refused(name: str) -> None:
    with pytest.raises(GuestError, match="libvirt cannot use the file"):
        domain_xml(guest(disk=Path("/srv") / name))
    with pytest.raises(GuestError, match="libvirt cannot use the file"):
        domain_xml(guest(), console_log=Path("/srv") / name)
    with pytest.raises(GuestError, match="libvirt cannot use the file"):
        domain_xml(guest(firmware=Firmware.UEFI), nvram=Path("/srv") / name)


if __name__ == "__main__":
    for golden, text in GUESTS.items():
        (GOLDEN / f"{golden}.xml").write_text(text, encoding="utf-8")
