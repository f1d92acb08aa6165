"""Files of provider configuration are read as their specification says, and whatever is wrong with them is told."""

import gc
import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from placement.db.constants import MAX_INT
from placement.handlers.inventory import INVENTORY_DEFAULTS
from placement.schemas.inventory import PUT_INVENTORY_RECORD_SCHEMA
from placement.schemas.resource_class import POST_RC_SCHEMA_V1_2

from autoclave.exceptions import InvalidConfiguration, ProviderConfigFaults
from autoclave.rules.located_yaml import MAX_VALUES
from autoclave.rules.provider_config import COMPUTE_NODE, ProviderConfig, ProviderEntry, parse
from autoclave.rules.provider_config.model import SCHEMA
from autoclave.rules.provider_config.parsing import MAX_FAULTS

UUID = "9f2c6c1e-4d53-4d5c-8c0b-0a6f1f6d7b11"
HEAD = "meta: {schema_version: 1.0}\nproviders:\n"


def outcome(*texts: str) -> ProviderConfig | ProviderConfigFaults:
    """What is read of files named 1.yaml, 2.yaml…, or all that is wrong with them."""
    try:
        return parse({f"{number}.yaml": text for number, text in enumerate(texts, 1)})
    except ProviderConfigFaults as refused:
        return refused


def faults(*texts: str) -> list[str]:
    refused = outcome(*texts)
    assert isinstance(refused, ProviderConfigFaults)
    assert isinstance(refused, InvalidConfiguration)
    assert all(fault in str(refused) for fault in refused.faults)
    return list(refused.faults)


def entry(body: str) -> ProviderEntry:
    [found] = parse({"1.yaml": f"{HEAD}- {body}\n"}).entries
    return found


def inventory_faults(record: str) -> list[str]:
    text = f"{HEAD}- identification: {{name: n}}\n  inventories: {{additional: {{CUSTOM_LLC: {record}}}}}\n"
    return [fault.removeprefix("1.yaml:4: providers[0].inventories.additional.CUSTOM_LLC") for fault in faults(text)]


SPECIFIED = """
meta:
  schema_version: 1.0

providers:
  # List of dicts
  - identification:
        uuid: $COMPUTE_NODE
    inventories:
        additional:
            CUSTOM_LLC:
                # total indicates sum of sizes of all LLC
                total: 22
                reserved: 2
                min_unit: 1
                max_unit: 11
                step_size: 1
                allocation_ratio: 1
    traits:
        additional:
            - CUSTOM_P_STATE_ENABLED
"""


def test_the_example_of_the_specification_is_understood() -> None:
    [found] = parse({"llc.yaml": SPECIFIED}).entries
    assert found.uuid == COMPUTE_NODE
    assert found.means_every_compute_node
    llc = found.inventories["CUSTOM_LLC"]
    assert (llc.total, llc.reserved, llc.min_unit, llc.max_unit, llc.step_size) == (22, 2, 1, 11, 1)
    assert llc.allocation_ratio == 1.0
    assert str(llc.place) == "llc.yaml:11: providers[0].inventories.additional.CUSTOM_LLC"
    assert {name: str(place) for name, place in found.traits.items()} == {
        "CUSTOM_P_STATE_ENABLED": "llc.yaml:21: providers[0].traits.additional[0]"
    }


def test_inventories_are_the_same_as_a_mapping_and_as_a_list_of_mappings() -> None:
    mapping = entry(
        "{identification: {name: n}, inventories: {additional: {CUSTOM_A: {total: 1}, CUSTOM_B: {total: 2}}}}"
    )
    listed = entry(
        "{identification: {name: n}, inventories: {additional: [CUSTOM_A: {total: 1}, CUSTOM_B: {total: 2}]}}"
    )
    assert mapping.inventories == listed.inventories
    assert {name: record.total for name, record in listed.inventories.items()} == {"CUSTOM_A": 1, "CUSTOM_B": 2}


def test_fields_that_are_left_out_are_what_placement_makes_of_them() -> None:
    record = entry("{identification: {name: n}, inventories: {additional: {CUSTOM_A: {total: 7}}}}").inventories[
        "CUSTOM_A"
    ]
    assert {name: getattr(record, name) for name in INVENTORY_DEFAULTS} == INVENTORY_DEFAULTS
    assert record.total == 7


