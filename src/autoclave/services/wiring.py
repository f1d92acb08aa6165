"""The parts that every service shares, made from one configuration."""

from oslo_config import cfg

from autoclave.db import agents, schema
from autoclave.db.engine import Database
from autoclave.exceptions import InvalidConfiguration
from autoclave.lifecycle.ports import Ports, RPCCleaners
from autoclave.placement.client import PlacementClient
from autoclave.placement.transport import http_adapter
from autoclave.rpc.messaging import MessagingTransport
from autoclave.rpc.port import AGENT_TOPIC, CONDUCTOR_TOPIC, RemoteVersion, Transport
from autoclave.services.first_look import look_at_clock
from autoclave.services.service import Resources


def database_of(conf: cfg.ConfigOpts) -> Database:
    """The database of ``[database] connection``, at the schema that this version needs.

    :raises InvalidConfiguration: it is not named, or its schema is another.
    :raises DatabaseUnavailable: it does not answer.
    """
    if not conf.database.connection:
        raise InvalidConfiguration(
            "is not set; write for example postgresql+psycopg://autoclave:secret@db/autoclave",
            option="[database] connection",
        )
    database = Database(conf.database.connection, timeout=conf.database.timeout)
    schema.require_current(database)
    look_at_clock(database)
    return database


def version_caps(conf: cfg.ConfigOpts) -> dict[str, str]:
    """``[upgrade_levels]``, by topic."""
    caps = {AGENT_TOPIC: conf.upgrade_levels.agent, CONDUCTOR_TOPIC: conf.upgrade_levels.conductor}
    return {topic: cap for topic, cap in caps.items() if cap is not None}


def remote_versions(database: Database) -> RemoteVersion:
    """What each agent said that it speaks, from the database."""

    def version_of(topic: str, server: str) -> str | None:
        if topic != AGENT_TOPIC:
            return None
        with database.read() as tx:
            agent = agents.get(tx, server)
        return agent.rpc_version if agent else None

    return version_of


def cloud_parts(conf: cfg.ConfigOpts, resources: Resources) -> tuple[Ports, Transport]:
    """The world of a service that runs in a process of its own, and RabbitMQ.

    :param resources: gets what must be closed at the end.
    :raises InvalidConfiguration: no database, Placement or broker is named, or the schema is another.
    :raises DatabaseUnavailable: the database does not answer.
    """
    database = database_of(conf)
    resources.add(database.dispose)
    if not conf.transport_url:
        raise InvalidConfiguration(
            "is not set; services in processes of their own need RabbitMQ: rabbit://user:password@host:5672/",
            option="[DEFAULT] transport_url",
        )
    transport = MessagingTransport(conf, version_caps=version_caps(conf), remote_version=remote_versions(database))
    resources.add(transport.close)
    return Ports(database, PlacementClient(http_adapter(conf)), RPCCleaners(transport)), transport
