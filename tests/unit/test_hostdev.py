"""The ``<hostdev>`` of a PCI function, as libvirt and the managed-mode specification want it."""

from typing import Any
from xml.etree import ElementTree

import pytest

from autoclave.drivers.base import AttachHandle
from autoclave.rules.pci_address import PCIAddress
from autoclave.virt.guest import pci_hostdev

INFO = {"domain": "0000", "bus": "25", "device": "00", "function": "4"}


def golden(managed: str) -> str:
    return (
        f'<hostdev mode="subsystem" type="pci" managed="{managed}"><driver name="vfio" /><source>'
        '<address domain="0x0000" bus="0x25" slot="0x00" function="0x4" /></source></hostdev>'
    )


@pytest.mark.parametrize(
    ("told", "managed"), [({}, "yes"), ({"managed": True}, "yes"), ({"managed": False}, "no")], ids=str
)
def test_libvirt_manages_a_device_unless_the_handle_says_otherwise(told: dict[str, bool], managed: str) -> None:
    assert ElementTree.tostring(pci_hostdev(INFO | told), encoding="unicode") == golden(managed)


def test_what_discovery_stores_is_what_the_guest_gets() -> None:
    source = pci_hostdev(PCIAddress.parse("10000:e1:00.1").as_attach_info()).find("source/address")
    assert source is not None
    assert source.attrib == {"domain": "0x10000", "bus": "0xe1", "slot": "0x00", "function": "0x1"}


@pytest.mark.parametrize("managed", ["false", "no", 0, None])
def test_a_mode_that_is_no_boolean_is_refused_rather_than_guessed(managed: Any) -> None:
    with pytest.raises(TypeError, match="managed"):
        pci_hostdev(INFO | {"managed": managed})


@pytest.mark.parametrize("managed", ["maybe", "", 2, None])
def test_a_driver_cannot_report_a_mode_that_is_neither(managed: Any) -> None:
    with pytest.raises(ValueError, match="managed must be true or false"):
        AttachHandle("PCI", INFO | {"managed": managed}, "0000:25:00.4")
    assert AttachHandle("MDEV", {"managed": managed}, "other").attach_info == {"managed": managed}


@pytest.mark.parametrize("field", sorted(INFO))
def test_a_handle_without_an_address_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        pci_hostdev({name: value for name, value in INFO.items() if name != field})


def test_a_handle_with_a_broken_address_is_refused() -> None:
    with pytest.raises(ValueError, match="not a full PCI address"):
        pci_hostdev(INFO | {"bus": "xyz"})
