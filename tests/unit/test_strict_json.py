"""JSON that is nested without end is refused before it is parsed."""

import json

import pytest

from autoclave.rules.json_options import MAX_DEPTH, TooDeep, loads

DEEP = "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)


@pytest.mark.parametrize(
    "document",
    [
        "[" * 100,
        '"' + "[" * 100,
        'a"\\"' + "{" * 100,
        ['"' + "{" * 100, "\\", "]"],
        {"[" * 100: ["\\\\" + '"' + "[" * 100]},
        [[]] * 100,
        json.loads("[" * MAX_DEPTH + "]" * MAX_DEPTH),
    ],
)
def test_brackets_in_texts_and_in_a_row_are_no_depth(document: object) -> None:
    assert loads(json.dumps(document)) == document


@pytest.mark.parametrize("text", [DEEP, DEEP[: MAX_DEPTH + 1], '["]', " " + DEEP, '{"' + '\\"' * 9 + '":' + DEEP + "}"])
def test_one_level_too_many_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not JSON" if text == '["]' else str(TooDeep())):
        loads(text)
