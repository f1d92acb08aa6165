"""Zeroing: every byte of every namespace overwritten, then read back."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from autoclave.exceptions import EraseFailed, VerifyFailed, WrongDrive
from autoclave.hardware import shred, zero_out
from autoclave.hardware.disk import Disk
from autoclave.hardware.erase.layout import RecordedLayout
from autoclave.hardware.erase.namespaces import lacks_storage
from autoclave.hardware.erase.work import LEFT_BEHIND, EraseWork, Estimate
from autoclave.hardware.erase_rates import EraseRates
from autoclave.hardware.held_namespaces import HeldNamespaces
from autoclave.hardware.nvme import Controller, Namespace
from autoclave.hardware.nvme_cli import NvmeCli
from autoclave.hardware.nvme_json import ControllerIdentity
from autoclave.hardware.progress_meter import ProgressMeter
from autoclave.hardware.read_back import first_nonzero
from autoclave.rules.cleanup_policy import CleanupAction

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
        return cls(CleanupAction.WRITE_ZEROES, zero_out.NAME, zero_out.zero_out, {})

    @classmethod
    def by_shred(cls) -> Self:
        """``shred`` of coreutils writes the zeroes; any drive can take it."""
        return cls(CleanupAction.SHRED, shred.NAME, shred.shred, shred.COMMANDS)

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
