"""One run serves a host, on SQLite, PostgreSQL and MariaDB."""

from datetime import timedelta

from autoclave.db import agents
from autoclave.db.columns import utcnow
from autoclave.db.engine import Database


def test_an_agent_that_starts_again_takes_the_place_of_its_former_run(database: Database) -> None:
    start = utcnow()
    first = agents.AgentRecord("host-1", "run-1", "1.1", start, start)
    second = agents.AgentRecord("host-1", "run-2", "1.1", start + timedelta(1), start + timedelta(1))
    other = agents.AgentRecord("host-0", "run-9", "1.0", start, start)
    with database.write() as tx:
        for record in (first, second, second, other):
            agents.register(tx, record)
    with database.read() as tx:
        assert agents.list_all(tx) == [other, second]
        assert agents.get(tx, "host-2") is None


def test_only_the_run_that_serves_the_host_can_say_that_it_is_alive(database: Database) -> None:
    start = utcnow()
    later = start + timedelta(microseconds=1)
    with database.write() as tx:
        agents.register(tx, agents.AgentRecord("host-1", "run-2", "1.1", start, start))
        assert not agents.touch(tx, "host-1", "run-1", later)
        assert agents.get(tx, "host-1") == agents.AgentRecord("host-1", "run-2", "1.1", start, start)
        assert agents.touch(tx, "host-1", "run-2", later)
        assert agents.touch(tx, "host-1", "run-2", later), "also twice at one moment"
        assert agents.get(tx, "host-1") == agents.AgentRecord("host-1", "run-2", "1.1", start, later)


def test_an_agent_that_was_seen_meanwhile_is_not_removed(database: Database) -> None:
    start = utcnow()
    later = start + timedelta(microseconds=1)
    silent = agents.AgentRecord("host-1", "run-1", "1.1", start, start)
    with database.write() as tx:
        agents.register(tx, silent)
        assert agents.touch(tx, "host-1", "run-1", later)
        assert not agents.delete(tx, silent)
        present = agents.get(tx, "host-1")
        assert present is not None
        assert agents.delete(tx, present)
        assert agents.get(tx, "host-1") is None
