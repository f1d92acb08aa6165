"""Serve the API's requests about instances, and finish what other services left unfinished."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from oslo_log import log as logging

from autoclave.conductor.binding import Binder, Unbinder
from autoclave.conductor.builds import Builder, Requests
from autoclave.conductor.compute_hosts import ComputeHosts
from autoclave.conductor.explain import Explainer
from autoclave.conductor.rebuild import Rebuilder
from autoclave.conductor.scheduling import Scheduler
from autoclave.db import instances as instance_rows
from autoclave.db.instances import InstanceRecord
from autoclave.exceptions import AutoclaveError, NoValidHost
from autoclave.lifecycle.ports import Ports
from autoclave.objects.base import RequestContext
from autoclave.rpc.agent_api import AgentAPI
from autoclave.rpc.port import Transport
from autoclave.rules.instance_states import TaskState, VMState
from autoclave.rules.pci_alias import PCIAlias

LOG = logging.getLogger(__name__)


class Compute:
    """Perform a conductor's work on instances where ``[compute]`` is enabled.

    :param name: this conductor's name, for the history of devices.
    :param aliases: aliases of ``[pci] alias`` by name.
    :param patience: silence after which an agent counts as dead.
    :param lease_seconds: silence of a builder after which any conductor undoes its work.
    """

    def __init__(
        self,
        ports: Ports,
        transport: Transport,
        name: str,
        aliases: Mapping[str, PCIAlias],
        patience: timedelta,
        lease_seconds: float,
    ) -> None:
        agents = AgentAPI(transport)
        hosts = ComputeHosts(ports, agents, patience)
        binder, unbinder = Binder(ports, name, lease_seconds), Unbinder(ports, name, lease_seconds)
        self._ports = ports
        self._requests = Requests(ports, aliases)
        self._scheduler = Scheduler(ports, hosts)
        self._explainer = Explainer(ports, self._requests, self._scheduler, hosts)
        self._rebuilder = Rebuilder(ports, agents)
        self._builder = Builder(ports, self._requests, self._scheduler, binder, unbinder, agents, hosts, lease_seconds)
        self.build = self._builder.build
        self.delete = self._builder.delete
        self.rebuild = self._rebuilder.rebuild
        self.explain = self._explainer.explain

    def check(self, flavor: Mapping[str, Any], image: Mapping[str, Any]) -> None:
        """Refuse a request that no host could ever satisfy.

        :param flavor: snapshot of the flavor.
        :param image: snapshot of the image.
        :raises BadRequest: flavor and image contradict each other, or name something that does not exist; the message
            names it.
        :raises PlacementError: Placement failed.
        """
        request, _ = self._requests.of(flavor, image)
        self._scheduler.require_known(request)

    def sweep(self, context: RequestContext) -> None:
        """Undo abandoned builds, finish deletions of instances without a host, and check rebuilds left unchecked.

        Failures are logged, and the next sweep retries.

        :raises DatabaseUnavailable: the database cannot be read.
        """
        with self._ports.db.read() as tx:
            unfinished = [
                instance
                for task in (TaskState.SCHEDULING, TaskState.DELETING, TaskState.REBUILDING)
                for instance in instance_rows.list_for(tx, filters={"task_state": task})
            ]
        for instance in unfinished:
            try:
                self._finish(context, instance)
            except AutoclaveError as error:
                LOG.warning("Recovery of instance %s failed; the next sweep retries it: %s", instance.uuid, error)
            except Exception:  # whatever the failure, the other instances must not wait
                LOG.exception("Recovery of instance %s failed unexpectedly", instance.uuid)

    def _finish(self, context: RequestContext, instance: InstanceRecord) -> None:
        if instance.task_state is TaskState.DELETING:
            if instance.host is None:
                self._builder.delete(context, instance.uuid)
        elif instance.task_state is TaskState.REBUILDING:
            if instance.agent_run_id is None and self._builder.expired(instance):
                self._rebuilder.rebuild(context, instance.uuid)
        elif instance.vm_state is VMState.ERROR or self._builder.expired(instance):
            why = "Its build was abandoned. Delete the server and create it again."
            self._builder.undo(context, instance, NoValidHost(why, _who_had(instance)))


def _who_had(instance: InstanceRecord) -> str:
    if instance.host is not None:
        return f"The agent of host {instance.host} did not start the build in time."
    if instance.agent_run_id is not None:
        return "The conductor that built it stopped reporting."
    return "No conductor started the build."
