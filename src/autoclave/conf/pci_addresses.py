"""Parse options that are lists of exact PCI addresses."""

from collections.abc import Iterable

from autoclave.exceptions import InvalidConfiguration
from autoclave.rules.pci_address import PCIAddress


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
