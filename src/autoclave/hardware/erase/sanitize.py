"""Erase by NVMe Sanitize: start it once, poll it to its end, and verify it by the drive's own log page.

The Sanitize Status log (81h) must show a completed operation with the requested action in SCDW10. The operation must
have ended during this erase. Either it was seen in progress, or the drive accepted the command. A drive takes no writes
during a sanitize, so a running one counts whatever started it. An accepted command suffices, because no older success
remains. By the NVMe specification, the controller rewrites the log when an operation begins. For firmware that is late,
a log that was never seen in progress is read twice, one poll interval apart. If the command was refused, the log proves
nothing.

In each case, the log must also have Global Data Erased set at the end. The first write to a namespace after the
sanitize clears it, so it reveals writes of the host in between. It also reveals an older success with later writes, if
firmware ignored the command.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from oslo_log import log as logging

from autoclave.exceptions import (
    DeviceInUse,
    DeviceVanished,
    EraseFailed,
    EraseUnsupported,
    HardwareError,
    ToolError,
    ToolFailed,
    ToolGarbage,
    ToolMissing,
)
from autoclave.hardware.erase.layout import RecordedLayout
from autoclave.hardware.erase.namespaces import HeldNamespaces
from autoclave.hardware.erase.work import EraseRates, EraseWork, Estimate
from autoclave.hardware.host import Deadline
from autoclave.hardware.nvme import CONTROLLER_NODE, Controller
from autoclave.hardware.nvme_cli import SANITIZE_IN_PROGRESS, NvmeCli, refused_as_unsupported
from autoclave.hardware.nvme_json import ControllerIdentity, SanitizeLog
from autoclave.rules.cleanup_policy import CleanupAction

LOG = logging.getLogger(__name__)

STEP = {2: "sanitize, block erase", 3: "sanitize, overwrite", 4: "sanitize, crypto erase"}
"""The names of the operations by Sanitize Action."""

PATIENCE = 10.0
"""Seconds for which a busy drive may return invalid answers. A drive that does not answer has until the deadline."""

STILL = "it may still be sanitizing"
_BUT_VERIFYING = (
    ", or wait in Media Verification for Sanitize action 5: it shows no progress, and only nvme-cli 2.13 and later "
    "show its state"
)

_DEAD_STATES = frozenset({"dead", "deleting", "deleting (no IO)"})
"""The kernel's states of a controller that it does not recover."""


_FAILED = 3
"""The status in the sanitize log that blocks all commands which change the drive, except another sanitize."""


@dataclass(frozen=True)
class SanitizeMethod:
    """Erase by NVMe Sanitize.

    :param sanact: the Sanitize Action field (CDW10 bits 2:0).
    :param reported_as: the operation's name among the estimates of the Sanitize Status log page.
    """

    action: CleanupAction
    sanact: int
    reported_as: str

    replaces_namespaces: ClassVar[bool] = False
    commands: ClassVar[Mapping[str, str]] = {
        "nvme": rf"(?:sanitize|sanitize-log) {CONTROLLER_NODE}(?: -o json| --sanact=[0-9]+)*"
    }

    @classmethod
    def crypto(cls) -> Self:
        """Return Crypto Erase: the controller destroys its media encryption keys."""
        return cls(CleanupAction.SANITIZE_CRYPTO, 4, "crypto_erase")

    @classmethod
    def block(cls) -> Self:
        """Return Block Erase: the controller erases all its media."""
        return cls(CleanupAction.SANITIZE_BLOCK, 2, "block_erase")

    def lack(self, nvme: NvmeCli, controller: Controller, identity: ControllerIdentity) -> str | None:  # noqa: ARG002
        """Implement :meth:`EraseMethod.lack`: the drive must return the Sanitize Status log page."""
        nvme.sanitize_log(controller.path)
        return None

    def estimate(self, nvme: NvmeCli, rates: EraseRates, controller: Controller) -> Estimate:  # noqa: ARG002
        """Implement :meth:`EraseMethod.estimate` by the estimates in the Sanitize Status log page (81h)."""
        try:
            seconds = nvme.sanitize_log(controller.path).estimates.get(self.reported_as)
        except HardwareError as error:
            return Estimate(None, f"its sanitize log cannot be read: {error}")
        return Estimate(seconds, "the drive reports it" if seconds is not None else "the drive does not report it")

    def run(self, work: EraseWork, layout: RecordedLayout) -> Mapping[str, Any]:
        """Implement :meth:`EraseMethod.run`. Sanitize the drive after its recorded layout is restored."""
        if not layout.differs:
            return Sanitizer(work, self.sanact).run()
        if _bars_format(work):
            LOG.info("%s is sanitized before its layout is restored, and again afterwards", work.drive)
            Sanitizer(work, self.sanact).run()
        return Sanitizer(layout.restored(), self.sanact).run()


