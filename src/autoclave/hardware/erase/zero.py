"""Overwrite every byte of every namespace, and read the disks back.

Zeroing: every byte of every namespace overwritten, then read back.

Zeroing by the kernel, step by step, on the descriptor that holds the disk.

Zeroing by ``shred`` of coreutils, which writes the zeroes itself.

Whether zero is all there is on a disk: what is read back after an erase.
"""

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from autoclave.exceptions import DeviceVanished, EraseFailed, EraseTimeout, VerifyFailed, WrongDrive
from autoclave.hardware.block import CHUNK
from autoclave.hardware.erase.layout import RecordedLayout
from autoclave.hardware.erase.namespaces import HeldNamespaces, lacks_storage
from autoclave.hardware.erase.work import LEFT_BEHIND, EraseRates, EraseWork, Estimate, ProgressMeter
from autoclave.hardware.host import LARGEST_STEP, Deadline, Disk, Progress, ProgressSink
from autoclave.hardware.nvme import DISK_NODE, Controller, Namespace
from autoclave.hardware.nvme_cli import NvmeCli
from autoclave.hardware.nvme_json import ControllerIdentity
from autoclave.rules.cleanup_policy import CleanupAction
from autoclave.rules.plain_text import excerpt

ZERO_OUT = "BLKZEROOUT"
"""The ioctl."""

SMALLEST_STEP = 1 << 20
_QUICK, _SLOW = 0.1, 0.5
"""Seconds of a step after which the next one is twice, or half, as large.

A step cannot be stopped: it bounds what is still zeroed after the deadline, and after whoever does it was killed.
"""