@pytest.mark.parametrize("version", ["1.0", "'1.0'", '"1.7"', "1.7", "'1.12'"])
def test_every_minor_version_of_the_schema_is_read(version: str) -> None:
    assert parse({"1.yaml": f"meta: {{schema_version: {version}}}\nproviders: [identification: {{name: n}}]"}).entries


@pytest.mark.parametrize("version", ["2.0", "'2.0'", "0.9", '"10.0"'])
def test_of_another_major_version_nothing_but_the_version_is_judged(version: str) -> None:
    [fault] = faults(f"meta:\n  schema_version: {version}\nproviders: 7\n")
    assert fault.startswith(f"1.yaml:2: meta.schema_version: '{version.strip(chr(34) + chr(39))}' cannot be read")


@pytest.mark.parametrize("version", ["'1'", "'1.01'", "one", '"1.0\\n"', "[1.0]", "true", "null", "1.x"])
def test_a_version_that_is_none_is_told_with_all_else(version: str) -> None:
    [first, second] = faults(f"meta:\n  schema_version: {version}\nproviders: 7\n")
    assert first.startswith("1.yaml:2: meta.schema_version: ")
    assert second == "1.yaml:3: providers: must be a list, not the number 7"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "1.yaml:1: is empty"),
        ("# nothing\n", "1.yaml:1: is empty"),
        ("- a\n", "1.yaml:1: must be a mapping, not a list"),
        ("\nproviders: []\n", "1.yaml:2: meta is missing"),
        ("2.0\n", "1.yaml:1: must be a mapping, not the number 2.0"),
        ("meta: 2.0\n", "1.yaml:1: meta: must be a mapping, not the number 2.0"),
        ("meta: {}\n", "1.yaml:1: meta: schema_version is missing"),
        ("meta: {schema_version: 1.0}\nproviders:\n", "1.yaml:2: providers: must be a list, not null"),
        (f"{HEAD}- {{}}\n", "1.yaml:3: providers[0]: identification is missing"),
        ("a: b: c\n", "1.yaml:1: not YAML: mapping values are not allowed in this context"),
        ("meta:\n  a: [\n", "1.yaml:2: not YAML: while parsing a flow node, did not find expected node content"),
        (
            "a: 1\n---\na: 2\n",
            "1.yaml:2: not YAML: expected a single document in the stream, but found another document",
        ),
        ("meta:\n  a: \x01\n", "1.yaml:2: not YAML: control characters are not allowed"),
        ("meta: \ud800\n", "1.yaml:1: not YAML: half of a surrogate pair"),
        ("meta: *a\n", "1.yaml:1: not YAML: found undefined alias"),
        ("meta: &a\n  b: *a\n", "1.yaml:1: meta.b: refers to itself by an alias"),
        (
            "meta: !!python/name:os.system x\n",
            "1.yaml:1: meta: 'x' cannot be read as the YAML type 'python/name:os.system'",
        ),
        ("meta: !other {}\n", "1.yaml:1: meta: the tag '!other' has no meaning here"),
        ("meta: !!bool maybe\n", "1.yaml:1: meta: 'maybe' cannot be read as the YAML type 'bool'"),
        ("meta: !!int ''\n", "1.yaml:1: meta: '' cannot be read as the YAML type 'int'"),
        ("meta: 2001-99-99\n", "1.yaml:1: meta: '2001-99-99' cannot be read as the YAML type 'timestamp'"),
        ("[a]: b\n", "1.yaml:1: a key must be a text, not a collection"),
        ("meta: {<<: 7}\n", "1.yaml:1: meta: what << names must be a mapping or a list of mappings"),
        (
            "meta: " + "[" * 60 + "]" * 60,
            "1.yaml:1: meta" + "[0]" * 50 + ": more than 50 collections within each other",
        ),
        ("meta: " + "[" * 9999, "1.yaml:1: not YAML: while increasing flow level, exceeded maximum nesting depth"),
    ],
    ids=range(25),
)
def test_a_file_that_is_no_such_document_is_refused_with_the_line_and_the_reason(text: str, fault: str) -> None:
    [found] = faults(text)
    assert found.startswith(fault)


