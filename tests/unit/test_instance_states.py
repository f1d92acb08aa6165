"""What a user may ask of an instance follows from its state, as in Nova."""

import itertools

import pytest

from autoclave.rules.instance_states import STATUSES, Action, TaskState, VMState, allowed, status_of, task_of

ALLOWED = {
    ("start", "stopped"),
    ("stop", "active"),
    ("stop", "error"),
    ("reboot", "active"),
    ("reboot", "stopped"),
    ("reboot", "error"),
    ("rebuild", "active"),
    ("rebuild", "stopped"),
    ("rebuild", "error"),
}
TASKS = {"start": "powering-on", "stop": "powering-off", "reboot": "rebooting", "rebuild": "rebuilding"}


@pytest.mark.parametrize(("action", "state"), list(itertools.product(Action, VMState)))
def test_an_instance_takes_exactly_the_actions_of_its_state(action: Action, state: VMState) -> None:
    assert allowed(action, state, None) is ((action.value, state.value) in ALLOWED)


@pytest.mark.parametrize(("action", "task"), list(itertools.product(Action, TaskState)))
def test_an_instance_with_a_task_takes_no_other_action(action: Action, task: TaskState) -> None:
    assert not any(allowed(action, state, task) for state in VMState)


def test_an_accepted_action_is_shown_as_novas_task() -> None:
    assert {action.value: task_of(action).value for action in Action} == TASKS


def test_every_state_is_shown_as_one_of_the_statuses() -> None:
    shown = {status_of(state, task) for state, task in itertools.product(VMState, [None, *TaskState])}
    assert shown == set(STATUSES)
