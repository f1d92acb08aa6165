"""A PCI function belongs to one half: instances get it by flavor, or a device driver offers it."""

from collections.abc import Iterable, Mapping, Sequence

from autoclave.exceptions import InvalidConfiguration
from autoclave.rules.device_spec import DeviceSpec
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.pci_function import PCIFunction
from autoclave.rules.pci_matches import matches


def double_claims(
    functions: Sequence[PCIFunction], specs: Iterable[DeviceSpec], claimed: Mapping[PCIAddress, str]
) -> dict[PCIAddress, InvalidConfiguration]:
    """Return the functions that entries of ``[pci] device_spec`` mean although a device driver has them.

    A card is one slot and one provider: if a driver has its physical function or one of its virtual ones, the others
    are not for flavors.

    :param functions: all of the host.
    :param claimed: what the drivers offer or would offer, and by which of them: the name of the driver.
    :returns: by the function's address, the error that names the function, the entry and the driver.
    """
    slots = dict(claimed)
    for function in functions:
        if function.parent is not None and function.address in claimed:
            slots.setdefault(function.parent, claimed[function.address])
    found = {}
    for match in matches(functions, specs):
        address = match.function.address
        driver = claimed.get(address) or slots.get(match.slot)
        if driver is not None:
            what = "it" if address in claimed else f"functions of the same card, {match.slot}"
            found[address] = match.wrong(
                f"is for instances by flavor, but the driver {driver} has {what}. Let only the one or the other match"
            )
    return found
