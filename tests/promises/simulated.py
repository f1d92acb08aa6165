"""Drives of a simulated host under the real NVMe driver, and a program of that host which writes to them.

Each write leaves a mark of its own on the media. A mark counts once its trace was there to be seen, see
:attr:`Mark.seen`: the documentation of the erase names the limit, which is a plain write that leaves no trace.
"""

import fcntl
import json
import os
import random
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from autoclave.conf import new_config
from autoclave.drivers.base import CleanableDevice, CleanupControl, DiscoveredDevice, Evidence, Sighting
from autoclave.drivers.nvme import NVMeDriver
from autoclave.exceptions import EraseFailed, HardwareError, SimulatorError
from autoclave.hardware.host import Completed, Disk, HostPaths
from autoclave.simulator.disk import SimulatedDisk, claim_file
from autoclave.simulator.drive_spec import MIB, DriveSpec
from autoclave.simulator.host import SimulatedHost
from autoclave.simulator.tools import NvmeTool
from promises.host import Entry, erasing

if TYPE_CHECKING:
    from promises.world import World

SIZE = 2 * MIB
MARK = 64
_LATER = 1e9
"""Seconds of a sanitize that ends only when it is said to."""
_STOPS = frozenset({"sanitize", "sanitize-log", "format"})
"""Commands of nvme-cli before which others get their turn."""


class Way(StrEnum):
    """How a program reaches a namespace."""

    BLOCK = "the block node"
    GENERIC = "the generic node"
    RING = "an io_uring"
    EXCLUSIVE = "the block node, exclusively"


@dataclass
class Mark:
    """What one write has left.

    :param by: the program; None: a guest.
    :param seen: it must be gone, or the drive must not be offered: it was there before the erase, or something that
        must find it has looked since: the Global Data Erased bit, the read-back, or a search for users.
    """

    data: bytes
    offset: int
    by: "Program | None"
    seen: bool


class Program:
    """A process of the host that has a namespace open for writing, until it is closed."""

    def __init__(self, paths: HostPaths, pid: int, way: Way) -> None:
        self.way, self.seen = way, False
        self._process = paths.proc / str(pid)
        self._descriptor: int | None = None
        if way is Way.EXCLUSIVE:  # as a mount: no process has it open
            self._descriptor = os.open(paths.dev / "nvme0n1", os.O_RDONLY)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        ring = way is Way.RING
        node = "/dev/nvme0n1" if way is Way.BLOCK else "/dev/ng0n1"
        for directory in ("fd", "fdinfo"):
            (self._process / directory).mkdir(parents=True)
        (self._process / "comm").write_text("writer\n")
        registered = f"UserFiles:\t1\n    0: {node}\n"
        (self._process / "fdinfo/3").write_text(f"pos:\t0\nflags:\t02\n{registered if ring else ''}")
        (self._process / "fd/3").symlink_to("anon_inode:[io_uring]" if ring else node)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        shutil.rmtree(self._process, ignore_errors=True)


