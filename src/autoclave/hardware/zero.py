"""Zeroing: every byte of every namespace overwritten, then read back."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoclave.exceptions import DeviceVanished, EraseFailed, VerifyFailed, WrongDrive
from autoclave.hardware.block import Disk, first_nonzero, open_block
from autoclave.hardware.erase_work import EraseWork
from autoclave.hardware.namespace_layout import NamespaceLayout
from autoclave.hardware.nvme import Controller, Namespace
from autoclave.hardware.progress_meter import ProgressMeter
from autoclave.rules.cleanup_policy import CleanupAction

LARGEST_STEP = 256 << 20
"""The most that one ioctl of blkdiscard covers, in bytes: a killed one ends soon."""
_STEP_UNIT = 1 << 20
_STEPS = 128
"""Ioctls for a smaller disk: each is a line of progress."""

LEFT_BEHIND = "it is partly overwritten"


class Zeroer:
    """Zeroes one drive."""

    def __init__(self, work: EraseWork) -> None:
        self._work = work

    def run(self) -> Mapping[str, Any]:
        """Zero the drive, read it back, and return the evidence.

        :raises EraseFailed: the tool failed, or the drive's storage cannot be reached as a whole.
        :raises VerifyFailed: something that is not zero was read back.
        :raises EraseTimeout: time is up.
        :raises DeviceInUse: something on this host has a namespace open exclusively.
        :raises DeviceVanished: the drive went away.
        :raises HardwareError: anything else that keeps the drive from being proved clean.
        """
        tool = _TOOLS[self._work.action]
        controller, made_anew = NamespaceLayout(self._work).expose_everything()
        zeroed = [self._zero(tool, namespace) for namespace in controller.namespaces]
        self._check_same_drive(controller)
        return {
            "method": "zero",
            "tool": tool.name,
            "namespaces": zeroed,
            "namespaces_made_anew": made_anew,
            "bytes": sum(namespace["bytes"] for namespace in zeroed),
            "verified": _VERIFIED[self._work.verify],
        }

    def _zero(self, tool: "_Tool", namespace: Namespace) -> Mapping[str, Any]:
        expected = self._expected_bytes(namespace)
        with open_block(self._work.paths, namespace.path) as disk:
            self._check_size(namespace, disk.size, expected)
            node = _node_identity(namespace.path)
            with (
                self._work.bounded(LEFT_BEHIND),
                self._work.meter(f"{tool.name}, namespace {namespace.nsid}") as meter,
            ):
                began = time.monotonic()
                self._overwrite(tool, namespace, disk, meter)
                overwritten = time.monotonic()
            if _node_identity(namespace.path) != node:
                raise WrongDrive(
                    f"{namespace.path} is no longer the device that it was before {tool.name} ran; which one was "
                    "overwritten is not known"
                )
            if self._work.verify != "none":
                offset = first_nonzero(
                    disk, mode=self._work.verify, deadline=self._work.control.deadline,
                    progress=self._work.control.progress,
                )  # fmt: skip
                if offset is not None:
                    raise VerifyFailed(
                        f"{self._work.drive}: {tool.name} reported success, but {namespace.path} is not zero at byte "
                        f"{offset}"
                    )
        return {
            "nsid": namespace.nsid,
            "block_device": namespace.block_name,
            "bytes": expected,
            "seconds": round(overwritten - began, 3),
            "read_back": self._work.verify,
            "read_back_seconds": round(time.monotonic() - overwritten, 3),
        }

    def _expected_bytes(self, namespace: Namespace) -> int:
        """What the drive itself says is the size, to hold the kernel's figure against."""
        with self._work.bounded(LEFT_BEHIND):
            identity = self._work.nvme.identify_namespace(self._work.controller.path, namespace.nsid)
            return identity.nsze * identity.lba_bytes

    def _check_size(self, namespace: Namespace, size: int, expected: int) -> None:
        if not expected or size != expected:
            raise EraseFailed(
                f"{self._work.drive}: namespace {namespace.nsid} has {expected} bytes, but {namespace.path} has "
                f"{size}; a host cannot overwrite what it does not see"
            )

    def _overwrite(self, tool: "_Tool", namespace: Namespace, disk: Disk, meter: ProgressMeter) -> None:
        def on_line(line: str) -> None:
            if said := tool.progress.search(line):
                meter.update(tool.percent(said, disk.size))

        control = self._work.control
        done = self._work.commands.run(
            [*tool.argv(disk.size), str(namespace.path)],
            deadline=control.deadline,
            tools=control.tools,
            on_line=on_line,
            line_buffered=tool.line_buffered,
        )
        if done.returncode != 0:
            error = EraseFailed(
                f"{self._work.drive}: {tool.name} failed on {namespace.path} with exit status {done.returncode}: "
                f"{_last_words(done.stderr) or 'it did not say why'}"
            )
            self._work.must_be_there(error)
            raise error
        disk.flush()
        meter.update(100.0)

    def _check_same_drive(self, before: Controller) -> None:
        after = self._work.must_be_same_drive()
        if after.namespaces != before.namespaces:
            raise WrongDrive(
                f"{self._work.drive} changed while it was being zeroed: before, it had {_listing(before)}; now, "
                f"{_listing(after)}"
            )


@dataclass(frozen=True)
class _Tool:
    """A command that overwrites a disk with zeroes.

    :param argv: the command for a disk of so many bytes; the disk's node is added to it.
    :param progress: what a line of its output says of how far it is.
    :param percent: that in percent, of the disk's bytes.
    :param line_buffered: it has to be made to say its lines at once.
    """

    name: str
    argv: Callable[[int], Sequence[str]]
    progress: re.Pattern[str]
    percent: Callable[[re.Match[str], int], float]
    line_buffered: bool = False


def _blkdiscard(size: int) -> Sequence[str]:
    # For a drive that has the Write Zeroes command the kernel turns BLKZEROOUT into it, each as large as the controller
    # takes them; `nvme write-zeroes` does the same with one process for every 65,536 blocks.
    # --force: we ourselves hold the disk exclusively.
    step = min(LARGEST_STEP, -(-size // _STEPS // _STEP_UNIT) * _STEP_UNIT)
    return "blkdiscard", "--zeroout", "--force", "--verbose", "--step", str(step)


_TOOLS = {
    CleanupAction.WRITE_ZEROES: _Tool(
        "blkdiscard --zeroout",
        _blkdiscard,
        re.compile(r"Zero-filled (?P<bytes>\d+) bytes from the offset (?P<offset>\d+)"),
        lambda said, size: min(100.0, 100.0 * (int(said["bytes"]) + int(said["offset"])) / size),
        line_buffered=True,
    ),
    CleanupAction.SHRED: _Tool(
        "shred",
        lambda _size: ("shred", "--iterations=0", "--zero", "--verbose"),
        re.compile(r"pass \d+/\d+ .* (?P<percent>\d+)%\s*$"),
        lambda said, _size: float(said["percent"]),
    ),
}

_VERIFIED = {
    "none": "nothing was read back ([nvme] verify = none)",
    "sample": "the ends and samples of every namespace were read back as zeroes",
    "full": "every byte of every namespace was read back as zero",
}


def _node_identity(node: Path) -> tuple[int, int, int]:
    try:
        found = node.stat()
    except OSError as e:
        raise DeviceVanished(f"{node} went away while it was being zeroed: {e}") from e
    return found.st_dev, found.st_ino, found.st_rdev


def _last_words(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return " ".join(lines[-3:])


def _listing(controller: Controller) -> str:
    return ", ".join(f"{n.block_name} ({n.size_bytes} bytes)" for n in controller.namespaces) or "no namespace"
