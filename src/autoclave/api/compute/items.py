"""Texts by key that belong to something, and are changed one by one: a flavor's extra specs, a server's metadata."""

from autoclave.api.body import storable
from autoclave.exceptions import BadRequest, NotFound

Items = dict[str, str]


def bounded(items: Items, most: int, what: str) -> Items:
    """*items*, to be kept.

    :param what: they are, in the plural.
    :raises BadRequest: there are more than *most*, or they are too large.
    """
    if len(items) > most:
        raise BadRequest(f"There would be {len(items)} {what}; {most} is the most.")
    storable(items, f"The {what}")
    return items


def picked(items: Items, key: str, whose: str) -> Items:
    """The one with that *key*, as a mapping.

    :param whose: begins the refusal: "Flavor 1 has no extra spec".
    :raises NotFound: there is none.
    """
    if key not in items:
        raise NotFound(f"{whose} {key}.")
    return {key: items[key]}


def without(items: Items, key: str, whose: str) -> Items:
    """The others; as :func:`picked`."""
    gone = picked(items, key, whose)
    return {other: value for other, value in items.items() if other not in gone}


def require_only(given: Items, key: str) -> Items:
    """*given*, the one item that a body has.

    :raises BadRequest: it is another one than the path names.
    """
    if set(given) != {key}:
        raise BadRequest(f"The body must set {key}, as the path does, and nothing else.")
    return given
