"""Burned cards that were put into another slot or host: they stay burned, as dirty drives stay dirty."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.db import pci
from autoclave.db.pci import ProviderRecord
from autoclave.lifecycle.burn_moves import move
from autoclave.lifecycle.transitions import Cause
from autoclave.rules.burn import BurnEvent
from autoclave.rules.device_lifecycle import Actor

LOG = logging.getLogger(__name__)

_ONE_MOVED = 1
"""A card that moves is on record in so many other slots; a serial in more of them tells no card from another."""


def differs(tx: Connection, hostname: str, serials: Mapping[str, str]) -> bool:
    """Return whether :func:`follow` would write anything."""
    return any(_changed(row, serials) for row in pci.providers(tx, hostname))


def follow(tx: Connection, hostname: str, serials: Mapping[str, str], now: datetime) -> None:
    """Record which cards are in the slots of a host, and burn those that were burned elsewhere.

    The provider of the former slot stays burned until its own release: what is in that slot is not known.

    :param serials: by the address of the slot, of cards whose serial could be read.
    """
    for row in pci.providers(tx, hostname, lock=True):
        if not _changed(row, serials):
            continue
        serial = serials[row.address]
        others = [each for each in pci.with_serial(tx, serial) if each.uuid != row.uuid]
        pci.describe(tx, row, {"serial": serial})
        burned_by = pci.noted_by(tx, serial)
        if row.burned and row.serial is None and burned_by is None:
            pci.note(tx, serial, row.uuid)  # burned before its serial was known
        elif not row.burned and burned_by not in (None, row.uuid) and len(others) <= _ONE_MOVED:
            _burn(tx, hostname, replace(row, serial=serial), burned_by, now)


def _burn(tx: Connection, hostname: str, row: ProviderRecord, burned_by: str | None, now: datetime) -> None:
    former = pci.get(tx, burned_by or "")
    where = f"in slot {former.address} of host {former.hostname}" if former else "in a slot that is forgotten since"
    cause = Cause(Actor.AGENT, hostname, reason=f"its card {row.serial} was burned {where}")
    if move(tx, row, BurnEvent.BURN, cause, pci.burned_for(former.burned_for if former else None, now)):
        LOG.warning("%s of %s is burned: %s.", row.address, hostname, cause.reason)


def _changed(row: ProviderRecord, serials: Mapping[str, str]) -> bool:
    return serials.get(row.address, row.serial) != row.serial
