"""PCI vendor and product ids."""

import re
from functools import lru_cache

_ID = re.compile(r"(?:0x)?([0-9a-f]{1,4})", re.IGNORECASE | re.ASCII)


@lru_cache(maxsize=4096)
def parse_pci_id(text: str) -> str:
    """Return *text* as four lower-case hexadecimal digits.

    Upper case, a ``0x`` in front, missing leading zeroes and space around it are accepted.

    :raises ValueError: it is not hexadecimal, or has more than four digits.
    """
    found = _ID.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a PCI id: one to four hexadecimal digits, such as '144d'")
    return found[1].lower().zfill(4)
