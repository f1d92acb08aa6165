"""Build, delete, power and rebuild instances.

A deletion orders its steps so that no dirty device is offered. The other actions keep the instance's devices.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.agent.compute.instance_work import InstanceWork, with_claimed
from autoclave.db import instances as instance_rows
from autoclave.db.instances import InstanceRecord
from autoclave.exceptions import AutoclaveError, DatabaseUnavailable, StateConflict
from autoclave.objects.base import RequestContext
from autoclave.rules.instance_states import PowerState, TaskState, VMState
from autoclave.rules.resource_request import alias_counts

LOG = logging.getLogger(__name__)


class InstanceBuilds:
    """Build instances.

    The row records the progress. In ``spawning`` with the id of this run, a guest may exist. After the claim, the
    instance has its devices. The guest starts only after burned devices are reserved.
    """

    def __init__(self, work: InstanceWork) -> None:
        self._work = work

    def build(self, context: RequestContext, instance_uuid: str, groups: Mapping[str, Sequence[str]]) -> None:
        """Claim the instance's allocation, and start its guest. A second message does nothing.

        :param groups: the providers of each group of its request.
        :raises DatabaseUnavailable: the progress is unknown; the periodic check ends the build.
        """
        with self._work.locks.of(instance_uuid):
            instance = self._work.ports.db.transact(lambda tx: self._take(tx, instance_uuid))
            if instance is None:
                LOG.info("Instance %s is no longer to be built on %s.", instance_uuid, self._work.host)
                return
            self._work.notify(instance, "create.start")
            try:
                self._start_guest(instance, groups)
            except Exception as error:  # whatever the failure, devices and allocation must be given back
                if not isinstance(error, AutoclaveError):
                    LOG.exception("Building instance %s failed by an unexpected error", instance_uuid)
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
                # Its deletion waits for this lock, and ends the guest.
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
        # First, because it may fail or take long, and must not burn a device in that case.
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
        """Undo the build as far as possible; the instance keeps the rest until it is deleted.

        This also handles a database failure, after which the progress is unknown, by undoing every step.
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
        """End a build that was interrupted by a crash. The instance keeps its devices until it is deleted.

        The guest may have run between the hypervisor's answer and the write of the row. Therefore every device counts
        as used.

        :raises AutoclaveError: the guest may still run, or a burned device may not be reserved.
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


class InstanceDeletion:
    """Delete instances. ``deleting`` stays on the row until all is done, so that any run can continue."""

    def __init__(self, work: InstanceWork) -> None:
        self._work = work
        self._told: set[str] = set()
        """Instances whose deletion was notified: a deletion that is retried is notified once."""

    def delete(self, context: RequestContext, instance_uuid: str) -> None:
        """Delete an instance that is marked for deletion. Every step can be repeated, by this run or the next.

        :raises AutoclaveError: the deletion is incomplete; the periodic check continues it.
        """
        work = self._work
        with work.locks.of(instance_uuid):
            instance = work.get(instance_uuid)
            if instance is None or instance.task_state is not TaskState.DELETING:
                self._told.discard(instance_uuid)
                return
            if instance_uuid not in self._told:
                work.notify(instance, "delete.start", work.given(instance_uuid))
                self._told.add(instance_uuid)
            work.driver.destroy(instance_uuid)
            work.guest_ended(instance)
            work.guests.remove_files(instance_uuid)
            given = work.given(instance_uuid)
            work.give_back(context, instance_uuid)
            work.ports.db.transact(lambda tx: instance_rows.delete(tx, instance_uuid))
            self._told.discard(instance_uuid)
            LOG.info("Instance %s is gone.", instance_uuid)
            gone = work.ports.clock()
            work.notify(instance, "delete.end", given, state="deleted", task_state=None, terminated_at=gone)


class InstancePower:
    """Perform the ``task_state`` of an instance; ignore a message for another state as late."""

    def __init__(self, work: InstanceWork) -> None:
        self._work = work

    def start(self, instance_uuid: str) -> None:
        """Start the guest."""
        self._do(instance_uuid, TaskState.POWERING_ON, "power_on", self._work.driver.start)

    def stop(self, instance_uuid: str) -> None:
        """Shut down the guest."""
        self._do(instance_uuid, TaskState.POWERING_OFF, "power_off", self._work.driver.stop)

    def reboot(self, instance_uuid: str) -> None:
        """Shut down the guest, and start it again."""
        self._do(instance_uuid, TaskState.REBOOTING, "reboot", self._work.driver.reboot)

    def _do(self, instance_uuid: str, task: TaskState, action: str, deed: Callable[[str], None]) -> None:
        work = self._work
        with work.locks.of(instance_uuid):
            instance = work.get(instance_uuid)
            if instance is None or instance.task_state is not task:
                return
            work.notify(instance, f"{action}.start")
            try:
                if task is not TaskState.POWERING_OFF:
                    work.guest_starts(instance)
                deed(instance_uuid)
                state = work.driver.state(instance_uuid)
                if state is not PowerState.RUNNING:
                    work.guest_ended(instance)
            except AutoclaveError as error:
                # The periodic check records whatever state the guest is in now.
                what = f"The host could not do {task.value}; the administrator sees why."
                work.fail(instance, task, action, error, what)
                return
            running = state is PowerState.RUNNING
            done = work.end(
                instance,
                task,
                vm_state=VMState.ACTIVE if running else VMState.STOPPED,
                task_state=None,
                power_state=(state or PowerState.NOSTATE).value,
            )
            if done is not None:
                work.notify(done, f"{action}.end")


_UNTOUCHED = "The instance could not be rebuilt on its host, and stays as it was; the administrator sees why."
_UNKNOWN = "The instance could not be rebuilt on its host; the administrator sees why."
_CUT_SHORT_UNTOUCHED = "The rebuild was cut short on the instance's host, and it stays as it was. Rebuild it again."
_CUT_SHORT = "The rebuild of the instance was cut short on its host. Rebuild it again."

_TOUCHED = "touched"
"""Key of ``rebuild``: the old disk of the instance, or its guest, may have been changed."""


class InstanceRebuilds:
    """Rebuild instances.

    A conductor checks a rebuild first. It has begun once the row has the id of the agent's run. The row also records
    whether the disk may have been changed. A crash before that leaves the instance as it was.
    """

    def __init__(self, work: InstanceWork, power: InstancePower) -> None:
        self._work = work
        self._power = power

    def rebuild(self, instance_uuid: str) -> None:
        """Rebuild the guest from the image of the row. Like Nova, shut it down again if the instance was stopped.

        After a failure before the disk was changed, the instance keeps its old image. After a later failure it is in
        ``error``, because either disk may be in place.

        :raises DatabaseUnavailable: the progress is unknown; the periodic check ends the rebuild.
        """
        work = self._work
        with work.locks.of(instance_uuid):
            instance = work.ports.db.transact(lambda tx: self._take(tx, instance_uuid))
            if instance is None or instance.rebuild is None:
                LOG.info("Instance %s is not to be rebuilt now.", instance_uuid)
                return
            work.notify(instance, "rebuild.start")
            touched = bool(instance.rebuild[_TOUCHED])

            def touch() -> None:
                nonlocal touched
                self._note_touched(instance)
                touched = True

            try:
                functions = work.tracker.functions_of(instance_uuid)
                wanted = instance.rebuild
                guest = work.guests.prepare(instance, wanted["image_uuid"], wanted["image"], touch)
                work.guest_starts(instance)
                work.driver.rebuild(with_claimed(guest, functions))
            except DatabaseUnavailable:
                raise
            except AutoclaveError as error:
                what, state = (_UNKNOWN, {"vm_state": VMState.ERROR}) if touched else (_UNTOUCHED, {})
                work.fail(instance, TaskState.REBUILDING, "rebuild", error, what, rebuild=None, **state)
                return
            self._finish(instance, instance.rebuild)

    def _take(self, tx: Connection, instance_uuid: str) -> InstanceRecord | None:
        found = instance_rows.get(tx, instance_uuid, lock=True)
        if found is None or found.host != self._work.host or found.rebuild is None:
            return None
        if not found.rebuild.get("checked"):
            return None  # this message is for an earlier rebuild
        # A duplicate message restarts a rebuild that lost its database, and keeps the record of a changed disk.
        touched = found.rebuild.get(_TOUCHED, found.agent_run_id is not None)
        begun = {**found.rebuild, _TOUCHED: touched}
        return instance_rows.swap(
            tx, found, expect_task=TaskState.REBUILDING, agent_run_id=self._work.run_id, rebuild=begun
        )

    def _note_touched(self, instance: InstanceRecord) -> None:
        touched = {**(instance.rebuild or {}), _TOUCHED: True}
        if self._work.end(instance, TaskState.REBUILDING, rebuild=touched) is None:
            raise StateConflict("it was taken away while its disk was made")

    def _finish(self, instance: InstanceRecord, rebuilt: Mapping[str, Any]) -> None:
        work = self._work
        stopped = instance.vm_state is VMState.STOPPED
        done = work.end(
            instance,
            TaskState.REBUILDING,
            vm_state=VMState.ACTIVE,
            # After a crash, the periodic check completes this stop.
            task_state=TaskState.POWERING_OFF if stopped else None,
            power_state=PowerState.RUNNING.value,
            image_uuid=rebuilt["image_uuid"],
            image=rebuilt["image"],
            rebuild=None,
            launched_at=work.ports.clock(),
        )
        if done is None:
            LOG.info("Instance %s was taken away while it was rebuilt.", instance.uuid)
            return
        work.notify(done, "rebuild.end", work.given(instance.uuid))
        if stopped:
            self._power.stop(instance.uuid)

    def cut_short(self, instance_uuid: str) -> None:
        """End a rebuild that was interrupted by a crash, with ``error`` unless the disk is known to be unchanged.

        :raises GuestError: the unfinished new disk cannot be removed.
        :raises DatabaseUnavailable: the outcome is unknown.
        """
        work = self._work
        with work.locks.of(instance_uuid):
            instance = work.get(instance_uuid)
            if instance is None or instance.task_state is not TaskState.REBUILDING or instance.agent_run_id is None:
                return
            # A rebuild that an older release has begun does not record this.
            untouched = instance.rebuild is not None and instance.rebuild.get(_TOUCHED) is False
            if untouched:
                work.guests.remove_unfinished(instance_uuid)
            what = _CUT_SHORT_UNTOUCHED if untouched else _CUT_SHORT
            state: dict[str, Any] = {} if untouched else {"vm_state": VMState.ERROR}
            work.fail(instance, TaskState.REBUILDING, "rebuild", work.cut_short("rebuilt"), what, rebuild=None, **state)
