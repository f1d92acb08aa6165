"""The quick check says of a document what jsonschema says of it."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from autoclave.rules.provider_config import model
from autoclave.rules.provider_config.quick_check import compiled

GOOD: dict[str, Any] = {
    "meta": {"schema_version": "1.0", "more": 1},
    "providers": [
        {
            "identification": {"uuid": "6b1d0b3a-0000-4000-8000-00000000abcd"},
            "inventories": {"additional": [{"CUSTOM_A": {"total": 1, "allocation_ratio": 1.5}}]},
            "traits": {"additional": ["CUSTOM_T"]},
        },
        {"identification": {"name": "n"}, "inventories": {"additional": {"CUSTOM_B": {"total": 2.0, "reserved": 0}}}},
    ],
}
VALUES = [None, True, 0, -1, 1.5, 2**31, 1e39, float("nan"), float("inf"), "", "x", "1.0\n", "CUSTOM_X", "x" * 300]
VALUES += [[], {}, [{}], {"total": 1}, {"uuid": "$COMPUTE_NODE", "name": "n"}, {"custom": {"total": 1}}]


def paths(value: Any) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        yield (key,)
        yield from ((key, *rest) for rest in paths(child))


def changed(path: tuple[Any, ...]) -> Iterator[Any]:
    """The good document with what is at *path* replaced, or taken away."""
    for value in (*VALUES, ...):
        document = copy.deepcopy(GOOD)
        here: Any = document
        for step in path[:-1]:
            here = here[step]
        if value is ...:
            del here[path[-1]]
        else:
            here[path[-1]] = value
        yield document


@pytest.mark.parametrize("path", list(paths(GOOD)), ids=str)
def test_quick_check_agrees_with_jsonschema(path: tuple[Any, ...]) -> None:
    for document in changed(path):
        assert model._IS_SOUND(document) == model._VALIDATOR.is_valid(document), document


@pytest.mark.parametrize("document", [GOOD, *VALUES], ids=repr)
def test_quick_check_agrees_on_whole_documents(document: Any) -> None:
    assert model._IS_SOUND(document) == model._VALIDATOR.is_valid(document)


def test_unknown_keyword_is_refused() -> None:
    with pytest.raises(ValueError, match="uniqueItems"):
        compiled({"uniqueItems": True}, {})
