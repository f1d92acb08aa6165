"""Define provider configuration: its records and its formal schema.

The schema is a file of its own, and the only copy. Editors and other programs can use it, the documentation shows it,
and the agent enforces it. It is read and compiled once, at import.
"""

import difflib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from itertools import islice
from typing import Any

from jsonschema import Draft202012Validator, TypeChecker
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend

from autoclave.rules.located_yaml import Found, Located, Path, Unreadable, quoted
from autoclave.rules.provider_config.quick_check import compiled

COMPUTE_NODE = "$COMPUTE_NODE"
"""Stands for every compute node of the agent that no other entry names."""


@dataclass(frozen=True)
class Place:
    """Locate a value in a file.

    :param file: the file name as passed to the parser.
    :param line: counted from 1.
    :param path: the keys and list positions (counted from 0) that lead there, such as ``providers[0].traits``.
    """

    file: str
    line: int
    path: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.path}" if self.path else f"{self.file}:{self.line}"


@dataclass(frozen=True)
class AddedInventory:
    """Hold a whole inventory record. Omitted fields have Placement's own defaults.

    :param place: its location in the file; ignored in comparisons.
    """

    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float
    place: Place = field(compare=False)


@dataclass(frozen=True)
class ProviderEntry:
    """Hold one entry: a provider and its additions. Exactly one of *uuid* and *name* is given.

    :param uuid: in lower case, or :data:`COMPUTE_NODE`.
    :param inventories: by resource class.
    :param traits: each with its location.
    """

    place: Place
    uuid: str | None
    name: str | None
    inventories: Mapping[str, AddedInventory] = field(default_factory=dict, hash=False)
    traits: Mapping[str, Place] = field(default_factory=dict, hash=False)

    @property
    def means_every_compute_node(self) -> bool:
        """Return whether the entry is for all compute nodes that no other entry names."""
        return self.uuid == COMPUTE_NODE

    @property
    def key(self) -> tuple[str | None, str | None]:
        """Return the key that must be unique: entries with the same key are for one provider. Case is ignored."""
        return self.uuid, self.name and self.name.casefold()

    @property
    def provider(self) -> str:
        """Return the name or uuid of the provider in the file."""
        return self.uuid or self.name or ""


@dataclass(frozen=True)
class ProviderConfig:
    """Hold all entries of all files in their order; no two have the same uuid or name.

    :param notes: accepted but ignored fields, in one line each, for the operator.
    """

    entries: tuple[ProviderEntry, ...] = ()
    notes: tuple[str, ...] = ()


SCHEMA: Mapping[str, Any] = json.loads((resources.files(__package__) / "provider_config_v1.json").read_text("utf-8"))
"""The JSON Schema of schema version 1.0."""

VERSION: Path = ("meta", "schema_version")
"""The path of the schema version in a document."""

MAJOR = 1
"""The major version whose files can be read, whatever their minor version."""


