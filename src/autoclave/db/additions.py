"""What the operator's provider config has added to providers, remembered before it is written to Placement."""

from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.compute_tables import provider_config_additions as additions


class AdditionKind(StrEnum):
    """What was added."""

    INVENTORY = "inventory"
    TRAIT = "trait"


@dataclass(frozen=True)
class Addition:
    """One inventory or trait of one provider. ``name`` is the resource class's, or the trait's."""

    rp_uuid: str
    kind: AdditionKind
    name: str


def of_host(tx: Connection, hostname: str) -> frozenset[Addition]:
    """All that is remembered for a host."""
    query = sa.select(additions.c.rp_uuid, additions.c.kind, additions.c.name).where(additions.c.hostname == hostname)
    return frozenset(Addition(row.rp_uuid, AdditionKind(row.kind), row.name) for row in tx.execute(query))


def added_classes(tx: Connection, rp_uuid: str) -> frozenset[str]:
    """The resource classes that were added to a provider."""
    query = sa.select(additions.c.name).where(
        additions.c.rp_uuid == rp_uuid, additions.c.kind == AdditionKind.INVENTORY.value
    )
    return frozenset(tx.execute(query).scalars())


def remember(tx: Connection, hostname: str, added: frozenset[Addition]) -> None:
    """Remember what is about to be added and is not remembered yet."""
    tx.execute(
        additions.insert(),
        [{"hostname": hostname, "rp_uuid": each.rp_uuid, "kind": each.kind.value, "name": each.name} for each in added],
    )


def forget(tx: Connection, hostname: str, removed: frozenset[Addition]) -> None:
    """Forget what is no longer in Placement."""
    for each in removed:
        tx.execute(
            additions.delete().where(
                additions.c.hostname == hostname,
                additions.c.rp_uuid == each.rp_uuid,
                additions.c.kind == each.kind.value,
                additions.c.name == each.name,
            )
        )
