"""Everything in one process: SQLite, Placement embedded, messages as calls (``autoclave up``)."""

from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from autoclave.api.app import create_app
from autoclave.conf import new_config
from autoclave.db import schema
from autoclave.db.engine import Database
from autoclave.exceptions import InvalidConfiguration
from autoclave.lifecycle.agents import RPCCleaners
from autoclave.lifecycle.ports import Ports
from autoclave.placement.client import PlacementClient
from autoclave.placement.embedded import EmbeddedPlacement
from autoclave.placement.front import Front, Identity
from autoclave.placement.transport import http_adapter
from autoclave.rpc.inprocess import InProcessTransport
from autoclave.services.agent import AgentService
from autoclave.services.api import APIService
from autoclave.services.conductor import ConductorService
from autoclave.services.service import Group, Service
from autoclave.services.wiring import remote_versions
from autoclave.simulator.fleet import Fleet

_CLOUDS = """\
clouds:
  autoclave:
    auth_type: admin_token
    auth: {{endpoint: "{url}/placement", token: "admin"}}
    placement_endpoint_override: {url}/placement
    accelerator_endpoint_override: {url}/accelerator/v2
    identity_endpoint_override: {url}/identity/v3
    accelerator_default_microversion: "2.5"
"""


class AllInOne:
    """All services of one machine, for the real host or for simulated ones.

    :param config_files: the operator's, read for every host.
    :param data_dir: where the databases, the agents' locks and the simulated hosts are.
    :param bind: address and port to listen on; None for what the configuration says.
    :param simulate: how many simulated hosts; 0 for the real one.
    :raises InvalidConfiguration: an option cannot be used, or callers from other machines would be trusted.
    """

    def __init__(
        self, config_files: Sequence[str], data_dir: Path | None, bind: tuple[str, int] | None, simulate: int
    ) -> None:
        base: dict[tuple[str | None, str], object] = {("placement", "create_root_provider"): True}
        if data_dir is not None:
            base["agent", "data_dir"] = str(data_dir.absolute())
        if bind is not None:
            base |= {("api", "host_ip"): bind[0], ("api", "port"): bind[1]}
        base["api", "auth_strategy"] = "noauth"
        self._conf = new_config(config_files, base)
        self.data_dir = Path(self._conf.agent.data_dir)
        _require_loopback(self._conf.api.host_ip)
        self._hosts = [self._conf]
        if simulate:
            self._hosts = [
                new_config(config_files, base | _simulated(self.data_dir, number)) for number in range(1, simulate + 1)
            ]
        self._placement: EmbeddedPlacement | None = None
        self._database: Database | None = None
        self._transport: InProcessTransport | None = None
        self._services: Service | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        host = self._conf.api.host_ip
        return f"http://{f'[{host}]' if ':' in host else host}:{self._conf.api.port}"

    @property
    def clouds_yaml(self) -> str:
        """A ``clouds.yaml`` with which OpenStack's clients reach it."""
        return _CLOUDS.format(url=self.url)

    def start(self) -> None:
        """Make what is missing in the data directory, and serve.

        :raises AutoclaveError: one of the services cannot start.
        """
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            (self.data_dir / "clouds.yaml").write_text(self.clouds_yaml)
        except OSError as error:
            raise InvalidConfiguration(
                f"{self.data_dir} cannot be used ({error.strerror}); name another with --data-dir",
                option="[agent] data_dir",
            ) from error
        self._database = Database(self._conf.database.connection or f"sqlite:///{self.data_dir / 'autoclave.db'}")
        schema.upgrade(self._database)
        mounts = {}
        if self._conf.placement.endpoint:
            placement = PlacementClient(http_adapter(self._conf))
        else:
            self._placement = EmbeddedPlacement.start(self.data_dir / "placement.db")
            placement = self._placement.client()
            mounts["/placement"] = Front(self._placement.app, _administrator)
        self._transport = InProcessTransport(remote_version=remote_versions(self._database))
        ports = Ports(self._database, placement, RPCCleaners(self._transport))
        services: list[Service] = [ConductorService(self._conf, ports, self._transport, "conductor")]
        services += [AgentService(conf, ports, self._transport) for conf in self._hosts]
        services.append(APIService(self._conf, create_app(self._conf, ports, self._transport, mounts)))
        self._services = Group(services)
        self._services.start()

    def stop(self) -> None:
        """Stop serving. A clean in progress is recorded for the next start."""
        if self._services is not None:
            self._services.stop()
        if self._transport is not None:
            self._transport.close()
        if self._placement is not None:
            self._placement.stop()
        if self._database is not None:
            self._database.dispose()


def _simulated(data_dir: Path, number: int) -> dict[tuple[str | None, str], object]:
    host = Fleet(data_dir).ensure(f"sim-{number}", number)
    overrides: dict[tuple[str | None, str], object] = dict(host.conf_overrides(device_spec=True))
    # a rehearsal is watched by a person: look and poll often
    overrides |= {("nvme", "poll_interval"): 0.3, ("agent", "periodic_interval"): 5.0}
    return overrides


def _require_loopback(host: str) -> None:
    loopback = host == "localhost"
    if not loopback:
        try:
            loopback = ip_address(host).is_loopback
        except ValueError:
            loopback = False
    if not loopback:
        raise InvalidConfiguration(
            f"{host} is not a loopback address, and `autoclave up` takes every caller for an administrator; listen on "
            "127.0.0.1, or run the services with Keystone",
            option="[api] host_ip",
        )


def _administrator(_environ: object) -> Identity:
    return Identity("admin", "admin", ("admin", "service", "member", "reader"))
