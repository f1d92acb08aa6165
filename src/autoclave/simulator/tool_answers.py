"""Answers of the stand-in for nvme-cli without a process: a new interpreter takes far longer than the answer."""

from collections.abc import Sequence
from pathlib import Path

from autoclave.hardware.tool import Completed
from autoclave.simulator.nvme_tool import NvmeTool
from autoclave.simulator.slots import DriveSlots
from autoclave.simulator.tools import program

_READING = frozenset({"version", "id-ctrl", "id-ns", "id-ns-granularity", "list-ns", "sanitize-log"})
"""Commands that change nothing and end at once. The others can be killed, as those of a real host can."""


class ToolAnswers:
    """What answers for the programs in ``bin`` of one simulated host.

    :param root: the directory of the host.
    """

    def __init__(self, root: Path) -> None:
        self._host = DriveSlots(root)
        self._nvme = root / "bin" / "nvme"
        self._program = program(root, "nvme")

    def __call__(self, argv: Sequence[str]) -> Completed | None:
        """Return what the program *argv* would say.

        None: it has to be run, as it does more than read, things go wrong on this host, or it is another program.
        """
        path, *words = argv
        if path != str(self._nvme) or not words or words[0] not in _READING:
            return None
        if self._host.faults.read() or self._nvme.read_text() != self._program:
            return None
        answer = NvmeTool(self._host).run(words)
        return Completed(tuple(argv), answer.code, _as_read(answer.out), _as_read(answer.err))


def _as_read(text: str) -> str:
    """*text* as it is read from a program's pipe."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
