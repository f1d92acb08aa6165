"""Starting the guest of an instance that was claimed for this host."""

from collections.abc import Mapping, Sequence

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.agent.instance_work import InstanceWork, fault
from autoclave.db import instances as instance_rows
from autoclave.db.instances import InstanceRecord
from autoclave.exceptions import AutoclaveError, DatabaseUnavailable
from autoclave.objects.context import RequestContext
from autoclave.rules.instance_states import PowerState, TaskState, VMState
from autoclave.rules.resource_request import alias_counts

LOG = logging.getLogger(__name__)


class InstanceBuilds:
    """Builds instances.

    The row says how far it is: from the moment that it says ``spawning`` and names this run, a guest may exist; from
    the claim on, devices are its; and the guest is not started before what it burns is reserved.
    """

    def __init__(self, work: InstanceWork) -> None:
        self._work = work

    def build(self, context: RequestContext, instance_uuid: str, groups: Mapping[str, Sequence[str]]) -> None:
        """Claim what the instance was allocated, and start its guest. A second message does nothing.

        :param groups: the providers that each group of its request got.
        :raises DatabaseUnavailable: it is not known how far it came; the period's check ends it.
        """
        with self._work.locks.of(instance_uuid):
            instance = self._work.ports.db.transact(lambda tx: self._take(tx, instance_uuid))
            if instance is None:
                LOG.info("Instance %s is not to be built on %s any more.", instance_uuid, self._work.host)
                return
            self._work.notify(instance, "create.start")
            try:
                self._start_guest(instance, groups)
            except Exception as error:  # whatever it is: devices and allocation must not be left to nobody
                if not isinstance(error, AutoclaveError):
                    LOG.exception("Building instance %s failed in a way that nobody foresaw", instance_uuid)
                self._fail(context, instance, error)
                return
            now = self._work.ports.clock()
            active = self._work.swap(
                instance,
                expect_task=TaskState.SPAWNING,
                vm_state=VMState.ACTIVE,
                task_state=None,
                power_state=PowerState.RUNNING.value,
                launched_at=now,
            )
            if active is None:
                # It is being deleted, and whoever does that waits for our lock, and ends the guest.
                LOG.info("Instance %s was taken away while it was built.", instance_uuid)
                return
            LOG.info("Instance %s runs.", instance_uuid)
            self._work.notify(active, "create.end", self._work.given(instance_uuid))

    def _take(self, tx: Connection, instance_uuid: str) -> InstanceRecord | None:
        instance = instance_rows.get(tx, instance_uuid, lock=True)
        if instance is None or instance.host != self._work.host or instance.vm_state is not VMState.BUILDING:
            return None
        return instance_rows.swap(
            tx,
            instance,
            expect_task=TaskState.SCHEDULING,
            task_state=TaskState.SPAWNING,
            agent_run_id=self._work.run_id,
        )

    def _start_guest(self, instance: InstanceRecord, groups: Mapping[str, Sequence[str]]) -> None:
        work = self._work
        allocation = work.ports.placement.get_allocations(instance.uuid)
        asked = sum(count for _, count in alias_counts(instance.flavor["extra_specs"]))
        functions = work.tracker.instance_claim(instance.uuid, allocation, groups, at_least=asked)
        work.driver.spawn(work.guests.describe(instance, functions, instance.image_uuid))

    def _fail(self, context: RequestContext, instance: InstanceRecord, error: Exception) -> None:
        """Undo the build, as far as that can be done now; what is left is the instance's until it is deleted."""
        work = self._work
        LOG.warning("Instance %s could not be started on %s: %s", instance.uuid, work.host, error)
        if isinstance(error, DatabaseUnavailable):
            LOG.debug("What was written is not known; all of it is undone")
        burned = ""
        try:
            work.driver.destroy(instance.uuid)
            work.guests.remove_files(instance.uuid)
            burned = work.burned_words(instance.uuid)
            work.give_back(context, instance.uuid)
        except AutoclaveError as left:
            LOG.warning("Instance %s keeps what it has until it is deleted: %s", instance.uuid, left)
        what = f"The instance could not be started on its host; the administrator sees why.{burned}"
        failed = work.swap(
            instance,
            expect_task=TaskState.SPAWNING,
            vm_state=VMState.ERROR,
            task_state=None,
            power_state=PowerState.NOSTATE.value,
            **fault(error, work.ports.clock(), what),
        )
        if failed is not None:
            work.notify(failed, "create.error", work.given(instance.uuid), fault=str(error))
