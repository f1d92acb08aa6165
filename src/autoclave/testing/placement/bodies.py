"""Reading the bodies of requests to the double. What cannot be understood is refused with 400."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from oslo_utils import uuidutils

from autoclave.placement.records import ConsumerAllocations, Inventory
from autoclave.testing.placement.ledger import Refusal

_T = TypeVar("_T")

_DEFAULTS: Mapping[str, int | float] = {
    "reserved": 0,
    "min_unit": 1,
    "max_unit": 2**31 - 1,
    "step_size": 1,
    "allocation_ratio": 1.0,
}
_AT_LEAST = {"total": 1, "reserved": 0, "min_unit": 1, "max_unit": 1, "step_size": 1}
_GENERATION = "resource_provider_generation"


def document(raw: bytes) -> Any:
    return _understood(lambda: json.loads(raw) if raw else None)


def new_provider(body: Any) -> tuple[str, str, str | None]:
    """Its uuid, name and parent."""
    return _understood(lambda: (_uuid(body["uuid"]), _text(body["name"]), body.get("parent_provider_uuid")))


def name(body: Any) -> str:
    return _understood(lambda: _text(body["name"]))


def generation(body: Any) -> int:
    return _understood(lambda: _integer(body, _GENERATION, 0))


def inventories(body: Any) -> dict[str, Inventory]:
    return _understood(lambda: {name: _record(values) for name, values in body["inventories"].items()})


def traits(body: Any) -> set[str]:
    return _understood(lambda: {_text(name) for name in body["traits"]})


def claim(consumer: str, body: Any) -> ConsumerAllocations:
    return _understood(lambda: _claim(consumer, body))


def claims(body: Any) -> Sequence[ConsumerAllocations]:
    return _understood(lambda: [_claim(consumer, each) for consumer, each in body.items()])


def _understood(read: Callable[[], _T]) -> _T:
    try:
        return read()
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as exc:
        raise Refusal(400, f"JSON does not validate: {exc!r}") from exc


def _record(values: Mapping[str, Any]) -> Inventory:
    # What is left out gets its default again, silently, also where another value stood.
    whole = {**_DEFAULTS, **values}
    for name, least in _AT_LEAST.items():
        _integer(whole, name, least)
    return Inventory(**whole)


def _claim(consumer: str, body: Any) -> ConsumerAllocations:
    return ConsumerAllocations(
        _uuid(consumer),
        {
            _uuid(provider): {name: _integer(held["resources"], name, 1) for name in _some(held["resources"])}
            for provider, held in body["allocations"].items()
        },
        None if body["consumer_generation"] is None else _integer(body, "consumer_generation", 0),
        _text(body["project_id"]),
        _text(body["user_id"]),
        _text(body["consumer_type"]),
    )


def _some(resources: Mapping[str, Any]) -> Mapping[str, Any]:
    if not resources:
        raise ValueError("an allocation of nothing")
    return resources


def _integer(document: Mapping[str, Any], key: str, least: int) -> int:
    value = document[key]
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{key} is {value!r}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is not text")
    return value


def _uuid(value: Any) -> str:
    if not uuidutils.is_uuid_like(value):
        raise ValueError(f"{value!r} is not a uuid")
    return _text(value)
