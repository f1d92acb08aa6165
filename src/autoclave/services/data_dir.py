"""The directory in which one ``autoclave up`` keeps everything."""

import fcntl
import os
from pathlib import Path

from autoclave.exceptions import InvalidConfiguration

_OPTION = "[agent] data_dir"
_REAL, _SIMULATED = "the real host", "simulated hosts"


class DataDirectory:
    """Used by one process at a time, and for the real host or for simulated ones: for ever.

    A drive of a simulated host has a row and a provider as a real one has; where both are, neither the
    database nor Placement tells them apart.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def take(self, *, simulated: bool) -> None:
        """Make it if there is none, and keep all others out until :meth:`give_back`.

        :raises InvalidConfiguration: it cannot be used, another process uses it, or it is for hosts of the other kind.
        """
        path = self.path / "up.lock"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InvalidConfiguration(
                f"{self.path} cannot be used ({error.strerror}); name another with --data-dir", option=_OPTION
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidConfiguration(
                f"{self.path} is used by another `autoclave up` (it holds {path}); stop that one, or name another "
                "directory with --data-dir",
                option=_OPTION,
            ) from None
        self._claim(self._lock, _SIMULATED if simulated else _REAL)

    def take_as_it_is(self) -> bool:
        """Keep all others out until :meth:`give_back`, whatever it is for; whether it could be had.

        :raises InvalidConfiguration: it is no data directory, or cannot be used.
        """
        try:
            self._lock = os.open(self.path / "up.lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise InvalidConfiguration(
                f"{self.path} cannot be used as the data directory of an `autoclave up` ({error.strerror}); name that "
                "with --data-dir, or the services' database and Placement with --config-file",
                option=_OPTION,
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            self._lock = None
            return False
        return True

    def give_back(self) -> None:
        """Let others have it."""
        if self._lock is not None:
            # Closing alone would leave it to a child that was forked meanwhile, until that executes its program.
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = None

    def _claim(self, lock: int, wanted: str) -> None:
        known = os.pread(lock, 64, 0).decode(errors="replace").strip() or self._kind_without_a_note()
        if known not in (None, wanted):
            remedy = "start with --simulate" if known == _SIMULATED else "start without --simulate"
            raise InvalidConfiguration(
                f"{self.path} is for {known}, not for {wanted}; {remedy}, or name another directory with --data-dir",
                option=_OPTION,
            )
        os.pwrite(lock, f"{wanted}\n".encode(), 0)

    def _kind_without_a_note(self) -> str | None:
        """Directories of versions before there was a note in the lock."""
        if (self.path / "sim").exists():
            return _SIMULATED
        return _REAL if (self.path / "placement.db").exists() else None
