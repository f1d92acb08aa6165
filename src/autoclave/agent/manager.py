"""Run the agent of a host: its RPC endpoint, its start and its period.

One agent serves a host from one data directory. A lock file there names the earlier runs.
"""

import fcntl
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from oslo_config import cfg
from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.agent.cleaning import Cleanup
from autoclave.agent.compute.functions import FunctionUsers
from autoclave.agent.compute.host import ComputeHost, ComputeParts
from autoclave.agent.compute.instances import Instances
from autoclave.agent.device_tree import RootProvider
from autoclave.agent.discovery import Discovery
from autoclave.agent.host_identity import FormerHost, HostRecord
from autoclave.agent.recovery import Recovery
from autoclave.conf.agent import longest_step, patience_with_agents
from autoclave.db import agents
from autoclave.db.agents import AgentRecord
from autoclave.drivers.base import Driver
from autoclave.drivers.pci import PCIDeviceSpecDriver
from autoclave.exceptions import AutoclaveError, Conflict, InvalidConfiguration
from autoclave.hardware.journal import ToolJournal
from autoclave.lifecycle.backfill import run_all
from autoclave.lifecycle.host_rename import require_settled_name
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.sweep import pay_debts
from autoclave.lifecycle.transitions import Cause
from autoclave.objects.base import Device, RequestContext
from autoclave.rpc import agent_api
from autoclave.rules.device_lifecycle import Actor, DeviceState
from autoclave.rules.host_setup import NO_HINTS, HostHints

LOG = logging.getLogger(__name__)


