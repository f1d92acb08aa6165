"""The ledger of burned cards: a card stays burned in whatever slot of whatever host it is."""

from contextlib import suppress

import sqlalchemy as sa
from oslo_db.exception import DBDuplicateEntry
from sqlalchemy.engine import Connection

from autoclave.db.compute_tables import burned_cards


def note(tx: Connection, serial: str, rp_uuid: str) -> None:
    """Record that the card is burned, and the provider whose release ends that."""
    if noted_by(tx, serial) is None:
        # Another may note a card with the same serial at this moment.
        with suppress(DBDuplicateEntry), tx.begin_nested():
            tx.execute(burned_cards.insert().values(serial=serial, rp_uuid=rp_uuid))
            return
    tx.execute(burned_cards.update().where(burned_cards.c.serial == serial).values(rp_uuid=rp_uuid))


def remove(tx: Connection, serial: str, rp_uuid: str) -> None:
    """Record that the card is clean, if it was burned last by that provider."""
    tx.execute(burned_cards.delete().where(burned_cards.c.serial == serial, burned_cards.c.rp_uuid == rp_uuid))


def noted_by(tx: Connection, serial: str) -> str | None:
    """Return the uuid of the provider that burned the card, or None if it is not burned."""
    return tx.execute(sa.select(burned_cards.c.rp_uuid).where(burned_cards.c.serial == serial)).scalar_one_or_none()
