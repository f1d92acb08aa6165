"""Clean a PCI function by a program of the operator. Exit code 0 is the operator's word, and is recorded as that."""

import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from autoclave.exceptions import EraseFailed, EraseTimeout, ToolError, ToolMissing, ToolTimeout
from autoclave.hardware.erase.function_work import FunctionWork
from autoclave.hardware.erase.work import ProgressMeter
from autoclave.hardware.function_access import OperatorPrograms, check_program
from autoclave.hardware.host import Completed, HostPaths
from autoclave.hardware.sysfs import PCIFunction
from autoclave.rules.plain_text import excerpt, printable
from autoclave.rules.reclaim import COMMAND, OPERATORS_WORD

_STEP = "operator's command"
_PROGRESS = re.compile(r"progress ([0-9]{1,3}(?:\.[0-9]+)?)(?: +(.*))?")
_STEP_INTERVAL = 1.0
"""Seconds between two changes of the step's name: each of them is written to the database."""
_SHOWN_STEP = 80
_KEPT_OUTPUT = 4000
"""The most characters of each output in the evidence."""
_LAST_WORDS = 500


class CommandMethod:
    """Run the ``clear_command`` of the device's entry."""

    action: ClassVar[str] = COMMAND
    attributes: ClassVar[Mapping[str, str]] = {}

    def lack(self, paths: HostPaths, function: PCIFunction, command: Sequence[str]) -> str | None:  # noqa: ARG002
        """Implement :meth:`FunctionMethod.lack`."""
        try:
            check_program(paths, command[0])
        except ToolMissing as error:
            return str(error)
        return None

    def run(self, work: FunctionWork) -> Mapping[str, Any]:
        """Implement :meth:`FunctionMethod.run`."""
        programs = OperatorPrograms(work.commands, work.function.address, work.device_uuid)
        began = time.monotonic()
        with work.meter(_STEP) as meter:
            try:
                completed = programs.run(
                    work.command,
                    deadline=work.control.deadline,
                    tools=work.control.tools,
                    on_line=_progress_to(meter),
                )
            except ToolTimeout as error:
                raise EraseTimeout(f"{work.name} was not cleaned within [nvme] cleanup_timeout: {error}") from error
            except ToolError as error:
                raise EraseFailed(f"{work.name} was not cleaned: {error}") from error
        seconds = time.monotonic() - began
        if completed.returncode != 0:
            raise EraseFailed(
                f"{work.name}: {work.command[0]} {_end(completed)} after {seconds:.1f} s; {_last_words(completed)}"
            )
        return {
            "method": "command",
            "command": list(work.command),
            "exit_code": completed.returncode,
            "seconds": round(seconds, 3),
            "stdout": _tail(completed.stdout),
            "stderr": _tail(completed.stderr),
            "verified": OPERATORS_WORD,
        }


def _progress_to(meter: ProgressMeter) -> Callable[[str], None]:
    """Return a listener that passes lines such as ``progress 40 wiping bank 2`` to *meter*."""
    renamed_at: float | None = None

    def heard(line: str) -> None:
        nonlocal renamed_at
        found = _PROGRESS.fullmatch(line.strip())
        if found is None or (percent := float(found[1])) > 100:
            return
        step, now = None, time.monotonic()
        if found[2] and (renamed_at is None or now - renamed_at >= _STEP_INTERVAL):
            step, renamed_at = f"{_STEP}: {excerpt(found[2], _SHOWN_STEP)}", now
        meter.update(percent, step)

    return heard


def _end(completed: Completed) -> str:
    code = completed.returncode
    if code > 0:
        return f"ended with exit code {code}"
    names = {each.value: each.name for each in signal.Signals}
    return f"was ended by signal {names.get(-code, -code)}"


def _last_words(completed: Completed) -> str:
    said = completed.stderr.strip() or completed.stdout.strip()
    return f"its last lines: {excerpt(said[-_LAST_WORDS:], _LAST_WORDS)}" if said else "it printed nothing"


def _tail(text: str) -> str:
    """Return the end of an output in printable form."""
    return printable(text[-_KEPT_OUTPUT:], keep="\n\t")
