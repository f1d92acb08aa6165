"""What the groups of a device profile may ask for."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import os_traits

from autoclave.exceptions import BadRequest
from autoclave.rules.resource_request import counts

MAX_COUNT = 64
"""Devices that one key of one group may ask for."""
MAX_REQUESTS = 256
"""Devices that one profile may ask for: each of them becomes an accelerator request."""
MAX_TEXT = 255

_STANDARD_CLASSES = frozenset({"FPGA", "PGPU", "VGPU"})
_CUSTOM = re.compile(r"CUSTOM_[A-Z0-9_]+", re.ASCII)
_COUNT = re.compile(r"[1-9]\d{0,3}", re.ASCII)
_TRAITS = frozenset(os_traits.get_traits())


def normalized(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """*groups* as they are stored: every value a string.

    :raises BadRequest: a key or value is not one that can be asked for; says which and why.
    """
    stored = [_group(number, group) for number, group in enumerate(groups)]
    total = sum(sum(counts(group)) for group in stored)
    if total > MAX_REQUESTS:
        raise BadRequest(f"The profile asks for {total} devices; {MAX_REQUESTS} is the most.")
    return stored


def _group(number: int, group: Mapping[str, Any]) -> dict[str, str]:
    stored = {}
    for key, value in group.items():
        kind, _, name = key.partition(":")
        check = _CHECKS.get(kind)
        if check is None or not name:
            raise BadRequest(f"Group {number} has the key {_short(key)}; keys begin with resources:, trait: or accel:.")
        stored[key] = check(f"Group {number}, key {_short(key)}", name, value)
    if not counts(stored):
        raise BadRequest(f"Group {number} asks for no device: it needs a key such as 'resources:CUSTOM_NVME'.")
    return stored


def _resource(where: str, name: str, value: Any) -> str:
    if name not in _STANDARD_CLASSES and not _custom(name):
        known = ", ".join(sorted(_STANDARD_CLASSES))
        raise BadRequest(f"{where}: the resource class must be one of {known}, or CUSTOM_ and capitals.")
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not _COUNT.fullmatch(text) or int(text) > MAX_COUNT:
        raise BadRequest(f"{where}: the count must be a whole number from 1 to {MAX_COUNT}.")
    return text


def _trait(where: str, name: str, value: Any) -> str:
    if name not in _TRAITS and not _custom(name):
        raise BadRequest(f"{where}: the trait must be a standard one, or CUSTOM_ and capitals.")
    if value not in ("required", "forbidden"):
        raise BadRequest(f"{where}: a trait is 'required' or 'forbidden'.")
    return str(value)


def _accel(where: str, name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT or len(name) > MAX_TEXT:
        raise BadRequest(f"{where}: key and value are strings of {MAX_TEXT} characters at most.")
    return value


_CHECKS = {"resources": _resource, "trait": _trait, "accel": _accel}


def _custom(name: str) -> bool:
    return len(name) <= MAX_TEXT and _CUSTOM.fullmatch(name) is not None


def _short(key: str) -> str:
    return repr(key if len(key) <= 80 else f"{key[:80]}…")
