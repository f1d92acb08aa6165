"""Write the domain XML of a guest as a pure function of its specification."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from autoclave.exceptions import GuestError
from autoclave.rules.flavor_image import MACHINE, DiskFormat, Firmware
from autoclave.rules.pci_address import PCIAddress


def pci_hostdev(attach_handle_info: Mapping[str, Any]) -> ElementTree.Element:
    """Build the ``<hostdev>`` that passes a PCI function through to a guest.

    Every such device of every guest is built here, so that none gets another mode by accident.

    :param attach_handle_info: an accelerator request's: domain, bus, device and function in hexadecimal, and
        ``managed`` from microversion 2.4 on (managed-mode specification). If it is true or missing, libvirt detaches
        the function from its host driver for the guest's lifetime. If it is false, the operator has bound the function
        to the driver for QEMU.
    :raises ValueError: a field of the address is missing or invalid.
    :raises TypeError: ``managed`` is not a boolean.
    """
    try:
        fields = [str(attach_handle_info[name]) for name in ("domain", "bus", "device", "function")]
    except KeyError as error:
        raise ValueError(f"attach_handle_info has no {error.args[0]}") from None
    address = PCIAddress.parse("{}:{}:{}.{}".format(*fields))
    managed = attach_handle_info.get("managed", True)
    if not isinstance(managed, bool):
        raise TypeError(f"attach_handle_info has managed={managed!r}, which is not a boolean")
    hostdev = ElementTree.Element("hostdev", mode="subsystem", type="pci", managed="yes" if managed else "no")
    ElementTree.SubElement(hostdev, "driver", name="vfio")
    source = ElementTree.SubElement(hostdev, "source")
    names = ("domain", "bus", "slot", "function")
    hexadecimal = (f"0x{value}" for value in address.fields())
    ElementTree.SubElement(source, "address", dict(zip(names, hexadecimal, strict=True)))
    return hostdev


_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_WHITE = re.compile(r"[\t\n\r]")
_UNWRITABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Matches control characters, halves of surrogate pairs and noncharacters: XML cannot represent most of them."""


class DomainType(StrEnum):
    """List libvirt's domain types, which execute a guest."""

    KVM = "kvm"
    QEMU = "qemu"
    """Emulation, for hosts that cannot virtualise."""
    TEST = "test"
    """libvirt's own test driver, which starts no guest."""


@dataclass(frozen=True)
class GuestSpec:
    """Specify a guest.

    :param uuid: the instance's.
    :param name: the user's name of the instance; any text.
    :param memory_mb: MiB.
    :param disk: its disk's file; None for a guest without one.
    :param hostdevs: its PCI functions, of claims and of accelerator requests alike. Each has the form of an
        ``attach_handle_info``: domain, bus, device, function and, if known, managed.
    :raises ValueError: the uuid is not in canonical form, or the guest has no processor or no memory.
    """

    uuid: str
    name: str
    vcpus: int
    memory_mb: int
    disk: Path | None = None
    hostdevs: tuple[Mapping[str, Any], ...] = ()
    disk_format: DiskFormat = DiskFormat.RAW
    firmware: Firmware = Firmware.BIOS

    def __post_init__(self) -> None:
        if not is_uuid(self.uuid):
            raise ValueError(
                f"{self.uuid!r:.60} is not the UUID of an instance: use lower-case hexadecimal digits with hyphens"
            )
        if self.vcpus < 1 or self.memory_mb < 1:
            raise ValueError(
                f"guest {self.uuid}: {self.vcpus} vCPUs and {self.memory_mb} MiB of memory are too few to run"
            )


def is_uuid(text: str) -> bool:
    """Return whether it is a uuid in canonical form: lower-case hexadecimal digits, with hyphens."""
    return _UUID.fullmatch(text) is not None


def domain_name(uuid: str) -> str:
    """Return libvirt's name of the instance's guest. It must be unique on a host, which users' names are not."""
    return f"instance-{uuid}"


