"""Answers of the stand-ins for nvme-cli and lvmconfig without a process: a new interpreter takes far longer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from autoclave.hardware.host import Completed
from autoclave.simulator.faults import FaultKind
from autoclave.simulator.nvme_commands import COMMANDS
from autoclave.simulator.nvme_tool import NvmeTool
from autoclave.simulator.slots import DriveSlots
from autoclave.simulator.tools import program
from autoclave.simulator.volume_tools import lvm_settings

_AT_ONCE = frozenset({"version", *COMMANDS}) - {"format", "write-zeroes"}
"""Commands that end at once. The others take time, and can be killed, as those of a real host can."""
_TAKE_TIME = frozenset({FaultKind.NVME_SLOW, FaultKind.NVME_HANGS})


@dataclass(frozen=True)
class ToolAnswers:
    """What answers for the programs in ``bin`` of one simulated host.

    :param root: the directory of the host.
    """

    root: Path

    def __call__(self, argv: Sequence[str]) -> Completed | None:
        """Return what the program *argv* would say.

        None: it has to be run, as it takes time, or it is another program.
        """
        path, *words = argv
        if path not in self._programs or Path(path).read_text() != self._programs[path]:
            return None
        if path == self._nvme:
            if not words or words[0] not in _AT_ONCE or "--wait" in words or self._takes_time:
                return None
            answer = NvmeTool(self._host).run(words)
        else:
            answer = lvm_settings(self.root, words)
        return Completed(tuple(argv), answer.code, _as_read(answer.out), _as_read(answer.err))

    @cached_property
    def _host(self) -> DriveSlots:
        return DriveSlots(self.root)

    @property
    def _nvme(self) -> str:
        return str(self.root / "bin" / "nvme")

    @cached_property
    def _programs(self) -> Mapping[str, str]:
        return {str(self.root / "bin" / name): program(self.root, name) for name in ("lvmconfig", "nvme")}

    @property
    def _takes_time(self) -> bool:
        return any(kind in _TAKE_TIME for kinds in self._host.faults.read().values() for kind in kinds)


def _as_read(text: str) -> str:
    """*text* as it is read from a program's pipe."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
