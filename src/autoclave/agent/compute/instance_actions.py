"""Build, delete, power and rebuild instances.

Starting the guest of an instance that was scheduled to this host, and ending a build that does not get that far.

Deleting an instance: its guest, what it holds, its row; in the order in which nothing dirty is offered.

Starting, stopping and rebooting a guest that is there. Its devices stay its own.

Running the guest of an instance anew from another image, with the devices that it has.
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


class InstanceDeletion:
    """Deletes instances. ``deleting`` stays on the row until all is done: whoever finds it there goes on."""

    def __init__(self, work: InstanceWork) -> None:
        self._work = work
        self._told: set[str] = set()
        """Instances whose listeners know that they are being deleted: a deletion that is stuck is told once."""

    def delete(self, context: RequestContext, instance_uuid: str) -> None:
        """Delete an instance that is marked for it. Every step may be done twice, by this run or the next.

        :raises AutoclaveError: not all is done; the period's check goes on.
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
    """Does what the ``task_state`` of an instance says; a message for another state comes too late."""

    def __init__(self, work: InstanceWork) -> None:
        self._work = work

    def start(self, instance_uuid: str) -> None:
        """Run the guest."""
        self._do(instance_uuid, TaskState.POWERING_ON, "power_on", self._work.driver.start)

    def stop(self, instance_uuid: str) -> None:
        """Shut the guest down."""
        self._do(instance_uuid, TaskState.POWERING_OFF, "power_off", self._work.driver.stop)

    def reboot(self, instance_uuid: str) -> None:
        """Shut the guest down and run it."""
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
                # The guest is what it was: whatever it is now, the period's check finds.
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
"""Of ``rebuild``: whether the disk that the instance had, or its guest, may have been touched."""


class InstanceRebuilds:
    """Rebuilds instances. Begun is what a conductor has checked, and what has the agent's run on its row since.

    The row says as well whether the disk may have been touched: so a death before that leaves the instance as it was.
    """

    def __init__(self, work: InstanceWork, power: InstancePower) -> None:
        self._work = work
        self._power = power

    def rebuild(self, instance_uuid: str) -> None:
        """Run the guest anew from the image that the row names; then, if the instance was stopped, shut it down again,
        as Nova does.

        Where that fails before its disk is touched, the instance stays what it was, on its old image. Afterwards
        it is in error: nobody knows which of the two disks the guest would have.

        :raises DatabaseUnavailable: it is not known how far it came; the period's check ends it.
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
            return None  # this message is about an earlier one
        # A message that comes twice begins again what has lost its database; what that had touched stays touched.
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
            # Whoever dies from here on leaves a stop that is gone on with.
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
        """End a rebuild that a death cut short: as it was, if its disk was not touched; else nobody knows what is left.

        :raises GuestError: what was made of the new disk cannot be removed.
        :raises DatabaseUnavailable: it is not known whether it is ended.
        """
        work = self._work
        with work.locks.of(instance_uuid):
            instance = work.get(instance_uuid)
            if instance is None or instance.task_state is not TaskState.REBUILDING or instance.agent_run_id is None:
                return
            # Of one that an older release has begun, it is not known.
            untouched = instance.rebuild is not None and instance.rebuild.get(_TOUCHED) is False
            if untouched:
                work.guests.remove_unfinished(instance_uuid)
            what = _CUT_SHORT_UNTOUCHED if untouched else _CUT_SHORT
            state: dict[str, Any] = {} if untouched else {"vm_state": VMState.ERROR}
            work.fail(instance, TaskState.REBUILDING, "rebuild", work.cut_short("rebuilt"), what, rebuild=None, **state)
