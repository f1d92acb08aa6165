"""The traits that a flavor and an image ask for (image-traits specification)."""

from collections.abc import Mapping
from dataclasses import dataclass

from autoclave.exceptions import BadRequest
from autoclave.rules.extra_specs import is_name, specs_of

REQUIRED = "required"
FORBIDDEN = "forbidden"

_KIND = "trait"
_IMAGE_PREFIX = "trait:"


@dataclass(frozen=True)
class TraitDemand:
    """What one request group asks of its providers' traits."""

    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ImageTraits:
    """What an image asks for.

    :param ignored: its properties that look like a demand and are none, with why, by key.
    """

    required: frozenset[str]
    ignored: Mapping[str, str]


def flavor_traits(extra_specs: Mapping[str, str]) -> dict[str, TraitDemand]:
    """The demands of ``trait[suffix]:NAME=required|forbidden`` by suffix.

    :raises BadRequest: a key or value has another form.
    """
    found: dict[str, dict[str, set[str]]] = {}
    for spec in specs_of(_KIND, extra_specs):
        if spec.value not in (REQUIRED, FORBIDDEN):
            raise BadRequest(
                f"Flavor extra spec {spec.key!r} is {spec.value!r}; it must be {REQUIRED!r} or {FORBIDDEN!r}."
            )
        found.setdefault(spec.suffix, {REQUIRED: set(), FORBIDDEN: set()})[spec.value].add(spec.name)
    return {
        suffix: TraitDemand(frozenset(by_value[REQUIRED]), frozenset(by_value[FORBIDDEN]))
        for suffix, by_value in found.items()
    }


def image_traits(properties: Mapping[str, object]) -> ImageTraits:
    """The demands of ``trait:NAME=required``.

    Nothing else is a demand, as in Nova: an image is not refused for what it has besides.

    :raises BadRequest: a demand for what cannot be the name of a trait.
    """
    required, ignored = set(), {}
    for key, value in sorted(properties.items()):
        if not key.startswith(_KIND):
            continue
        if not key.startswith(_IMAGE_PREFIX):
            if ":" in key:
                ignored[key] = "an image's traits go to the unnumbered group only: the key must begin with 'trait:'"
        elif value != REQUIRED:
            ignored[key] = f"it is {value!r}; only {REQUIRED!r}, written exactly so, is a demand"
        elif not is_name(name := key.removeprefix(_IMAGE_PREFIX)):
            raise BadRequest(f"Image property {key!r}: {name!r} is not a name of capitals, digits and '_'.")
        else:
            required.add(name)
    return ImageTraits(frozenset(required), ignored)


def forbidden_anywhere(extra_specs: Mapping[str, str]) -> dict[str, str]:
    """The traits that a flavor forbids in any of its groups, and the key that does; for a rebuild."""
    return {spec.name: spec.key for spec in specs_of(_KIND, extra_specs) if spec.value == FORBIDDEN}
