"""Build instances until the agent of their host takes over.

While ``task_state`` is scheduling, the row shows which service works on the instance:

- ``building`` without a run: no builder has begun;
- ``building`` with a run: that builder works on it, until its lease expires;
- ``building`` with a host: the agent of that host must take over;
- ``error``: the build has failed, and any conductor may give back what the instance holds.

A builder claims resources only with its own run on the row. Its last write adds the host. If another service changes
the row before that, the builder gives back what it got. For a dead builder, a sweep does.
"""

import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from oslo_db import exception as db_exc
from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.conductor.binding import Binder, BindRequest, Unbinder
from autoclave.conductor.compute_hosts import ComputeHosts
from autoclave.conductor.scheduling import Claim, Scheduler
from autoclave.db import arqs as arq_rows
from autoclave.db import instances as instance_rows
from autoclave.db import profiles as profile_rows
from autoclave.db.arqs import ARQRecord
from autoclave.db.instances import InstanceRecord
from autoclave.db.profiles import ProfileRecord
from autoclave.exceptions import (
    ApiError,
    AutoclaveError,
    BadRequest,
    DatabaseUnavailable,
    NoValidHost,
    PlacementNotFound,
    RPCError,
    StateConflict,
)
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.requests import make_arqs
from autoclave.objects.base import RequestContext
from autoclave.rpc.agent_api import AgentAPI
from autoclave.rules.flavor_image import Flavor
from autoclave.rules.instance_states import TaskState, VMState
from autoclave.rules.pci_alias import PCIAlias
from autoclave.rules.resource_request import PROFILE_KEY, ResourceRequest, build_request, device_profile_name, suffix_of

LOG = logging.getLogger(__name__)


class Requests:
    """Build resource requests from the flavors and images stored with instances.

    :param aliases: aliases of ``[pci] alias`` by name.
    """

    def __init__(self, ports: Ports, aliases: Mapping[str, PCIAlias]) -> None:
        self._ports = ports
        self._aliases = aliases

    def of(self, flavor: Mapping[str, Any], image: Mapping[str, Any]) -> tuple[ResourceRequest, ProfileRecord | None]:
        """Return the request for the snapshots of a flavor and an image, and the device profile that is part of it.

        :raises BadRequest: they contradict each other, or name something that does not exist; the message names it.
        """
        profile = self._profile_of(flavor)
        groups = profile.groups if profile else []
        return build_request(Flavor.from_snapshot(flavor), image["properties"], self._aliases, groups), profile

    def _profile_of(self, flavor: Mapping[str, Any]) -> ProfileRecord | None:
        name = device_profile_name(flavor["extra_specs"])
        if name is None:
            return None
        with self._ports.db.read() as tx:
            profile = profile_rows.find(tx, name=name)
        if profile is None:
            raise BadRequest(f"Flavor extra spec {PROFILE_KEY!r}: device profile {name!r} does not exist.")
        return profile


def give_back(ports: Ports, unbinder: Unbinder, context: RequestContext, instance_uuid: str) -> None:
    """Give back everything held by an instance without a guest. Every step can be repeated.

    The allocation goes last, because it keeps the devices from being offered until then.

    :raises AutoclaveError: something was not given back; the caller can retry.
    """
    unbinder.delete_for_instance(RequestContext.admin(context.request_id), instance_uuid)
    with ports.db.read() as tx:
        left = arq_rows.of_instance(tx, instance_uuid)
    if left:
        raise StateConflict(f"accelerator request {left[0].uuid} of instance {instance_uuid} is not deleted yet")
    try:
        ports.placement.delete_allocations(instance_uuid)
    except PlacementNotFound:
        LOG.debug("Instance %s has no allocation in Placement.", instance_uuid)


NO_FAULT = {"fault_code": None, "fault_message": None, "fault_details": None, "fault_at": None}


