"""Starting, stopping, rebooting and rebuilding a guest that is there. Its devices stay its own."""

from collections.abc import Callable

from oslo_log import log as logging

from autoclave.agent.instance_work import InstanceWork, fault
from autoclave.db.instances import InstanceRecord
from autoclave.exceptions import AutoclaveError, DatabaseUnavailable
from autoclave.rules.instance_states import PowerState, TaskState, VMState

LOG = logging.getLogger(__name__)


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

    def rebuild(self, instance_uuid: str) -> None:
        """Run the guest anew from the image that the row names, with the devices that it has; then, if the instance was
        stopped, shut it down again, as Nova does.

        Where the host fails, the instance is in error: nobody knows which of the two disks the guest would have.
        """
        work = self._work
        with work.locks.of(instance_uuid):
            found = work.get(instance_uuid)
            if found is None or found.task_state is not TaskState.REBUILDING or found.rebuild is None:
                return
            instance = work.swap(found, expect_task=TaskState.REBUILDING, agent_run_id=work.run_id)
            if instance is None or instance.rebuild is None:
                return
            wanted = instance.rebuild
            work.notify(instance, "rebuild.start")
            try:
                functions = work.tracker.functions_of(instance_uuid)
                work.driver.rebuild(work.guests.describe(instance, functions, wanted["image_uuid"]))
                stopped = instance.vm_state is VMState.STOPPED
                if stopped:
                    work.driver.stop(instance_uuid)
            except DatabaseUnavailable:
                raise
            except AutoclaveError as error:
                self._fail(instance, TaskState.REBUILDING, "rebuild", error)
                return
            done = work.swap(
                instance,
                expect_task=TaskState.REBUILDING,
                vm_state=VMState.STOPPED if stopped else VMState.ACTIVE,
                task_state=None,
                power_state=(PowerState.SHUTDOWN if stopped else PowerState.RUNNING).value,
                image_uuid=wanted["image_uuid"],
                image=wanted["image"],
                rebuild=None,
                launched_at=work.ports.clock(),
            )
            if done is not None:
                work.notify(done, "rebuild.end", work.given(instance_uuid))

    def _do(self, instance_uuid: str, task: TaskState, action: str, deed: Callable[[str], None]) -> None:
        work = self._work
        with work.locks.of(instance_uuid):
            instance = work.get(instance_uuid)
            if instance is None or instance.task_state is not task:
                return
            work.notify(instance, f"{action}.start")
            try:
                deed(instance_uuid)
                state = work.driver.state(instance_uuid)
            except AutoclaveError as error:
                self._fail(instance, task, action, error)
                return
            running = state is PowerState.RUNNING
            done = work.swap(
                instance,
                expect_task=task,
                vm_state=VMState.ACTIVE if running else VMState.STOPPED,
                task_state=None,
                power_state=(state or PowerState.NOSTATE).value,
            )
            if done is not None:
                work.notify(done, f"{action}.end")

    def _fail(self, instance: InstanceRecord, task: TaskState, action: str, error: AutoclaveError) -> None:
        work = self._work
        LOG.warning("%s of instance %s failed: %s", action, instance.uuid, error)
        what = f"The host could not do {task.value}; the administrator sees why."
        # What a failed rebuild left is nobody's word; a guest that would not start or stop is what it was.
        state = {"vm_state": VMState.ERROR, "rebuild": None} if task is TaskState.REBUILDING else {}
        failed = work.swap(
            instance, expect_task=task, task_state=None, **state, **fault(error, work.ports.clock(), what)
        )
        if failed is not None:
            work.notify(failed, f"{action}.error", fault=str(error))