def test_aliases_cannot_make_a_small_file_endless() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    [fault] = faults("\n".join(lines))
    assert fault == "1.yaml:6: a5: stands for more than 200000 values; use fewer aliases"


def test_anchors_and_merge_keys_are_understood_and_what_is_nearer_counts() -> None:
    found = entry(
        "identification: {name: n}\n"
        "  x: &one {total: 1, reserved: 1, max_unit: 8}\n"
        "  y: &two {total: 2, min_unit: 2}\n"
        "  inventories:\n    additional:\n      CUSTOM_A: {<<: [*one, *two], reserved: 0}\n      CUSTOM_B: *two"
    )
    both, alias = found.inventories["CUSTOM_A"], found.inventories["CUSTOM_B"]
    assert (both.total, both.reserved, both.min_unit, both.max_unit) == (1, 0, 2, 8)
    assert (alias.total, alias.min_unit) == (2, 2)


def test_a_key_given_twice_is_refused_at_any_depth_even_where_nothing_is_meant() -> None:
    assert faults(f"{HEAD}- identification: {{name: n}}\n  x: {{1: a, '1': b}}\n  identification: {{name: m}}\n") == [
        "1.yaml:4: providers[0].x.1: given twice in one mapping, first in line 4; keep one of them",
        "1.yaml:5: providers[0].identification: given twice in one mapping, first in line 3; keep one of them",
    ]


def test_an_identification_names_exactly_one_provider() -> None:
    assert faults(
        HEAD + f"- identification: {{uuid: {UUID}, name: n}}\n"
        "- identification: {}\n"
        "- identification: n\n"
        "- identification: {uuid: 9f2c6c1e}\n"
        "- identification: {uuid: $compute_node}\n"
        "- identification: {name: ''}\n"
        "- identification: {name: 0123}\n"
        f"- identification: {{name: {'n' * 201}}}\n"
        f'- identification: {{uuid: "{UUID}\\n"}}\n'
    ) == [
        "1.yaml:3: providers[0].identification: must have exactly one of uuid and name, and has both",
        "1.yaml:4: providers[1].identification: must have exactly one of uuid and name, and has neither",
        "1.yaml:5: providers[2].identification: must be a mapping, not the string 'n'",
        "1.yaml:6: providers[3].identification.uuid: '9f2c6c1e' is neither a uuid nor $COMPUTE_NODE",
        "1.yaml:7: providers[4].identification.uuid: '$compute_node' is neither a uuid nor $COMPUTE_NODE",
        "1.yaml:8: providers[5].identification.name: is empty",
        "1.yaml:9: providers[6].identification.name: must be a string, not the number 0123; put it in quotes",
        "1.yaml:10: providers[7].identification.name: must have 200 characters or fewer, and has 201",
        f"1.yaml:11: providers[8].identification.uuid: '{UUID}\\n' is neither a uuid nor $COMPUTE_NODE",
    ]


def test_the_case_of_a_uuid_does_not_count() -> None:
    assert entry(f"identification: {{uuid: {UUID.upper()}}}").uuid == UUID


def test_compute_node_is_understood_as_a_name_too_since_files_for_nova_have_it() -> None:
    assert entry("identification: {name: $COMPUTE_NODE}") == entry("identification: {uuid: $COMPUTE_NODE}")


@pytest.mark.parametrize(
    ("first", "second", "called"),
    [
        ("name: n", "name: n", "n"),
        ("name: host_0000:0A:00.0", "name: host_0000:0a:00.0", "host_0000:0a:00.0"),
        (f"uuid: {UUID}", f"uuid: {UUID.upper()}", UUID),
        ("uuid: $COMPUTE_NODE", "name: $COMPUTE_NODE", "$COMPUTE_NODE"),
    ],
)
def test_a_provider_has_one_entry_over_all_files_and_both_places_are_named(
    first: str, second: str, called: str
) -> None:
    [fault] = faults(
        f"{HEAD}- identification: {{{first}}}\n",
        f"{HEAD}- identification: {{name: x}}\n- identification: {{{second}}}\n",
    )
    assert fault == (
        f"2.yaml:4: providers[1]: {called!r} has an entry already, at 1.yaml:3: providers[0]; merge the two"
    )


def test_a_provider_given_twice_is_found_though_both_entries_have_other_faults() -> None:
    one = "- {identification: {name: n}, traits: 7}\n"
    assert len(faults(HEAD + one + one)) == 3


