"""Whether libvirt manages a PCI function that a guest gets (managed-mode specification)."""

from collections.abc import Mapping
from typing import Any

from autoclave.rules.strict_json import boolean


def is_managed(attach_info: Mapping[str, Any]) -> bool:
    """What the information of an attach handle says: true if it says nothing.

    :raises ValueError: it says neither true nor false, however that is written.
    """
    try:
        return boolean(attach_info.get("managed", True))
    except ValueError as error:
        raise ValueError(f"managed {error}") from None
