"""PCI addresses are read in one form, written in one form, and sorted as the bus is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoclave.rules.pci_address import PCIAddress

addresses = st.builds(
    PCIAddress,
    domain=st.one_of(st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF)),
    bus=st.integers(0, 0xFF),
    slot=st.integers(0, 0x1F),
    function=st.integers(0, 7),
)


@given(addresses)
def test_what_is_written_is_read_back(address: PCIAddress) -> None:
    assert PCIAddress.parse(str(address)) == address
    assert PCIAddress.parse(address.upper) == address


def test_an_address_is_written_in_lower_case_and_padded() -> None:
    assert str(PCIAddress(0, 0x0A, 0x1F, 1)) == "0000:0a:1f.1"
    assert PCIAddress(0, 0x0A, 0x1F, 1).upper == "0000:0A:1F.1"


def test_attach_info_has_the_four_fields_as_padded_hexadecimal() -> None:
    assert PCIAddress.parse("0000:0A:00.1").as_attach_info() == {
        "domain": "0000",
        "bus": "0a",
        "device": "00",
        "function": "1",
    }


def test_a_domain_that_linux_invented_for_vmd_is_an_address() -> None:
    assert str(PCIAddress.parse("10000:e1:00.0")) == "10000:e1:00.0"
    assert PCIAddress.parse("10000:e1:00.0").domain == 0x10000


def test_addresses_sort_by_number_not_by_text() -> None:
    texts = ["10000:00:00.0", "0000:0a:00.1", "ffff:00:00.0", "0000:0a:00.0", "0000:01:1f.7"]
    assert [str(address) for address in sorted(map(PCIAddress.parse, texts))] == [
        "0000:01:1f.7",
        "0000:0a:00.0",
        "0000:0a:00.1",
        "ffff:00:00.0",
        "10000:00:00.0",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0a:00.0",
        "000:0a:00.0",
        "0000:a:00.0",
        "0000:0a:00",
        "0000:0a:00.8",
        "0000:0a:00.10",
        "0000:0g:00.0",
        "123456789:0a:00.0",
        " 0000:0a:00.0",
        "0000:0a:00.0\n",
        "0000:0a:00.*",
        "0000:٠a:00.0",
    ],
)
def test_anything_but_the_full_form_is_refused_and_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="is not a full PCI address") as refusal:
        PCIAddress.parse(text)
    assert repr(text) in str(refusal.value)


def test_a_slot_that_no_bus_has_is_refused_with_the_address() -> None:
    with pytest.raises(ValueError, match=r"'0000:0a:20\.0'.*no slot 20.*highest is 1f"):
        PCIAddress.parse("0000:0a:20.0")


@pytest.mark.parametrize("fields", [(-1, 0, 0, 0), (0, 0x100, 0, 0), (0, 0, 0x20, 0), (0, 0, 0, 8), (1 << 32, 0, 0, 0)])
def test_no_address_is_made_of_numbers_out_of_range(fields: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="the highest is"):
        PCIAddress(*fields)