class HostLock:
    """Lock a file while an agent runs, and record the run in it.

    The holder of the lock knows that the runs named in the file are dead.
    """

    def __init__(self, directory: Path, host: str) -> None:
        self._path = directory / f"agent-{host}.lock"
        self._host = host
        self._file: int | None = None

    def take(self) -> list[str]:
        """Lock the file, and return the runs that held the lock before.

        :raises InvalidConfiguration: another agent holds the lock, or the directory cannot be used.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise InvalidConfiguration(
                f"another agent serves host {self._host} already (it holds {self._path}); stop it first",
                option="[agent] data_dir",
            ) from None
        self._file = file
        return self._path.read_text(encoding="utf-8", errors="replace").split()

    def write(self, runs: Sequence[str]) -> None:
        """Write *runs* to the locked file.

        :raises InvalidConfiguration: the file cannot be written.
        """
        assert self._file is not None
        try:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, "\n".join(runs).encode(), 0)
            os.fsync(self._file)
        except OSError as error:
            raise self._unusable(error) from error

    def release(self) -> None:
        """Release the lock, if it was taken. The file still names this run."""
        if self._file is not None:
            # Unlock explicitly: a child forked but not yet exec'd shares the descriptor.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)
            self._file = None

    def _unusable(self, error: OSError) -> InvalidConfiguration:
        return InvalidConfiguration(
            f"{self._path} cannot be used ({error.strerror}); name a directory with room that the agent may write to",
            option="[agent] data_dir",
        )


class AgentManager:
    """Run the agent of one host.

    The specification defines the order of a start: the lock, the drivers' ``init_host``, recovery, the first discovery.
    The caller starts the RPC server after ``init_host``.

    :param host: the host's name, see ``[agent] resource_provider_name``.
    :param drivers: drivers by name, loaded from ``[agent] enabled_drivers``.
    :param compute: the parts that run instances; None if this agent runs none.
    :param users: reports which guests use a PCI function.
    :param hints: machine id and product UUID of this machine.
    :param end: ends the process. Called when another agent serves the host, because only the end of the process
        guarantees that none of its tools still works on a drive. Also called when a delayed start finds an invalid
        configuration.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        ports: Ports,
        host: str,
        drivers: Mapping[str, Driver],
        *,
        end: Callable[[], None],
        users: FunctionUsers,
        compute: ComputeParts | None = None,
        hints: HostHints = NO_HINTS,
    ) -> None:
        self.host = host
        self._conf = conf
        self._ports = ports
        self._drivers = drivers
        self._run_id = str(uuid.uuid4())
        self._end = end
        self._users = users
        self._longest_step = longest_step(conf)
        self._step_began = ports.clock()
        directory = Path(conf.agent.data_dir)
        self._record = HostRecord(directory, Path(conf.agent.sysfs_root))
        self._hints = hints
        self._former = FormerHost(ports, host, hints, patience_with_agents(conf))
        self._lock = HostLock(directory, host)
        self.rpc_version = conf.agent.rpc_version_cap or agent_api.VERSION
        journal = ToolJournal(directory / "tools" / host)
        # Flavors ask for functions that no device driver discovers.
        functions = {} if compute is None else {PCIDeviceSpecDriver.name: PCIDeviceSpecDriver(conf, compute.paths)}
        self._cleanup = Cleanup(
            ports,
            {**drivers, **functions},
            journal,
            host=host,
            run_id=self._run_id,
            timeout=conf.nvme.cleanup_timeout,
            max_concurrent=conf.agent.max_concurrent_cleanups,
        )
        self._recovery = Recovery(ports, self._cleanup, journal, host=host)
        create_root = conf.placement.create_root_provider or compute is not None
        root = RootProvider(ports.placement, host, create=create_root)
        self._discovery = Discovery(
            ports,
            drivers,
            self._cleanup,
            root,
            host=host,
            run_id=self._run_id,
            clean_on_discovery=conf.nvme.clean_on_discovery,
            unreadable_patience=conf.agent.unreadable_patience,
        )
        self._compute = (
            ComputeHost(
                conf,
                ports,
                root,
                compute,
                host=host,
                run_id=self._run_id,
                begin_step=self._begin_step,
                clean=self._cleanup.begin_returned,
            )
            if compute
            else None
        )

    def init_host(self) -> None:
        """Lock the host, let every driver check it, and register this run.

        :raises InvalidConfiguration: another agent serves this host, the host is being renamed, the data directory
            belongs to another host or cannot be used, the machine is on record under another name, or a driver's
            options are invalid.
        :raises HardwareError: a driver lacks a requirement, such as nvme-cli.
        :raises DatabaseUnavailable: the run could not be registered.
        """
        self._record.require(self.host)
        dead = self._lock.take()
        for driver in self._drivers.values():
            driver.init_host()
        self._former.require_none()
        # Write the run before registering it, so that the next run knows it even after a crash in between.
        self._lock.write([*dead, self._run_id])
        try:
            self._ports.db.transact(lambda tx: self._register(tx, dead))
        except InvalidConfiguration:
            self._lock.write(dead)
            raise
        # Check again: either a concurrent rename sees this agent, or this check sees the rename.
        with self._ports.db.read() as tx:
            require_settled_name(tx, self.host)
        self._lock.write([self._run_id])
        # Last, so that a refused start records no name. Nothing of the host is on record before.
        self._record.write(self.host)
        lacks = [lack for driver in self._drivers.values() for lack in driver.host_setup()]
        if lacks:
            LOG.warning("Host %s may use the drives that guests give back. %s", self.host, ". ".join(lacks))

    def start(self) -> None:
        """Run the online data migrations, recover what the last run left, then discover the host.

        Called when the RPC server accepts messages. If Placement is unreachable, the agent starts nevertheless, and the
        next period retries.

        :raises InvalidConfiguration: two drivers claim one device.
        :raises DatabaseUnavailable: recovery failed; the agent must not go on.
        """
        context = RequestContext.admin()
        run_all(self._ports, Cause(Actor.AGENT, self.host, context.request_id), hostname=self.host)
        self._recovery.wait_for_survivors()
        self._recovery.check(context)
        self._begin_step()
        try:
            self._discovery.run(context, starting=True)
        except InvalidConfiguration:
            raise
        except AutoclaveError as error:
            LOG.error("The first discovery of %s is not complete: %s", self.host, error)
        if self._compute is not None:
            self._begin_step()
            self._compute.start(context)

    def beat(self) -> None:
        """Report that this run is alive, independently of its period; called every ``[agent] periodic_interval``.

        If one step takes too long, report nothing: the host is no longer served, and must get no instances.

        :raises DatabaseUnavailable: the report could not be written.
        """
        at_it_for = self._ports.clock() - self._step_began
        if at_it_for < self._longest_step:
            self._serves()
            return
        LOG.error(
            "The agent of %s has been at one step of its look at the host for %.0f s: it is stuck, does not say that "
            "it is alive, and so gets no instances. See what the host does not answer, and restart the agent.",
            self.host,
            at_it_for.total_seconds(),
        )
        with self._ports.db.read() as tx:
            present = agents.get(tx, self.host)
        if present is None or present.run_id != self._run_id:
            self._make_way()

    def period(self) -> None:
        """Run all steps of ``[agent] periodic_interval``. Failures are logged, and the next period retries."""
        context = RequestContext.admin()
        try:
            if not self._serves():
                return
        except AutoclaveError as error:
            LOG.error("The agent of %s could not say that it is alive: %s", self.host, error)
        compute = self._compute.steps if self._compute else ()
        for step in (self._recovery.check, self._discovery.run, *compute):
            self._begin_step()
            try:
                step(context)
            except InvalidConfiguration as error:
                # Placement or the hypervisor has delayed the start, which ends here as it would have ended then.
                LOG.critical("Agent %s stops: its configuration cannot be followed: %s", self.host, error)
                self._cleanup.stop()
                self._end()
                return
            except AutoclaveError as error:
                LOG.error("A periodic task of %s failed and will be repeated: %s", self.host, error)
        self._begin_step()
        try:
            pay_debts(self._ports, self.host)
        except AutoclaveError as error:
            LOG.error("Devices of %s that wait to be offered again could not be read: %s", self.host, error)

    def stop(self) -> None:
        """Abandon the workers, and release the host's lock."""
        self._cleanup.stop()
        self._lock.release()

    # The RPC API

    def cleanup_device(self, context: RequestContext, device: Device) -> None:
        """Clean *device*, if it has not changed since the message was sent. New in 1.1."""
        if device.device_state == DeviceState.ERROR:
            self._discovery.look_again(context, device.uuid)
        self._cleanup.request(context, device.uuid, device.state_version)

    def function_users(self, _context: RequestContext, addresses: Sequence[str]) -> dict[str, list[str]]:
        """Return the users of functions; see :meth:`FunctionUsers.of`. New in 1.3."""
        return self._users.of(addresses)

    def build_instance(self, context: RequestContext, instance_uuid: str, groups: Mapping[str, Sequence[str]]) -> None:
        """Build an instance that was claimed for this host. New in 1.2.

        :param groups: providers by the suffix of the request group that got them.
        """
        self._instances.build(context, instance_uuid, groups)

    def delete_instance(self, context: RequestContext, instance_uuid: str) -> None:
        """Delete an instance that is marked for it. New in 1.2."""
        self._instances.delete(context, instance_uuid)

    def start_instance(self, _context: RequestContext, instance_uuid: str) -> None:
        """Run the guest of an instance in powering-on. New in 1.2."""
        self._instances.start(instance_uuid)

    def stop_instance(self, _context: RequestContext, instance_uuid: str) -> None:
        """Shut down the guest of an instance in powering-off. New in 1.2."""
        self._instances.stop(instance_uuid)

    def reboot_instance(self, _context: RequestContext, instance_uuid: str) -> None:
        """Shut down and run the guest of an instance in rebooting. New in 1.2."""
        self._instances.reboot(instance_uuid)

    def rebuild_instance(self, _context: RequestContext, instance_uuid: str) -> None:
        """Rebuild the guest of an instance in rebuilding from the image of its row. New in 1.2."""
        self._instances.rebuild(instance_uuid)

    @property
    def _instances(self) -> Instances:
        if self._compute is None:
            raise Conflict(f"The agent of {self.host} runs no instances: [compute] is not enabled there.")
        return self._compute.instances

    def _register(self, tx: Connection, dead: Sequence[str]) -> None:
        require_settled_name(tx, self.host)
        now = self._ports.clock()
        present = agents.get(tx, self.host)
        patience = patience_with_agents(self._conf)
        if present is not None and present.run_id not in dead and now - present.last_seen < patience:
            raise InvalidConfiguration(
                f"another agent serves host {self.host}, from another machine or data directory, and was last seen "
                f"{(now - present.last_seen).total_seconds():.0f} s ago; give each host a name of its own. If that "
                f"agent is gone for good, this one may start {patience.total_seconds():.0f} s after that",
                option="[agent] resource_provider_name",
            )
        agents.register(tx, AgentRecord(self.host, self._run_id, self.rpc_version, now, now, *self._hints))

    def _serves(self) -> bool:
        """Report that this run is alive; return whether it still serves the host. If not, end the process."""
        now = self._ports.clock()
        if self._ports.db.transact(lambda tx: agents.touch(tx, self.host, self._run_id, now)):
            return True
        self._make_way()
        return False

    def _make_way(self) -> None:
        LOG.critical(
            "Another agent serves host %s now, or the host was taken out: this one was not seen for too long. It "
            "stops, and touches no drive any more. Let only one agent run for this host.",
            self.host,
        )
        self._cleanup.stop()
        self._end()

    def _begin_step(self) -> None:
        self._step_began = self._ports.clock()
