"""Starting the guest of an instance that was scheduled to this host, and ending a build that does not get that far."""

from collections.abc import Mapping, Sequence

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.agent.compute.instance_work import InstanceWork
from autoclave.agent.guests import with_claimed
from autoclave.db import instances as instance_rows
from autoclave.db.instances import InstanceRecord
from autoclave.exceptions import AutoclaveError, StateConflict
from autoclave.objects.base import RequestContext
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
            active = self._work.end(
                instance,
                TaskState.SPAWNING,
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
        # First of all, since it may fail, or take long: neither may burn a device.
        guest = work.guests.prepare(instance, instance.image_uuid, instance.image)
        now = work.get(instance.uuid)
        if now is None or now.task_state is not TaskState.SPAWNING:
            raise StateConflict("it was taken away while its disk was made")
        allocation = work.ports.placement.get_allocations(instance.uuid)
        asked = sum(count for _, count in alias_counts(instance.flavor["extra_specs"]))
        functions = work.tracker.instance_claim(instance.uuid, allocation, groups, at_least=asked)
        work.guest_starts(instance)
        work.driver.spawn(with_claimed(guest, functions))

    def _fail(self, context: RequestContext, instance: InstanceRecord, error: Exception) -> None:
        """Undo the build, as far as that can be done now; what is left is the instance's until it is deleted.

        Also where the database did not answer: what was written is not known, and all of it is undone.
        """
        work = self._work
        burned = ""
        try:
            work.driver.destroy(instance.uuid)
            work.guest_ended(instance)
            work.guests.remove_files(instance.uuid)
            burned = work.burned_words(instance.uuid)
            work.give_back(context, instance.uuid)
        except AutoclaveError as left:
            LOG.warning("Instance %s keeps what it has until it is deleted: %s", instance.uuid, left)
        what = "The instance could not be started on its host; the administrator sees why."
        self._end(instance, error, what, burned)

    def cut_short(self, instance_uuid: str) -> None:
        """End a build that a death cut short. The devices stay the instance's until it is deleted.

        Whether its guest has been started, and has touched them, cannot be told from outside: the guest may have come
        and gone between the hypervisor's answer and the row. So nothing of it is taken for unused.

        :raises AutoclaveError: the guest may run yet, or what it has burned is not reserved for sure.
        """
        work = self._work
        with work.locks.of(instance_uuid):
            instance = work.get(instance_uuid)
            if instance is None or instance.task_state is not TaskState.SPAWNING:
                return
            work.driver.destroy(instance_uuid)
            work.guest_ended(instance)
            work.tracker.settle(instance_uuid)
            what = "The build of the instance was cut short on its host. Delete it, and ask for it again."
            self._end(instance, work.cut_short("built"), what, work.burned_words(instance_uuid))

    def _end(self, instance: InstanceRecord, error: Exception, what: str, burned: str) -> None:
        state = {"vm_state": VMState.ERROR, "power_state": PowerState.NOSTATE.value}
        self._work.fail(instance, TaskState.SPAWNING, "create", error, what, burned=burned, **state)
