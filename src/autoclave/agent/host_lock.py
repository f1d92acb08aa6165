"""One agent serves a host from one data directory, and knows which runs before it did so."""

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from autoclave.exceptions import InvalidConfiguration


class HostLock:
    """A file that is locked as long as an agent runs, and names the run.

    Whoever has the lock knows that the runs named in the file are dead.
    """

    def __init__(self, directory: Path, host: str) -> None:
        self._path = directory / f"agent-{host}.lock"
        self._host = host
        self._file: int | None = None

    def take(self) -> list[str]:
        """Lock, and return the runs that had the lock before.

        :raises InvalidConfiguration: another agent has it, or the directory cannot be used.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise InvalidConfiguration(
                f"another agent serves host {self._host} already (it holds {self._path}); stop it first",
                option="[agent] data_dir",
            ) from None
        self._file = file
        return self._path.read_text(encoding="utf-8", errors="replace").split()

    def write(self, runs: Sequence[str]) -> None:
        """Name *runs* in the file. Only while it is locked.

        :raises InvalidConfiguration: it cannot be written.
        """
        assert self._file is not None
        try:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, "\n".join(runs).encode(), 0)
            os.fsync(self._file)
        except OSError as error:
            raise self._unusable(error) from error

    def release(self) -> None:
        """Let go of the lock, if it was taken. The next run will know of this one."""
        if self._file is not None:
            # Closing alone would leave it to a child that was forked meanwhile, until that executes its program.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)
            self._file = None

    def _unusable(self, error: OSError) -> InvalidConfiguration:
        return InvalidConfiguration(
            f"{self._path} cannot be used ({error.strerror}); name a directory with room that the agent may write to",
            option="[agent] data_dir",
        )