@pytest.mark.parametrize(
    "name", ["VCPU", "CUSTOM_", "CUSTOM_a", "custom_A", "CUSTOM_A-B", "HW_CPU_X86_AVX", '"CUSTOM_A\\n"']
)
def test_only_custom_classes_and_traits_are_taken(name: str) -> None:
    plain = repr(yaml.safe_load(name))
    assert faults(
        f"{HEAD}- identification: {{name: n}}\n  inventories: {{additional: {{{name}: {{total: 1}}}}}}\n"
        f"- identification: {{name: m}}\n  inventories: {{additional: [{{{name}: {{total: 1}}}}]}}\n"
        f"- identification: {{name: o}}\n  traits:\n    additional:\n    - CUSTOM_A\n    - {name}\n"
    ) == [
        f"1.yaml:4: providers[0].inventories.additional{key(yaml.safe_load(name))}: {plain} is no custom name: "
        "only CUSTOM_ followed by A-Z, 0-9 and _ can be added",
        f"1.yaml:6: providers[1].inventories.additional[0]{key(yaml.safe_load(name))}: {plain} is no custom name: "
        "only CUSTOM_ followed by A-Z, 0-9 and _ can be added",
        f"1.yaml:11: providers[2].traits.additional[1]: {plain} is no custom name: "
        "only CUSTOM_ followed by A-Z, 0-9 and _ can be added",
    ]


def key(name: str) -> str:
    return f".{name}" if name.isprintable() else f"[{name!r}]"


def test_a_name_longer_than_placement_takes_is_refused() -> None:
    name = "CUSTOM_" + "A" * 249
    [fault] = faults(f"{HEAD}- identification: {{name: n}}\n  traits: {{additional: [{name}]}}\n")
    assert fault == "1.yaml:4: providers[0].traits.additional[0]: must have 255 characters or fewer, and has 256"


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ("{}", [": total is missing"]),
        ("null", [": must be a mapping, not null"]),
        ("22", [": must be a mapping, not the number 22"]),
        ("{total: 0}", [".total: must be 1 or more, not 0"]),
        ("{total: -5}", [".total: must be 1 or more, not -5"]),
        ("{total: true}", [".total: must be an integer, not the boolean true"]),
        ("{total: '22'}", [".total: must be an integer, not the string '22'"]),
        ("{total: 1.5}", [".total: must be an integer, not the number 1.5"]),
        ("{total: 2147483648}", [".total: must be 2147483647 or less, not 2147483648"]),
        (f"{{total: 0x{'f' * 5000}}}", [f".total: '0x{'f' * 75}...' is too large a number"]),
        (f"{{total: 0x{'f' * 200}}}", [f".total: must be 2147483647 or less, not 0x{'f' * 75}..."]),
        (f"{{total: {'9' * 5000}}}", [f".total: '{'9' * 77}...' cannot be read as the YAML type 'int'"]),
        ("{total: .inf}", [".total: must be an integer, not .inf, which is none"]),
        ("{total: 2001-01-01}", [".total: must be an integer, not '2001-01-01', which YAML takes for a date"]),
        ("{total: 1, reserved: 2}", [".reserved: must not be more than total, which is 1"]),
        ("{total: 1, reserved: -1}", [".reserved: must be 0 or more, not -1"]),
        ("{total: 1, min_unit: 0}", [".min_unit: must be 1 or more, not 0"]),
        ("{total: 1, min_unit: 3, max_unit: 2}", [".min_unit: must not be more than max_unit, which is 2"]),
        ("{total: 1, step_size: 0}", [".step_size: must be 1 or more, not 0"]),
        ("{total: 1, allocation_ratio: 0}", [".allocation_ratio: must be more than 0, not 0"]),
        ("{total: 1, allocation_ratio: .nan}", [".allocation_ratio: must be a number, not .nan, which is none"]),
        ("{total: 1, allocation_ratio: 1.0e+39}", [".allocation_ratio: must be 3.40282e+38 or less, not 1.0e+39"]),
        (
            "{total: 1, reserved: 2, step_size: no}",
            [
                ".reserved: must not be more than total, which is 1",
                ".step_size: must be an integer, not the boolean no",
            ],
        ),
    ],
    ids=range(23),
)
def test_an_inventory_that_placement_would_not_take_or_that_makes_no_sense_is_refused(
    record: str, expected: list[str]
) -> None:
    assert inventory_faults(record) == expected


