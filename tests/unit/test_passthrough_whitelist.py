"""[pci] passthrough_whitelist: which functions, and whether libvirt manages them."""

import json
from typing import Any

import pytest

from autoclave.conf.compute import PASSTHROUGH_KEYS, PASSTHROUGH_OPTION
from autoclave.exceptions import InvalidConfiguration
from autoclave.rules.device_spec import DeviceSpec, parse_device_spec

GPU = {"vendor_id": "10de", "product_id": "25b6", "address": "0000:25:00.4"}


def one(**entry: Any) -> DeviceSpec:
    (spec,) = parse_device_spec([json.dumps(entry)], option=PASSTHROUGH_OPTION, extra_keys=PASSTHROUGH_KEYS)
    return spec


def refusal(**entry: Any) -> InvalidConfiguration:
    with pytest.raises(InvalidConfiguration) as caught:
        one(**entry)
    assert caught.value.option == "[pci] passthrough_whitelist"
    return caught.value


def test_an_entry_without_managed_says_nothing_of_it() -> None:
    assert dict(one(**GPU).extra) == {}


@pytest.mark.parametrize("written", [True, "true", "True", "yes", "YES", "on", "t", "y", "1", " yes "])
def test_what_means_yes_is_managed(written: Any) -> None:
    assert one(**GPU, managed=written).extra["managed"] is True


@pytest.mark.parametrize("written", [False, "false", "False", "no", "NO", "off", "f", "n", "0"])
def test_what_means_no_is_not_managed(written: Any) -> None:
    assert one(**GPU, managed=written).extra["managed"] is False


@pytest.mark.parametrize("written", ["maybe", "", "2", 2, None, [], {}, ["true"]])
def test_anything_else_is_refused_by_name(written: Any) -> None:
    error = refusal(**GPU, managed=written)
    assert (error.entry, error.key) == (1, "managed")
    assert "must be true or false" in str(error)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("manged", "did you mean 'managed'?"),
        ("physical_network", "unknown key"),
        ("devname", "give its address"),
        ("one_time_use", "[pci] device_spec"),
        ("clear_action", "must be one of reset, command"),
    ],
)
def test_a_key_that_would_mean_nothing_is_refused_and_not_taken_for_a_tag(key: str, words: str) -> None:
    error = refusal(**GPU, **{key: "eth0"})
    assert error.key == key
    assert words in str(error)
