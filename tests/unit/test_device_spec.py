"""device_spec means exactly what it says; what is not exactly right stops with the place named."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoclave.exceptions import InvalidConfiguration
from autoclave.rules.cleanup_policy import ClearAction, ClearStrategy
from autoclave.rules.device_spec import DeviceSpec, ExtraKeys, first_match, parse_device_spec
from autoclave.rules.pci_address import PCIAddress


def one(**entry: Any) -> DeviceSpec:
    (spec,) = parse_device_spec([json.dumps(entry)])
    return spec


def refusal(*values: Any, **kwargs: Any) -> InvalidConfiguration:
    with pytest.raises(InvalidConfiguration) as caught:
        parse_device_spec([value if isinstance(value, str) else json.dumps(value) for value in values], **kwargs)
    return caught.value


def at(address: str) -> PCIAddress:
    return PCIAddress.parse(address)


# What is matched


@pytest.mark.parametrize("written", ["8086", "0x8086", "0X8086", " 8086 ", "*"])
def test_a_vendor_id_may_be_written_as_operators_write_it(written: str) -> None:
    assert one(vendor_id=written).matches("8086", "0001", at("0000:0a:00.0"))


def test_ids_are_compared_without_case_and_leading_zeroes() -> None:
    spec = one(vendor_id="144D", product_id="953")
    assert spec.matches("144d", "0953", at("0000:0a:00.0"))
    assert not spec.matches("144d", "9530", at("0000:0a:00.0"))
    assert not spec.matches("144e", "0953", at("0000:0a:00.0"))


def test_every_key_of_an_entry_must_match() -> None:
    spec = one(vendor_id="8086", product_id="0001", address="0000:0a:00.*")
    assert spec.matches("8086", "0001", at("0000:0a:00.3"))
    assert not spec.matches("8087", "0001", at("0000:0a:00.3"))
    assert not spec.matches("8086", "0002", at("0000:0a:00.3"))
    assert not spec.matches("8086", "0001", at("0000:0b:00.3"))


@pytest.mark.parametrize(
    ("glob", "meant", "not_meant"),
    [
        ("*:0a:00.*", ["0000:0a:00.0", "10000:0a:00.7"], ["0000:0b:00.0", "0000:0a:01.0"]),
        ("0000:0a:00.1", ["0000:0a:00.1"], ["0000:0a:00.0", "0001:0a:00.1"]),
        ("0000:0A:00.*", ["0000:0a:00.1"], ["0000:0b:00.1"]),
        (":00.", ["0000:0a:00.1", "0003:ff:00.0"], ["0000:0a:01.1"]),
        ("0a:00.0", ["0000:0a:00.0", "0005:0a:00.0"], ["0000:0a:00.1", "0000:0b:00.0"]),
        ("0a:", ["0000:0a:00.0", "0000:0a:1f.7"], ["0000:0b:00.0"]),
        ("0a:*.*", ["0000:0a:00.0"], ["0000:0b:00.0"]),
        (".1", ["0000:0a:00.1"], ["0000:0a:00.0"]),
        ("1f", ["0000:0a:1f.1"], ["0000:1f:0a.0"]),
        ("1::.", ["0001:0a:1f.1"], ["0000:01:00.0", "0010:01:00.0"]),
        ("a:0.0", ["0000:0a:00.0"], ["0000:a0:00.0"]),
        ("10000:*:*.*", ["10000:01:00.0"], ["0000:01:00.0", "1000:01:00.0"]),
        (" 0000 : 0a : 00 . 0 ", ["0000:0a:00.0"], ["0000:0a:00.1"]),
        ("*", ["0000:0a:00.0", "ffffffff:ff:1f.7"], []),
        ("*:*:*.*", ["0000:0a:00.0"], []),
    ],
)
def test_a_glob_means_the_addresses_whose_written_fields_are_equal(
    glob: str, meant: list[str], not_meant: list[str]
) -> None:
    spec = one(address=glob)
    assert [address for address in meant + not_meant if spec.matches("8086", "0001", at(address))] == meant


small = st.tuples(st.integers(0, 2), st.integers(9, 11), st.integers(0, 2), st.integers(0, 2))


@given(
    numbers=small,
    shown=st.tuples(*[st.sampled_from(["number", "*", ""])] * 4),
    left_out=st.integers(0, 2),
    candidate=small,
)
def test_a_glob_is_the_same_as_comparing_field_by_field(
    numbers: tuple[int, ...], shown: tuple[str, ...], left_out: int, candidate: tuple[int, ...]
) -> None:
    fields = [f"{number:x}" if how == "number" else how for number, how in zip(numbers, shown, strict=True)]
    compared = [index for index, how in enumerate(shown) if how == "number" and index >= left_out]
    spec = one(vendor_id="*", address=f"{':'.join(fields[left_out:3])}.{fields[3]}")
    assert spec.matches("8086", "0001", PCIAddress(*candidate)) == all(
        numbers[index] == candidate[index] for index in compared
    )


def test_a_regular_expression_matches_the_whole_field_not_its_beginning() -> None:
    spec = one(address={"bus": "8"})
    assert not spec.matches("8086", "0001", at("0000:81:00.0"))
    assert not spec.matches("8086", "0001", at("0000:08:00.0"))
    assert one(address={"bus": "08"}).matches("8086", "0001", at("0000:08:00.0"))
    assert one(address={"bus": "8."}).matches("8086", "0001", at("0000:81:00.0"))


def test_every_field_of_an_address_may_have_its_regular_expression() -> None:
    spec = one(address={"domain": "0000|10000", "bus": "0[a-c]", "slot": "^00$", "function": "[01]"})
    assert spec.matches("8086", "0001", at("10000:0b:00.1"))
    for other in ("0001:0b:00.1", "0000:0d:00.1", "0000:0b:01.1", "0000:0b:00.2"):
        assert not spec.matches("8086", "0001", at(other))


def test_regular_expressions_do_not_mind_upper_case() -> None:
    assert one(address={"bus": "0A"}).matches("8086", "0001", at("0000:0a:00.0"))


@given(st.sets(st.integers(0, 0xFF), min_size=1), st.integers(0, 0xFF))
def test_alternatives_in_a_regular_expression_mean_exactly_those_buses(meant: set[int], bus: int) -> None:
    spec = one(address={"bus": "|".join(f"{number:02X}" for number in meant)})
    assert spec.matches("8086", "0001", PCIAddress(0, bus, 0, 0)) == (bus in meant)


def test_the_one_address_of_a_physical_function_also_means_its_virtual_functions() -> None:
    parent, virtual = at("0000:0a:00.0"), at("0000:0a:10.1")
    assert one(address="0000:0a:00.0").matches("8086", "0001", virtual, parent)
    assert not one(address="0000:0a:00.1").matches("8086", "0001", virtual, parent)
    assert not one(address="0000:0a:00.0").matches("8086", "0001", virtual)


@pytest.mark.parametrize("address", ["0000:0a:00.*", "0a:00.0", {"bus": "0a", "slot": "00", "function": "0"}])
def test_an_address_that_is_not_one_function_does_not_reach_virtual_functions(address: Any) -> None:
    assert not one(address=address).matches("8086", "0001", at("0000:0a:10.1"), at("0000:0a:00.0"))


def test_the_ids_of_a_virtual_function_count_even_when_its_parent_is_meant() -> None:
    spec = one(address="0000:0a:00.0", product_id="1572")
    assert not spec.matches("8086", "154c", at("0000:0a:10.1"), at("0000:0a:00.0"))


def test_the_first_entry_that_matches_counts_and_no_later_one_that_is_narrower() -> None:
    specs = parse_device_spec(
        ['{"vendor_id": "8086", "clear_action": "zero"}', '{"address": "0000:0a:00.0", "clear_action": "sanitize"}']
    )
    both = first_match(specs, "8086", "0001", at("0000:0a:00.0"))
    later = first_match(specs, "144d", "0001", at("0000:0a:00.0"))
    assert both is not None
    assert later is not None
    assert (both.entry, both.clear_action) == (1, ClearAction.ZERO)
    assert (later.entry, later.clear_action) == (2, ClearAction.SANITIZE)
    assert first_match(specs, "144d", "0001", at("0000:0b:00.0")) is None


def test_entries_keep_their_order_over_values_and_lists() -> None:
    specs = parse_device_spec(
        [
            '{"address": ".0"}',
            '[{"address": ".1"}, {"address": ".2"}]',
            "[]",
            '{"address":\n ".3"}',
        ]
    )
    assert [(spec.entry, json.loads(spec.text)["address"]) for spec in specs] == [
        (1, ".0"),
        (2, ".1"),
        (3, ".2"),
        (4, ".3"),
    ]


def test_no_values_mean_no_devices() -> None:
    assert parse_device_spec([]) == ()
    assert first_match((), "8086", "0001", at("0000:0a:00.0")) is None


# How devices are cleaned


def test_cleanup_is_left_to_the_policy_when_an_entry_does_not_say() -> None:
    spec = one(vendor_id="8086")
    assert (spec.clear_action, spec.clear_strategy) == (ClearAction.AUTO, ClearStrategy.AUTO)


def test_an_entry_carries_its_cleanup_policy() -> None:
    spec = one(vendor_id="8086", clear_action="sanitize", clear_strategy="crypto")
    assert (spec.clear_action, spec.clear_strategy) == (ClearAction.SANITIZE, ClearStrategy.CRYPTO)


def test_zeroing_that_must_be_cryptographic_is_refused_and_says_what_to_write() -> None:
    error = refusal({"vendor_id": "8086"}, {"vendor_id": "144d", "clear_action": "zero", "clear_strategy": "crypto"})
    assert (error.option, error.entry, error.key) == ("[nvme] device_spec", 2, "clear_strategy")
    assert "clear_action=zero" in str(error)
    assert "clear_strategy=crypto" in str(error)
    assert "use clear_action=sanitize, or clear_strategy=block" in str(error)


# What is refused


def test_a_typo_in_a_key_is_refused_by_name_with_the_key_that_was_meant() -> None:
    error = refusal([{"vendor_id": "8086"}, {"vendor_id": "144d", "clear_actoin": "zero"}])
    assert str(error).startswith("[nvme] device_spec, entry 2, key 'clear_actoin': unknown key")
    assert "did you mean 'clear_action'?" in str(error)


@pytest.mark.parametrize(
    ("entry", "key", "words"),
    [
        ({"vendor_id": 8086}, "vendor_id", "the number 8086"),
        ({"vendor_id": None}, "vendor_id", "null"),
        ({"vendor_id": True}, "vendor_id", "the boolean true"),
        ({"vendor_id": ["8086"]}, "vendor_id", "a list"),
        ({"product_id": {"a": 1}}, "product_id", "an object"),
        ({"vendor_id": ""}, "vendor_id", "not a PCI id"),
        ({"vendor_id": "80866"}, "vendor_id", "'80866' is not a PCI id"),
        ({"vendor_id": "intel"}, "vendor_id", "'intel' is not a PCI id"),
        ({"vendor_id": "80_6"}, "vendor_id", "'80_6' is not a PCI id"),
        ({"product_id": "0x"}, "product_id", "'0x' is not a PCI id"),
        ({"product_id": "-1"}, "product_id", "'-1' is not a PCI id"),
        ({"address": 10}, "address", "the number 10"),
        ({"address": ["0000:0a:00.0"]}, "address", "not a list"),
        ({"address": None}, "address", "null"),
        ({"address": "0000:0a:00.8"}, "address", "the function '8' is out of range: the highest is 7"),
        ({"address": "0000:0a:20.0"}, "address", "the slot '20' is out of range: the highest is 1f"),
        ({"address": "0000:100:00.0"}, "address", "the bus '100' is out of range: the highest is ff"),
        ({"address": "123456789:0a:00.0"}, "address", "the domain '123456789'"),
        ({"address": "0000:0a:00.0.1"}, "address", "the function '0.1'"),
        ({"address": "0000:0000:0a:00.0"}, "address", "too many colons"),
        ({"address": "0000:0?:00.0"}, "address", "the bus '0?' is neither hexadecimal nor '*'"),
        ({"address": "0000:0*:00.0"}, "address", "the bus '0*'"),
        ({"address": {"device": "00"}}, "address", "no field 'device', only domain, bus, slot, function"),
        ({"address": {"bus": "0["}}, "address", "the bus '0[' is not a regular expression"),
        ({"address": {"bus": "a{99999999999999999999}"}}, "address", "is not a regular expression"),
        ({"address": {"bus": ""}}, "address", "the bus is an empty regular expression"),
        ({"address": {"bus": 10}}, "address", "the bus must be a regular expression in a string, not the number 10"),
        (
            {"vendor_id": "*", "clear_action": "shred"},
            "clear_action",
            "one of auto, sanitize, zero, format, not the string",
        ),
        ({"vendor_id": "*", "clear_action": None}, "clear_action", "not null"),
        ({"vendor_id": "*", "clear_action": True}, "clear_action", "not the boolean true"),
        ({"vendor_id": "*", "clear_action": ["zero"]}, "clear_action", "not a list"),
        ({"vendor_id": "*", "clear_strategy": "Crypto"}, "clear_strategy", "one of auto, crypto, block"),
        ({"vendor_id": "*", "devname": "eth0"}, "devname", "a network interface, and an NVMe controller has none"),
        ({"vendor_id": "*", "one_time_use": True}, "one_time_use", "[pci] device_spec"),
        ({"vendor_id": "*", "Address": "0000:0a:00.0"}, "Address", "did you mean 'address'?"),
        ({"vendor_id": "*", "xyzzy": 1}, "xyzzy", "The keys are vendor_id, product_id, address"),
    ],
)
def test_a_bad_value_is_refused_with_its_option_entry_key_and_reason(
    entry: dict[str, Any], key: str, words: str
) -> None:
    error = refusal({"vendor_id": "8086"}, entry)
    assert (error.option, error.entry, error.key) == ("[nvme] device_spec", 2, key)
    assert words in str(error)


@pytest.mark.parametrize(
    "entry", [{}, {"clear_action": "zero"}, {"address": ""}, {"address": " : : . "}, {"address": {}}]
)
def test_an_entry_that_names_no_device_does_not_silently_mean_all_of_them(entry: dict[str, Any]) -> None:
    error = refusal(entry)
    assert (error.option, error.entry) == ("[nvme] device_spec", 1)
    assert 'write {"address": "*"}' in str(error)


def test_a_blank_address_beside_an_id_means_any_address_as_in_nova() -> None:
    assert one(vendor_id="8086", address="").matches("8086", "0001", at("0000:0a:00.0"))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('{"vendor_id": "8086", "vendor_id": "144d"}', "vendor_id"),
        ('{"vendor_id": "8086", "clear_action": "zero", "clear_action": "zero"}', "clear_action"),
        ('{"address": {"bus": "0a", "bus": "0b"}}', "bus"),
        ('[{"vendor_id": "8086"}, {"address": "*", "address": "*"}]', "address"),
    ],
)
def test_a_key_given_twice_is_refused_since_json_would_drop_the_first(text: str, key: str) -> None:
    error = refusal(text)
    assert error.key == key
    assert "given twice" in str(error)


@pytest.mark.parametrize("text", ["", "{", "{'vendor_id': '8086'}", '{"vendor_id": 0x8086}', "[" * 100_000])
def test_what_is_not_json_is_refused_with_the_entry_it_would_have_been(text: str) -> None:
    error = refusal('[{"vendor_id": "8086"}, {"vendor_id": "144d"}]', text)
    assert (error.option, error.entry) == ("[nvme] device_spec", 3)


@pytest.mark.parametrize("value", ["8086", '"8086"', "null", "true", '["8086"]', '[[{"vendor_id": "8086"}]]'])
def test_json_that_is_neither_an_object_nor_a_list_of_them_is_refused(value: str) -> None:
    assert "must be a JSON object" in str(refusal(value))


@given(st.text(alphabet='{}[]":,*.01a \\', max_size=30) | st.from_regex(r'\{"(address|bus|vendor_id)": .{0,9}\}'))
def test_whatever_is_written_it_is_understood_or_refused_by_name(text: str) -> None:
    try:
        specs = parse_device_spec([text])
    except InvalidConfiguration as e:
        where = (e.option, e.entry is not None)
    else:
        assert all(isinstance(json.loads(spec.text), dict) for spec in specs)
        return
    assert where == ("[nvme] device_spec", True)


# Other options


def _yes_or_no(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _only_one(keys: Any) -> None:
    if keys["big"] and keys.get("small"):
        raise ValueError("big and small exclude each other")


OTHER = ExtraKeys(parsers={"big": _yes_or_no, "small": _yes_or_no}, checks={"big": _only_one})


def test_another_option_brings_its_own_keys_and_its_own_name() -> None:
    (spec,) = parse_device_spec(['{"vendor_id": "10de", "big": true}'], option="[pci] device_spec", extra_keys=OTHER)
    assert dict(spec.extra) == {"big": True}
    error = refusal({"vendor_id": "10de", "clear_action": "zero"}, option="[pci] device_spec", extra_keys=OTHER)
    assert re.match(r"\[pci\] device_spec, entry 1, key 'clear_action': unknown key", str(error))
    error = refusal({"vendor_id": "10de", "small": "yes"}, option="[pci] device_spec", extra_keys=OTHER)
    assert (error.key, error.message) == ("small", "must be true or false")


def test_keys_of_another_option_that_contradict_each_other_are_refused() -> None:
    error = refusal({"vendor_id": "10de", "big": True, "small": True}, option="[pci] x", extra_keys=OTHER)
    assert (error.option, error.key, error.message) == ("[pci] x", "big", "big and small exclude each other")
    parse_device_spec(['{"vendor_id": "10de", "small": true}'], extra_keys=OTHER)