def test_a_class_has_one_inventory_in_an_entry() -> None:
    listed = "- CUSTOM_A: {total: 1}\n    - CUSTOM_B: {total: 1}\n    - CUSTOM_A: {total: 2}\n"
    [fault] = faults(f"{HEAD}- identification: {{name: n}}\n  inventories:\n    additional:\n    {listed}")
    place = "1.yaml:8: providers[0].inventories.additional[2].CUSTOM_A"
    assert fault == f"{place}: has an inventory already, in line 6; keep one of them"


def test_unknown_fields_are_accepted_at_every_level_and_told() -> None:
    text = (
        "x: 1\nmeta: {schema_version: '1.3', y: 1}\nproviders:\n- z: {a: {b: c}}\n  identification: {name: n, uid: 3}\n"
        "  inventories:\n    replaced: {}\n    additional:\n      CUSTOM_A: {total: 1, reservd: 1}\n"
        "  traits:\n    aditional: []\n"
    )
    config = parse({"1.yaml": text})
    assert [(found.name, found.inventories["CUSTOM_A"].reserved, dict(found.traits)) for found in config.entries] == [
        ("n", 0, {})
    ]
    assert config.notes == (
        "1.yaml:1: x: unknown field, ignored",
        "1.yaml:2: meta.y: unknown field, ignored",
        "1.yaml:4: providers[0].z: unknown field, ignored",
        "1.yaml:5: providers[0].identification.uid: unknown field, ignored; did you mean uuid?",
        "1.yaml:7: providers[0].inventories.replaced: unknown field, ignored",
        "1.yaml:9: providers[0].inventories.additional.CUSTOM_A.reservd: unknown field, ignored; "
        "did you mean reserved?",
        "1.yaml:11: providers[0].traits.aditional: unknown field, ignored; did you mean additional?",
    )


def test_all_faults_of_all_files_are_told_together() -> None:
    found = faults("meta: [\n", f"{HEAD}- identification: {{uuid: x}}\n  traits: {{additional: [A, B]}}\n", "")
    assert [fault.partition(":")[0] for fault in found] == ["1.yaml", "2.yaml", "2.yaml", "2.yaml", "3.yaml"]


def test_no_file_configures_nothing() -> None:
    assert parse({}) == ProviderConfig()


def test_the_schema_that_is_shipped_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$id"].endswith(":1.0")


INVENTORY_FIELDS = st.fixed_dictionaries(
    {"total": st.integers(-1, MAX_INT + 1) | st.floats()},
    optional={
        **dict.fromkeys(
            ["reserved", "min_unit", "max_unit", "step_size"], st.integers(-1, MAX_INT + 1) | st.booleans()
        ),
        "allocation_ratio": st.floats() | st.integers(-1, 10**40),
    },
)


@given(INVENTORY_FIELDS)
def test_every_inventory_that_is_read_is_one_that_placement_takes(fields: dict[str, Any]) -> None:
    provider = {"identification": {"name": "n"}, "inventories": {"additional": {"CUSTOM_A": fields}}}
    found = outcome(yaml.safe_dump({"meta": {"schema_version": "1.0"}, "providers": [provider]}))
    if isinstance(found, ProviderConfigFaults):
        assert all(".CUSTOM_A." in fault for fault in found.faults)
        return
    record = {name: getattr(found.entries[0].inventories["CUSTOM_A"], name) for name in ["total", *INVENTORY_DEFAULTS]}
    Draft202012Validator(PUT_INVENTORY_RECORD_SCHEMA).validate(record)
    assert record["reserved"] <= record["total"]
    assert all(type(value) is int for name, value in record.items() if name != "allocation_ratio")


