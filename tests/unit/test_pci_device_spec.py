"""[pci] device_spec: every key is understood as Nova's, or refused by name."""

import json
from collections.abc import Sequence
from typing import Any

import os_traits
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoclave.conf import new_config
from autoclave.exceptions import InvalidConfiguration
from autoclave.rules.device_spec import DeviceSpec
from autoclave.rules.pci_inventory import DEVICE_SPEC_KEYS, left_to_neutron, parse_pci_device_spec

GPU = {"vendor_id": "10de", "product_id": "25b6"}
KEYS = ["vendor_id", "product_id", "address", *DEVICE_SPEC_KEYS.parsers]


def one(**entry: Any) -> DeviceSpec:
    (spec,) = parse_pci_device_spec([json.dumps(entry)])
    return spec


def refusal(**entry: Any) -> InvalidConfiguration:
    with pytest.raises(InvalidConfiguration) as caught:
        one(**entry)
    assert (caught.value.option, caught.value.entry) == ("[pci] device_spec", 1)
    return caught.value


@pytest.mark.parametrize("key", ["managed", "live_migratable", "one_time_use", "trusted", "remote_managed"])
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        *((yes, True) for yes in (True, "true", "True", "yes", "YES", "on", "t", "y", "1", " yes ", 1)),
        *((no, False) for no in (False, "false", "False", "no", "NO", "off", "f", "n", "0", 0)),
    ],
)
def test_a_boolean_may_be_written_in_all_of_novas_ways(key: str, written: Any, meant: bool) -> None:
    assert one(**GPU, **{key: written}).extra[key] is meant


@pytest.mark.parametrize("key", ["managed", "live_migratable", "one_time_use", "trusted", "remote_managed"])
@pytest.mark.parametrize("written", ["maybe", "", "2", 2, 1.0, None, [], {}, ["true"]])
def test_what_is_no_boolean_is_refused_and_null_is_not_taken_for_unset(key: str, written: Any) -> None:
    error = refusal(**GPU, **{key: written})
    assert error.key == key
    assert "must be true or false" in str(error)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("CUSTOM_GPU", "CUSTOM_GPU"),
        ("gpu", "CUSTOM_GPU"),
        ("custom_gpu", "CUSTOM_GPU"),
        ("my gpu!!x", "CUSTOM_MY_GPU_X"),
        ("vgpu", "VGPU"),
        ("PGPU", "PGPU"),
        (" gpu ", "CUSTOM_GPU"),
        ("größe-2", "CUSTOM_GR_SSE_2"),
    ],
)
def test_a_class_that_is_not_a_standard_one_becomes_a_custom_one(written: str, meant: str) -> None:
    assert one(**GPU, resource_class=written).extra["resource_class"] == meant


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("", "no letter from A to Z and no digit"),
        ("中国", "no letter from A to Z and no digit"),
        ("x" * 249, "has 256 characters"),
        ("vcpu", "is what the host itself offers"),
        ("PCPU", "is what the host itself offers"),
        ("MEMORY_MB", "is what the host itself offers"),
        ("disk_gb", "is what the host itself offers"),
        (None, "not null"),
        (7, "not the number 7"),
        (["CUSTOM_GPU"], "not a list"),
    ],
)
def test_a_class_that_placement_would_not_take_is_refused(written: Any, words: str) -> None:
    error = refusal(**GPU, resource_class=written)
    assert error.key == "resource_class"
    assert words in str(error)


def test_traits_are_one_string_and_the_spaces_in_it_mean_nothing() -> None:
    spec = one(**GPU, traits="blue, big ,HW_GPU_API_VULKAN,CUSTOM_A-B, hw_gpu_api_vulkan")
    assert spec.extra["traits"] == {
        "CUSTOM_BLUE",
        "CUSTOM_BIG",
        "HW_GPU_API_VULKAN",
        "CUSTOM_CUSTOM_A_B",
        "CUSTOM_HW_GPU_API_VULKAN",
    }


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (",,", "has an empty name"),
        ("", "has an empty name"),
        ("blue,", "has an empty name"),
        ("blue, ,big", "has an empty name"),
        ("blue, ?", "'?' has no letter"),
        ("x" * 300, "has 307 characters"),
        (["blue", "big"], "one string of names with commas"),
        (None, "one string of names with commas"),
        ("HW_PCI_ONE_TIME_USE", "follows from the reclaim policy"),
        ("blue, HW_PCI_LIVE_MIGRATABLE", "follows from the key live_migratable"),
        ("OWNER_CYBORG", "device profiles ask for"),
    ],
)
def test_traits_that_placement_would_not_take_or_that_promise_too_much_are_refused(written: Any, words: str) -> None:
    error = refusal(**GPU, traits=written)
    assert error.key == "traits"
    assert words in str(error)


@pytest.mark.parametrize("network", ["physnet1", None])
def test_what_has_a_physical_network_is_left_to_neutron(network: str | None) -> None:
    assert left_to_neutron(one(**GPU, physical_network=network))
    assert left_to_neutron(one(**GPU, remote_managed="yes", trusted="true"))
    assert not left_to_neutron(one(**GPU, remote_managed=False))