def domain_xml(
    guest: GuestSpec,
    *,
    domain_type: DomainType = DomainType.KVM,
    console_log: Path | None = None,
    nvram: Path | None = None,
) -> str:
    """Build the domain for libvirt: an x86_64 machine of type q35, so that its devices are on PCI Express.

    :param console_log: the log file of its first serial port; None for no log.
    :param nvram: the file for the variables of its UEFI firmware; None for libvirt's default directory.
    :raises GuestError: a device's address or a file's name cannot be used.
    """
    domain = ElementTree.Element("domain", type=domain_type)
    _text(domain, "name", domain_name(guest.uuid))
    _text(domain, "uuid", guest.uuid)
    if title := _title(guest.name):
        _text(domain, "title", title)
    _text(domain, "memory", str(guest.memory_mb), unit="MiB")
    _text(domain, "vcpu", str(guest.vcpus))
    domain.append(_system(guest.firmware, nvram))
    features = ElementTree.SubElement(domain, "features")
    ElementTree.SubElement(features, "acpi")
    ElementTree.SubElement(features, "apic")
    if domain_type is DomainType.KVM:
        # A guest with a passed-through device cannot migrate to another processor, so it may use all features of this
        # one.
        ElementTree.SubElement(domain, "cpu", mode="host-passthrough")
    ElementTree.SubElement(domain, "clock", offset="utc")
    for event, deed in (("on_poweroff", "destroy"), ("on_reboot", "restart"), ("on_crash", "destroy")):
        _text(domain, event, deed)
    domain.append(_devices(guest, console_log))
    ElementTree.indent(domain)
    return ElementTree.tostring(domain, encoding="unicode") + "\n"


def _system(firmware: Firmware, nvram: Path | None) -> ElementTree.Element:
    system = ElementTree.Element("os")
    _text(system, "type", "hvm", arch="x86_64", machine=MACHINE)
    if firmware is Firmware.UEFI:
        system.set("firmware", "efi")
        # Otherwise libvirt selects the host's first firmware; with Debian's ovmf, that one refuses unsigned systems.
        wanted = ElementTree.SubElement(system, "firmware")
        for feature in ("enrolled-keys", "secure-boot"):
            ElementTree.SubElement(wanted, "feature", enabled="no", name=feature)
        if nvram is not None:
            _text(system, "nvram", _file(nvram))
    ElementTree.SubElement(system, "boot", dev="hd")
    return system


def _devices(guest: GuestSpec, console_log: Path | None) -> ElementTree.Element:
    devices = ElementTree.Element("devices")
    if guest.disk is not None:
        disk = ElementTree.SubElement(devices, "disk", type="file", device="disk")
        ElementTree.SubElement(disk, "driver", name="qemu", type=guest.disk_format)
        ElementTree.SubElement(disk, "source", file=_file(guest.disk))
        ElementTree.SubElement(disk, "target", dev="vda", bus="virtio")
    for number, info in enumerate(guest.hostdevs, start=1):
        try:
            devices.append(pci_hostdev(info))
        except (ValueError, TypeError) as error:
            raise GuestError(f"device {number} of guest {guest.uuid} cannot be passed through: {error}") from error
    if console_log is not None:
        serial = ElementTree.SubElement(devices, "serial", type="file")
        ElementTree.SubElement(serial, "source", path=_file(console_log), append="on")
        ElementTree.SubElement(serial, "target", port="0")
    # VFIO pins all of a guest's memory, so a balloon could not return any.
    ElementTree.SubElement(devices, "memballoon", model="none")
    return devices


def _text(parent: ElementTree.Element, tag: str, text: str, **attributes: str) -> None:
    ElementTree.SubElement(parent, tag, attributes).text = text


def _title(name: str) -> str:
    """Return *name* on one line, with the replacement character for what XML cannot represent."""
    return _UNWRITABLE.sub("\ufffd", _WHITE.sub(" ", name)).strip()


def _file(path: Path) -> str:
    if _UNWRITABLE.search(str(path)):
        raise GuestError(f"libvirt cannot use the file {str(path)!r}: its name has characters that XML does not allow")
    return str(path)