class Builder:
    """Build and delete instances that have no host yet.

    :param lease_seconds: silence of a builder after which any conductor undoes its work.
    """

    def __init__(
        self,
        ports: Ports,
        requests: Requests,
        scheduler: Scheduler,
        binder: Binder,
        unbinder: Unbinder,
        agents: AgentAPI,
        hosts: ComputeHosts,
        lease_seconds: float,
    ) -> None:
        self._ports = ports
        self._requests = requests
        self._scheduler = scheduler
        self._binder = binder
        self._unbinder = unbinder
        self._agents = agents
        self._hosts = hosts
        self._lease = timedelta(seconds=lease_seconds)

    def build(self, context: RequestContext, instance_uuid: str) -> None:
        """Schedule the instance, claim and bind its resources, and hand it over. A second message does nothing.

        :raises DatabaseUnavailable: the progress is unknown; a sweep undoes the build.
        """
        instance = self._take(instance_uuid)
        if instance is None:
            return
        try:
            claim = self._claim_and_bind(context, instance)
        except DatabaseUnavailable:
            raise
        except Exception as error:  # whatever the failure, report it before the lease expires
            if not isinstance(error, AutoclaveError):
                LOG.exception("Build of instance %s failed unexpectedly", instance.uuid)
            self._fail(context, instance, error)
            return
        handed = self._move(instance, host=claim.host, agent_run_id=None)
        if handed is None:
            self._let_go(context, instance)
            return
        LOG.info("Instance %s was scheduled to host %s.", instance.uuid, claim.host)
        try:
            self._agents.build_instance(context, claim.host, instance.uuid, claim.groups)
        except RPCError as error:
            self._fail(context, handed, error)

    def delete(self, context: RequestContext, instance_uuid: str) -> None:
        """Delete an instance that is marked for deletion: by its host's agent, or here if it has no host.

        :raises AutoclaveError: not everything was given back; a sweep continues.
        """
        with self._ports.db.read() as tx:
            instance = instance_rows.get(tx, instance_uuid)
        if instance is None or instance.task_state is not TaskState.DELETING:
            return
        if instance.host is None:
            # An active builder detects that the row has changed, and deletes the instance itself.
            if instance.agent_run_id is None or self.expired(instance):
                self._remove(context, instance.uuid)
            return
        why = self._hosts.unheard(instance.host)
        try:
            self._agents.delete_instance(context, instance.host, instance.uuid)
        except RPCError as error:
            why = f"cannot be reached: {error}"
        if why is not None:
            # Its guest may still run there; only the agent knows when the devices are free.
            LOG.warning("Deletion of instance %s waits for host %s, which %s", instance.uuid, instance.host, why)

    def expired(self, instance: InstanceRecord) -> bool:
        """Return whether the row was last written longer ago than a builder's lease."""
        return self._ports.clock() - (instance.updated_at or instance.created_at) >= self._lease

    def undo(self, context: RequestContext, instance: InstanceRecord, why: AutoclaveError) -> None:
        """End a build that no service works on; if it has failed already, continue giving back.

        :param instance: the instance as read, in scheduling.
        """
        if instance.vm_state is VMState.ERROR:
            self._end_failure(context, instance)
        else:
            self._fail(context, instance, why)

    def _take(self, instance_uuid: str) -> InstanceRecord | None:
        """Put a new run on the row of the instance, and return it; None if it must not be built by this builder."""

        def take(tx: Connection) -> InstanceRecord | None:
            instance = instance_rows.get(tx, instance_uuid)
            if instance is None or instance.vm_state is not VMState.BUILDING:
                return None
            if instance.host is not None or instance.agent_run_id is not None:
                return None
            return instance_rows.swap(
                tx,
                instance,
                expect_task=TaskState.SCHEDULING,
                agent_run_id=str(uuid.uuid4()),
                updated_at=self._ports.clock(),
            )

        return self._ports.db.transact(take)

    def _claim_and_bind(self, context: RequestContext, instance: InstanceRecord) -> Claim:
        request, profile = self._requests.of(instance.flavor, instance.image)
        claim = self._scheduler.claim(instance, request, self._give_up_at())
        if profile is not None:
            self._bind(context, instance, profile, claim)
        return claim

    def _bind(self, context: RequestContext, instance: InstanceRecord, profile: ProfileRecord, claim: Claim) -> None:
        def make(tx: Connection) -> list[ARQRecord]:
            now = instance_rows.get(tx, instance.uuid, lock=True)
            if now is None or _holder(now) != _holder(instance):
                # The service that changed the row gives back only what exists then, so create nothing after that.
                raise StateConflict("it was changed concurrently before its accelerator requests were created")
            return arq_rows.get_many(tx, make_arqs(tx, profile, instance.project_id, instance.uuid))

        try:
            arqs = self._ports.db.transact(make)
        except db_exc.DBReferenceError:
            raise BadRequest(f"Device profile {profile.name!r} was deleted while the instance was built.") from None
        requests = [
            BindRequest(arq.uuid, claim.host, claim.groups[suffix_of(arq.device_profile_group_id)][0], instance.uuid)
            for arq in arqs
        ]
        try:
            self._binder.bind(RequestContext.admin(context.request_id), requests)
        except ApiError as error:
            # The user must not see devices, hosts, or Placement's answer.
            raise NoValidHost("A device that Placement offered could not be bound.", str(error)) from error

    def _give_up_at(self) -> datetime:
        """Return when to begin no further step, so that the build ends before its lease expires."""
        return self._ports.clock() + self._lease / 2

    def _fail(self, context: RequestContext, instance: InstanceRecord, error: Exception) -> None:
        details = f" {error.details}" if isinstance(error, NoValidHost) and error.details else ""
        LOG.warning("Build of instance %s failed: %s%s", instance.uuid, error, details)
        failed = self._move(
            instance,
            vm_state=VMState.ERROR,
            host=None,
            agent_run_id=None,
            **fault(error, self._ports.clock()),
        )
        if failed is None:
            self._let_go(context, instance)
        else:
            self._end_failure(context, failed)

    def _end_failure(self, context: RequestContext, failed: InstanceRecord) -> None:
        try:
            give_back(self._ports, self._unbinder, context, failed.uuid)
        except AutoclaveError as error:
            LOG.warning("Instance %s still holds resources; a sweep releases them later: %s", failed.uuid, error)
            return
        self._swap(failed, task_state=None)

    def _let_go(self, context: RequestContext, mine: InstanceRecord) -> None:
        """Ensure that everything this builder got is given back, after another service has changed the row."""
        LOG.info("Instance %s was deleted or changed concurrently during its build.", mine.uuid)
        with self._ports.db.read() as tx:
            now = instance_rows.get(tx, mine.uuid)
        if now is None:
            give_back(self._ports, self._unbinder, context, mine.uuid)
        elif now.host is not None:
            return  # handed over: the agent needs what the instance holds
        elif now.task_state is TaskState.DELETING:
            self._remove(context, now.uuid)
        elif now.vm_state is VMState.ERROR and now.task_state is None:
            # What this builder got later is not given back yet. Mark the row again, so that a sweep retries a failure.
            marked = self._swap(now, expect_task=None, task_state=TaskState.SCHEDULING)
            if marked is not None:
                self._end_failure(context, marked)
        elif now.vm_state is VMState.ERROR:
            self._end_failure(context, now)

    def _remove(self, context: RequestContext, instance_uuid: str) -> None:
        give_back(self._ports, self._unbinder, context, instance_uuid)
        self._ports.db.transact(lambda tx: instance_rows.delete(tx, instance_uuid))

    def _move(self, instance: InstanceRecord, **values: Any) -> InstanceRecord | None:
        """Write *values* if the builder is unchanged. A deletion mark set and removed since does not matter."""

        def move(tx: Connection) -> InstanceRecord | None:
            now = instance_rows.get(tx, instance.uuid, lock=True)
            if now is None or _holder(now) != _holder(instance):
                return None
            return instance_rows.swap(
                tx, now, expect_task=TaskState.SCHEDULING, updated_at=self._ports.clock(), **values
            )

        return self._ports.db.transact(move)

    def _swap(
        self, instance: InstanceRecord, *, expect_task: TaskState | None = TaskState.SCHEDULING, **values: Any
    ) -> InstanceRecord | None:
        now = self._ports.clock()
        return self._ports.db.transact(
            lambda tx: instance_rows.swap(tx, instance, expect_task=expect_task, updated_at=now, **values)
        )


def _holder(instance: InstanceRecord) -> tuple[VMState, str | None, str | None]:
    return instance.vm_state, instance.agent_run_id, instance.host


def fault(error: Exception, now: datetime) -> dict[str, Any]:
    """Return the fault columns, with a message for users and details for administrators."""
    if isinstance(error, ApiError):
        code, message, details = error.code, str(error), None
    elif isinstance(error, NoValidHost):
        code, message, details = 500, str(error), error.details or None
    else:
        details = str(error) if isinstance(error, AutoclaveError) else repr(error)
        code, message = 500, "A required service failed. Administrators see the details."
    return {"fault_code": code, "fault_message": message, "fault_details": details, "fault_at": now}