@pytest.mark.parametrize("network", ["", " ", 5, ["physnet1"], False])
def test_a_physical_network_is_a_name_or_null(network: Any) -> None:
    assert refusal(**GPU, physical_network=network).key == "physical_network"


@pytest.mark.parametrize(
    "neutrons", [{"physical_network": "physnet1"}, {"physical_network": None}, {"remote_managed": 1}]
)
def test_one_time_use_of_what_is_left_to_neutron_is_refused_because_nobody_would_keep_it(neutrons: Any) -> None:
    error = refusal(**GPU, **neutrons, one_time_use=True)
    assert error.key == "one_time_use"
    assert "protects nothing" in str(error)
    one(**GPU, **neutrons, one_time_use=False)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("one_time_us", "did you mean 'one_time_use'?"),
        ("one-time-use", "did you mean 'one_time_use'?"),
        ("ONE_TIME_USE", "unknown key"),
        ("trait", "did you mean 'traits'?"),
        ("vendor", "did you mean 'vendor_id'?"),
        ("label", "unknown key"),
        ("", "unknown key"),
        ("devname", "give its address"),
        ("clear_action", "must be one of reset, command"),
        ("clear_strategy", "[nvme] device_spec"),
    ],
)
def test_a_key_that_would_mean_nothing_is_refused_and_not_taken_for_a_tag(key: str, words: str) -> None:
    error = refusal(**GPU, **{key: "yes"})
    assert error.key == key
    assert words in str(error)


@pytest.mark.parametrize(
    ("entry", "key", "words"),
    [
        (
            {"vendor_id": 4318},
            "vendor_id",
            'must be a string of hexadecimal digits, such as "144d", not the number 4318',
        ),
        ({"product_id": None}, "product_id", "not null"),
        ({"vendor_id": "10de0"}, "vendor_id", "is not a PCI id"),
        ({"address": ["0000:81:00.0"]}, "address", "not a list"),
        ({"address": 81}, "address", "not the number 81"),
        ({"address": "0:0:0:0.0"}, "address", "too many colons"),
        ({"address": {"bus": "8["}}, "address", "is not a regular expression"),
        ({"address": {"device": "1"}}, "address", "has no field 'device'"),
        ({}, None, "names no device"),
        ({"address": "", "one_time_use": True}, None, "names no device"),
    ],
)
def test_an_entry_that_does_not_say_which_device_it_means_is_refused(
    entry: dict[str, Any], key: str | None, words: str
) -> None:
    error = refusal(**entry)
    assert error.key == key
    assert words in str(error)


def test_several_values_may_each_hold_a_list_and_an_error_names_the_entry_among_all() -> None:
    first = json.dumps([{"address": "0000:81:00.0"}, {"address": "0000:82:00.0"}])
    assert [spec.entry for spec in parse_pci_device_spec([first, json.dumps(GPU)])] == [1, 2, 3]
    with pytest.raises(InvalidConfiguration) as caught:
        parse_pci_device_spec([first, json.dumps({**GPU, "one_time_use": None})])
    assert (caught.value.entry, caught.value.key) == (3, "one_time_use")


def test_the_options_of_the_two_halves_are_two() -> None:
    whitelist: dict[tuple[str | None, str], Any] = {("pci", "passthrough_whitelist"): [json.dumps(GPU)]}
    assert new_config([], whitelist).pci.device_spec == []
    specs: dict[tuple[str | None, str], Any] = {("pci", "device_spec"): [json.dumps(GPU)]}
    assert new_config([], specs).pci.passthrough_whitelist == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)
SENSIBLE = st.one_of(
    st.sampled_from(
        ["yes", "no", "10de", "*", "0000:81:00.0", "*:81:*.*", "CUSTOM_A", "blue, big", "vgpu", "physnet1"]
    ),
    st.booleans(),
    st.none(),
)
ENTRIES = st.dictionaries(
    st.sampled_from([*KEYS, *DEVICE_SPEC_KEYS.refused]) | st.text(max_size=14), SENSIBLE | JSON, max_size=5
)


@given(st.lists(ENTRIES | JSON, max_size=3))
def test_whatever_is_written_is_understood_in_full_or_refused_by_name(entries: list[Any]) -> None:
    specs, error = attempt(entries)
    if error is None:
        for spec, raw in zip(specs, entries, strict=True):
            assert set(spec.extra) == set(raw) - {"vendor_id", "product_id", "address"}
    else:
        assert error.option == "[pci] device_spec"
        assert isinstance(error.entry, int)
        assert error.key is None or error.key in entries[error.entry - 1]


@given(st.text(max_size=40))
def test_the_traits_of_any_text_are_names_that_placement_takes(text: str) -> None:
    specs, error = attempt([{**GPU, "traits": text}])
    assert error is None or error.key == "traits"
    for name in [name for spec in specs for name in spec.extra["traits"]]:
        assert name in os_traits.get_traits() or (name.startswith("CUSTOM_") and set(name) <= NAME_CHARACTERS)


def attempt(entries: list[Any]) -> tuple[Sequence[DeviceSpec], InvalidConfiguration | None]:
    try:
        return parse_pci_device_spec([json.dumps(entries)]), None
    except InvalidConfiguration as error:
        return (), error


NAME_CHARACTERS = set("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
