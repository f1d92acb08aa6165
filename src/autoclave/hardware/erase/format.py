"""Erase by Format NVM with a secure erase, which counts only with a separate proof.

Format NVM has no log page: the drive only reports success. So random markers are first written at sampled offsets. The
erase counts if each of them reads differently afterwards. Zeros are not required. After a secure erase, the data is
indeterminate; after a cryptographic erase without deallocation, it is noise.
"""

import math
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from autoclave.exceptions import EraseFailed, EraseUnsupported, ToolFailed, VerifyFailed
from autoclave.hardware.erase.found_layout import FoundLayout, read_layout
from autoclave.hardware.erase.layout import RecordedLayout
from autoclave.hardware.erase.namespaces import HeldNamespaces, NamespaceLayout, lacks_storage
from autoclave.hardware.erase.work import EraseRates, EraseWork, Estimate
from autoclave.hardware.host import MARKER_BYTES, Disk
from autoclave.hardware.nvme import CONTROLLER_NODE, Controller, Namespace
from autoclave.hardware.nvme_cli import COMMON_NAMESPACE, NvmeCli, refused_as_unsupported
from autoclave.hardware.nvme_json import ControllerIdentity
from autoclave.rules.cleanup_policy import CleanupAction
from autoclave.rules.drive_layout import difference

_VERIFIED = (
    "random markers, written before at both ends and at samples of every namespace, no longer read back afterwards"
)
_SPREAD = 128
"""The number of markers at even distances, and the same number at random offsets."""


@dataclass(frozen=True)
class FormatMethod:
    """Erase by Format NVM.

    :param ses: Secure Erase Settings of the command.
    :param step: the name of the step for operators.
    """

    action: CleanupAction
    ses: int
    step: str

    replaces_namespaces: ClassVar[bool] = True
    commands: ClassVar[Mapping[str, str]] = {
        "nvme": rf"format {CONTROLLER_NODE} -n [0-9]+(?: --(?:lbaf|ses|ms|pi|pil|timeout)=[0-9]+)+ --force"
    }

    @classmethod
    def crypto(cls) -> Self:
        """Return Cryptographic Erase: the controller deletes the encryption keys of its namespaces."""
        return cls(CleanupAction.FORMAT_CRYPTO, 2, "format, crypto erase")

    @classmethod
    def user_data(cls) -> Self:
        """Return User Data Erase: the controller erases the user data of its namespaces."""
        return cls(CleanupAction.FORMAT_BLOCK, 1, "format, user data erase")

    def lack(self, nvme: NvmeCli, controller: Controller, identity: ControllerIdentity) -> str | None:
        """Implement :meth:`EraseMethod.lack`: the drive must have storage to format."""
        return lacks_storage(nvme, controller, identity)

    def estimate(self, nvme: NvmeCli, rates: EraseRates, controller: Controller) -> Estimate:  # noqa: ARG002
        """Implement :meth:`EraseMethod.estimate` by the time of the last drive of its model on this host."""
        rate = rates.of(controller.model, str(self.action))
        if rate is None:
            return Estimate(
                None, "no drive of this model has been formatted on this host yet; most take seconds to minutes"
            )
        return Estimate(controller.size_bytes / rate, "as the last drive of this model")

    def run(self, work: EraseWork, layout: RecordedLayout) -> Mapping[str, Any]:
        """Implement :meth:`EraseMethod.run`."""
        return Formatter(work, layout, self).run()


