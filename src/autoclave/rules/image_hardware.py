"""What an image says of the machine that its system runs on, in Nova's and Glance's names (``hw_…``, ``os_…``)."""

from collections.abc import Mapping
from enum import StrEnum

from autoclave.exceptions import BadRequest

MACHINE = "q35"
"""The machine of every guest: its devices are PCI Express ones."""

_FIRMWARE_TYPE, _MACHINE_TYPE, _SECURE_BOOT = "hw_firmware_type", "hw_machine_type", "os_secure_boot"
HEEDED = frozenset({_FIRMWARE_TYPE, _MACHINE_TYPE, _SECURE_BOOT})
"""The properties that are kept, or refused."""


class Firmware(StrEnum):
    """What starts a guest's system; the values of ``hw_firmware_type``."""

    BIOS = "bios"
    UEFI = "uefi"
    """Which most graphics cards with much memory need: a BIOS finds no room for their large BARs."""


class DiskFormat(StrEnum):
    """How a disk is laid out in its file. It is always told, and never guessed from what the guest has written."""

    RAW = "raw"
    QCOW2 = "qcow2"


def disk_format_of(name: str | None) -> DiskFormat:
    """The format of an image's file; *name* is its ``disk_format``.

    :raises BadRequest: guests have no such disks.
    """
    try:
        return DiskFormat(name or "")
    except ValueError:
        raise BadRequest(f"The image's disk_format is {name}; guests have raw and qcow2 disks.") from None


def firmware_of(properties: Mapping[str, object]) -> Firmware:
    """The firmware that ``hw_firmware_type`` asks for; BIOS where it is left out.

    :raises BadRequest: an image asks for a firmware or a machine (``hw_machine_type``) that there is not, or for secure
        boot: its user would rely on what the guest has not.
    """
    _one_of(properties, _MACHINE_TYPE, (MACHINE,))
    _one_of(properties, _SECURE_BOOT, ("disabled", "optional"))
    firmwares = tuple(each.value for each in Firmware)
    return Firmware(_one_of(properties, _FIRMWARE_TYPE, firmwares) or Firmware.BIOS)


def _one_of(properties: Mapping[str, object], key: str, values: tuple[str, ...]) -> str | None:
    value = properties.get(key)
    if value is None:
        return None
    if value not in values:
        choice = " or ".join(map(repr, values))
        raise BadRequest(f"Image property {key!r} is {value!r:.60}; guests here can have {choice}.")
    return str(value)
