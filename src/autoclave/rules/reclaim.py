"""Define how instances ask for a device, and what becomes of it after each instance.

:data:`RECLAIM_PARSERS` and :data:`RECLAIM_CHECKS` define the keys of ``[pci]`` options that set the policy.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from autoclave.rules import json_options


class RequestedBy(StrEnum):
    """List the two ways in which instances ask for a device."""

    PROFILE = "profile"
    """By a device profile. The accelerator API shows the device, and an accelerator request binds it."""
    FLAVOR = "flavor"
    """By a flavor: an alias, or resources and traits. The agent claims the device for the instance."""


class Reclaim(StrEnum):
    """List the reclaim policies: what becomes of a device after each instance."""

    ERASE = "erase"
    """Its driver cleans the device and proves it; then the device is offered again."""
    HOLD = "hold"
    """One-time use: the device is ``spent`` until an operator releases it."""
    NONE = "none"
    """The device is offered again as its instance has left it."""


def policy_of(device_type: str) -> Reclaim:
    """Return the reclaim policy of a device whose driver names none: a drive is erased, another device is not."""
    return Reclaim.ERASE if device_type == "NVME" else Reclaim.NONE


def guarantee(reclaim: Reclaim, cleanup_action: str | None) -> str:
    """Describe for users what the next instance can expect of a device.

    :param cleanup_action: the method that cleans it, or None.
    """
    if reclaim is Reclaim.HOLD:
        return "held until released"
    if reclaim is Reclaim.NONE:
        return RETURNS_UNCLEANED
    if cleanup_action == RESET:
        return f"{RETURNS_UNCLEANED} ({RESET})"
    if cleanup_action == COMMAND:
        return "cleaned by the operator's command"
    return f"erased by {cleanup_action or 'its driver'}"


def cleaned_by(cleanup_action: str | None) -> str:
    """Describe for the history what a successful cleanup stands on.

    :param cleanup_action: the method that cleaned the device.
    """
    if cleanup_action == COMMAND:
        return f"cleaned by the operator's word: {OPERATORS_WORD}"
    if cleanup_action == RESET:
        return f"{RETURNS_UNCLEANED} ({RESET})"
    return f"cleaned by {cleanup_action}"


RETURNS_UNCLEANED = "returns uncleaned"
"""The action of a device that is neither erased nor held: the next guest finds the data of the last one."""
RESET = "reset"
"""The method that resets a device. It proves nothing about the memory of the device, so it is not shown as an erase."""
COMMAND = "command"
"""The method that runs a program of the operator. Its exit status 0 counts as the operator's word."""


class BurnState(StrEnum):
    """List the states in which ``burned`` shows a one-time-use device."""

    NOT_BURNED = "not_burned"
    BURNED = "burned"
    """An instance has, or had, the device."""
    CONFIRMED = "confirmed"
    """The device was seen idle and reserved after its burn."""
    RELEASED = "released"
    """An operator declared the device clean; Placement has yet to be updated."""


OPERATORS_WORD = "operator's command, exit 0"
"""The evidence of a cleaning by :data:`COMMAND`."""

CLEAR_PROGRAMS = "/etc/autoclave/clear.d"
"""The directory of the programs that :data:`COMMAND` may run. So a helper with privileges runs only what root put there
for this purpose, whatever the agent asks for."""

_PROGRAM = re.compile(rf"{CLEAR_PROGRAMS}/[A-Za-z0-9_][A-Za-z0-9_.-]*")


def program_fault(command: object) -> str | None:
    """Return why *command* cannot be a ``clear_command``, or None if it can."""
    if not isinstance(command, list | tuple) or not command:
        what = "an empty list" if command in ([], ()) else json_options.kind(command)
        return f"must be a list of strings, the program and its arguments, not {what}"
    for each in command:
        if not isinstance(each, str):
            return f"must be a list of strings, and has {json_options.kind(each)}"
        if "\0" in each:
            return "must not contain NUL"
    if not _PROGRAM.fullmatch(command[0]):
        return (
            f"must begin with the absolute path of a program directly in {CLEAR_PROGRAMS}, whose name has letters, "
            f"digits, '_', '.' and '-' only, not {json_options.kind(command[0])}"
        )
    return None


