"""A database with as many rows as a large cloud has, written in bulk, and a service on it, all in this process."""

import json
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import falcon.testing
import sqlalchemy as sa

from autoclave.api.app import create_app
from autoclave.conductor.manager import ConductorManager
from autoclave.conf import new_config
from autoclave.db import tables
from autoclave.db.engine import Database
from autoclave.lifecycle.ports import Ports, RPCCleaners
from autoclave.placement.client import PlacementClient
from autoclave.placement.transport import wsgi_adapter
from autoclave.rpc import conductor_api
from autoclave.rpc.inprocess import InProcessTransport
from autoclave.rpc.port import CONDUCTOR_TOPIC

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

PER_HOST = 8
CLASS = "CUSTOM_GPU"
TRAITS = ("OWNER_CYBORG", "CUSTOM_GPU_A100")


def new_database(path: Path) -> Database:
    """An empty database with the schema."""
    from autoclave.db import schema  # brings Alembic, which a process that only serves does not have in memory

    database = Database(f"sqlite:///{path}")
    schema.upgrade(database)
    return database


def add_devices(database: Database, count: int) -> list[str]:
    """Insert *count* devices, each with its provider, attributes and handle; returns the providers' uuids."""
    numbers = range(1, count + 1)
    providers = [str(uuid.uuid4()) for _ in numbers]
    with database.write() as tx:
        tx.execute(tables.devices.insert(), [_device(number) for number in numbers])
        tx.execute(tables.deployables.insert(), [_deployable(number, providers[number - 1]) for number in numbers])
        tx.execute(tables.attributes.insert(), [row for number in numbers for row in _attributes(number)])
        tx.execute(tables.attach_handles.insert(), [_handle(number) for number in numbers])
    return providers


def add_standing_requests(database: Database, count: int) -> None:
    """Insert *count* requests that are Bound, each to a device and for an instance of its own."""
    with database.write() as tx:
        profile = tx.execute(sa.select(sa.func.min(tables.device_profiles.c.id))).scalar_one()
        rows = [
            {
                "uuid": str(uuid.uuid4()),
                "project_id": "standing",
                "state": "Bound",
                "device_profile_id": profile,
                "device_profile_group_id": 0,
                "hostname": _host(number),
                "instance_uuid": str(uuid.uuid4()),
                "device_id": number,
                "deployable_id": number,
                "attach_handle_id": number,
            }
            for number in range(1, count + 1)
        ]
        tx.execute(tables.arqs.insert(), rows)
        tx.execute(tables.devices.update().where(tables.devices.c.id <= count).values(device_state="allocated"))


def _host(number: int) -> str:
    return f"compute-{(number - 1) // PER_HOST}"


def _address(number: int) -> dict[str, str]:
    return {"domain": "0000", "bus": f"{0x40 + (number - 1) % PER_HOST:02x}", "device": "00", "function": "0"}


def _slot(number: int) -> str:
    return "{domain}:{bus}:{device}.{function}".format(**_address(number))


def _device(number: int) -> dict[str, Any]:
    return {
        "uuid": str(uuid.uuid4()),
        "type": "GPU",
        "vendor": "10de",
        "model": "20b5",
        "std_board_info": json.dumps({"product_id": "20b5", "pci_address": _slot(number)}),
        "hostname": _host(number),
        "device_state": "available",
        "pci_address": _slot(number),
    }


def _deployable(number: int, provider: str) -> dict[str, Any]:
    return {
        "uuid": str(uuid.uuid4()),
        "name": f"{_host(number)}_{_slot(number)}",
        "num_accelerators": 1,
        "device_id": number,
        "rp_uuid": provider,
        "resource_class": CLASS,
        "driver_name": "pci_driver",
    }


def _attributes(number: int) -> Iterator[dict[str, Any]]:
    for key, value in (("rc", CLASS), *((f"trait{index}", name) for index, name in enumerate(TRAITS))):
        yield {"uuid": str(uuid.uuid4()), "deployable_id": number, "key": key, "value": value}


def _handle(number: int) -> dict[str, Any]:
    return {
        "uuid": str(uuid.uuid4()),
        "deployable_id": number,
        "attach_type": "PCI",
        "attach_info": json.dumps(_address(number), sort_keys=True),
        "identity": _slot(number),
    }


@dataclass
class Meter:
    """WSGI middleware that counts the requests to an application, and the seconds spent in it."""

    app: "WSGIApplication"
    requests: int = 0
    seconds: float = 0.0

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        began = time.perf_counter()
        try:
            return [b"".join(self.app(environ, start_response))]
        finally:
            self.requests += 1
            self.seconds += time.perf_counter() - began

    def client(self) -> PlacementClient:
        """A Placement client whose requests come through here."""
        return PlacementClient(wsgi_adapter(self))


class Service:
    """The API and a conductor in this process, as in ``autoclave up``."""

    def __init__(self, database: Database, placement: PlacementClient) -> None:
        self.transport = InProcessTransport()
        ports = Ports(database, placement, RPCCleaners(self.transport))
        manager = ConductorManager(ports, "conductor", 240)
        self.transport.serve(CONDUCTOR_TOPIC, "conductor", manager, conductor_api.VERSION).start()
        conf = new_config([], {("api", "auth_strategy"): "noauth"})
        self._app = create_app(conf, ports, self.transport)

    def call(self, method: str, path: str, body: Any = None, query: str = "") -> Any:
        """One request; returns the answer's JSON, or its bytes where *body* is None and it is a list."""
        answer = self.raw(method, path, body, query)
        return json.loads(answer) if answer else None

    def raw(self, method: str, path: str, body: Any = None, query: str = "") -> bytes:
        """One request; returns the answer's bytes."""
        environ = falcon.testing.create_environ(
            path=path,
            method=method,
            query_string=query,
            host="localhost",
            headers={"OpenStack-API-Version": "accelerator 2.5", "Content-Type": "application/json"},
            body="" if body is None else json.dumps(body),
        )
        status: list[str] = []
        answer = b"".join(self._app(environ, lambda line, _headers, _exc=None: status.append(line)))  # type: ignore[arg-type,func-returns-value]
        if not status[0].startswith("2"):
            raise SystemExit(f"{method} {path} was answered {status[0]}: {answer[:300]!r}")
        return answer

    def close(self) -> None:
        """Stop."""
        self.transport.close()


@contextmanager
def counted_statements(database: Database) -> Iterator[list[str]]:
    """The SQL statements that this process sends to *database* while the block runs, but for BEGIN."""
    seen: list[str] = []

    def note(connection: sa.Connection, _cursor: object, statement: str, *_: object) -> None:
        # The embedded Placement has another engine; BEGIN is a statement of SQLite's driver only.
        if connection.engine.url == database.writer_engine.url and not statement.startswith("BEGIN"):
            seen.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
