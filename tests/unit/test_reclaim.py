"""The keys of [pci] options that say what becomes of a device after each instance."""

import json
from typing import Any

import pytest

from autoclave.conf.compute import PASSTHROUGH_KEYS, PASSTHROUGH_OPTION
from autoclave.db.tables import DeviceType
from autoclave.exceptions import InvalidConfiguration
from autoclave.rules.device_spec import DeviceSpec, parse_device_spec
from autoclave.rules.pci_inventory import DEVICE_SPEC_OPTION, parse_pci_device_spec
from autoclave.rules.reclaim import Reclaim, ReclaimPolicy, policy_of

GPU = {"vendor_id": "10de"}
PROGRAM = "/etc/autoclave/clear.d/clear-gpu"
ERASE = {"reclaim": "erase", "clear_action": "command", "clear_command": [PROGRAM, "--all"]}
OPTIONS = (PASSTHROUGH_OPTION, DEVICE_SPEC_OPTION)


def parsed(option: str, *entries: dict[str, Any]) -> tuple[DeviceSpec, ...]:
    texts = [json.dumps(entry) for entry in entries]
    if option == DEVICE_SPEC_OPTION:
        return parse_pci_device_spec(texts)
    return parse_device_spec(texts, option=option, extra_keys=PASSTHROUGH_KEYS)


def refusal(option: str, **keys: Any) -> InvalidConfiguration:
    """The error of the second of two entries."""
    with pytest.raises(InvalidConfiguration) as caught:
        parsed(option, {"address": "0000:01:00.0"}, GPU | keys)
    assert (caught.value.option, caught.value.entry) == (option, 2)
    return caught.value


@pytest.mark.parametrize("device_type", DeviceType)
def test_a_drive_is_erased_unless_its_driver_says_otherwise(device_type: DeviceType) -> None:
    assert policy_of(device_type) is (Reclaim.ERASE if device_type is DeviceType.NVME else Reclaim.NONE)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(
    ("keys", "policy", "guarantee"),
    [
        ({}, ReclaimPolicy(), "returns uncleaned"),
        ({"reclaim": "none"}, ReclaimPolicy(), "returns uncleaned"),
        ({"reclaim": "hold"}, ReclaimPolicy(Reclaim.HOLD), "held until released"),
        (
            {"reclaim": "erase", "clear_action": "reset"},
            ReclaimPolicy(Reclaim.ERASE, "reset"),
            "returns uncleaned (reset)",
        ),
        (ERASE, ReclaimPolicy(Reclaim.ERASE, "command", (PROGRAM, "--all")), "cleaned by the operator's command"),
    ],
)
def test_keys_define_the_policy_and_its_guarantee(
    option: str, keys: dict[str, Any], policy: ReclaimPolicy, guarantee: str
) -> None:
    [spec] = parsed(option, GPU | keys)
    assert ReclaimPolicy.of(spec.extra) == policy
    assert policy.guarantee == guarantee


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(
    ("keys", "key", "words"),
    [
        ({"reclaim": "burn"}, "reclaim", 'must be one of erase, hold, none, not the string "burn"'),
        ({"reclaim": None}, "reclaim", "must be one of erase, hold, none, not null"),
        ({"reclaim": ["erase"]}, "reclaim", "not a list"),
        ({"reclaim": True}, "reclaim", "not the boolean true"),
        ({"reclaim": "erase"}, "reclaim", "needs the key clear_action"),
        ({"clear_action": "reset"}, "clear_action", 'has no effect without "reclaim": "erase"'),
        ({"reclaim": "hold", "clear_action": "reset"}, "clear_action", "has no effect without"),
        ({"reclaim": "erase", "clear_action": "auto"}, "clear_action", "must be one of reset, command"),
        ({"reclaim": "erase", "clear_action": 1}, "clear_action", "not the number 1"),
        ({"reclaim": "erase", "clear_action": "command"}, "clear_action", "needs the key clear_command"),
        (ERASE | {"clear_action": "reset"}, "clear_command", 'has no effect without "clear_action": "command"'),
        ({"clear_command": [PROGRAM]}, "clear_command", "has no effect without"),
        (ERASE | {"clear_command": PROGRAM}, "clear_command", "must be a list of strings"),
        (ERASE | {"clear_command": []}, "clear_command", "not an empty list"),
        (ERASE | {"clear_command": {}}, "clear_command", "not an object"),
        (ERASE | {"clear_command": None}, "clear_command", "not null"),
        (ERASE | {"clear_command": [PROGRAM, 3]}, "clear_command", "has the number 3"),
        (ERASE | {"clear_command": [PROGRAM, "a\0b"]}, "clear_command", "must not contain NUL"),
        (ERASE | {"clear_command": ["clear-gpu"]}, "clear_command", "the absolute path"),
        (ERASE | {"clear_command": [""]}, "clear_command", "the absolute path"),
        (ERASE | {"clear_command": ["/bin/sh", "-c", "id"]}, "clear_command", "directly in /etc/autoclave/clear.d"),
        (ERASE | {"clear_command": ["/etc/autoclave/clear.d/../x"]}, "clear_command", "directly in"),
        (ERASE | {"clear_command": ["/etc/autoclave/clear.d/x/y"]}, "clear_command", "directly in"),
        (ERASE | {"clear_command": ["/etc/autoclave/clear.d/.."]}, "clear_command", "directly in"),
        (ERASE | {"clear_command": [f"{PROGRAM}\n"]}, "clear_command", "directly in"),
        ({"clear_strategy": "auto"}, "clear_strategy", '"clear_action": "reset" and "command"'),
        ({"recliam": "hold"}, "recliam", "did you mean 'reclaim'?"),
    ],
)
def test_a_bad_key_is_an_error_that_names_it(option: str, keys: dict[str, Any], key: str, words: str) -> None:
    error = refusal(option, **keys)
    assert error.key == key
    assert words in str(error)


