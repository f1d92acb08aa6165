"""Names in Placement are those that Nova and the specification give."""

import os_resource_classes
import os_traits
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.resource_names import (
    OWNER_CYBORG,
    may_be_the_operators,
    nvme_resource_class,
    pci_traits,
    provider_name,
    same_provider_name,
)


@pytest.mark.parametrize(
    ("vendor", "product", "expected"),
    [
        ("8086", "0001", "CUSTOM_NVME_8086_0001"),
        ("144d", "a808", "CUSTOM_NVME_144D_A808"),
        ("0x144D", "953", "CUSTOM_NVME_144D_0953"),
    ],
)
def test_the_class_of_an_nvme_controller_names_vendor_and_product(vendor: str, product: str, expected: str) -> None:
    assert nvme_resource_class(vendor, product) == expected


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF))
def test_every_class_is_one_that_placement_takes(vendor: int, product: int) -> None:
    name = nvme_resource_class(f"{vendor:x}", f"{product:x}")
    assert os_resource_classes.normalize_name(name.removeprefix("CUSTOM_")) == name


def test_no_class_is_made_of_an_id_that_is_none() -> None:
    with pytest.raises(ValueError, match="'samsung' is not a PCI id"):
        nvme_resource_class("samsung", "a808")


def test_a_provider_is_named_after_host_and_address_in_upper_case_as_novas_are() -> None:
    assert provider_name("compute-1", PCIAddress.parse("0000:0a:00.1")) == "compute-1_0000:0A:00.1"


def test_a_provider_that_another_service_wrote_in_lower_case_is_the_same_slot() -> None:
    name = provider_name("compute-1", PCIAddress.parse("0000:0a:00.1"))
    assert same_provider_name(name, "compute-1_0000:0a:00.1")
    assert same_provider_name("Compute-1_0000:0a:00.1", name)
    assert not same_provider_name(name, "compute-1_0000:0a:00.2")
    assert not same_provider_name(name, "compute-2_0000:0a:00.1")


def test_the_owner_trait_is_a_standard_one() -> None:
    assert OWNER_CYBORG in os_traits.get_traits("OWNER_")


@pytest.mark.parametrize(
    ("vendor", "name"),
    [
        ("102b", "CUSTOM_PCI_MATROX"),
        ("10de", "CUSTOM_PCI_NVIDIA"),
        ("1bd4", "CUSTOM_PCI_INSPUR"),
        ("1cf2", "CUSTOM_PCI_ZTE"),
        ("8086", "CUSTOM_PCI_INTEL"),
    ],
)
def test_a_vendor_that_cyborg_names_has_its_name_as_a_trait(vendor: str, name: str) -> None:
    assert pci_traits(vendor, "25b6") == (
        name,
        f"CUSTOM_PCI_VENDOR_ID_{vendor.upper()}",
        "CUSTOM_PCI_PRODUCT_ID_25B6",
    )
    assert not any(may_be_the_operators(trait) for trait in pci_traits(vendor, "25b6"))


def test_any_other_custom_trait_may_be_the_operators() -> None:
    assert may_be_the_operators("CUSTOM_RACK_7")
    assert not may_be_the_operators("HW_NVME_CES")
