"""Define the interface and the shared parts of a service, and run one in a process.

Checks at the start log problems early: the clock, and Placement. They do not stop the service, because it works when
the problem is gone.
"""

import gc
import signal
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Protocol

from oslo_config import cfg
from oslo_log import log as logging

from autoclave.db import agents, engine, schema
from autoclave.db.engine import Database
from autoclave.exceptions import AutoclaveError, InvalidConfiguration, PlacementError
from autoclave.lifecycle.ports import Ports, RPCCleaners
from autoclave.placement.client import PlacementClient
from autoclave.placement.transport import http_adapter
from autoclave.rpc.messaging import MessagingTransport
from autoclave.rpc.port import AGENT_TOPIC, CONDUCTOR_TOPIC, RemoteVersion, Transport

LOG = logging.getLogger(__name__)


class Service(Protocol):
    """Start and stop."""

    def start(self) -> None:
        """Start to serve; return when the service is ready.

        :raises AutoclaveError: it cannot start.
        """

    def stop(self) -> None:
        """Stop serving. This is also called after a failed :meth:`start`."""


class Resources:
    """Close resources in reverse order, even if closing one fails."""

    def __init__(self) -> None:
        self._closers: list[Callable[[], None]] = []

    def add(self, close: Callable[[], None]) -> None:
        """Register *close* for :meth:`close`, which calls the last one first."""
        self._closers.append(close)

    def close(self) -> None:
        """Close all of them."""
        while self._closers:
            close = self._closers.pop()
            try:
                close()
            except Exception:
                LOG.exception("%s did not stop cleanly", getattr(close, "__qualname__", close))


class Group:
    """Start services in order, and stop them in reverse order.

    :param resources: their parts; closed when all services have stopped.
    """

    def __init__(self, services: Sequence[Service], resources: Resources | None = None) -> None:
        self._services = services
        self._resources = resources or Resources()
        for service in services:
            self._resources.add(service.stop)

    def start(self) -> None:
        """Start all of them."""
        for service in self._services:
            service.start()

    def stop(self) -> None:
        """Stop all of them, and close their parts."""
        self._resources.close()


def run_until_signal(service: Service, ready: Callable[[], None]) -> None:
    """Start *service*, wait for SIGTERM or SIGINT, and stop it.

    :param ready: called when the service serves.
    """
    end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end.set())
    try:
        service.start()
        # Exempt the objects that exist now: the collector would scan them again and again during long lists.
        gc.collect()
        gc.freeze()
        ready()
        end.wait()
    finally:
        service.stop()


class Periodic:
    """Run *task* every *interval* seconds.

    Log a failed task and retry it: a service must recover by itself when its database is back.

    :param first: seconds until the first round; by default one interval.
    :param task: may return the seconds until its next round, if that is sooner.
    """

    def __init__(
        self, name: str, interval: float, task: Callable[[], float | None], first: float | None = None
    ) -> None:
        self._interval = interval
        self._first = interval if first is None else first
        self._task = task
        self._name = name
        self._stopped = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def soon(self) -> None:
        """Begin the next round now, or when the current round has ended."""
        self._wake.set()

    def stop(self) -> None:
        """Begin no further round, and wait shortly for the current one."""
        self._stopped = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=5)

    def _run(self) -> None:
        pause = self._first
        while True:
            self._wake.wait(pause)
            self._wake.clear()
            if self._stopped:
                return
            pause = self._round()

    def _round(self) -> float:
        try:
            wanted = self._task()
        except AutoclaveError as error:
            LOG.error("%s failed and will be repeated: %s", self._name, error)
        except Exception:
            LOG.exception("%s failed unexpectedly and will be repeated", self._name)
        else:
            return self._interval if wanted is None else min(wanted, self._interval)
        return self._interval


TOLERATED = timedelta(seconds=10)
"""Set the largest difference between two clocks that is not logged."""
_KNOWN_TO_ALL = "VCPU"


def look_at_clock(database: Database) -> None:
    """Log a warning if this machine's clock differs from the database server's.

    :raises DatabaseUnavailable: the database does not answer.
    """
    ahead = engine.ahead_by(database)
    if abs(ahead) > TOLERATED:
        LOG.warning(
            "The clock of this machine is %d s %s that of the database server. Agent liveness and leases depend on "
            "synchronized clocks: enable NTP on both",
            round(abs(ahead).total_seconds()),
            "ahead of" if ahead > timedelta() else "behind",
        )


def look_at_placement(placement: PlacementClient) -> None:
    """Log an error, from a thread of its own, if Placement cannot be used: its timeout may be long."""

    def look() -> None:
        try:
            placement.unknown_resource_classes([_KNOWN_TO_ALL])
        except PlacementError as error:
            LOG.error("Placement is unusable, and nothing can be bound until this is corrected: %s", error)

    threading.Thread(target=look, name="first look at Placement", daemon=True).start()


def database_of(conf: cfg.ConfigOpts) -> Database:
    """Return the database of ``[database] connection``, and require this version's schema.

    :raises InvalidConfiguration: the option is not set, or the schema differs.
    :raises DatabaseUnavailable: the database does not answer.
    """
    if not conf.database.connection:
        raise InvalidConfiguration(
            "is not set; use, for example, postgresql+psycopg://autoclave:secret@db/autoclave",
            option="[database] connection",
        )
    database = Database(conf.database.connection, timeout=conf.database.timeout)
    schema.require_current(database)
    look_at_clock(database)
    return database


def version_caps(conf: cfg.ConfigOpts) -> dict[str, str]:
    """Return ``[upgrade_levels]``, by topic."""
    caps = {AGENT_TOPIC: conf.upgrade_levels.agent, CONDUCTOR_TOPIC: conf.upgrade_levels.conductor}
    return {topic: cap for topic, cap in caps.items() if cap is not None}


def remote_versions(database: Database) -> RemoteVersion:
    """Return a function that reads an agent's RPC version from the database."""

    def version_of(topic: str, server: str) -> str | None:
        if topic != AGENT_TOPIC:
            return None
        with database.read() as tx:
            agent = agents.get(tx, server)
        return agent.rpc_version if agent else None

    return version_of


def cloud_parts(conf: cfg.ConfigOpts, resources: Resources) -> tuple[Ports, Transport]:
    """Return the ports and the transport of a service in a process of its own, with RabbitMQ.

    :param resources: collects the parts to close at the end.
    :raises InvalidConfiguration: no database, Placement or broker is named, or the schema differs.
    :raises DatabaseUnavailable: the database does not answer.
    """
    database = database_of(conf)
    resources.add(database.dispose)
    if not conf.transport_url:
        raise InvalidConfiguration(
            "is not set; separate services need RabbitMQ: rabbit://user:password@host:5672/",
            option="[DEFAULT] transport_url",
        )
    transport = MessagingTransport(conf, version_caps=version_caps(conf), remote_version=remote_versions(database))
    resources.add(transport.close)
    return Ports(database, PlacementClient(http_adapter(conf)), RPCCleaners(transport)), transport