def test_one_time_use_of_passthrough_whitelist_is_refused_with_its_other_name() -> None:
    assert '"reclaim": "hold"' in str(refusal(PASSTHROUGH_OPTION, one_time_use=True))


@pytest.mark.parametrize(
    ("one_time_use", "keys"),
    [(True, {"reclaim": "none"}), (True, ERASE), (False, {"reclaim": "hold"})],
)
def test_one_time_use_that_contradicts_reclaim_is_refused(one_time_use: bool, keys: dict[str, Any]) -> None:
    error = refusal(DEVICE_SPEC_OPTION, **keys, one_time_use=one_time_use)
    assert error.key == "one_time_use"
    assert f'contradicts "reclaim": "{keys["reclaim"]}"' in str(error)


@pytest.mark.parametrize(
    ("one_time_use", "keys", "reclaim"),
    [
        (True, {}, Reclaim.HOLD),
        (True, {"reclaim": "hold"}, Reclaim.HOLD),
        (False, {}, Reclaim.NONE),
        (False, {"reclaim": "none"}, Reclaim.NONE),
        (False, ERASE, Reclaim.ERASE),
    ],
)
def test_one_time_use_that_agrees_with_reclaim_is_the_same(
    one_time_use: bool, keys: dict[str, Any], reclaim: Reclaim
) -> None:
    [spec] = parsed(DEVICE_SPEC_OPTION, GPU | keys | {"one_time_use": one_time_use})
    assert ReclaimPolicy.of(spec.extra).reclaim is reclaim


@pytest.mark.parametrize("keys", [{"reclaim": "hold"}, ERASE])
@pytest.mark.parametrize("neutrons", [{"physical_network": "net1"}, {"remote_managed": True}])
def test_a_policy_of_what_is_left_to_neutron_is_refused(keys: dict[str, Any], neutrons: dict[str, Any]) -> None:
    error = refusal(DEVICE_SPEC_OPTION, **keys, **neutrons)
    assert error.key == "reclaim"
    assert "protects nothing" in str(error)
    parsed(DEVICE_SPEC_OPTION, GPU | neutrons | {"reclaim": "none"})