def _is_number(_: TypeChecker, value: object) -> bool:
    """Return whether JSON has such a number; YAML also has .inf and .nan."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_VALIDATOR = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator, type_checker=Draft202012Validator.TYPE_CHECKER.redefine("number", _is_number)
)(SCHEMA)
_IS_SOUND = compiled(
    SCHEMA,
    {
        "object": lambda value: isinstance(value, dict),
        "array": lambda value: isinstance(value, list),
        "string": lambda value: isinstance(value, str),
        "integer": lambda value: (
            (isinstance(value, int) and not isinstance(value, bool))
            or (isinstance(value, float) and value.is_integer())
        ),
        "number": lambda value: _is_number(Draft202012Validator.TYPE_CHECKER, value),
    },
)
_REF = "#/$defs/"
_VERSION = re.compile(r"(\d{1,9})\.\d+", re.ASCII)
_KINDS = {
    "object": "a mapping",
    "array": "a list",
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
}


def faults(document: Located, most: int) -> list[Found]:
    """Return the violations of the schema in *document*, in the order of its lines.

    :param most: the most faults to return.
    :raises Unreadable: the document is for another major version, so no other field can be judged.
    """
    meta = document.children.get("meta")
    said = meta and meta.children.get("schema_version")
    version = said and _VERSION.fullmatch(said.text)
    if said and version and int(version[1]) != MAJOR:
        raise Unreadable(said.line, _version_fault(said), VERSION)
    if _IS_SOUND(document.value):
        return []
    errors = (error for error in _VALIDATOR.iter_errors(document.value) if _counts(error))
    return sorted({_found(document, error) for error in islice(errors, most)})


def unknown(document: Located) -> Iterator[Found]:
    """Yield the fields of a valid document that the schema does not define. They are accepted and have no effect."""
    return _unknown(SCHEMA, document, document, ())


def _unknown(schema: Mapping[str, Any], document: Located, here: Located, path: Path) -> Iterator[Found]:
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].removeprefix(_REF)]
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties")
    for key, child in here.children.items():
        where = (*path, key)
        inner = schema.get("items") if isinstance(key, int) else properties.get(key, others)
        if inner is not None:
            yield from _unknown(inner, document, child, where)
        elif properties:
            near = difflib.get_close_matches(str(key), properties, n=1)
            yield Found(child.line, where, f"unknown field, ignored{f'; did you mean {near[0]}?' if near else ''}")


def _counts(error: ValidationError) -> bool:
    """Return whether to report the error: for a value that is not a mapping, another error is reported."""
    return error.validator != "oneOf" or isinstance(error.instance, dict)


def _found(document: Located, error: ValidationError) -> Found:
    path: Path = tuple(error.absolute_path)
    if "propertyNames" in error.absolute_schema_path:
        name = str(error.instance)
        path = (*path, name)
        return Found(document.at(path).line, path, _name_fault(error, name))
    here = document.at(path)
    return Found(here.line, path, _fault(error, path, here))


def _fault(error: ValidationError, path: Path, here: Located) -> str:
    limit: Any = error.validator_value
    match error.validator:
        case "type":
            return _type_fault(limit, here)
        case "required":
            return f"{limit[0]} is missing"
        case "oneOf":
            both = "both" if "uuid" in here.children else "neither"
            return f"must have exactly one of uuid and name, and has {both}"
        case "minimum" | "exclusiveMinimum" | "maximum" | "exclusiveMaximum" | "pattern" if path == VERSION:
            return _version_fault(here)
        case "minimum":
            return f"must be {limit} or more, not {quoted(here.text)[1:-1]}"
        case "exclusiveMinimum":
            return f"must be more than {limit}, not {quoted(here.text)[1:-1]}"
        case "maximum":
            return f"must be {limit} or less, not {quoted(here.text)[1:-1]}"
        case "minLength":
            return "is empty"
        case _ if path[-1] == "uuid":
            return f"{quoted(here.text)} is neither a uuid nor $COMPUTE_NODE"
        case _ if path[-1] == "name":
            return f"must have {limit} characters or fewer, and has {len(here.text)}"
        case _:
            return _name_fault(error, here.text)


def _version_fault(here: Located) -> str:
    return f"{quoted(here.text)} cannot be read; the schema is {MAJOR}.0, and later ones of {MAJOR}.x can be read too"


def _name_fault(error: ValidationError, name: str) -> str:
    """Describe the fault of a resource class's or trait's name."""
    if error.validator == "maxLength":
        return f"must have {error.validator_value} characters or fewer, and has {len(name)}"
    return f"{quoted(name)} is no custom name: only CUSTOM_ followed by A-Z, 0-9 and _ can be added"


def _type_fault(wanted: str | list[str], here: Located) -> str:
    kinds = [wanted] if isinstance(wanted, str) else wanted
    hint = "; put it in quotes" if kinds == ["string"] and here.text else ""
    return f"must be {' or '.join(_KINDS[kind] for kind in kinds)}, not {_kind(here)}{hint}"


def _kind(here: Located) -> str:
    match here.value:
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case None:
            return "null"
        case bool():
            return f"the boolean {quoted(here.text)[1:-1]}"
        case str():
            return f"the string {quoted(here.text)}"
        case int() | float():
            return (
                f"the number {quoted(here.text)[1:-1]}" if math.isfinite(here.value) else f"{here.text}, which is none"
            )
        case _:
            return f"{quoted(here.text)}, which YAML takes for a {type(here.value).__name__}"
