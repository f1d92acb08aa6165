"""Run everything in one process (``autoclave up``).

Everything in one process: SQLite, Placement embedded, messages as calls (``autoclave up``).

``clouds.yaml`` in the data directory of ``autoclave up``: how OpenStack's clients and our own commands reach it.

The directory in which one ``autoclave up`` keeps everything.

The agents of several hosts in one process, as `autoclave up` runs them.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from oslo_config import cfg

from autoclave.api.app import create_app
from autoclave.conf import is_set, new_config
from autoclave.conf.placement import is_external
from autoclave.db import schema
from autoclave.db.engine import Database, require_sound, sqlite_url
from autoclave.exceptions import InvalidConfiguration
from autoclave.lifecycle.ports import Ports, RPCCleaners
from autoclave.placement.client import PlacementClient
from autoclave.placement.embedded import EmbeddedPlacement, Front, Identity
from autoclave.placement.transport import http_adapter
from autoclave.rpc.inprocess import InProcessTransport
from autoclave.rpc.port import Transport
from autoclave.services.api import APIService, Listener
from autoclave.services.service import Group, Resources, Service, remote_versions, version_caps
from autoclave.services.workers import AgentService, ConductorService
from autoclave.simulator.host import Fleet

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

from autoclave.services.data_dir import CloudsFile, DataDirectory

_AT_ONCE = 8
"""Hosts that are looked at at a time."""


class AgentServices:
    """Agents that start in a pool, so that no host waits for the first look at all others.

    :param makers: makes the agent of each host.
    """

    def __init__(self, makers: Sequence[Callable[[], Service]]) -> None:
        self._makers = makers
        self._started = Resources()
        self._lock = threading.Lock()
        self._unknown = len(makers)

    @property
    def unknown(self) -> int:
        """How many hosts have not been looked at yet."""
        return self._unknown

    def start(self) -> None:
        """Make and start all of them; returns when every host has been looked at.

        :raises AutoclaveError: one cannot be served. Those that did not begin until then are not started.
        """
        with ThreadPoolExecutor(min(_AT_ONCE, len(self._makers)), thread_name_prefix="first look") as pool:
            looks = [pool.submit(self._start, make) for make in self._makers]
            done, rest = wait(looks, return_when=FIRST_EXCEPTION)
            for look in rest:
                look.cancel()
        for look in done:
            look.result()

    def stop(self) -> None:
        """Stop all that were made."""
        self._started.close()

    def _start(self, make: Callable[[], Service]) -> None:
        service = make()
        with self._lock:
            self._started.add(service.stop)
        service.start()
        with self._lock:
            self._unknown -= 1


_OFTEN = {("nvme", "poll_interval"): 0.3, ("agent", "periodic_interval"): 5.0}
"""Seconds on simulated hosts, where the file does not say: a rehearsal is watched by a person."""


class AllInOne:
    """All services of one machine, for the real host or for simulated ones.

    :param config_files: the operator's, read for every host.
    :param data_dir: where the databases, the agents' locks and the simulated hosts are.
    :param bind: address and port to listen on; None for what the configuration says.
    :param simulate: how many simulated hosts; 0 for the real one.
    :raises InvalidConfiguration: an option cannot be used, callers from other machines would be trusted, or the file
        wants callers to be authenticated, which is not done here.
    """

    def __init__(
        self, config_files: Sequence[str], data_dir: Path | None, bind: tuple[str, int] | None, simulate: int
    ) -> None:
        base: dict[tuple[str | None, str], object] = {("placement", "create_root_provider"): True}
        if data_dir is not None:
            base["agent", "data_dir"] = str(data_dir.absolute())
        if bind is not None:
            base |= {("api", "host_ip"): bind[0], ("api", "port"): bind[1]}
        said = new_config(config_files)
        _refuse_authentication(said)
        base["api", "auth_strategy"] = "noauth"
        if not is_set(said, "compute", "enabled"):
            # Where no guest could be run, drives are managed all the same: libvirt-python is an extra.
            base["compute", "enabled"] = bool(simulate) or find_spec("libvirt") is not None
        self._config_files = config_files
        self._base = base
        self._simulate = simulate
        self._conf = new_config(config_files, base)
        self.data_dir = Path(self._conf.agent.data_dir)
        self._listener = Listener(self._conf)
        self._made = Resources()

    @property
    def url(self) -> str:
        """Where it listens."""
        return self._listener.url

    @property
    def runs_instances(self) -> bool:
        """Whether it starts guests itself, and serves the compute and the image APIs."""
        return bool(self._conf.compute.enabled)

    @property
    def clouds(self) -> CloudsFile:
        """The file that tells clients how to reach it."""
        return CloudsFile(self.data_dir)

    def start(self) -> None:
        """Make what is missing in the data directory, and serve.

        Nothing is written, and no drive is looked at, before the address and the directory are ours.

        :raises AutoclaveError: one of the services cannot start.
        """
        self._made.add(self._listener.close)
        self._listener.open()
        directory = DataDirectory(self.data_dir)
        self._made.add(directory.give_back)
        directory.take(simulated=bool(self._simulate))
        self.clouds.write(self.url, compute=self.runs_instances)
        database = Database(self._conf.database.connection or sqlite_url(self.data_dir / "autoclave.db"))
        self._made.add(database.dispose)
        schema.upgrade(database)
        placement, mounts = self._start_placement()
        transport = InProcessTransport(version_caps=version_caps(self._conf), remote_version=remote_versions(database))
        self._made.add(transport.close)
        ports = Ports(database, placement, RPCCleaners(transport))
        agents = AgentServices(self._agents(ports, transport))
        app = create_app(self._conf, ports, transport, mounts, hosts_unknown=lambda: agents.unknown)
        # The API answers before the hosts are looked at, and says how many are not known yet.
        group = Group(
            [ConductorService(self._conf, ports, transport, "conductor"), APIService(self._listener, app), agents]
        )
        self._made.add(group.stop)
        group.start()

    def stop(self) -> None:
        """Stop serving. A clean in progress is recorded for the next start."""
        self._made.close()

    def _start_placement(self) -> "tuple[PlacementClient, dict[str, WSGIApplication]]":
        """The client of Placement, and where the embedded one is mounted if it is that."""
        if is_external(self._conf):
            return PlacementClient(http_adapter(self._conf)), {}
        path = self.data_dir / "placement.db"
        require_sound(path, "move it away; it is made anew from the devices on record, without instances' allocations")
        embedded = EmbeddedPlacement.start(path)
        self._made.add(embedded.stop)
        return embedded.client(), {"/placement": Front(embedded.app, _administrator)}

    def _agents(self, ports: Ports, transport: Transport) -> list[Callable[[], Service]]:
        """What makes the agent of each host."""
        if not self._simulate:
            return [lambda: AgentService(self._conf, ports, transport)]

        turn = threading.Lock()

        def make(number: int) -> AgentService:
            return AgentService(self._host(number), ports, transport, phase=number / self._simulate, turn=turn)

        return [partial(make, number) for number in range(1, self._simulate + 1)]

    def _host(self, number: int) -> cfg.ConfigOpts:
        """The configuration of a simulated host, which is made if there is none yet."""
        return new_config(self._config_files, self._base | self._simulated(number))

    def _simulated(self, number: int) -> dict[tuple[str | None, str], object]:
        """What the configuration of a simulated host says beside the operator's own, which is what is rehearsed."""
        host = Fleet(self.data_dir).ensure(f"sim-{number}", number)
        every_drive = not is_set(self._conf, "nvme", "device_spec")
        overrides: dict[tuple[str | None, str], object] = dict(host.conf_overrides(device_spec=every_drive))
        for (group, option), seconds in _OFTEN.items():
            if not is_set(self._conf, group, option):
                overrides[group, option] = seconds
        overrides["compute", "virt_driver"] = "null"  # the guests of hosts that are files would find no devices
        return overrides


def _refuse_authentication(conf: cfg.ConfigOpts) -> None:
    if is_set(conf, "api", "auth_strategy") and conf.api.auth_strategy != "noauth":
        raise InvalidConfiguration(
            f"is {conf.api.auth_strategy}, but `autoclave up` takes every caller for an administrator; leave it out, "
            "or run the services apart: `autoclave api`, `conductor` and `agent`",
            option="[api] auth_strategy",
        )


def _administrator(_environ: object) -> Identity:
    return Identity("admin", "admin", ("admin", "service", "member", "reader"))
