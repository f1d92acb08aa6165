"""Define the states of an instance, and the actions that each state allows.

The names are Nova's. :data:`ZONE` is the availability zone of all hosts.
"""

from enum import IntEnum, StrEnum


class VMState(StrEnum):
    """List the lifecycle states of an instance: Nova's ``vm_state``."""

    BUILDING = "building"
    """No guest of the instance has run yet."""
    ACTIVE = "active"
    """The guest is meant to run."""
    STOPPED = "stopped"
    """The guest is meant to be off; the instance keeps its host and its devices."""
    ERROR = "error"
    """An operation failed; the fault describes it. The instance keeps its resources until it is deleted."""


class TaskState(StrEnum):
    """List the operations in progress on an instance: Nova's ``task_state``, None if idle."""

    SCHEDULING = "scheduling"
    SPAWNING = "spawning"
    POWERING_OFF = "powering-off"
    POWERING_ON = "powering-on"
    REBOOTING = "rebooting"
    REBUILDING = "rebuilding"
    DELETING = "deleting"


UNSETTLED = frozenset({TaskState.SCHEDULING, TaskState.SPAWNING, TaskState.DELETING})
"""The operations during which an instance gains or loses its resources."""


class PowerState(IntEnum):
    """List the states of the guest in the hypervisor: Nova's ``power_state``."""

    NOSTATE = 0
    """No hypervisor was queried, or it does not know the guest."""
    RUNNING = 1
    SHUTDOWN = 4
    CRASHED = 6


class Action(StrEnum):
    """List the user actions on an existing instance that may be refused. Deletion is never refused."""

    START = "start"
    STOP = "stop"
    REBOOT = "reboot"
    REBUILD = "rebuild"


_ALLOWED: dict[Action, frozenset[VMState]] = {
    Action.START: frozenset({VMState.STOPPED}),
    Action.STOP: frozenset({VMState.ACTIVE, VMState.ERROR}),
    Action.REBOOT: frozenset({VMState.ACTIVE, VMState.STOPPED, VMState.ERROR}),
    Action.REBUILD: frozenset({VMState.ACTIVE, VMState.STOPPED, VMState.ERROR}),
}

_TASK_OF = {
    Action.START: TaskState.POWERING_ON,
    Action.STOP: TaskState.POWERING_OFF,
    Action.REBOOT: TaskState.REBOOTING,
    Action.REBUILD: TaskState.REBUILDING,
}


def task_of(action: Action) -> TaskState:
    """Return the task state that an instance has during *action*."""
    return _TASK_OF[action]


def allowed(action: Action, vm_state: VMState, task_state: TaskState | None) -> bool:
    """Return whether the states allow *action* now."""
    return vm_state in _ALLOWED[action] and task_state is None


STATUSES = ("BUILD", "ACTIVE", "SHUTOFF", "ERROR", "REBUILD", "REBOOT")
"""All values that :func:`status_of` returns."""


def status_of(vm_state: VMState, task_state: TaskState | None) -> str:
    """Return the ``status`` that the servers API shows, as in Nova.

    A rebuild takes precedence over an error. Otherwise, a client that waits for the rebuild would mistake the old error
    for its result.
    """
    if task_state is TaskState.REBUILDING:
        return "REBUILD"
    if vm_state is VMState.ERROR:
        return "ERROR"
    if task_state is TaskState.REBOOTING:
        return "REBOOT"
    return {VMState.BUILDING: "BUILD", VMState.ACTIVE: "ACTIVE", VMState.STOPPED: "SHUTOFF"}[vm_state]


ZONE = "nova"
"""The one availability zone, which has the name of Nova's default zone."""
