"""The agent: its RPC endpoint, its start and its period."""

import fcntl
import os
import uuid
from collections.abc import Mapping
from pathlib import Path

from oslo_config import cfg
from oslo_log import log as logging

from autoclave.agent.cleanup import Cleanup
from autoclave.agent.discovery import Discovery
from autoclave.agent.recovery import Recovery
from autoclave.agent.root_provider import RootProvider
from autoclave.db import agents
from autoclave.db.agents import AgentRecord
from autoclave.drivers.base import Driver
from autoclave.exceptions import AutoclaveError, InvalidConfiguration
from autoclave.hardware.journal import ToolJournal
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.sweep import pay_debts
from autoclave.objects.context import RequestContext
from autoclave.objects.device import Device

LOG = logging.getLogger(__name__)

RPC_VERSION = "1.1"
"""1.1 brought ``cleanup_device`` (NVMe specification)."""


class AgentManager:
    """One host's agent.

    The order of a start is the specification's: the lock; the drivers' ``init_host``; (the caller
    starts the RPC server); recovery; the first discovery.

    :param host: the host's name, see ``[agent] resource_provider_name``.
    :param drivers: by name, loaded from ``[agent] enabled_drivers``.
    """

    def __init__(self, conf: cfg.ConfigOpts, ports: Ports, host: str, drivers: Mapping[str, Driver]) -> None:
        self.host = host
        self._conf = conf
        self._ports = ports
        self._drivers = drivers
        self._run_id = str(uuid.uuid4())
        self._directory = Path(conf.agent.data_dir)
        self._lock_file: int | None = None
        self.rpc_version = conf.agent.rpc_version_cap or RPC_VERSION
        journal = ToolJournal(self._directory / "tools" / host)
        self._cleanup = Cleanup(
            ports,
            drivers,
            journal,
            host=host,
            run_id=self._run_id,
            timeout=conf.nvme.cleanup_timeout,
            max_concurrent=conf.agent.max_concurrent_cleanups,
        )
        self._recovery = Recovery(ports, self._cleanup, journal, host=host)
        self._discovery = Discovery(
            ports,
            drivers,
            self._cleanup,
            RootProvider(ports.placement, host, create=conf.placement.create_root_provider),
            host=host,
            run_id=self._run_id,
            clean_on_discovery=conf.nvme.clean_on_discovery,
        )

    def init_host(self) -> None:
        """Take the host's lock, let every driver check the host, and say that this run serves it now.

        :raises InvalidConfiguration: another agent serves this host from the same data directory, the
            directory cannot be used, or a driver's options cannot.
        :raises HardwareError: a driver lacks what it needs, such as nvme-cli.
        :raises DatabaseUnavailable: the run could not be registered.
        """
        self._take_lock()
        for driver in self._drivers.values():
            driver.init_host()
        now = self._ports.clock()
        record = AgentRecord(self.host, self._run_id, self.rpc_version, now, now)
        self._ports.db.transact(lambda tx: agents.register(tx, record))

    def start(self) -> None:
        """Recover what the last run left, then look at the host for the first time.

        Called when the RPC server takes messages. A Placement that is away does not keep the agent from
        starting: the next period tries again.

        :raises InvalidConfiguration: two drivers claim one device.
        :raises DatabaseUnavailable: nothing could be recovered; the agent must not go on.
        """
        context = RequestContext.admin()
        self._recovery.wait_for_survivors()
        self._recovery.check(context)
        try:
            self._discovery.run(context, starting=True)
        except InvalidConfiguration:
            raise
        except AutoclaveError as error:
            LOG.error("The first discovery of %s is not complete: %s", self.host, error)

    def period(self) -> None:
        """What is done every ``[agent] periodic_interval``. What fails is logged and done again next time."""
        context = RequestContext.admin()
        for step in (self._touch, lambda: self._recovery.check(context), lambda: self._discovery.run(context)):
            try:
                step()
            except AutoclaveError as error:
                LOG.error("A periodic task of %s failed and will be repeated: %s", self.host, error)
        try:
            pay_debts(self._ports, self.host)
        except AutoclaveError as error:
            LOG.error("Devices of %s that wait to be offered again could not be read: %s", self.host, error)

    def stop(self) -> None:
        """Let go of the workers and of the host's lock."""
        self._cleanup.stop()
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    # The RPC API

    def cleanup_device(self, context: RequestContext, device: Device) -> None:
        """Clean *device*, if it still is what it was when the message was sent. New in 1.1."""
        self._cleanup.request(context, device.uuid, device.state_version)

    def _touch(self) -> None:
        now = self._ports.clock()
        self._ports.db.transact(lambda tx: agents.touch(tx, self.host, self._run_id, now))

    def _take_lock(self) -> None:
        path = self._directory / f"agent-{self.host}.lock"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InvalidConfiguration(
                f"{path} cannot be opened ({error.strerror}); name a directory that the agent may write to",
                option="[agent] data_dir",
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise InvalidConfiguration(
                f"another agent serves host {self.host} already (it holds {path}); stop it first",
                option="[agent] data_dir",
            ) from None
        self._lock_file = lock
