"""A device node that a program has open."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class OpenFile:
    """A program that has a node open.

    :param node: which.
    :param writes: it may write through it.
    """

    node: Path
    pid: int
    program: str
    writes: bool

    def __str__(self) -> str:
        return f"{self.program} (pid {self.pid})"
