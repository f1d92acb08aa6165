"""What is stored of how a guest gets a device (``attach_info``)."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from autoclave.rules.managed_mode import is_managed


class Attaching(NamedTuple):
    """What can be read of it.

    :param where: where the device is, such as ``domain``, ``bus``, ``device`` and ``function``.
    :param managed: whether libvirt manages it; None: that cannot be read.
    :param fault: what cannot be read, as the end of a sentence; None: nothing.
    """

    where: Mapping[str, Any]
    managed: bool | None
    fault: str | None


def read(stored: str) -> Attaching:
    """Read as much of *stored* as can be."""
    try:
        info = json.loads(stored)
    except ValueError:
        info = None
    if not isinstance(info, dict):
        return Attaching({}, None, "is no JSON object")
    where = {key: value for key, value in info.items() if key != "managed"}
    try:
        return Attaching(where, is_managed(info), None)
    except ValueError as error:
        return Attaching(where, None, f"has an unreadable {error}")
