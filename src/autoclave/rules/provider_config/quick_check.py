"""Compile a JSON Schema into one function that returns only whether a value is valid.

jsonschema also returns the faults with their location. It takes ten times as long, so it runs only for invalid values.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Check = Callable[[Any], bool]

_ANNOTATIONS = frozenset({"$schema", "$id", "$comment", "$defs", "title", "description", "default"})
_REF = "#/$defs/"


def compiled(schema: Mapping[str, Any], types: Mapping[str, Check]) -> Check:
    """Return the check of *schema*.

    :param types: the check of each JSON type, by the type's name.
    :raises ValueError: the schema has an unsupported keyword.
    """
    return _Compiler(schema, types).check(schema)


class _Compiler:
    def __init__(self, root: Mapping[str, Any], types: Mapping[str, Check]) -> None:
        self._root = root
        self._types = types
        self._made: dict[str, Check] = {}

    def check(self, schema: Mapping[str, Any]) -> Check:
        if "$ref" in schema:
            name = schema["$ref"].removeprefix(_REF)
            if name not in self._made:
                self._made[name] = self.check(self._root["$defs"][name])
            return self._made[name]
        checks = list(self._checks({key: value for key, value in schema.items() if key not in _ANNOTATIONS}))
        return checks[0] if len(checks) == 1 else lambda value: all(check(value) for check in checks)

    def _checks(self, schema: dict[str, Any]) -> Iterable[Check]:
        if "type" in schema:
            wanted = schema.pop("type")
            yield self._type([wanted] if isinstance(wanted, str) else wanted)
        if schema.keys() & {"required", "properties", "additionalProperties", "propertyNames", "oneOf"}:
            yield self._mapping(
                schema.pop("required", []),
                {name: self.check(each) for name, each in schema.pop("properties", {}).items()},
                self._optional(schema, "additionalProperties"),
                self._optional(schema, "propertyNames"),
                [self.check(each) for each in schema.pop("oneOf", [])],
            )
        if (item := self._optional(schema, "items")) is not None:
            yield lambda value: not isinstance(value, list) or all(item(each) for each in value)
        if schema.keys() & {"pattern", "minLength", "maxLength"}:
            yield _text(schema.pop("pattern", ""), schema.pop("minLength", 0), schema.pop("maxLength", None))
        if schema.keys() & _LIMITS.keys():
            yield self._number({name: schema.pop(name) for name in _LIMITS if name in schema})
        if schema:
            raise ValueError(f"keywords that are not known: {', '.join(schema)}")

    def _optional(self, schema: dict[str, Any], key: str) -> Check | None:
        return self.check(schema.pop(key)) if key in schema else None

    def _type(self, names: list[str]) -> Check:
        [first, *others] = [self._types[name] for name in names]
        if not others:
            return first
        return lambda value: first(value) or any(other(value) for other in others)

    def _mapping(
        self,
        required: list[str],
        properties: dict[str, Check],
        others: Check | None,
        names: Check | None,
        one: list[Check],
    ) -> Check:
        def check(value: Any) -> bool:
            if not isinstance(value, dict):
                return True
            for key in required:
                if key not in value:
                    return False
            for key, each in value.items():
                inner = properties.get(key, others)
                if inner is not None and not inner(each):
                    return False
            if names is not None and not all(names(key) for key in value):
                return False
            return not one or sum([each(value) for each in one]) == 1

        return check

    def _number(self, limits: Mapping[str, float]) -> Check:
        is_number = self._types["number"]
        tests = [(_LIMITS[name], limit) for name, limit in limits.items()]
        return lambda value: not is_number(value) or all(test(value, limit) for test, limit in tests)


_LIMITS: Mapping[str, Callable[[Any, Any], bool]] = {
    "minimum": lambda value, limit: value >= limit,
    "exclusiveMinimum": lambda value, limit: value > limit,
    "maximum": lambda value, limit: value <= limit,
    "exclusiveMaximum": lambda value, limit: value < limit,
}


def _text(pattern: str, least: int, most: int | None) -> Check:
    search = re.compile(pattern).search

    def check(value: Any) -> bool:
        if not isinstance(value, str):
            return True
        return least <= len(value) and (most is None or len(value) <= most) and search(value) is not None

    return check
