"""Define the states of an instance, and the actions that each state allows.

What an instance is doing, in Nova's words, and what may be asked of it when.

Where hosts are, for clients that ask for it.
"""

from enum import IntEnum, StrEnum


class VMState(StrEnum):
    """Where an instance is in its life: Nova's ``vm_state``."""

    BUILDING = "building"
    """No guest of it has run yet."""
    ACTIVE = "active"
    """Its guest is meant to run."""
    STOPPED = "stopped"
    """Its guest is meant to be off; it keeps its host and its devices."""
    ERROR = "error"
    """Something failed; its fault says what. It keeps what it has until it is deleted."""


class TaskState(StrEnum):
    """What is being done with an instance: Nova's ``task_state``; none: nothing."""

    SCHEDULING = "scheduling"
    SPAWNING = "spawning"
    POWERING_OFF = "powering-off"
    POWERING_ON = "powering-on"
    REBOOTING = "rebooting"
    REBUILDING = "rebuilding"
    DELETING = "deleting"


UNSETTLED = frozenset({TaskState.SCHEDULING, TaskState.SPAWNING, TaskState.DELETING})
"""What is done with an instance while it gets what it is to have, or gives it back."""


class PowerState(IntEnum):
    """What the hypervisor says of the guest: Nova's ``power_state``."""

    NOSTATE = 0
    """No hypervisor has been asked, or it does not know the guest."""
    RUNNING = 1
    SHUTDOWN = 4
    CRASHED = 6


class Action(StrEnum):
    """What a user may ask of an instance that exists, next to its deletion, which is never refused."""

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
    """What an instance does from the moment that *action* was taken."""
    return _TASK_OF[action]


def allowed(action: Action, vm_state: VMState, task_state: TaskState | None) -> bool:
    """Return whether *action* may be asked of an instance now."""
    return vm_state in _ALLOWED[action] and task_state is None


STATUSES = ("BUILD", "ACTIVE", "SHUTOFF", "ERROR", "REBUILD", "REBOOT")
"""What :func:`status_of` can say."""


def status_of(vm_state: VMState, task_state: TaskState | None) -> str:
    """The ``status`` that the servers API shows, as Nova's.

    A rebuild goes before an error: clients that wait for its end would take the error that it is to mend for its own.
    """
    if task_state is TaskState.REBUILDING:
        return "REBUILD"
    if vm_state is VMState.ERROR:
        return "ERROR"
    if task_state is TaskState.REBOOTING:
        return "REBOOT"
    return {VMState.BUILDING: "BUILD", VMState.ACTIVE: "ACTIVE", VMState.STOPPED: "SHUTOFF"}[vm_state]


ZONE = "nova"
"""The one availability zone, by the name that Nova gives its default one."""
