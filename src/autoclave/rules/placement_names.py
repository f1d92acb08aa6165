"""Resource classes and traits as an operator may write them, and as Placement takes them.

A standard name stays as it is. Any other becomes a custom one in the way of Nova's PCI tracking: upper case, an
underscore for each run of characters that are no letters or digits, ``CUSTOM_`` in front. Spaces around a name are
dropped.
"""

import re

import os_resource_classes
import os_traits

from autoclave.rules import strict_json

_STANDARD_CLASSES = frozenset(os_resource_classes.STANDARDS)
_HOSTS_OWN = frozenset({"VCPU", "PCPU", "MEMORY_MB", "DISK_GB"})
_STANDARD_TRAITS = frozenset(os_traits.get_traits())
_CUSTOM = re.compile(r"CUSTOM_[A-Z0-9_]+", re.ASCII)
_OTHER_CHARACTERS = re.compile(r"[^A-Z0-9]+", re.ASCII)
_LONGEST = 255
"""Characters that Placement takes of a name."""


def resource_class(value: object) -> str:
    """The class of PCI functions that the value of ``resource_class`` names; of a standard one case does not count.

    :raises ValueError: it is no string, nothing of which a name could be made, or a class of the host's own.
    """
    if not isinstance(value, str):
        raise ValueError(f'must be a string, such as "CUSTOM_GPU", not {strict_json.kind(value)}')
    name = value.strip().upper()
    if name in _HOSTS_OWN:
        raise ValueError(f"{name} is what the host itself offers; a PCI function needs a class of its own")
    return name if name in _STANDARD_CLASSES else _custom(name, value)


def traits(value: object) -> frozenset[str]:
    """The traits that the JSON value of ``traits`` names: one string, with commas between the names.

    Standard ones must be spelled exactly.

    :raises ValueError: it is no string, or one of the names cannot be used.
    """
    if not isinstance(value, str):
        raise ValueError(
            f'must be one string of names with commas between them, such as "CUSTOM_FAST, HW_GPU_API_VULKAN", not '
            f"{strict_json.kind(value)}"
        )
    return frozenset(_trait(name.strip(), value) for name in value.split(","))


def _trait(name: str, text: str) -> str:
    if not name:
        raise ValueError(f"{text!r} has an empty name; write names with one comma between two of them")
    return name if name in _STANDARD_TRAITS else _custom(name.upper(), name)


def _custom(name: str, written: str) -> str:
    if _CUSTOM.fullmatch(name) is None:
        made = _OTHER_CHARACTERS.sub("_", name)
        if not made.strip("_"):
            raise ValueError(f"{written!r} has no letter from A to Z and no digit, of which a name could be made")
        name = f"CUSTOM_{made}"
    if len(name) > _LONGEST:
        raise ValueError(f"{name[:40]}… has {len(name)} characters; Placement takes {_LONGEST}")
    return name
