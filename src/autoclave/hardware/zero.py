"""Zeroing: every byte of every namespace overwritten, then read back."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from autoclave.exceptions import EraseFailed, VerifyFailed, WrongDrive
from autoclave.hardware import shred, zero_out
from autoclave.hardware.disk import Disk
from autoclave.hardware.erase_work import LEFT_BEHIND, EraseWork
from autoclave.hardware.held_namespaces import HeldNamespaces
from autoclave.hardware.nvme import Controller, Namespace
from autoclave.hardware.progress_meter import ProgressMeter
from autoclave.hardware.read_back import first_nonzero
from autoclave.hardware.recorded_layout import RecordedLayout
from autoclave.rules.cleanup_policy import CleanupAction

_Overwrite = Callable[[EraseWork, Disk, ProgressMeter], None]
_WAYS: Mapping[CleanupAction, tuple[str, _Overwrite]] = {
    CleanupAction.WRITE_ZEROES: (zero_out.NAME, zero_out.zero_out),
    CleanupAction.SHRED: (shred.NAME, shred.shred),
}
"""What overwrites a disk with zeroes: what the evidence calls it, and itself."""

_VERIFIED = {
    "none": "nothing was read back ([nvme] verify = none)",
    "sample": "the ends and samples of every namespace were read back as zeroes",
    "full": "every byte of every namespace was read back as zero",
}


class Zeroer:
    """Zeroes one drive.

    :param layout: the layout that it shall have.
    """

    def __init__(self, work: EraseWork, layout: RecordedLayout) -> None:
        self._work = work
        self._layout = layout
        self._name, self._overwrite = _WAYS[work.action]

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
