"""Whose an attribute of a deployable is: discovery's or the operator's. Its key decides."""

from collections.abc import Mapping

RESOURCE_CLASS = "rc"
TRAIT = "trait"


def is_discovered(key: str) -> bool:
    """Whether *key* is one that only discovery writes: ``rc``, the resource class, and ``trait…``, the traits.

    They say what Placement is told of the device. In capitals too: who reads them need not mind the case.
    """
    folded = key.casefold()
    return folded == RESOURCE_CLASS or folded.startswith(TRAIT)


def traits_in(discovered: Mapping[str, str]) -> frozenset[str]:
    """The traits among the attributes that discovery has written of a deployable."""
    return frozenset(value for key, value in discovered.items() if key.startswith(TRAIT))
