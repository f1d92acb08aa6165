"""Run everything in one process (``autoclave up``): SQLite, embedded Placement, messages as calls.

With simulated hosts, the agents of all hosts run in this process.
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
from autoclave.conf.clouds import is_external
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
"""Limit the hosts whose first discovery runs at the same time."""


class AgentServices:
    """Start agents in a pool, so that no host waits for the first discovery of all others.

    :param makers: return the agent of each host.
    """

    def __init__(self, makers: Sequence[Callable[[], Service]]) -> None:
        self._makers = makers
        self._started = Resources()
        self._lock = threading.Lock()
        self._unknown = len(makers)

    @property
    def unknown(self) -> int:
        """Return the number of hosts without a discovery yet."""
        return self._unknown

    def start(self) -> None:
        """Create and start all agents; return when the first discovery of every host has ended.

        :raises AutoclaveError: a host cannot be served. Agents that have not begun by then are not started.
        """
        with ThreadPoolExecutor(min(_AT_ONCE, len(self._makers)), thread_name_prefix="first look") as pool:
            looks = [pool.submit(self._start, make) for make in self._makers]
            done, rest = wait(looks, return_when=FIRST_EXCEPTION)
            for look in rest:
                look.cancel()
        for look in done:
            look.result()

    def stop(self) -> None:
        """Stop all agents that were created."""
        self._started.close()

    def _start(self, make: Callable[[], Service]) -> None:
        service = make()
        with self._lock:
            self._started.add(service.stop)
        service.start()
        with self._lock:
            self._unknown -= 1


_OFTEN = {("nvme", "poll_interval"): 0.3, ("agent", "periodic_interval"): 5.0}
"""Set the seconds of simulated hosts' periods, unless the file sets them: an operator watches a rehearsal."""


class AllInOne:
    """Run all services of one machine, for the real host or for simulated ones.

    :param config_files: the operator's, read for every host.
    :param data_dir: the directory of the databases, the agents' locks and the simulated hosts.
    :param bind: address and port to listen on; None for those of the configuration.
    :param simulate: the number of simulated hosts; 0 for the real one.
    :raises InvalidConfiguration: an option cannot be used, callers from other machines would be trusted, or the file
        requires authentication, which is not done here.
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
            # Manage drives even if no guest can run: libvirt-python is optional.
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
        """Return the URL of the service."""
        return self._listener.url

    @property
    def runs_instances(self) -> bool:
        """Return whether it starts guests itself, and serves the compute and the image APIs."""
        return bool(self._conf.compute.enabled)

    @property
    def clouds(self) -> CloudsFile:
        """Return the file that configures clients."""
        return CloudsFile(self.data_dir)

    def start(self) -> None:
        """Create the data directory's files, and serve.

        First lock the directory and bind the address. Write no file and read no drive before that.

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
        # Start the API before the first discovery; it reports how many hosts have none yet.
        group = Group(
            [ConductorService(self._conf, ports, transport, "conductor"), APIService(self._listener, app), agents]
        )
        self._made.add(group.stop)
        group.start()

    def stop(self) -> None:
        """Stop serving. A clean in progress is recorded, and the next start finds it."""
        self._made.close()

    def _start_placement(self) -> "tuple[PlacementClient, dict[str, WSGIApplication]]":
        """Return the client of Placement, and the mounts of an embedded one."""
        if is_external(self._conf):
            return PlacementClient(http_adapter(self._conf)), {}
        path = self.data_dir / "placement.db"
        require_sound(
            path,
            "move it away; Autoclave creates a new one from the recorded devices, without allocations of instances",
        )
        embedded = EmbeddedPlacement.start(path)
        self._made.add(embedded.stop)
        return embedded.client(), {"/placement": Front(embedded.app, _administrator)}

    def _agents(self, ports: Ports, transport: Transport) -> list[Callable[[], Service]]:
        """Return a function for each host that creates its agent."""
        if not self._simulate:
            return [lambda: AgentService(self._conf, ports, transport)]

        turn = threading.Lock()

        def make(number: int) -> AgentService:
            return AgentService(self._host(number), ports, transport, phase=number / self._simulate, turn=turn)

        return [partial(make, number) for number in range(1, self._simulate + 1)]

    def _host(self, number: int) -> cfg.ConfigOpts:
        """Return the configuration of a simulated host; create it if there is none yet."""
        return new_config(self._config_files, self._base | self._simulated(number))

    def _simulated(self, number: int) -> dict[tuple[str | None, str], object]:
        """Return the settings of a simulated host. They yield to the operator's own, which the simulator rehearses."""
        host = Fleet(self.data_dir).ensure(f"sim-{number}", number)
        every_drive = not is_set(self._conf, "nvme", "device_spec")
        overrides: dict[tuple[str | None, str], object] = dict(host.conf_overrides(device_spec=every_drive))
        for (group, option), seconds in _OFTEN.items():
            if not is_set(self._conf, group, option):
                overrides[group, option] = seconds
        overrides["compute", "virt_driver"] = "null"  # guests of simulated hosts would find no devices
        return overrides


def _refuse_authentication(conf: cfg.ConfigOpts) -> None:
    if is_set(conf, "api", "auth_strategy") and conf.api.auth_strategy != "noauth":
        raise InvalidConfiguration(
            f"is {conf.api.auth_strategy}, but `autoclave up` treats every caller as an administrator; remove the "
            "option, or run the services separately: `autoclave api`, `conductor` and `agent`",
            option="[api] auth_strategy",
        )


def _administrator(_environ: object) -> Identity:
    return Identity("admin", "admin", ("admin", "service", "member", "reader"))
