"""What hints at which machine an agent runs on. A hint proves nothing: images are cloned, and firmware has defaults."""

import re
from collections.abc import Mapping
from typing import NamedTuple

_DIGITS = re.compile(r"[0-9a-f]{32}")


class HostHints(NamedTuple):
    """The machine id of the operating system and the product UUID of the firmware; None: not known."""

    machine_id: str | None
    product_uuid: str | None


NO_HINTS = HostHints(None, None)


def hint(text: str) -> str | None:
    """Return the 32 hexadecimal digits of a hint, or None if the text says nothing: it is empty or all one digit."""
    digits = text.strip().replace("-", "").lower()
    return digits if _DIGITS.fullmatch(digits) and len(set(digits)) > 1 else None


def former_name(host: str, hints: HostHints, known: Mapping[str, HostHints]) -> str | None:
    """Return the other name under which this machine is on record, if both hints say so.

    A hint that several hosts share counts for nothing.

    :param known: the hints of all hosts on record, by name.
    """
    if None in hints:
        return None
    by_machine_id = {name for name, other in known.items() if other.machine_id == hints.machine_id}
    by_product_uuid = {name for name, other in known.items() if other.product_uuid == hints.product_uuid}
    if len(by_machine_id) != 1 or by_machine_id != by_product_uuid:
        return None
    (name,) = by_machine_id
    return None if name == host else name
