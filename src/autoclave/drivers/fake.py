"""A device that is not there, in the shape of Cyborg's fake driver: for trying what surrounds a real one."""

from collections.abc import Sequence
from typing import ClassVar

from autoclave.drivers.base import AttachHandle, DiscoveredDevice, Driver
from autoclave.rules.pci_address import PCIAddress

_SLOT = PCIAddress(domain=0, bus=0x0C, slot=0, function=0)
_HANDLES = 16


class FakeDriver(Driver):
    """Reports one FPGA with sixteen handles of the type ``TEST_PCI``, which Nova does not pass to a guest."""

    name: ClassVar[str] = "fake_driver"

    def discover(self) -> Sequence[DiscoveredDevice]:
        addresses = [PCIAddress(_SLOT.domain, _SLOT.bus, number // 8, number % 8) for number in range(_HANDLES)]
        return [
            DiscoveredDevice(
                pci_address=str(_SLOT),
                device_type="FPGA",
                vendor="0xABCD",
                product="miss model info",
                resource_class="FPGA",
                traits=("CUSTOM_FAKE_DEVICE",),
                attach_handles=[AttachHandle("TEST_PCI", at.as_attach_info(), str(at)) for at in addresses],
                std_board_info={"device_id": "0xabcd", "class": "Fake class"},
                vendor_board_info="fake_vendor_info",
                name="FakeDevice",
            )
        ]