class Formatter:
    """Format one drive, and prove that its data is gone.

    :param layout: its recorded layout.
    """

    def __init__(self, work: EraseWork, layout: RecordedLayout, method: FormatMethod) -> None:
        self._work = work
        self._layout = layout
        self._node = work.controller.path
        self._method = method

    def run(self) -> Mapping[str, Any]:
        """Format the drive and return the evidence.

        :raises EraseUnsupported: the drive does not have the command or this kind of erase.
        :raises EraseFailed: the drive refused, failed, or a part of its storage cannot be reached.
        :raises VerifyFailed: it reported success, but a marker is still there.
        :raises EraseTimeout: the deadline passed.
        :raises DeviceInUse: another program on this host has a namespace open exclusively.
        :raises DeviceVanished: the drive was removed.
        :raises HardwareError: another error keeps the drive from being proved clean.
        """
        controller, made_anew = self._layout.expose_everything()
        with self._work.bounded("nothing was formatted"):
            identity = self._work.nvme.identify(self._node)
            before = read_layout(self._work.nvme, self._node, identity)
        with HeldNamespaces(self._work, writable=True) as held:
            disks = held.take(controller.namespaces)
            # While a drive is held open, the kernel cannot reuse its name.
            self._work.must_be_same_drive()
            marked = [self._mark(*each) for each in zip(controller.namespaces, disks, strict=True)]
            at_once = identity.formats_all or (identity.erases_all and before.layout.one_format)
            targets = self._targets(before, at_once=at_once and identity.takes_broadcast)
            began = time.monotonic()
            with self._work.meter(self._method.step):
                for nsid, position in targets:
                    self._format(nsid, before, position)
            seconds = time.monotonic() - began
            after = self._check_layout(before)
            disks = held.take(after.namespaces)
            self._work.must_be_same_drive()
            proved = zip(after.namespaces, disks, marked, strict=True)
            namespaces = [self._verify(namespace, disk, *marks) for namespace, disk, marks in proved]
        size = sum(namespace["bytes"] for namespace in namespaces)
        return {
            "method": "format",
            "secure_erase_setting": self._method.ses,
            "namespaces": [each | {"seconds": round(seconds * each["bytes"] / size, 3)} for each in namespaces],
            "namespaces_made_anew": made_anew,
            "bytes": size,
            "verified": _VERIFIED,
        }

    def _mark(self, namespace: Namespace, disk: Disk) -> tuple[bytes, Sequence[int]]:
        """Write the markers of a namespace; return their seed and their offsets."""
        if disk.size < MARKER_BYTES:
            raise EraseFailed(
                f"{self._work.drive}: this host sees {disk.size} bytes of namespace {namespace.nsid}, too few for a "
                "marker, so a format could not be proved; nothing was formatted"
            )
        seed, places = secrets.token_bytes(32), sorted(set(_places(disk.size)))
        for place in places:
            disk.write_marker(place, seed)
        disk.flush()
        self._check_deadline("nothing was formatted")
        if lost := [place for place in places if not disk.has_marker(place, seed)]:
            raise EraseFailed(
                f"{self._work.drive}: {namespace.path} does not keep what is written at byte {lost[0]}, so a format "
                "could not be proved; nothing was formatted"
            )
        return seed, places

    @staticmethod
    def _targets(before: FoundLayout, *, at_once: bool) -> list[tuple[int, int]]:
        """Return the namespace ids of the commands, each with the position of the namespace whose format it keeps."""
        if at_once:
            return [(COMMON_NAMESPACE, 0)]
        return [(nsid, position) for position, nsid in enumerate(before.nsids)]

    def _format(self, nsid: int, before: FoundLayout, position: int) -> None:
        self._work.must_be_same_drive()
        kept = before.identities[position]
        with self._work.bounded("it may still be formatting"):
            try:
                self._work.nvme.format(
                    self._node, nsid, kept.format_index, erase=self._method.ses, extended=kept.extended, dps=kept.dps
                )
            except ToolFailed as e:
                self._work.must_be_there(e)
                self._check_deadline("it may still be formatting")
                if refused_as_unsupported(e):
                    raise EraseUnsupported(f"{self._work.drive} cannot do {self._work.action}: {e}") from e
                raise EraseFailed(f"{self._work.drive} failed {self._work.action}: {e}") from e
            self._work.nvme.rescan(self._node)

    def _check_layout(self, before: FoundLayout) -> Controller:
        """Verify that the drive has its former identity and layout; return the current controller."""
        with self._work.bounded("it is formatted, but not proved to be erased"):
            identity = self._work.nvme.identify(self._node)
            after = read_layout(self._work.nvme, self._node, identity)
            if (identity.serial, identity.model) != (self._work.controller.serial, self._work.controller.model):
                raise EraseFailed(
                    f"{self._work.drive} identifies itself after its format as {identity.model} {identity.serial}"
                )
            if tuple(after.nsids) != tuple(before.nsids):
                raise EraseFailed(
                    f"{self._work.drive} had the namespaces {list(before.nsids)} before its format, and has "
                    f"{list(after.nsids)} now: something has replaced them, so the markers prove nothing"
                )
            if changed := difference(before.layout, after.layout):
                raise EraseFailed(f"{self._work.drive} was formatted, but its layout has changed: {changed}")
            return NamespaceLayout(self._work).with_block_devices(list(after.nsids))

    def _verify(self, namespace: Namespace, disk: Disk, seed: bytes, places: Sequence[int]) -> dict[str, Any]:
        began = time.monotonic()
        self._check_deadline("it is formatted, but was not read back")
        survivor = next((place for place in places if self._still_has(disk, place, seed)), None)
        if survivor is not None:
            raise VerifyFailed(
                f"{self._work.drive}: {self._work.action} reported success, but {namespace.path} still has the marker "
                f"at byte {survivor}"
            )
        return {
            "nsid": namespace.nsid,
            "block_device": namespace.block_name,
            "bytes": disk.size,
            "markers": len(places),
            "read_back_seconds": round(time.monotonic() - began, 3),
        }

    def _still_has(self, disk: Disk, place: int, seed: bytes) -> bool:
        try:
            return disk.has_marker(place, seed)
        except EraseFailed as error:
            self._work.must_be_there(error)
            raise

    def _check_deadline(self, left_behind: str) -> None:
        if self._work.control.deadline.passed:
            raise self._work.out_of_time(left_behind)


def _places(size: int) -> Iterator[int]:
    """Yield the offsets of markers on a disk: its ends, even distances, and random ones."""
    last = size // MARKER_BYTES - 1
    spread = min(_SPREAD, max(1, math.isqrt(last + 1)))
    for index in range(spread + 1):
        yield last * index // spread * MARKER_BYTES
    chance = secrets.SystemRandom()
    for _ in range(spread):
        yield chance.randrange(last + 1) * MARKER_BYTES
