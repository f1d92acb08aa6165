"""From [pci] device_spec and a host's functions to what Placement is told, as Nova tells it."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoclave.exceptions import InvalidConfiguration
from autoclave.rules.device_spec import first_match, parse_device_spec
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.pci_inventory import (
    ClaimableFunction,
    DevType,
    PCIFunction,
    PCIProvider,
    SpecIndex,
    parse_pci_device_spec,
    translate,
)
from autoclave.rules.reclaim import Reclaim
from autoclave.rules.resource_names import provider_name

ALWAYS = {"COMPUTE_MANAGED_PCI_DEVICE", "OWNER_NOVA"}


def at(address: str) -> PCIAddress:
    return PCIAddress.parse(address)


def gpu(address: str) -> PCIFunction:
    return PCIFunction(at(address), "10de", "25b6", DevType.PCI)


def pf(address: str) -> PCIFunction:
    return PCIFunction(at(address), "8086", "1572", DevType.PF)


def vf(address: str, parent: str | None) -> PCIFunction:
    return PCIFunction(at(address), "8086", "154c", DevType.VF, at(parent) if parent else None)


CARD = [pf("0000:82:00.0"), *(vf(f"0000:82:02.{n}", "0000:82:00.0") for n in range(3))]


def providers(functions: Sequence[PCIFunction], *entries: dict[str, Any]) -> tuple[PCIProvider, ...]:
    translated = translate(functions, parse_pci_device_spec([json.dumps(entry) for entry in entries]))
    assert translated.faults == {}
    return translated.providers


def refusal(functions: Sequence[PCIFunction], *entries: dict[str, Any]) -> InvalidConfiguration:
    translated = translate(functions, parse_pci_device_spec([json.dumps(entry) for entry in entries]))
    assert translated.providers == ()
    [error] = translated.faults.values()
    assert error.option == "[pci] device_spec"
    return error


def test_a_function_without_sriov_is_a_provider_of_its_own() -> None:
    [provider] = providers([gpu("0000:81:00.0")], {"vendor_id": "10de"})
    assert provider == PCIProvider(
        at("0000:81:00.0"),
        "CUSTOM_PCI_10DE_25B6",
        frozenset(ALWAYS),
        Reclaim.NONE,
        (ClaimableFunction(at("0000:81:00.0"), DevType.PCI, "10de", "25b6", True),),
    )
    assert provider.total == 1
    assert provider_name("host1", at("0000:8a:00.0")) == "host1_0000:8A:00.0"


def test_what_no_entry_means_is_not_told() -> None:
    assert providers([gpu("0000:81:00.0")], {"vendor_id": "8086"}) == ()
    assert providers([gpu("0000:81:00.0")]) == ()


def test_a_physical_function_is_a_provider_and_not_its_virtual_functions() -> None:
    [provider] = providers(CARD, {"vendor_id": "8086", "product_id": "1572", "one_time_use": "yes"})
    assert (provider.address, provider.total, provider.one_time_use) == (at("0000:82:00.0"), 1, True)
    assert provider.functions[0].dev_type == "type-PF"


def test_virtual_functions_are_counted_by_the_provider_of_their_physical_function() -> None:
    two = [*CARD, pf("0000:83:00.0"), vf("0000:83:02.0", "0000:83:00.0")]
    first, second = providers(two[::-1], {"vendor_id": "8086", "product_id": "154c", "managed": "no"})
    assert (first.address, first.resource_class, first.total) == (at("0000:82:00.0"), "CUSTOM_PCI_8086_154C", 3)
    assert [str(function.address) for function in first.functions] == ["0000:82:02.0", "0000:82:02.1", "0000:82:02.2"]
    assert {function.managed for function in first.functions} == {False}
    assert (second.address, second.total) == (at("0000:83:00.0"), 1)


def test_the_address_of_a_physical_function_with_the_virtual_ones_product_means_the_virtual_ones() -> None:
    [provider] = providers(CARD, {"address": "0000:82:00.0", "product_id": "154c"})
    assert provider.total == 3


def test_traits_say_what_was_configured_and_what_follows_from_it() -> None:
    entry = {"vendor_id": "10de", "traits": "blue", "one_time_use": True, "live_migratable": "yes"}
    [provider] = providers([gpu("0000:81:00.0")], entry)
    assert provider.traits == ALWAYS | {"CUSTOM_BLUE", "HW_PCI_ONE_TIME_USE", "HW_PCI_LIVE_MIGRATABLE"}
    [provider] = providers([gpu("0000:81:00.0")], {"vendor_id": "10de", "one_time_use": 0, "live_migratable": "no"})
    assert provider.traits == ALWAYS


def test_the_first_entry_wins_even_if_a_later_one_is_more_exact() -> None:
    broad, exact = {"vendor_id": "10de", "one_time_use": False}, {"address": "0000:81:00.0", "one_time_use": True}
    assert [p.one_time_use for p in providers([gpu("0000:81:00.0")], broad, exact)] == [False]
    assert [p.one_time_use for p in providers([gpu("0000:81:00.0")], exact, broad)] == [True]


def test_what_is_for_neutron_is_not_told_to_placement() -> None:
    assert providers(CARD, {"product_id": "154c", "physical_network": "physnet1"}) == ()
    assert providers(CARD, {"product_id": "154c", "physical_network": None}) == ()
    assert providers(CARD, {"product_id": "154c", "remote_managed": True}) == ()
    [provider] = providers(CARD, {"product_id": "154c", "physical_network": "physnet1"}, {"vendor_id": "8086"})
    assert provider.total == 1  # the virtual functions are nobody's here, so the physical one may be given away


def test_a_physical_function_and_its_virtual_one_are_refused_and_both_entries_named() -> None:
    error = refusal(CARD, {"product_id": "154c"}, {"product_id": "1572"})
    assert (error.entry, error.key) == (2, None)
    assert "0000:82:00.0" in str(error)
    assert "0000:82:02.0 is meant by entry 1" in str(error)


def test_one_entry_that_means_a_physical_function_and_its_virtual_ones_is_refused_with_the_way_out() -> None:
    error = refusal(CARD, {"address": "0000:82:00.0"})
    assert error.entry == 1
    assert "add the product_id" in str(error)


@pytest.mark.parametrize(
    ("key", "one", "other"),
    [
        ("resource_class", {"resource_class": "fast"}, {"resource_class": "slow"}),
        ("resource_class", {}, {"resource_class": "slow"}),
        ("traits", {"traits": "blue"}, {"traits": "blue, big"}),
        ("traits", {"live_migratable": True}, {"live_migratable": False}),
    ],
)
def test_virtual_functions_of_one_card_that_differ_are_refused_and_both_entries_named(
    key: str, one: dict[str, Any], other: dict[str, Any]
) -> None:
    error = refusal(CARD, {"address": "0000:82:02.0", **one}, {"product_id": "154c", **other})
    assert (error.entry, error.key) == (2, key)
    assert "0000:82:02.1 would have" in str(error)
    assert "by entry 1" in str(error)


def test_virtual_functions_of_one_card_may_differ_in_what_is_not_their_providers() -> None:
    [provider] = providers(CARD, {"address": "0000:82:02.0", "managed": False}, {"product_id": "154c"})
    assert [function.managed for function in provider.functions] == [False, True, True]


def test_virtual_functions_of_two_cards_may_differ() -> None:
    two = [*CARD, pf("0000:83:00.0"), vf("0000:83:02.0", "0000:83:00.0")]
    assert [
        provider.resource_class
        for provider in providers(
            two, {"address": "*:82:02.*", "resource_class": "a"}, {"product_id": "154c", "resource_class": "b"}
        )
    ] == ["CUSTOM_A", "CUSTOM_B"]


@pytest.mark.parametrize("value", [True, False, "no"])
def test_one_time_use_of_a_virtual_function_is_refused_whichever_way(value: Any) -> None:
    error = refusal(CARD, {"product_id": "154c", "one_time_use": value})
    assert (error.entry, error.key) == (1, "one_time_use")
    assert "0000:82:02.0 is a virtual function" in str(error)


def test_a_virtual_function_whose_card_is_not_shown_is_refused() -> None:
    error = refusal([vf("0000:00:05.0", None)], {"product_id": "154c"})
    assert error.entry == 1
    assert "0000:00:05.0 is a virtual function" in str(error)


def test_a_physical_function_cannot_be_remote_managed() -> None:
    error = refusal(CARD, {"product_id": "1572", "remote_managed": True})
    assert (error.entry, error.key) == (1, "remote_managed")


ADDRESSES = st.builds(PCIAddress, st.just(0), st.integers(0, 3), st.integers(0, 2), st.integers(0, 2))
GLOBS = st.sampled_from(["*:01:*.*", "*", "02:*.1", ".2", "00.1"])
IDS = st.sampled_from(["10de", "8086", "*"])
ENTRY = st.fixed_dictionaries({"address": GLOBS | ADDRESSES.map(str)}, optional={"vendor_id": IDS, "product_id": IDS})


@given(st.lists(ENTRY, max_size=8), ADDRESSES, st.none() | ADDRESSES, st.sampled_from(["10de", "8086", "1"]), IDS)
def test_the_index_finds_the_entry_that_trying_them_one_after_another_finds(
    entries: list[dict[str, str]], address: PCIAddress, parent: PCIAddress | None, vendor: str, product: str
) -> None:
    specs = parse_device_spec([json.dumps(entry) for entry in entries])
    product = product if product != "*" else "0001"
    expected = first_match(specs, vendor, product, address, parent)
    assert SpecIndex(specs).first_match(vendor, product, address, parent) is expected


SLOTS = st.builds(PCIAddress, st.just(0), st.just(0), st.integers(0, 2), st.integers(0, 2))


@given(st.dictionaries(ADDRESSES, SLOTS), st.lists(ENTRY, max_size=3))
def test_every_function_that_is_meant_is_in_one_provider_unless_its_card_is_meant_too(
    layout: dict[PCIAddress, PCIAddress], entries: list[dict[str, str]]
) -> None:
    functions = [
        PCIFunction(address, "10de", "8086", DevType.PF)
        if address.bus == 0
        else PCIFunction(address, "10de", "8086", DevType.VF, parent)
        for address, parent in layout.items()
    ]
    specs = parse_pci_device_spec([json.dumps(entry) for entry in entries])
    meant = {f.address: f for f in functions if first_match(specs, f.vendor_id, f.product_id, f.address, f.parent)}
    contradictory = {function.parent for function in meant.values() if function.parent in meant}
    made = translate(functions, specs)
    assert made.faults.keys() == contradictory
    told = [(function.address, provider.address) for provider in made.providers for function in provider.functions]
    slots = sorted((each.address, each.parent or each.address) for each in meant.values())
    assert sorted(told) == [(address, slot) for address, slot in slots if slot not in contradictory]
    assert len({provider.address for provider in made.providers}) == len(made.providers)


def test_entries_that_contradict_each_other_cost_no_other_slot_its_provider() -> None:
    specs = parse_pci_device_spec(['{"address": "0000:82:00.0"}', '{"vendor_id": "10de"}'])
    translated = translate([*CARD, gpu("0000:81:00.0")], specs)
    assert [provider.address for provider in translated.providers] == [at("0000:81:00.0")]
    assert [*translated.faults] == [at("0000:82:00.0")]


def test_a_provider_has_the_policy_and_method_of_its_entry() -> None:
    keys = {"reclaim": "erase", "clear_action": "reset"}
    [provider] = providers([gpu("0000:81:00.0")], {"vendor_id": "10de"} | keys)
    assert (provider.reclaim, provider.cleanup_action, provider.one_time_use) == (Reclaim.ERASE, "reset", False)
    assert "HW_PCI_ONE_TIME_USE" not in provider.traits


def test_hold_is_one_time_use_for_placement() -> None:
    [provider] = providers([gpu("0000:81:00.0")], {"vendor_id": "10de", "reclaim": "hold"})
    assert (provider.reclaim, provider.one_time_use) == (Reclaim.HOLD, True)
    assert "HW_PCI_ONE_TIME_USE" in provider.traits
