"""The rules of a policy file are checked before they decide anything."""

import pytest

from autoclave.rules.policy_text import LONGEST_RULE, faults_of, rules_of

DEFAULTS = {"admin_api": "role:admin", "device:get": "rule:admin_api", "device:act": "rule:admin_api"}
KINDS = ("rule", "role", "user_id", "project_id", "https")


def faults(text: str) -> list[str]:
    rules, wrong = rules_of("policy.yaml", text)
    return [*wrong, *faults_of(rules, DEFAULTS, KINDS)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        '"device:get": "@"',
        '"device:get": "!"',
        '"device:get": "role:a or (role:b AND not role:c) or not not user_id:%(user_id)s"',
        '"device:get": "((role:a))"',
        '"device:get": "None:None or \'a\':b"',
        '"device:get": "https://policy.example/%(project_id)s"',
        '"team": "role:x"\n"device:get": "rule:team"',
        '{"device:get": "role:x"}',
    ],
)
def test_sound_rules_have_no_fault(text: str) -> None:
    assert faults(text) == []


@pytest.mark.parametrize(
    ("text", "line", "wanted"),
    [
        ('"device:get":\n', 1, "is empty"),
        ('# who\n"device:get": ""\n', 2, "is empty"),
        ('"device:get": []\n', 1, "is empty"),
        ('"device:get": "  "\n', 1, "ends where a check must follow"),
        ('"device:get": [["role:a"]]\n', 1, "must be a text in quotes"),
        ('"device:get": yes\n', 1, "must be a text in quotes"),
        ('"device:get": !\n', 1, "is empty"),
        ('"device:get": @\n', 1, "cannot be read as rules"),
        ("- a\n- b\n", 1, "cannot be read as rules"),
        ('"a": [\n', 1, "cannot be read as rules"),
        ('"device:get": "role:a"\n"device:get": "role:b"\n', 2, "given twice"),
        ('"device:got": "role:a"\n', 1, "'device:got' governs nothing"),
        ('"device:get": "rule:tame"\n', 1, "refers to 'tame'"),
        ('"device:get": "not rule:tame"\n', 1, "refers to 'tame'"),
        ('"device:get": "role:a or\n  rule:device:get"\n', 1, "refers to itself"),
        ('"device:get": "rule:device:act"\n"device:act": "rule:device:get"\n', 1, "refers to itself"),
        ('"device:get": "not role"\n', 1, "'role', which is not KIND:VALUE"),
        ('"device:get": "not role:"\n', 1, "not KIND:VALUE"),
        ('"device:get": "not roles:a"\n', 1, "'roles' is none of"),
        ('"device:get": "user_id.x:a"\n', 1, "'user_id.x' is none of"),
        ('"device:get": "1a:a"\n', 1, "'1a' is none of"),
        ('"device:get": "\'a:b\'"\n', 1, "not KIND:VALUE"),
        ('"device:get": "role:a role:b"\n', 1, "cannot be read at 'role:b'"),
        ('"device:get": "or role:b"\n', 1, "cannot be read at 'or'"),
        ('"device:get": "(role:b"\n', 1, "does not close a parenthesis"),
        ('"device:get": "role:b)"\n', 1, "does not open"),
        ('"device:get": "role:b and ()"\n', 1, "cannot be read at ')'"),
        ('"device:get": "role:a%"\n', 1, "cannot be filled in"),
        ('"device:get": "role:%d"\n', 1, "cannot be filled in"),
        ('"device:get": "role:%(target.id)s"\n', 1, "'target.id' is not known"),
        (f'"device:get": "{"not " * 500}role:a"\n', 1, "levels"),
        (f'"device:get": "{"a" * LONGEST_RULE}:a"\n', 1, "characters"),
    ],
)
def test_a_fault_names_file_line_and_rule(text: str, line: int, wanted: str) -> None:
    found = faults(text)
    assert found, text
    assert found[0].startswith(f"policy.yaml, line {line}: ")
    assert wanted in found[0]


def test_a_long_chain_of_rules_is_refused() -> None:
    chain = "".join(f'"r{n}": "rule:r{n + 1}"\n' for n in range(50))
    assert any("one after the other" in fault for fault in faults(f'"device:get": "rule:r0"\n{chain}"r50": "@"\n'))


def test_every_fault_is_found() -> None:
    assert len(faults('"device:get":\n"device:act": "role"\n"x": "@"\n')) == 3
