"""Starting, stopping and rebooting a guest that is there. Its devices stay its own."""

from collections.abc import Callable

from autoclave.agent.compute.instance_work import InstanceWork
from autoclave.exceptions import AutoclaveError
from autoclave.rules.instance_states import PowerState, TaskState, VMState


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
