"""Validate the extra specs of a flavor as Nova does from compute microversion 2.86 on.

Values of keys that Autoclave ignores (:mod:`autoclave.rules.resource_request`) are not validated.
"""

import re
from collections.abc import Callable, Mapping

import os_resource_classes
import os_traits

from autoclave.exceptions import BadRequest
from autoclave.rules import json_options
from autoclave.rules.resource_request import ALIAS_KEY, POLICY_KEY, PROFILE_KEY

_Fault = Callable[[str], str | None]
"""Returns what a value must be, or None if the value is valid."""

_GROUPED = re.compile(r"(resources|trait)([a-zA-Z0-9_-]{1,64})?", re.ASCII)
_CUSTOM = re.compile(r"CUSTOM_[A-Z0-9_]+", re.ASCII)
_ALIASES = re.compile(r"[^:]+:\d+(?:\s*,\s*[^:]+:\d+)*")
_OTHERS = frozenset({"accel", "pci_passthrough"})
"""The namespaces in which all keys are known."""


def require_valid(extra_specs: Mapping[str, str]) -> None:
    """Refuse *extra_specs* that Nova would refuse.

    :raises BadRequest: names the key, and what the key or its value must be.
    """
    for key, value in extra_specs.items():
        check = _check_of(key)
        wrong = None if check is None else check(value)
        if wrong is not None:
            raise BadRequest(f"Extra spec {key!r} is {value!r}; it must be {wrong}.")


def _check_of(key: str) -> _Fault | None:
    """Return the check of the value, or None if any value is valid.

    :raises BadRequest: the namespace of the key has no such key.
    """
    if key in _NAMED:
        return _NAMED[key]
    namespace, colon, name = key.partition(":")
    if not colon:
        return None
    grouped = _GROUPED.fullmatch(namespace)
    if grouped is None and namespace not in _OTHERS:
        return None
    if grouped is not None:
        standards, check = _GROUPS[grouped[1]]
        if name in standards or _CUSTOM.fullmatch(name):
            return check
    raise BadRequest(f"Extra spec {key!r} is none that there is: {namespace!r} has no {name!r}.")


def _amount(value: str) -> str | None:
    try:
        int(value)
    except ValueError:
        return "a whole number"
    return None


def _boolean(value: str) -> str | None:
    try:
        json_options.boolean(value)
    except ValueError:
        return "true or false"
    return None


def _one_of(*values: str) -> _Fault:
    def check(value: str) -> str | None:
        return None if value in values else " or ".join(values)

    return check


def _aliases(value: str) -> str | None:
    return None if _ALIASES.fullmatch(value) else "NAME:COUNT, with commas between several"


def _any(_value: str) -> str | None:
    return None


_NAMED: Mapping[str, _Fault] = {
    ALIAS_KEY: _aliases,
    PROFILE_KEY: _any,
    POLICY_KEY: _one_of("isolate", "none"),
    "hide_hypervisor_id": _boolean,
}
_GROUPS: Mapping[str, tuple[frozenset[str], _Fault]] = {
    "resources": (frozenset(os_resource_classes.STANDARDS), _amount),
    "trait": (frozenset(os_traits.get_traits()), _one_of("required", "forbidden")),
}
