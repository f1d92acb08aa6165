"""Which entry of a device_spec option means a function, found without trying every entry on every function."""

from collections.abc import Iterable
from itertools import product

from autoclave.rules.device_spec import DeviceSpec
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.pci_id import parse_pci_id


class SpecIndex:
    """The entries by what they spell out: one address, or else ids. Only patterns are tried one after another.

    :param specs: in the order of the configuration.
    """

    def __init__(self, specs: Iterable[DeviceSpec]) -> None:
        self._by_address: dict[PCIAddress, list[DeviceSpec]] = {}
        self._by_ids: dict[tuple[str | None, str | None], list[DeviceSpec]] = {}
        for spec in specs:
            if spec.address.single is not None:
                self._by_address.setdefault(spec.address.single, []).append(spec)
            else:
                self._by_ids.setdefault((spec.vendor_id, spec.product_id), []).append(spec)

    def first_match(
        self, vendor_id: str, product_id: str, address: PCIAddress, parent: PCIAddress | None = None
    ) -> DeviceSpec | None:
        """As :func:`autoclave.rules.device_spec.first_match` of all the entries.

        :raises ValueError: an id is not hexadecimal of at most four digits.
        """
        ids = product((parse_pci_id(vendor_id), None), (parse_pci_id(product_id), None))
        places = [self._by_address.get(address), self._by_address.get(parent) if parent else None]
        places += [self._by_ids.get(pair) for pair in ids]
        found = [
            next((spec for spec in place if spec.matches(vendor_id, product_id, address, parent)), None)
            for place in places
            if place
        ]
        return min((spec for spec in found if spec is not None), key=lambda spec: spec.entry, default=None)
