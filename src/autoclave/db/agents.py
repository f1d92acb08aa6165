"""The agents: which run serves a host, what RPC version it speaks, when it was last seen."""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.query import columns, fetch_all, fetch_one, restricted
from autoclave.db.tables import agents


@dataclass(frozen=True)
class AgentRecord:
    """An agent row; ``machine_id`` and ``product_uuid`` hint at which machine it runs on, None: not known."""

    hostname: str
    run_id: str
    rpc_version: str
    started_at: datetime
    last_seen: datetime
    machine_id: str | None = None
    product_uuid: str | None = None


_AGENT = columns(AgentRecord, agents)


def register(tx: Connection, record: AgentRecord) -> None:
    """Note that this run serves its host now. A hint that is not known any longer stays what it was."""
    values = {name: value for name, value in asdict(record).items() if value is not None}
    if get(tx, record.hostname) is None:
        tx.execute(agents.insert().values(**values))
    else:
        tx.execute(agents.update().where(agents.c.hostname == record.hostname).values(**values))


def touch(tx: Connection, hostname: str, run_id: str, now: datetime) -> bool:
    """Note that the run is alive; False if it does not serve the host any more."""
    mine = (agents.c.hostname == hostname, agents.c.run_id == run_id)
    return tx.execute(agents.update().where(*mine).values(last_seen=now)).rowcount > 0


def get(tx: Connection, hostname: str) -> AgentRecord | None:
    """The agent of a host, or None if none ever served it."""
    return fetch_one(tx, AgentRecord, sa.select(*_AGENT).where(agents.c.hostname == hostname))


def list_all(tx: Connection, hosts: Collection[str] | None = None) -> list[AgentRecord]:
    """All agents, by host name; with *hosts*, at least those of these."""
    query = restricted(sa.select(*_AGENT), agents.c.hostname, hosts)
    return fetch_all(tx, AgentRecord, query.order_by(agents.c.hostname))


def delete(tx: Connection, record: AgentRecord) -> bool:
    """Remove an agent that was not seen since *record* was read; False if it was, or is gone."""
    same = (agents.c.hostname == record.hostname, agents.c.run_id == record.run_id)
    return tx.execute(agents.delete().where(*same, agents.c.last_seen == record.last_seen)).rowcount > 0
