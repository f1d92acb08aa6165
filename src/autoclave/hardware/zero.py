"""Zeroing: every byte of every namespace overwritten, then read back."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoclave.exceptions import DeviceVanished, EraseFailed, VerifyFailed, WrongDrive
from autoclave.hardware.block import first_nonzero, open_block
from autoclave.hardware.erase_work import EraseWork
from autoclave.hardware.namespace_layout import NamespaceLayout
from autoclave.hardware.nvme import Controller, Namespace, controller_at
from autoclave.hardware.progress_meter import ProgressMeter
from autoclave.rules.cleanup_policy import CleanupAction

STEP_BYTES = 256 << 20
"""What one ioctl of blkdiscard covers: small enough that a killed one ends soon."""

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
                self._overwrite(tool, namespace, expected, meter)
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
            "read_back": self._work.verify,
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

    def _overwrite(self, tool: "_Tool", namespace: Namespace, size: int, meter: ProgressMeter) -> None:
        def on_line(line: str) -> None:
            if (percent := tool.percent(line, size)) is not None:
                meter.update(percent)

        argv = tool.argv(self._work.commands.find, namespace.path)
        control = self._work.control
        done = self._work.commands.run(argv, deadline=control.deadline, tools=control.tools, on_line=on_line)
        if done.returncode != 0:
            error = EraseFailed(
                f"{self._work.drive}: {tool.name} failed on {namespace.path} with exit status {done.returncode}: "
                f"{_last_words(done.stderr) or 'it did not say why'}"
            )
            self._work.must_be_there(error)
            raise error
        _flush(namespace.path)
        meter.update(100.0)

    def _check_same_drive(self, before: Controller) -> None:
        after = controller_at(self._work.paths, before.address)
        if after.serial != before.serial or after.namespaces != before.namespaces:
            raise WrongDrive(
                f"{self._work.drive} changed while it was being zeroed: before, serial {before.serial} with "
                f"{_listing(before)}; now, serial {after.serial} with {_listing(after)}"
            )


@dataclass(frozen=True)
class _Tool:
    """A command that overwrites a disk with zeroes.

    :param argv: the command, from a finder of executables and the disk's node.
    :param percent: how far it is, from a line of its output and the disk's bytes; None: the line does not say.
    """

    name: str
    argv: Callable[[Callable[[str], str], Path], list[str]]
    percent: Callable[[str, int], float | None]


def _blkdiscard(find: Callable[[str], str], node: Path) -> list[str]:
    # For a drive that has the Write Zeroes command the kernel turns BLKZEROOUT into it, each as large as the controller
    # takes them; `nvme write-zeroes` does the same with one process for every 65,536 blocks.
    # --force: we ourselves hold the disk exclusively. stdbuf: else the lines come a page at a time.
    return [
        find("stdbuf"), "--output=L",
        find("blkdiscard"), "--zeroout", "--force", "--verbose", "--step", str(STEP_BYTES), str(node),
    ]  # fmt: skip


_ZERO_FILLED = re.compile(r"Zero-filled (\d+) bytes from the offset (\d+)")


def _blkdiscard_percent(line: str, size: int) -> float | None:
    found = _ZERO_FILLED.search(line)
    return min(100.0, 100.0 * (int(found[1]) + int(found[2])) / size) if found else None


def _shred(find: Callable[[str], str], node: Path) -> list[str]:
    return [find("shred"), "--iterations=0", "--zero", "--verbose", str(node)]


_SHRED_PERCENT = re.compile(r"pass \d+/\d+ .* (\d+)%$")


def _shred_percent(line: str, size: int) -> float | None:  # noqa: ARG001
    found = _SHRED_PERCENT.search(line.rstrip())
    return float(found[1]) if found else None


_TOOLS = {
    CleanupAction.WRITE_ZEROES: _Tool("blkdiscard --zeroout", _blkdiscard, _blkdiscard_percent),
    CleanupAction.SHRED: _Tool("shred", _shred, _shred_percent),
}

_VERIFIED = {
    "none": "nothing was read back ([nvme] verify = none)",
    "sample": "the ends and samples of every namespace were read back as zeroes",
    "full": "every byte of every namespace was read back as zero",
}


def _flush(node: Path) -> None:
    """Have the drive write its volatile cache: zeroes that a power cut takes back are none."""
    try:
        descriptor = os.open(node, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as e:
        raise EraseFailed(f"the zeroes on {node} could not be flushed to the medium: {e}") from e


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
