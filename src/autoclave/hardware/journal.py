"""Record on disk which external tools run on which device, so that a restarted agent can wait for them."""

import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from autoclave.exceptions import HardwareError
from autoclave.hardware.host import Deadline, ToolSink

_PROC = Path("/proc")
"""The real directory, always: the tools of a simulated host are real processes, too."""
_LOOK_AGAIN = 0.05
_DEAD = frozenset("ZXx")


@dataclass(frozen=True)
class _Tool:
    """Identify a tool. A process number alone is not unique: the kernel reuses it.

    :param start_time: clock ticks from boot to its start, field 22 of ``/proc/<pid>/stat``.
    :param boot_id: the boot to which those ticks refer.
    """

    pid: int
    start_time: int
    boot_id: str
    argv: tuple[str, ...]

    def runs(self) -> bool:
        """Return whether the tool, or a process of the session that it leads, is alive."""
        if self.boot_id != _boot_id():
            return False
        leader = _stat(self.pid)
        if leader is not None and leader.start_time != self.start_time:
            # Another process has the number: the kernel reuses it only after the session is empty.
            return False
        if leader is not None and leader.state not in _DEAD:
            return True
        return any(
            member.session == self.pid and member.state not in _DEAD
            for entry in os.listdir(_PROC)
            if entry.isdigit() and (member := _stat(int(entry))) is not None
        )


class ToolJournal:
    """Maintain a directory with one file per device on which a tool runs.

    :param directory: created when it is first needed.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = threading.Lock()

    def for_device(self, device_uuid: str) -> ToolSink:
        """Return the sink that journals the tools of this device."""
        return _DeviceJournal(self, device_uuid)

    def devices(self) -> list[str]:
        """Return the devices with a tool whose end was not recorded.

        :raises HardwareError: the journal cannot be listed, so the devices are unknown.
        """
        try:
            return sorted(path.stem for path in self.directory.iterdir() if path.suffix == ".json")
        except FileNotFoundError:
            return []
        except OSError as e:
            raise HardwareError(f"cannot list the journal of running tools {self.directory}: {e.strerror}") from e

    def survivors(self, device_uuid: str) -> list[tuple[int, tuple[str, ...]]]:
        """Return pid and command of every journalled tool that still runs on the device.

        :raises HardwareError: the device's journal cannot be read.
        """
        return [(tool.pid, tool.argv) for tool in self._running(device_uuid)]

    def wait_out(self, device_uuid: str, deadline: Deadline) -> bool:
        """Wait until no journalled tool runs on the device; return False if one still runs at the deadline.

        :raises HardwareError: the journal cannot be read.
        """
        while self._running(device_uuid):
            if deadline.passed:
                return False
            time.sleep(min(_LOOK_AGAIN, deadline.remaining()))
        return True

    def _running(self, device_uuid: str) -> list[_Tool]:
        return [tool for tool in self._read(device_uuid) if tool.runs()]

    def _file(self, device_uuid: str) -> Path:
        return self.directory / f"{device_uuid}.json"

    def _read(self, device_uuid: str) -> list[_Tool]:
        file = self._file(device_uuid)
        try:
            entries = json.loads(file.read_bytes())
            return [_Tool(**{**entry, "argv": tuple(entry["argv"])}) for entry in entries]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, KeyError) as e:
            raise HardwareError(
                f"cannot read the journal of running tools {file} ({e}): make sure that no tool works on the device, "
                "then remove the file"
            ) from e

    def _write(self, device_uuid: str, tools: Sequence[_Tool]) -> None:
        """Replace the device's file as a whole, durably; remove it if there are no tools."""
        file = self._file(device_uuid)
        try:
            if tools:
                self.directory.mkdir(parents=True, exist_ok=True)
                fresh = file.with_suffix(".new")
                with open(fresh, "w", encoding="utf-8") as stream:
                    json.dump([asdict(tool) for tool in tools], stream)
                    stream.flush()
                    os.fsync(stream.fileno())
                fresh.replace(file)
            else:
                file.unlink(missing_ok=True)
            directory = os.open(self.directory, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as e:
            raise HardwareError(f"cannot write the journal of running tools {file}: {e.strerror}") from e


class _DeviceJournal:
    """Journal the tools of one device."""

    def __init__(self, journal: ToolJournal, device_uuid: str) -> None:
        self._journal = journal
        self._device_uuid = device_uuid

    def started(self, pid: int, argv: Sequence[str]) -> None:
        """Record the tool.

        :raises HardwareError: it cannot be recorded; the caller must end it.
        """
        stat = _stat(pid)
        if stat is None:
            raise HardwareError(f"cannot journal {argv[0]}: /proc does not show its process {pid}")
        tool = _Tool(pid, stat.start_time, _boot_id(), tuple(argv))
        with self._journal._lock:
            running = self._journal._running(self._device_uuid)
            self._journal._write(self._device_uuid, [*(t for t in running if t.pid != pid), tool])

    def ended(self, pid: int) -> None:
        """Remove the record of the tool.

        :raises HardwareError: the journal cannot be written.
        """
        with self._journal._lock:
            kept = [tool for tool in self._journal._read(self._device_uuid) if tool.pid != pid]
            self._journal._write(self._device_uuid, kept)


@dataclass(frozen=True)
class _Stat:
    state: str
    session: int
    start_time: int


def _stat(pid: int) -> _Stat | None:
    """Return the kernel's record of a process, or None if there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError as e:
        raise HardwareError(f"cannot read /proc/{pid}/stat: {e.strerror}") from e
    # The command's name is in parentheses, and may itself contain spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    return _Stat(state=fields[0], session=int(fields[3]), start_time=int(fields[19]))


def _boot_id() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError as e:
        raise HardwareError(f"cannot identify this boot by /proc/sys/kernel/random/boot_id: {e.strerror}") from e
