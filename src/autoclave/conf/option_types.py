"""Define the types that options share: numbers with limits, URLs, and PCI addresses."""

import math
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from oslo_config import cfg, types

from autoclave.exceptions import InvalidConfiguration
from autoclave.rules.pci_address import PCIAddress

DAY = 86400
"""Set the longest interval and timeout, in seconds."""


class _Finite(types.Float):  # type: ignore[misc]  # oslo.config comes without types
    def __call__(self, value: Any) -> float:
        number = float(super().__call__(value))
        if not math.isfinite(number):  # nan passes every limit
            raise ValueError(f"{value} is not a finite number")
        return number


class FiniteFloatOpt(cfg.Opt):  # type: ignore[misc]
    """Accept a number from *min* to *max*, neither infinite nor nan."""

    def __init__(self, name: str, *, min: float, max: float = DAY, **arguments: Any) -> None:  # noqa: A002
        super().__init__(name, type=_Finite(min, max), **arguments)


def is_http_url(text: str) -> bool:
    """Return whether *text* is a URL of a web server, with a host and, if any, a possible port."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and text.isprintable()
    except ValueError:
        return False


class HTTPURL(types.String):  # type: ignore[misc]
    """Accept a URL of a web server. An empty one stands for none."""

    def __call__(self, value: Any) -> str:
        url = str(super().__call__(value))
        if url and (" " in url or not is_http_url(url)):
            raise ValueError(f"{url} is not a URL that begins with http:// or https://")
        return url


def exact_addresses(entries: Iterable[str], option: str) -> frozenset[PCIAddress]:
    """Return the addresses of an option.

    :param option: its section and name, for messages.
    :raises InvalidConfiguration: an entry is no full PCI address.
    """
    addresses = set()
    for entry, text in enumerate(entries, start=1):
        try:
            addresses.add(PCIAddress.parse(text))
        except ValueError as e:
            raise InvalidConfiguration(str(e), option=option, entry=entry) from None
    return frozenset(addresses)