@dataclass(frozen=True, slots=True)
class ReclaimPolicy:
    """Hold the policy of one configured device.

    :param cleanup_action: for ``erase``, the method: :data:`RESET` or :data:`COMMAND`.
    :param command: for :data:`COMMAND`, the program and its arguments.
    """

    reclaim: Reclaim = Reclaim.NONE
    cleanup_action: str | None = None
    command: tuple[str, ...] = ()

    @classmethod
    def of(cls, keys: Mapping[str, Any]) -> Self:
        """Return the policy that the parsed keys of an entry define. ``one_time_use`` is another name of ``hold``."""
        default = Reclaim.HOLD if keys.get("one_time_use", False) else Reclaim.NONE
        return cls(keys.get("reclaim", default), keys.get("clear_action"), keys.get("clear_command", ()))

    @property
    def words(self) -> str:
        """Describe the keys of the entry for operators."""
        if self.cleanup_action is None:
            return f"reclaim={self.reclaim}"
        return " ".join([f"clear_action={self.cleanup_action}", *self.command])

    @property
    def guarantee(self) -> str:
        """Describe for users what the next instance can expect."""
        return guarantee(self.reclaim, self.cleanup_action)


def _reclaim(value: object) -> Reclaim:
    return Reclaim(_word(value, list(Reclaim)))


def _clear_action(value: object) -> str:
    return _word(value, [RESET, COMMAND])


def _word(value: object, words: list[str]) -> str:
    if not isinstance(value, str) or value not in words:
        raise ValueError(f"must be one of {', '.join(words)}, not {json_options.kind(value)}")
    return value


def _clear_command(value: object) -> tuple[str, ...]:
    fault = program_fault(value)
    if fault is not None or not isinstance(value, list):
        raise ValueError(fault)
    return tuple(value)


def _has_a_method(keys: Mapping[str, Any]) -> None:
    if keys["reclaim"] is Reclaim.ERASE and "clear_action" not in keys:
        raise ValueError(f'"erase" needs the key clear_action, "{RESET}" or "{COMMAND}"')


def _is_for_an_erase(keys: Mapping[str, Any]) -> None:
    if keys.get("reclaim") is not Reclaim.ERASE:
        raise ValueError('has no effect without "reclaim": "erase"; give both keys or neither')
    if keys["clear_action"] == COMMAND and "clear_command" not in keys:
        raise ValueError(f'"{COMMAND}" needs the key clear_command, a list of the program and its arguments')


def _is_run(keys: Mapping[str, Any]) -> None:
    if keys.get("clear_action") != COMMAND:
        raise ValueError(f'has no effect without "clear_action": "{COMMAND}"; give both keys or neither')


def require_agreement(keys: Mapping[str, Any]) -> None:
    """Verify that ``one_time_use`` and ``reclaim`` of an entry have the same meaning.

    :raises ValueError: they contradict each other.
    """
    reclaim = keys.get("reclaim")
    if reclaim is not None and keys["one_time_use"] != (reclaim is Reclaim.HOLD):
        said = str(keys["one_time_use"]).lower()
        raise ValueError(
            f'{said} contradicts "reclaim": "{reclaim}": one_time_use is another name of "reclaim": "hold"; remove one '
            "of the two keys"
        )


RECLAIM_PARSERS: Mapping[str, Callable[[object], Any]] = {
    "reclaim": _reclaim,
    "clear_action": _clear_action,
    "clear_command": _clear_command,
}
RECLAIM_CHECKS: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
    "reclaim": _has_a_method,
    "clear_action": _is_for_an_erase,
    "clear_command": _is_run,
}
