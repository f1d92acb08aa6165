"""PCI devices in a libvirt domain."""

from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from autoclave.rules.pci_address import PCIAddress


def pci_hostdev(attach_handle_info: Mapping[str, Any]) -> ElementTree.Element:
    """The ``<hostdev>`` that passes a PCI function through to a guest.

    Every such device of every guest is described here, so that none has a mode of its own by accident.

    :param attach_handle_info: an accelerator request's: domain, bus, device and function in hexadecimal, and from
        microversion 2.4 on ``managed``. Managed, which is also the meaning of its absence, libvirt takes the function
        from its host driver when the guest starts, and gives it back when the guest is gone; else the
        operator has bound it to the driver that QEMU is to use (managed-mode specification).
    :raises ValueError: a field of the address is missing or is no such number.
    :raises TypeError: ``managed`` is no boolean.
    """
    try:
        fields = [str(attach_handle_info[name]) for name in ("domain", "bus", "device", "function")]
    except KeyError as error:
        raise ValueError(f"attach_handle_info has no {error.args[0]}") from None
    address = PCIAddress.parse("{}:{}:{}.{}".format(*fields))
    managed = attach_handle_info.get("managed", True)
    if not isinstance(managed, bool):
        raise TypeError(f"attach_handle_info has managed={managed!r}, which is no boolean")
    hostdev = ElementTree.Element("hostdev", mode="subsystem", type="pci", managed="yes" if managed else "no")
    ElementTree.SubElement(hostdev, "driver", name="vfio")
    source = ElementTree.SubElement(hostdev, "source")
    names = ("domain", "bus", "slot", "function")
    hexadecimal = (f"0x{value}" for value in address.fields())
    ElementTree.SubElement(source, "address", dict(zip(names, hexadecimal, strict=True)))
    return hostdev