def _bars_format(work: EraseWork) -> bool:
    """Return whether a running or failed sanitize blocks all other commands that change the drive."""
    with work.bounded("nothing was started"):
        log = work.nvme.sanitize_log(work.controller.path)
    return log.in_progress or log.status == _FAILED


class Sanitizer:
    """Sanitize one drive."""

    def __init__(self, work: EraseWork, sanact: int) -> None:
        self._work = work
        self._sanact = sanact
        self._held = HeldNamespaces(work, writable=False)
        self._left_verification = False
        self._taken_by: DeviceInUse | None = None
        """The error of the latest attempt to hold all namespaces, or None."""

    def run(self) -> Mapping[str, Any]:
        """Sanitize the drive and return the evidence.

        :raises EraseUnsupported: the drive does not have the command or the action.
        :raises EraseFailed: the drive refused, failed, or does not show the requested operation as completed.
        :raises EraseTimeout: the deadline passed.
        :raises DeviceInUse: another program on this host has a namespace open exclusively.
        :raises DeviceVanished: the controller was removed.
        :raises ToolError: nvme-cli failed.
        """
        with self._held:
            with self._work.bounded("no sanitize was started"):
                before = self._look_patiently("no sanitize was started", patience=0.0)
            if self._taken_by is not None:
                raise self._taken_by
            joined, said = self._begin(before)
            with self._work.bounded(STILL):
                after = self._watch(seen_running=joined, said=said)
        return {
            "method": "sanitize",
            "bytes": self._work.controller.size_bytes,
            "started": not joined,
            "log_before": evidence_of(before),
            "log_after": evidence_of(after),
            "verified": "the sanitize status log page (81h) shows that the requested action completed",
        }

    def _look(self) -> SanitizeLog:
        """Return the sanitize log of the drive in the slot.

        The log of another drive that now has the same name must not count.
        """
        # Hold them before the page is read, so that later writes do not go through a mount.
        try:
            self._hold(self._work.must_be_same_drive())
        except HardwareError as e:
            self._work.must_be_there(e)
            raise
        page = self._work.nvme.sanitize_log(self._work.controller.path)
        self._work.must_be_same_drive()
        return page

    def _hold(self, controller: Controller) -> None:
        """Hold the namespaces that the host shows now; retry those in use at the next poll."""
        try:
            self._held.take([namespace for namespace in controller.namespaces if namespace.path.exists()])
            self._taken_by = None
        except DeviceVanished as e:
            LOG.debug("A namespace of %s went away: %s", self._work.drive, e)
        except DeviceInUse as e:
            self._taken_by = e

    def _begin(self, latest: SanitizeLog) -> tuple[bool, str]:
        """Join the requested operation if it runs already, or else start it after any other.

        :returns: whether it was joined, and the tool's output when it was started.
        """
        while True:
            if latest.in_progress and latest.action == self._sanact:
                LOG.info("%s is already being sanitized as requested; waiting for its end", self._work.drive)
                return True, ""
            if latest.in_progress:
                self._wait_out(latest)
            said = self._start()
            if said is not None:
                return False, said
            left_behind = "another sanitize was running, and the requested one was not started"
            with self._work.bounded(left_behind):
                self._work.pause()
                latest = self._look_patiently(left_behind)

    def _start(self) -> str | None:
        """Start the requested operation and return the tool's output; None if another one was started first."""
        self._work.must_be_same_drive()
        with self._work.bounded("a sanitize may have been started"):
            try:
                return self._work.nvme.sanitize(self._work.controller.path, self._sanact)
            except ToolFailed as e:
                self._work.must_be_there(e)
                if refused_as_unsupported(e):
                    raise EraseUnsupported(f"{self._work.drive} cannot do {self._work.action}: {e}") from e
                if e.status != SANITIZE_IN_PROGRESS:
                    raise EraseFailed(f"{self._work.drive} refused {self._work.action}: {e}") from e
                return None

    def _wait_out(self, running: SanitizeLog) -> None:
        """Wait for the end of another operation, whatever its result."""
        name = STEP.get(running.action or 0, "a sanitize of unknown kind")
        LOG.warning(
            "%s is busy with %s, which this agent did not start; the requested sanitize follows it",
            self._work.drive,
            name,
        )
        left_behind = f"it was busy with {name} that this agent did not start, and the requested one was not started"
        with self._work.bounded(left_behind), self._work.meter(f"waiting for {name} to end") as meter:
            while running.in_progress:
                meter.update(running.percent)
                self._end_verification(running)
                self._work.pause()
                running = self._look_patiently(left_behind)

    def _watch(self, *, seen_running: bool, said: str) -> SanitizeLog:
        with self._work.meter(STEP[self._sanact]) as meter:
            looked_twice, still = False, STILL
            while True:
                latest = self._look_patiently(still)
                if latest.in_progress:
                    if latest.action != self._sanact:
                        raise EraseFailed(
                            f"{self._work.drive} is now busy with another sanitize "
                            f"({STEP.get(latest.action or 0, 'of unknown kind')}); the result of the requested one "
                            "was not seen"
                        )
                    seen_running = True
                    meter.update(latest.percent)
                    self._end_verification(latest)
                elif seen_running or looked_twice:
                    self._judge(latest, said="" if seen_running else said)
                    meter.update(100.0)
                    return latest
                else:
                    looked_twice = True
                still = STILL + _BUT_VERIFYING if latest.may_be_verifying else STILL
                self._work.pause()

    def _look_patiently(self, left_behind: str, *, patience: float | None = None) -> SanitizeLog:
        """Poll until the drive answers: some reset themselves while they sanitize.

        :param left_behind: the state of the drive, for the operator, if it never answers.
        :param patience: seconds for which invalid answers are accepted, by default :data:`PATIENCE`.
        """
        sense = Deadline.after(PATIENCE if patience is None else patience)
        unanswered: ToolError | None = None
        while True:
            try:
                return self._look()
            except ToolMissing:
                raise
            except ToolError as e:
                self._work.must_be_there(e)
                nonsense = isinstance(e, ToolGarbage) or (isinstance(e, ToolFailed) and refused_as_unsupported(e))
                if (nonsense and sense.passed) or self._work.must_be_same_drive().state in _DEAD_STATES:
                    raise
                if unanswered is None:
                    LOG.warning("%s does not report the progress of its sanitize: %s", self._work.drive, e)
                # The tool is killed at the deadline, which does not show anything about the drive.
                if self._work.control.deadline.passed:
                    answer = "" if unanswered is None else f"; its latest answer: {unanswered}"
                    raise self._work.out_of_time(left_behind + answer) from e
                unanswered = e
                self._work.pause()

    def _end_verification(self, latest: SanitizeLog) -> None:
        """Make the drive leave Media Verification, once for each operation.

        The operation before it has completed: leaving deallocates the media and changes no data. Its end is judged like
        any other.

        :raises EraseFailed: the drive does not leave it.
        """
        if not latest.verifying:
            self._left_verification = False
            return
        if self._left_verification:
            return
        self._work.must_be_same_drive()
        LOG.info("%s: ending the Media Verification of its sanitize", self._work.drive)
        try:
            self._work.nvme.exit_media_verification(self._work.controller.path)
        except ToolFailed as e:
            self._work.must_be_there(e)
            if not self._look().verifying:
                return  # it left by itself in the meantime
            raise EraseFailed(
                f"{self._work.drive} has sanitized its media and waits in Media Verification, which Sanitize action 5 "
                f"does not end: {e}; use nvme-cli 2.11 or later, or nvme sanitize --sanact=5 by hand, and clean it "
                "again"
            ) from e
        self._left_verification = True

    def _judge(self, ended: SanitizeLog, *, said: str) -> None:
        """Decide whether the log proves the erase.

        :param said: output of the tool that must be empty if the operation was not seen running.
        """
        if self._taken_by is not None:
            line = f"{self._taken_by}, while the drive was being sanitized"
            raise DeviceInUse(f"{self._work.drive}: {line}; end that, and clean the drive again", [line])
        if not ended.succeeded:
            raise EraseFailed(f"{self._work.drive} did not complete {self._work.action}; it says: {ended.words}")
        if ended.action != self._sanact:
            shown = "no action" if ended.action is None else f"action {ended.action}"
            raise EraseFailed(
                f"{self._work.drive} shows a completed sanitize, but not the requested one: its log has {shown}, "
                f"and {self._work.action} is action {self._sanact}"
            )
        if not ended.global_data_erased:
            raise EraseFailed(
                f"{self._work.drive} shows a completed {self._work.action}, but its log says that data was written "
                "since (Global Data Erased is 0): find what on this host writes to the drive, such as an automount, "
                "end it, and clean the drive again. Firmware that never sets the bit needs an update, or another "
                "clear_action"
            )
        if said:
            raise EraseFailed(
                f"{self._work.drive} shows a completed sanitize that was never seen running, and the command that "
                f"should have started it reported: {said}"
            )


def evidence_of(page: SanitizeLog) -> Mapping[str, Any]:
    """Return the fields of the log page that prove, or disprove, an erase."""
    return {
        "status": page.status,
        "words": page.words,
        "progress": page.progress,
        "global_data_erased": page.global_data_erased,
        "cdw10": page.cdw10,
    }
