"""Overwrite every byte of every namespace, and read the disks back.

Either the kernel zeroes the disk in steps, through the descriptor that holds it, or ``shred`` of coreutils writes the
zeroes. The read-back verifies the whole disk, or samples of it.
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
"""The name of the ioctl."""

SMALLEST_STEP = 1 << 20
_QUICK, _SLOW = 0.1, 0.5
"""Seconds of a step below which the next one is doubled, and above which it is halved.

A step cannot be interrupted. Its size limits what is still zeroed after the deadline, or after the process was killed.
"""


def zero_out(work: EraseWork, disk: Disk, meter: ProgressMeter) -> None:
    """Overwrite the whole disk by ioctls.

    :raises EraseTimeout: the deadline passed first.
    :raises DeviceVanished: the drive was removed.
    :raises EraseFailed: the disk cannot be overwritten.
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
    """Return the bytes, in whole smallest steps, that fit into *seconds* at the last rate.

    :param rate: bytes per second; 0 if unknown.
    """
    if rate <= 0:
        return SMALLEST_STEP
    return max(int(rate * seconds) // SMALLEST_STEP, 1) * SMALLEST_STEP


SHRED = "shred"
COMMANDS = {SHRED: rf"--iterations=0 --zero --verbose {DISK_NODE}"}
"""A regular expression for its arguments."""
_PROGRESS = re.compile(r"pass \d+/\d+ .* (?P<percent>\d+)%\s*$")


def shred(work: EraseWork, disk: Disk, meter: ProgressMeter) -> None:
    """Overwrite the whole disk by shred.

    :raises EraseFailed: the tool failed.
    :raises WrongDrive: the disk's node became that of another device in the meantime.
    :raises DeviceVanished: the drive was removed.
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
            f"{disk.path} is no longer the device that it was before {SHRED} ran; it is unknown which one was "
            "overwritten"
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
"""Bytes between two checks of the deadline, so many that the requests cost little."""
_EDGE = 1024 * 1024
"""Bytes at each end: they contain partition tables, superblocks, and the backups of both."""
_EDGES = 4096
"""A drive has at least this many edges; on small drives the edges shrink."""
_LEAST, _MOST = 4, 256
"""The least and the most samples at even distances; the same number are at unpredictable offsets."""
_NEIGHBOURS = 256 * 1024 * 1024
"""Bytes of a smaller drive for each sample, so that reading back costs little compared with erasing."""
_SAMPLE = 64 * 1024
_ALIGNMENT = 4096


def first_nonzero(
    device: Disk, *, mode: Literal["sample", "full"], deadline: Deadline, progress: ProgressSink
) -> int | None:
    """Return the offset of a byte that is not zero, or None if all bytes that were read are zero.

    :param mode: ``full`` reads every byte and returns the first offset. ``sample`` reads both ends, and samples at even
        distances and at random.
    :raises EraseTimeout: the deadline passed first.
    :raises DeviceVanished: the disk was removed.
    :raises EraseFailed: it cannot be read, or has no capacity, which proves nothing.
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
    """Yield offset and length of the samples; the whole disk if it is no larger than they are."""
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
    """Report every whole percent once."""

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

    :param tool: its name in the evidence and the progress.
    :param overwrite: overwrites one disk.
    """

    action: CleanupAction
    tool: str
    overwrite: Callable[[EraseWork, Disk, ProgressMeter], None]
    commands: Mapping[str, str]

    replaces_namespaces: ClassVar[bool] = True

    @classmethod
    def by_kernel(cls) -> Self:
        """Return the method of the kernel, which uses NVMe Write Zeroes if the drive has the command."""
        return cls(CleanupAction.WRITE_ZEROES, ZERO_OUT, zero_out, {})

    @classmethod
    def by_shred(cls) -> Self:
        """Return the method of ``shred`` of coreutils, which every drive supports."""
        return cls(CleanupAction.SHRED, SHRED, shred, COMMANDS)

    def lack(self, nvme: NvmeCli, controller: Controller, identity: ControllerIdentity) -> str | None:
        """Implement :meth:`EraseMethod.lack`: the drive must have storage to zero."""
        return lacks_storage(nvme, controller, identity)

    def estimate(self, nvme: NvmeCli, rates: EraseRates, controller: Controller) -> Estimate:  # noqa: ARG002
        """Implement :meth:`EraseMethod.estimate` by the rate of the last drive of its model on this host.

        The estimate does not include a full read-back.
        """
        rate = rates.of(controller.model, str(self.action))
        if rate is None:
            return Estimate(None, "no drive of this model has been overwritten on this host yet")
        return Estimate(controller.size_bytes / rate, f"{rate / 1e6:.0f} MB/s, as the last drive of this model")

    def run(self, work: EraseWork, layout: RecordedLayout) -> Mapping[str, Any]:
        """Implement :meth:`EraseMethod.run`."""
        return Zeroer(work, layout, self).run()


class Zeroer:
    """Zero one drive.

    :param layout: its recorded layout.
    """

    def __init__(self, work: EraseWork, layout: RecordedLayout, method: ZeroMethod) -> None:
        self._work = work
        self._layout = layout
        self._name, self._overwrite = method.tool, method.overwrite

    def run(self) -> Mapping[str, Any]:
        """Zero the drive, read it back, and return the evidence.

        :raises EraseFailed: it cannot be overwritten, or a part of its storage cannot be reached.
        :raises VerifyFailed: a byte that is not zero was read back.
        :raises EraseTimeout: the deadline passed.
        :raises DeviceInUse: another program on this host has a namespace open exclusively.
        :raises DeviceVanished: the drive was removed.
        :raises HardwareError: another error keeps the drive from being proved clean.
        """
        controller, made_anew = self._layout.expose_everything()
        # Hold all of them until the last is proved, so that earlier ones do not change after their read-back.
        with HeldNamespaces(self._work, writable=True) as held:
            disks = held.take(controller.namespaces)
            # While a drive is held open, the kernel cannot reuse its name.
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
        """Return the size that the drive itself reports, to compare with the kernel's."""
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
