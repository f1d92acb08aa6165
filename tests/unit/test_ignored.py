"""What a flavor or an image says in vain is told with the reason, and nothing else is."""

import pytest

from autoclave.rules.resource_request import ignored_extra_specs, ignored_properties

HARDWARE, UNKNOWN, ASK_BY_TRAIT = "no guest gets other virtual hardware", "does not know it", "ask for a trait"


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("hw:cpu_policy", HARDWARE),
        ("quota:disk_read_iops_sec", "is not limited"),
        ("capabilities:hypervisor_type", ASK_BY_TRAIT),
        ("aggregate_instance_extra_specs:rack", ASK_BY_TRAIT),
        ("rack", ASK_BY_TRAIT),
        ("vendor:rack", UNKNOWN),
    ],
)
def test_an_extra_spec_without_effect_is_told_with_the_reason(key: str, reason: str) -> None:
    found = ignored_extra_specs({key: "1", "resources:VCPU": "1"}, {"resources:VCPU"})
    assert list(found) == [key]
    assert reason in found[key]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("hw_disk_bus", HARDWARE),
        ("img_signature_hash_method", "signature of an image is not verified"),
        ("img_hide_hypervisor_id", UNKNOWN),
        ("os_require_quiesce", UNKNOWN),
    ],
)
def test_a_property_without_effect_is_told_with_the_reason(name: str, reason: str) -> None:
    found = ignored_properties([name])
    assert list(found) == [name]
    assert reason in found[name]


@pytest.mark.parametrize(
    "name",
    [
        "hw_firmware_type",
        "hw_machine_type",
        "os_secure_boot",
        "os_hash_algo",
        "os_hash_value",
        "os_hidden",
        "os_version",
        "owner_note",
    ],
)
def test_a_property_that_is_heeded_or_asks_for_nothing_is_not_told(name: str) -> None:
    assert ignored_properties([name]) == {}
