"""One function, one half: what a device driver has is not for flavors."""

import pytest

from autoclave.exceptions import InvalidConfiguration
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.pci_inventory import DevType, PCIFunction, double_claims, parse_pci_device_spec

DRIVE, PF, VF0, VF1 = (PCIAddress(0, bus, slot, 0) for bus, slot in ((0x41, 0), (0x82, 0), (0x82, 2), (0x82, 3)))
FUNCTIONS = (
    PCIFunction(DRIVE, "144d", "a80a", DevType.PCI),
    PCIFunction(PF, "8086", "1572", DevType.PF),
    PCIFunction(VF0, "8086", "154c", DevType.VF, PF),
    PCIFunction(VF1, "8086", "154c", DevType.VF, PF),
)


def refusal(entry: str, claimed: dict[PCIAddress, str]) -> InvalidConfiguration:
    found = double_claims(FUNCTIONS, parse_pci_device_spec(['{"address": "0001::"}', entry]), claimed)
    [error] = found.values()
    assert (error.option, error.entry) == ("[pci] device_spec", 2)
    return error


def test_a_drive_that_nvme_driver_erases_is_not_for_flavors_as_well() -> None:
    error = refusal('{"vendor_id": "144d", "one_time_use": true}', {DRIVE: "nvme_driver"})
    assert "0000:41:00.0 is for instances by flavor, but the driver nvme_driver has it" in str(error)


@pytest.mark.parametrize(
    ("entry", "claimed"),
    [
        ('{"address": "0000:82:03.0"}', VF0),  # another virtual function of the card
        ('{"address": "0000:82:03.0"}', PF),  # the slot, which is what drivers report
        ('{"product_id": "1572"}', VF0),  # the card of a virtual function
    ],
)
def test_a_card_is_of_one_half_with_all_its_functions(entry: str, claimed: PCIAddress) -> None:
    assert "functions of the same card, 0000:82:00.0" in str(refusal(entry, {claimed: "pci_driver"}))


@pytest.mark.parametrize(
    "entry",
    [
        '{"vendor_id": "8086", "product_id": "154c"}',
        '{"vendor_id": "144d", "physical_network": "physnet1"}',  # which nobody gives away by flavor
    ],
)
def test_functions_of_different_cards_may_be_of_different_halves(entry: str) -> None:
    assert double_claims(FUNCTIONS, parse_pci_device_spec([entry]), {DRIVE: "nvme_driver"}) == {}


def test_the_error_names_the_driver_that_has_the_function_itself() -> None:
    """Another driver may have other functions of the card."""
    error = refusal('{"address": "0000:82:02.0"}', {PF: "pci_driver", VF0: "vendor_driver"})
    assert "0000:82:02.0 is for instances by flavor, but the driver vendor_driver has it" in str(error)
