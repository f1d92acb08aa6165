"""[pci] alias: what a flavor's pci_passthrough:alias asks Placement for."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoclave.exceptions import InvalidConfiguration
from autoclave.rules.pci_alias import PCIAlias, parse_pci_alias

GPU = {"name": "gpu", "vendor_id": "10de", "product_id": "25b6"}


def one(**entry: Any) -> PCIAlias:
    (alias,) = parse_pci_alias([json.dumps(entry)]).values()
    return alias


def refusal(*entries: Any) -> InvalidConfiguration:
    with pytest.raises(InvalidConfiguration) as caught:
        parse_pci_alias([json.dumps(entry) for entry in entries])
    assert caught.value.option == "[pci] alias"
    return caught.value


def test_ids_ask_for_the_class_that_device_spec_makes_of_them() -> None:
    assert one(**GPU) == PCIAlias("gpu", "CUSTOM_PCI_10DE_25B6")
    assert one(name="drive", vendor_id="0x144D", product_id="953").resource_class == "CUSTOM_PCI_144D_0953"


def test_a_class_and_traits_are_written_as_in_device_spec() -> None:
    assert one(name="gpu", resource_class="my gpu", traits="blue, HW_GPU_API_VULKAN") == PCIAlias(
        "gpu", "CUSTOM_MY_GPU", frozenset({"CUSTOM_BLUE", "HW_GPU_API_VULKAN"})
    )
    assert one(name="gpu", resource_class="vgpu").resource_class == "VGPU"


def test_a_class_counts_more_than_ids() -> None:
    assert one(**GPU, resource_class="CUSTOM_GPU").resource_class == "CUSTOM_GPU"


def test_live_migratable_asks_for_such_a_device_or_for_another() -> None:
    assert one(**GPU, live_migratable="yes").required == {"HW_PCI_LIVE_MIGRATABLE"}
    assert one(**GPU, live_migratable=False).forbidden == {"HW_PCI_LIVE_MIGRATABLE"}
    assert one(**GPU) == PCIAlias("gpu", "CUSTOM_PCI_10DE_25B6", frozenset(), frozenset())


@pytest.mark.parametrize("device_type", ["type-PCI", "type-PF", "type-VF"])
@pytest.mark.parametrize("policy", ["legacy", "preferred"])
def test_an_alias_as_nova_has_it_is_understood(device_type: str, policy: str) -> None:
    assert one(**GPU, device_type=device_type, numa_policy=policy, capability_type="pci") == one(**GPU)


def test_aliases_may_be_in_lists_and_in_several_values() -> None:
    values = [json.dumps([GPU, {**GPU, "name": "b"}]), json.dumps({"name": "c", "resource_class": "VGPU"})]
    assert list(parse_pci_alias(values)) == ["gpu", "b", "c"]
    assert parse_pci_alias([]) == {}


def test_a_name_given_twice_is_refused_and_the_first_entry_named() -> None:
    error = refusal(GPU, {**GPU, "product_id": "25b7"})
    assert (error.entry, error.key) == (2, "name")
    assert "entry 1 has the name 'gpu', too" in str(error)


@pytest.mark.parametrize(
    ("entry", "key", "words"),
    [
        ({"name": "gpu"}, None, "give resource_class, or vendor_id and product_id"),
        ({"name": "gpu", "vendor_id": "10de"}, None, "give resource_class, or vendor_id and product_id"),
        ({"vendor_id": "10de", "product_id": "25b6"}, "name", "is missing"),
        ({**GPU, "name": ""}, "name", "1 to 255 characters"),
        ({**GPU, "name": "x" * 256}, "name", "1 to 255 characters"),
        ({**GPU, "name": None}, "name", "not null"),
        ({**GPU, "name": "a,b"}, "name", "cannot be written in a flavor"),
        ({**GPU, "name": "a:1"}, "name", "cannot be written in a flavor"),
        ({**GPU, "name": " gpu"}, "name", "cannot be written in a flavor"),
        ({**GPU, "vendor_id": "*"}, "vendor_id", "is not a PCI id"),
        ({**GPU, "vendor_id": 4318}, "vendor_id", "not the number 4318"),
        ({**GPU, "device_type": "type-VDPA"}, "device_type", "Neutron"),
        ({**GPU, "device_type": "VF"}, "device_type", "type-PCI, type-PF, type-VF"),
        ({**GPU, "device_type": ["type-VF"]}, "device_type", "not a list"),
        ({**GPU, "numa_policy": "required"}, "numa_policy", "write 'preferred'"),
        ({**GPU, "numa_policy": "socket"}, "numa_policy", "write 'preferred'"),
        ({**GPU, "numa_policy": "near"}, "numa_policy", "preferred or legacy"),
        ({**GPU, "numa_policy": None}, "numa_policy", "not null"),
        ({**GPU, "live_migratable": "maybe"}, "live_migratable", "must be true or false"),
        ({**GPU, "live_migratable": None}, "live_migratable", "must be true or false"),
        ({**GPU, "live_migratable": False, "traits": "HW_PCI_LIVE_MIGRATABLE"}, "live_migratable", "no device is both"),
        ({**GPU, "resource_class": "vcpu"}, "resource_class", "is what the host itself offers"),
        ({**GPU, "capability_type": "usb"}, "capability_type", 'must be "pci"'),
        ({**GPU, "resource_class": ""}, "resource_class", "no letter"),
        ({**GPU, "traits": "blue,"}, "traits", "empty name"),
        ({**GPU, "traits": ["blue"]}, "traits", "not a list"),
        ({**GPU, "trait": "blue"}, "trait", "did you mean 'traits'?"),
        ({**GPU, "address": "0000:81:00.0"}, "address", "unknown key"),
        ("gpu", None, "must be a JSON object"),
        (None, None, "must be a JSON object"),
    ],
)
def test_what_is_not_exactly_right_is_refused_by_name(entry: Any, key: str | None, words: str) -> None:
    error = refusal(entry)
    assert (error.entry, error.key) == (1, key)
    assert words in str(error)


def test_what_is_no_json_is_refused_with_the_place() -> None:
    with pytest.raises(InvalidConfiguration, match=r"\[pci\] alias, entry 1: not JSON: .* column 2"):
        parse_pci_alias(["{'name': 'gpu'}"])
    with pytest.raises(InvalidConfiguration, match="key 'name': given twice"):
        parse_pci_alias(['{"name": "a", "name": "b", "resource_class": "VGPU"}'])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)
KEYS = [
    *("name", "vendor_id", "product_id", "resource_class", "traits", "device_type", "numa_policy", "live_migratable"),
    "capability_type",
]
SENSIBLE = st.sampled_from(
    ["gpu", "b", "10de", "CUSTOM_A", "blue, big", "type-PF", "preferred", "yes", "pci", True, None]
)


@given(st.lists(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=9), SENSIBLE | JSON, max_size=5), max_size=3))
def test_whatever_is_written_is_understood_or_refused_by_name(entries: list[dict[str, Any]]) -> None:
    read, error = attempt(entries)
    if error is None:
        assert [*read] == [entry["name"] for entry in entries]
        assert all(set(entry) <= set(KEYS) for entry in entries)
    else:
        assert error.option == "[pci] alias"
        assert isinstance(error.entry, int)
        assert error.key in {None, "name", *entries[error.entry - 1]}


def attempt(entries: list[dict[str, Any]]) -> tuple[Mapping[str, PCIAlias], InvalidConfiguration | None]:
    try:
        return parse_pci_alias([json.dumps(entry) for entry in entries]), None
    except InvalidConfiguration as error:
        return {}, error