class SimulatedSlot:
    """One drive, and the truth about what was written to it and by what.

    :param root: for the files of the simulated host, which has no other drive.
    """

    def __init__(self, root: Path, world: "World", address: str, serial: str, drives: "type[SimulatedDrives]") -> None:
        self.address, self._world = address, world
        spec = DriveSpec(address, serial, size_bytes=SIZE, sanitize_seconds=_LATER, **drives.capabilities)
        self.host = SimulatedHost.create(root, "host", [spec])
        self.paths = replace(self.host.paths, answer_tool=_Tools(self), hold_disk=self._hold)
        self.program: Program | None = None
        self._marks: list[Mark] = []
        self._looked: list[Mark | Program] = []
        """Seen by the agent in this period, and perhaps not recorded yet."""
        self._media = root / "state/drives" / serial / "ns1"
        self._places = random.Random(serial)
        self._pid = 1000
        self._looks = 0
        self.eraser: int | None = None
        """The thread that erases it."""

    @property
    def at_work(self) -> bool:
        return self.address in self._world.host.erasing

    @property
    def is_clean(self) -> bool:
        if self.program is not None and self.program.seen:
            return False
        return not any(mark.seen for mark in self._left())

    def _left(self) -> list[Mark]:
        """The marks that are still on the media."""
        if self._marks:
            with self._media.open("rb", buffering=0) as media:
                self._marks = [m for m in self._marks if os.pread(media.fileno(), MARK, m.offset) == m.data]
        return self._marks

    # What the program and a guest do

    def open(self, way: Way) -> bool:
        """Let a program open the namespace; False: it is held exclusively."""
        self._pid += 1
        try:
            self.program = Program(self.host.paths, self._pid, way)
        except (BlockingIOError, FileNotFoundError):
            return False
        return True

    def close(self) -> None:
        if self.program is not None:
            self.program.close()
            self.program = None

    def write(self) -> bool:
        """Let the program write, or a guest if there is none; False: the drive refuses it."""
        data = self._places.randbytes(MARK).replace(b"\0", b"\1")
        offset = self._places.randrange(SIZE // MARK) * MARK
        try:
            self.host.write(self.address, offset, data)
        except SimulatorError:
            return False
        self._marks.append(Mark(data, offset, self.program, seen=self.program is None))
        return True

    def write_as_guest(self) -> None:
        program, self.program = self.program, None
        self.write()
        self.program = program

    # What must see it

    def see(self, first: int = 0, last: int = SIZE) -> None:
        """What is on the media between two offsets has been there to be seen."""
        for mark in self._left():
            mark.seen = mark.seen or first - MARK < mark.offset < last

    def see_users(self) -> None:
        """The program has been there to be seen, and with it that it may have written."""
        if self.program is None:
            return
        by_it = [mark for mark in self._marks if mark.by is self.program]
        self._looked += [each for each in (self.program, *by_it) if not each.seen]
        for each in (self.program, *by_it):
            each.seen = True

    def end_look(self, *, recorded: bool) -> None:
        """End a look; an agent that has died before it recorded anything has seen nothing."""
        for each in self._looked:
            each.seen = each.seen and recorded
        self._looked.clear()

    def proved(self) -> None:
        """The erase ends, its proof with it. What is left now and was not seen, the documentation excepts."""
        self.see_users()
        self._world.tally["without a trace"] += sum(not mark.seen for mark in self._left())

    # How the drive answers

    def stop(self, at: str) -> str | None:
        """Let others have their turn in the middle of an erase, and only there: a look has the slot alone."""
        return self._world.stage.gate(at) if self.is_erasing_here else None

    @property
    def is_erasing_here(self) -> bool:
        return self.eraser == threading.get_ident()

    def sanitize_begins(self) -> None:
        self._looks = self._places.randrange(4)
        self._takes(_LATER)

    def sanitize_goes_on(self) -> None:
        """It ends after some looks, or at once where everything is to come back."""
        self._looks -= 1
        if self._looks < 0 or self._world.recovering:
            self._takes(0.0)

    def _takes(self, seconds: float) -> None:
        with self.host.drive(self.address) as drive:
            drive.state.sanitize_seconds = seconds

    @property
    def sanitizing(self) -> bool:
        with self.host.drive(self.address) as drive:
            return drive.progress is not None

    def _hold(self, paths: HostPaths, path: Path, *, writable: bool) -> Disk:
        if self.stop("open exclusively") is not None:
            raise HardwareError(f"{path} cannot be opened, as arranged")
        return _SeenDisk(self, path, *claim_file(paths, path, writable=writable))


class _SeenDisk(SimulatedDisk):
    """A disk held by the eraser; others get their turn before it is overwritten and before it is read."""

    def __init__(self, slot: SimulatedSlot, path: Path, descriptor: int, size: int) -> None:
        super().__init__(slot.host, path, descriptor, size)
        self._slot = slot

    def zero(self, offset: int, length: int) -> None:
        self._stop("overwrite")
        super().zero(offset, length)

    def flush(self) -> None:
        self._stop("flush")
        super().flush()

    def nonzero_in(self, offset: int, length: int) -> int | None:
        self._stop("read back")
        self._slot.see(offset, offset + length)
        return super().nonzero_in(offset, length)

    def _stop(self, at: str) -> None:
        if self._slot.stop(at) is not None:
            raise EraseFailed(f"{self.path}: I/O error, as arranged")


class _Tools:
    """Answers for nvme-cli without a process."""

    def __init__(self, slot: SimulatedSlot) -> None:
        self._slot, self._tool = slot, NvmeTool(slot.host)

    def __call__(self, argv: Sequence[str]) -> Completed | None:
        path, *words = argv
        if Path(path).name != "nvme":
            return None
        slot, command = self._slot, words[0]
        fate = slot.stop(f"nvme {command}") if command in _STOPS else None
        failure = Completed(tuple(argv), 1, "", "failed, as arranged\n")
        if fate == "fail":
            return failure
        if command == "sanitize-log":
            slot.sanitize_goes_on()
        if command in ("sanitize", "format"):
            slot.see()  # what is there now must be gone afterwards
        answer = self._tool.run(words)
        if command == "sanitize" and answer.code == 0:
            slot.sanitize_begins()
        if command == "sanitize-log" and slot.is_erasing_here and not slot.sanitizing:
            slot.see()
        return failure if fate == "lose" else Completed(tuple(argv), answer.code, answer.out, answer.err)


class SimulatedDrives(NVMeDriver):
    """The real driver, of one simulated drive."""

    capabilities: ClassVar[Mapping[str, Any]]
    policies: ClassVar[Mapping[Entry, Mapping[str, str]]]
    """What its entry says besides the address."""

    def __init__(self, world: "World", entries: Mapping[str, Entry]) -> None:
        [self._slot] = [
            each for address, each in world.host.simulated.items() if world.host.drivers[address] == self.name
        ]
        self._world = world
        entry = entries.get(self._slot.address, Entry.FIRST)
        spec = {"address": self._slot.address, **self.policies.get(entry, self.policies[Entry.FIRST])}
        conf = new_config(
            (),
            {
                ("nvme", "device_spec"): [] if entry is Entry.GONE else [json.dumps(spec)],
                ("nvme", "poll_interval"): 0.01,
                ("nvme", "verify"): "sample" if entry is Entry.OTHER else "full",
                ("agent", "data_dir"): str(self._slot.host.root),
            },
        )
        super().__init__(conf, self._slot.paths)

    def discover(self) -> Sequence[DiscoveredDevice | Sighting]:
        if self._world.stage.gate("look") is not None:
            self._world.agent.blind = True
            raise HardwareError("nothing could be read, as arranged")
        found = super().discover()
        if not self._slot.at_work and self._world.agent.serves(self._slot.address):
            self._slot.see_users()
        return found

    def cleanup(self, device: CleanableDevice, control: CleanupControl | None = None) -> Evidence:
        assert control is not None
        with erasing(self._world, device):
            self._slot.eraser = threading.get_ident()
            try:
                self._slot.see()
                evidence = super().cleanup(device, replace(control, progress=lambda _progress: None))
                self._slot.proved()
            finally:
                self._slot.eraser = None  # a later thread may get the same identity
            self._world.meddling.proved(device.uuid)
        return evidence


_CONTRADICTION = {"clear_action": "zero", "clear_strategy": "crypto"}


class Sanitized(SimulatedDrives):
    name = "sanitized_driver"
    capabilities: ClassVar = {"crypto": True, "block": True}
    policies: ClassVar = {
        Entry.FIRST: {"clear_action": "sanitize"},
        Entry.OTHER: {"clear_action": "sanitize", "clear_strategy": "block"},
        Entry.CONTRADICTORY: _CONTRADICTION,
    }


class Formatted(SimulatedDrives):
    name = "formatted_driver"
    capabilities: ClassVar = {"format_nvm": True, "format_crypto": True}
    policies: ClassVar = {
        Entry.FIRST: {"clear_action": "format"},
        Entry.OTHER: {"clear_action": "zero"},
        Entry.CONTRADICTORY: _CONTRADICTION,
    }


class Zeroed(SimulatedDrives):
    name = "zeroed_driver"
    capabilities: ClassVar = {"crypto": True}
    policies: ClassVar = {
        Entry.FIRST: {"clear_action": "zero"},
        Entry.OTHER: {"clear_action": "sanitize"},
        Entry.CONTRADICTORY: _CONTRADICTION,
    }


SIMULATED = {each.name: each for each in (Sanitized, Formatted, Zeroed)}
SANITIZED, FORMATTED, ZEROED = SIMULATED
