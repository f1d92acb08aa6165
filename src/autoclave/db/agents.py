"""Store agents: the run that serves a host, its RPC version, and when it was last seen."""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.query import columns, fetch_all, fetch_one, restricted
from autoclave.db.tables import agents


@dataclass(frozen=True)
class AgentRecord:
    """Represent an agent row. ``machine_id`` and ``product_uuid`` identify its machine; None if unknown."""

    hostname: str
    run_id: str
    rpc_version: str
    started_at: datetime
    last_seen: datetime
    machine_id: str | None = None
    product_uuid: str | None = None


_AGENT = columns(AgentRecord, agents)


def register(tx: Connection, record: AgentRecord) -> None:
    """Record that this run serves its host. A hint that is now unknown keeps its former value."""
    values = {name: value for name, value in asdict(record).items() if value is not None}
    if get(tx, record.hostname) is None:
        tx.execute(agents.insert().values(**values))
    else:
        tx.execute(agents.update().where(agents.c.hostname == record.hostname).values(**values))


def touch(tx: Connection, hostname: str, run_id: str, now: datetime) -> bool:
    """Record that the run is alive; return False if it no longer serves the host."""
    mine = (agents.c.hostname == hostname, agents.c.run_id == run_id)
    return tx.execute(agents.update().where(*mine).values(last_seen=now)).rowcount > 0


def get(tx: Connection, hostname: str) -> AgentRecord | None:
    """Return the agent of a host, or None if no agent ever served it."""
    return fetch_one(tx, AgentRecord, sa.select(*_AGENT).where(agents.c.hostname == hostname))


def list_all(tx: Connection, hosts: Collection[str] | None = None) -> list[AgentRecord]:
    """Return all agents, ordered by host name; with *hosts*, at least those of these hosts."""
    query = restricted(sa.select(*_AGENT), agents.c.hostname, hosts)
    return fetch_all(tx, AgentRecord, query.order_by(agents.c.hostname))


def last_seen(tx: Connection) -> dict[str, datetime]:
    """Return when each agent was last seen, by host. This reads a schema of any release."""
    return {row.hostname: row.last_seen for row in tx.execute(sa.select(agents.c.hostname, agents.c.last_seen))}


def delete(tx: Connection, record: AgentRecord) -> bool:
    """Remove an agent not seen since *record* was read; return False if it was seen, or is gone."""
    same = (agents.c.hostname == record.hostname, agents.c.run_id == record.run_id)
    return tx.execute(agents.delete().where(*same, agents.c.last_seen == record.last_seen)).rowcount > 0
