"""The keys of flavor extra specs that ask something of Placement: ``KIND[suffix]:NAME``."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from autoclave.exceptions import BadRequest

_SUFFIX = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)
_NAME = re.compile(r"[A-Z0-9_]{1,255}", re.ASCII)


class Spec(NamedTuple):
    """One extra spec.

    :param suffix: the request group; empty for the unnumbered one.
    :param name: a resource class or a trait.
    """

    key: str
    suffix: str
    name: str
    value: str


def specs_of(kind: str, extra_specs: Mapping[str, str]) -> Iterator[Spec]:
    """Those of *extra_specs* whose key begins with *kind*, in the order of their keys.

    :param kind: ``resources`` or ``trait``.
    :raises BadRequest: such a key has another form than ``KIND[suffix]:NAME``.
    """
    for key in sorted(extra_specs):
        head, colon, name = key.partition(":")
        if not colon or not head.startswith(kind):
            continue
        suffix = head.removeprefix(kind)
        if suffix and not _SUFFIX.fullmatch(suffix):
            raise BadRequest(
                f"Flavor extra spec {key!r}: the suffix {suffix!r} is not 1 to 64 letters, digits, '_' and '-'."
            )
        if not is_name(name):
            raise BadRequest(f"Flavor extra spec {key!r}: {name!r} is not a name of capitals, digits and '_'.")
        yield Spec(key, suffix, name, extra_specs[key])


def is_name(text: str) -> bool:
    """Whether a resource class or a trait can be called *text*."""
    return _NAME.fullmatch(text) is not None
