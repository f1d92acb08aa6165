"""What instances have by flavor is no device driver's, whatever the configuration says by now."""

from collections.abc import Set as AbstractSet

from sqlalchemy.engine import Connection

from autoclave.db import pci
from autoclave.exceptions import StateConflict


def require_not_lent(tx: Connection, hostname: str, addresses: AbstractSet[str]) -> None:
    """See that no instance has one of the functions by its flavor, and that none is burned.

    Another entry of the configuration, or another provider in Placement, does not end what a burn has begun.

    :param addresses: of functions of the host, and of the slot that they are in.
    :raises StateConflict: an instance has one, or one is burned.
    """
    functions = pci.functions(tx, hostname)
    for provider in pci.providers(tx, hostname):
        own = [each for each in functions if each.provider_id == provider.id]
        if addresses.isdisjoint({provider.address, *(each.address for each in own)}):
            continue
        holder = next((each.instance_uuid for each in own if each.instance_uuid is not None), None)
        if holder is not None:
            raise StateConflict(f"instance {holder} has it by its flavor, until that is deleted")
        if provider.burned:
            raise StateConflict(
                f"it is burned; clean it, and run `autoclave burned release {hostname}/{provider.address}`"
            )
