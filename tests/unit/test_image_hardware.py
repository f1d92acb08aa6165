"""What an image says of the machine that its system runs on: understood, or refused by its name."""

import pytest

from autoclave.exceptions import BadRequest
from autoclave.rules.flavor_image import Firmware, firmware_of


@pytest.mark.parametrize(
    ("properties", "firmware"),
    [
        ({}, Firmware.BIOS),
        ({"hw_firmware_type": "bios"}, Firmware.BIOS),
        ({"hw_firmware_type": "uefi"}, Firmware.UEFI),
        ({"hw_firmware_type": "uefi", "hw_machine_type": "q35", "os_secure_boot": "optional"}, Firmware.UEFI),
        ({"os_distro": "debian", "hw_disk_bus": "scsi"}, Firmware.BIOS),
    ],
    ids=["nothing", "bios", "uefi", "all", "others"],
)
def test_an_image_has_the_firmware_that_it_asks_for(properties: dict[str, str], firmware: Firmware) -> None:
    assert firmware_of(properties) is firmware


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hw_firmware_type", "coreboot"),
        ("hw_firmware_type", "UEFI"),
        ("hw_firmware_type", ""),
        ("hw_machine_type", "pc"),
        ("hw_machine_type", "pc-q35-7.2"),
        ("os_secure_boot", "required"),
    ],
)
def test_what_no_guest_has_is_refused_by_its_name(key: str, value: str) -> None:
    with pytest.raises(BadRequest, match=f"'{key}' is '{value}'; guests here can have "):
        firmware_of({key: value})