def zero_out(work: EraseWork, disk: Disk, meter: ProgressMeter) -> None:
    """Overwrite all of the disk.

    :raises EraseTimeout: the deadline passed first.
    :raises DeviceVanished: the drive went away.
    :raises EraseFailed: it cannot be overwritten.
    """
    offset, step, rate = 0, SMALLEST_STEP, 0.0
    while offset < disk.size:
        if work.control.deadline.passed:
            raise work.out_of_time(LEFT_BEHIND)
        length = min(step, disk.size - offset, _in_time(rate, work.control.deadline.remaining()))
        began = time.monotonic()
        try:
            disk.zero(offset, length)
        except EraseFailed as error:
            work.must_be_there(error)
            raise
        spent = time.monotonic() - began
        rate = length / spent if spent > 0 else 0.0
        if spent < _QUICK:
            step = min(2 * step, LARGEST_STEP)
        elif spent > _SLOW:
            step = max(step // 2, SMALLEST_STEP)
        offset += length
        meter.update(100.0 * offset / disk.size)


def _in_time(rate: float, seconds: float) -> int:
    """How many bytes, in whole smallest steps, may be begun with *seconds* left: no more than the last rate allows.

    :param rate: bytes per second; 0: not known yet.
    """
    if rate <= 0:
        return SMALLEST_STEP
    return max(int(rate * seconds) // SMALLEST_STEP, 1) * SMALLEST_STEP


SHRED = "shred"
COMMANDS = {SHRED: rf"--iterations=0 --zero --verbose {DISK_NODE}"}
"""Its arguments, as a regular expression."""
_PROGRESS = re.compile(r"pass \d+/\d+ .* (?P<percent>\d+)%\s*$")


def shred(work: EraseWork, disk: Disk, meter: ProgressMeter) -> None:
    """Overwrite all of the disk.

    :raises EraseFailed: the tool failed.
    :raises WrongDrive: the disk's node became another's meanwhile.
    :raises DeviceVanished: the drive went away.
    :raises ToolError: the tool could not be run, or not in time.
    """

    def on_line(line: str) -> None:
        if said := _PROGRESS.search(line):
            meter.update(float(said["percent"]))

    node = _identity(disk.path)
    done = work.commands.run(
        [SHRED, "--iterations=0", "--zero", "--verbose", str(disk.path)],
        deadline=work.control.deadline,
        tools=work.control.tools,
        on_line=on_line,
    )
    if done.returncode != 0:
        error = EraseFailed(
            f"{work.drive}: {SHRED} failed on {disk.path} with exit status {done.returncode}: "
            f"{_last_words(done.stderr) or excerpt(done.stdout) or 'it printed nothing'}"
        )
        work.must_be_there(error)
        raise error
    if _identity(disk.path) != node:
        raise WrongDrive(
            f"{disk.path} is no longer the device that it was before {SHRED} ran; which one was overwritten is not "
            "known"
        )


def _identity(node: Path) -> tuple[int, int, int]:
    try:
        found = node.stat()
    except OSError as e:
        raise DeviceVanished(f"{node} went away while it was being zeroed: {e}") from e
    return found.st_dev, found.st_ino, found.st_rdev


def _last_words(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return excerpt(" ".join(lines[-3:]))


_STRIDE = 4 * CHUNK
"""Bytes between two looks at the clock: so many that what it costs to ask for them does not show."""
_EDGE = 1024 * 1024
"""Bytes at each end: partition tables, superblocks, and the backups of both are there."""
_EDGES = 4096
"""Such edges that a drive has at least, or they are smaller."""
_LEAST, _MOST = 4, 256
"""Samples at even distances, and as many again where nobody can foresee."""
_NEIGHBOURS = 256 * 1024 * 1024
"""Bytes of a smaller drive for each of them: what reading back costs stays small beside the erasing."""
_SAMPLE = 64 * 1024
_ALIGNMENT = 4096


def first_nonzero(
    device: Disk, *, mode: Literal["sample", "full"], deadline: Deadline, progress: ProgressSink
) -> int | None:
    """The offset of a byte that is not zero, or None if all that was looked at is zero.

    :param mode: ``full`` looks at every byte and returns the first offset; ``sample`` looks at both ends,
        at even distances between them, and at random.
    :raises EraseTimeout: the deadline passed first.
    :raises DeviceVanished: the disk went away.
    :raises EraseFailed: it cannot be read, or has no capacity at all, which proves nothing.
    """
    if device.size == 0:
        raise EraseFailed(f"{device.path} has no capacity: there is nothing to read back")
    ranges = list(_samples(device.size)) if mode == "sample" else [(0, device.size)]
    total = sum(length for _, length in ranges)
    meter = _Meter(f"reading back {device.path.name} ({mode})", total, progress)
    for start, length in ranges:
        for offset in range(start, start + length, _STRIDE):
            if deadline.passed:
                raise EraseTimeout(f"no time was left to read {device.path} back, at {meter.percent} percent of it")
            stretch = min(_STRIDE, start + length - offset)
            found = device.nonzero_in(offset, stretch)
            if found is not None:
                return found
            meter.add(stretch)
    return None


def _samples(size: int) -> Iterator[tuple[int, int]]:
    """Offset and length of what is looked at; all of it where that is no more."""
    edge = min(_EDGE, -(-size // _EDGES // _SAMPLE) * _SAMPLE)
    spread = max(_LEAST, min(_MOST, size // _NEIGHBOURS))
    if size <= 2 * edge + 2 * spread * _SAMPLE:
        yield 0, size
        return
    yield 0, edge
    yield size - edge, edge
    last = size - _SAMPLE
    for index in range(1, spread + 1):
        yield last * index // (spread + 1) // _ALIGNMENT * _ALIGNMENT, _SAMPLE
    chance = random.SystemRandom()
    for _ in range(spread):
        yield chance.randrange(last // _ALIGNMENT + 1) * _ALIGNMENT, _SAMPLE


class _Meter:
    """Tells of every whole percent once."""

    def __init__(self, step: str, total: int, progress: ProgressSink) -> None:
        self.percent = 0
        self._step, self._total, self._progress = step, total, progress
        self._done = 0
        self._since = time.monotonic()
        progress(Progress(0.0, step))

    def add(self, done: int) -> None:
        self._done += done
        percent = 100 * self._done // self._total
        if percent > self.percent:
            self.percent = percent
            spent = time.monotonic() - self._since
            left = spent * (self._total - self._done) / self._done
            self._progress(Progress(float(percent), self._step, seconds_left=left))


_VERIFIED = {
    "none": "nothing was read back ([nvme] verify = none)",
    "sample": "the ends and samples of every namespace were read back as zeroes",
    "full": "every byte of every namespace was read back as zero",
}


@dataclass(frozen=True)
class ZeroMethod:
    """Erase by zeroing every block of every namespace.

    :param tool: what the evidence and the progress call that which overwrites a disk.
    :param overwrite: it.
    """

    action: CleanupAction
    tool: str
    overwrite: Callable[[EraseWork, Disk, ProgressMeter], None]
    commands: Mapping[str, str]

    replaces_namespaces: ClassVar[bool] = True

    @classmethod
    def by_kernel(cls) -> Self:
        """The kernel zeroes the disk, by NVMe Write Zeroes where the drive has the command."""
        return cls(CleanupAction.WRITE_ZEROES, ZERO_OUT, zero_out, {})

    @classmethod
    def by_shred(cls) -> Self:
        """``shred`` of coreutils writes the zeroes; any drive can take it."""
        return cls(CleanupAction.SHRED, SHRED, shred, COMMANDS)

    def lack(self, nvme: NvmeCli, controller: Controller, identity: ControllerIdentity) -> str | None:
        """Of :class:`EraseMethod`: there must be storage to zero."""
        return lacks_storage(nvme, controller, identity)

    def estimate(self, nvme: NvmeCli, rates: EraseRates, controller: Controller) -> Estimate:  # noqa: ARG002
        """Of :class:`EraseMethod`: the drive's size at the pace of the last drive of its model on this host.

        Reading back everything is not in it.
        """
        rate = rates.of(controller.model, str(self.action))
        if rate is None:
            return Estimate(None, "no drive of this model has been overwritten on this host yet")
        return Estimate(controller.size_bytes / rate, f"{rate / 1e6:.0f} MB/s, as the last drive of this model")

    def run(self, work: EraseWork, layout: RecordedLayout) -> Mapping[str, Any]:
        """Of :class:`EraseMethod`."""
        return Zeroer(work, layout, self).run()


class Zeroer:
    """Zeroes one drive.

    :param layout: the layout that it shall have.
    """

    def __init__(self, work: EraseWork, layout: RecordedLayout, method: ZeroMethod) -> None:
        self._work = work
        self._layout = layout
        self._name, self._overwrite = method.tool, method.overwrite

    def run(self) -> Mapping[str, Any]:
        """Zero the drive, read it back, and return the evidence.

        :raises EraseFailed: it cannot be overwritten, or the drive's storage cannot be reached as a whole.
        :raises VerifyFailed: something that is not zero was read back.
        :raises EraseTimeout: time is up.
        :raises DeviceInUse: something on this host has a namespace open exclusively.
        :raises DeviceVanished: the drive went away.
        :raises HardwareError: anything else that keeps the drive from being proved clean.
        """
        controller, made_anew = self._layout.expose_everything()
        # All of them until the last is proved: what was read back must still be so then.
        with HeldNamespaces(self._work, writable=True) as held:
            disks = held.take(controller.namespaces)
            # No name can come to mean another drive while this one is held open under it.
            self._work.must_be_same_drive()
            zeroed = [self._zero(*each) for each in zip(controller.namespaces, disks, strict=True)]
            self._check_same_drive(controller)
        return {
            "method": "zero",
            "tool": self._name,
            "namespaces": zeroed,
            "namespaces_made_anew": made_anew,
            "bytes": sum(namespace["bytes"] for namespace in zeroed),
            "verified": _VERIFIED[self._work.verify],
        }

    def _zero(self, namespace: Namespace, disk: Disk) -> Mapping[str, Any]:
        expected = self._expected_bytes(namespace)
        self._check_size(namespace, disk.size, expected)
        with (
            self._work.bounded(LEFT_BEHIND),
            self._work.meter(f"{self._name}, namespace {namespace.nsid}") as meter,
        ):
            began = time.monotonic()
            self._overwrite(self._work, disk, meter)
            disk.flush()
            if self._work.control.deadline.passed:
                raise self._work.out_of_time("it is overwritten, but has not been read back")
            meter.update(100.0)
            overwritten = time.monotonic()
        if self._work.verify != "none":
            offset = first_nonzero(
                disk, mode=self._work.verify, deadline=self._work.control.deadline,
                progress=self._work.control.progress,
            )  # fmt: skip
            if offset is not None:
                raise VerifyFailed(
                    f"{self._work.drive}: {self._name} reported success, but {namespace.path} is not zero at byte "
                    f"{offset}"
                )
        read_back = time.monotonic()
        return {
            "nsid": namespace.nsid,
            "block_device": namespace.block_name,
            "bytes": expected,
            "seconds": round(overwritten - began, 3),
            "read_back": self._work.verify,
            "read_back_seconds": round(read_back - overwritten, 3),
        }

    def _expected_bytes(self, namespace: Namespace) -> int:
        """What the drive itself says is the size, to hold the kernel's figure against."""
        with self._work.bounded(LEFT_BEHIND):
            return self._work.namespace(namespace.nsid).size_bytes

    def _check_size(self, namespace: Namespace, size: int, expected: int) -> None:
        if not expected or size != expected:
            raise EraseFailed(
                f"{self._work.drive}: namespace {namespace.nsid} has {expected} bytes, but {namespace.path} has "
                f"{size}; a host cannot overwrite what it does not see"
            )

    def _check_same_drive(self, before: Controller) -> None:
        after = self._work.must_be_same_drive()
        if after.namespaces != before.namespaces:
            raise WrongDrive(
                f"{self._work.drive} changed while it was being zeroed: before, it had {_listing(before)}; now, "
                f"{_listing(after)}"
            )


def _listing(controller: Controller) -> str:
    return ", ".join(f"{n.block_name} ({n.size_bytes} bytes)" for n in controller.namespaces) or "no namespace"