@given(st.from_regex(SCHEMA["$defs"]["custom_name"]["pattern"]).filter(lambda name: len(name) <= 255))
def test_every_class_that_is_read_is_one_that_placement_takes(name: str) -> None:
    found = entry(f"identification: {{name: n}}\n  inventories: {{additional: {{{name}: {{total: 1}}}}}}")
    [made] = found.inventories
    Draft202012Validator(POST_RC_SCHEMA_V1_2).validate({"name": made})


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates()
WORDS = st.sampled_from(
    [
        *("meta", "schema_version", "providers", "identification", "uuid", "name", "inventories", "traits"),
        *("additional", "CUSTOM_A", "CUSTOM_B", "VCPU", "total", "reserved", "min_unit", "allocation_ratio", "<<", "1"),
    ]
)
ANYTHING = st.recursive(
    SCALARS | WORDS | st.sampled_from([COMPUTE_NODE, UUID, UUID.upper()]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=20,
)
NEAR_MISSES = st.fixed_dictionaries(
    {"meta": st.just({"schema_version": 1.0}), "providers": st.lists(ANYTHING, max_size=3)}
)


def told(text: str) -> None:
    """Reading *text* ends in entries or in faults, each in one line with file and line; nothing else comes out."""
    found = outcome(text)
    if isinstance(found, ProviderConfigFaults):
        assert found.faults
        for fault in found.faults:
            file, line, _ = fault.split(":", 2)
            assert file == "1.yaml"
            assert 1 <= int(line) <= max(1, len(text.splitlines()))
            assert len(fault.splitlines()) == 1


@given(st.text())
def test_no_text_ends_in_anything_but_entries_or_faults(text: str) -> None:
    told(text)
    told(HEAD + text)


@given(NEAR_MISSES)
def test_no_document_ends_in_anything_but_entries_or_faults(document: dict[str, Any]) -> None:
    told(yaml.safe_dump(document))


@given(st.data())
def test_no_damage_to_a_good_file_ends_in_anything_but_entries_or_faults(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(SPECIFIED)))
    end = data.draw(st.integers(start, min(len(SPECIFIED), start + 20)))
    instead = data.draw(st.text("&*!|>'\"%@`{}[],:?- \n\t#<=~01.eNaN$\ud800", max_size=6))
    told(SPECIFIED[:start] + instead + SPECIFIED[end:])


def test_json_is_read_as_the_yaml_that_it_is() -> None:
    document = {"meta": {"schema_version": "1.0"}, "providers": [{"identification": {"uuid": UUID}}]}
    assert parse({"1.yaml": json.dumps(document)}).entries[0].uuid == UUID


def many(piece: str, number: int = 5000) -> str:
    return "meta: {schema_version: 1.0}\nproviders:\n" + "".join(piece.format(n) for n in range(number))


@pytest.mark.parametrize(
    "text",
    [
        many("  - {{identification: {{uuid: x{0}}}}}\n"),
        many("  - {{identification: {{name: n}}}}\n"),
        many("  - {{identification: {{name: n{0}}}, identification: {{name: m{0}}}}}\n"),
        many(
            "  - identification: {{name: n{0}}}\n"
            "    inventories: {{additional: {{CUSTOM_A: {{total: 1, reserved: 2}}}}}}\n"
        ),
    ],
    ids=["schema", "same provider", "key twice", "reserved"],
)
def test_number_of_faults_told_is_bounded(text: str) -> None:
    told = faults(text)
    assert len(told) == MAX_FAULTS + 1
    assert "There is more" in told[-1]
    assert len(faults(text, text)) == MAX_FAULTS + 1


def test_number_of_ignored_fields_told_is_bounded() -> None:
    found = outcome(many("  - {{identification: {{name: n{0}}}, traitz: 1}}\n"))
    assert isinstance(found, ProviderConfig)
    assert len(found.entries) == 5000
    assert len(found.notes) == MAX_FAULTS + 1


@pytest.mark.parametrize(
    "text",
    [
        "x: &a\n" + "".join(f"  k{n}: 1\n" for n in range(1000)) + f"y:\n  <<: [{'*a, ' * 1000}]\n",
        "x0: &a0 {k0: 1}\n" + "".join(f"x{n}: &a{n} {{<<: *a{n - 1}, k{n}: 1}}\n" for n in range(1, 1000)),
    ],
    ids=["one mapping again and again", "a chain"],
)
def test_merges_are_counted_before_they_are_done(text: str) -> None:
    [fault] = faults(text)
    assert f"<< names more than {MAX_VALUES} values" in fault


def test_garbage_collector_runs_again_after_a_fault() -> None:
    faults("a: [")
    assert gc.isenabled()
