"""Clean devices: one attempt at a time, within its deadline.

A cleaning begins with a message, or with the periodic check that finds a missed message. It ends in ``available`` or
``error``. The driver's ``cleanup`` is bounded in time, whatever the driver does.
"""

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict

import futurist
from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.db import devices as device_rows
from autoclave.db.devices import DeviceRecord
from autoclave.drivers.base import CleanupControl, Driver, Evidence, Progress, ProgressSink
from autoclave.exceptions import (
    AutoclaveError,
    DatabaseUnavailable,
    DeviceLocked,
    EraseTimeout,
    HardwareError,
    SlotEmpty,
    StateConflict,
)
from autoclave.hardware.host import Deadline
from autoclave.hardware.journal import ToolJournal
from autoclave.lifecycle.observe import lose
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.reserve import settle, settle_others
from autoclave.lifecycle.transitions import NOT_THERE, Cause, swap
from autoclave.objects.base import RequestContext
from autoclave.rules.device_lifecycle import Actor, DeviceState, Event
from autoclave.rules.drive_layout import DriveLayout
from autoclave.rules.reclaim import cleaned_by

LOG = logging.getLogger(__name__)


GRACE = 5.0
"""Seconds past the deadline in which a driver may end by itself, with a more specific message."""


class Stopping(Exception):
    """Signal that the agent stops, and that the outcome of the attempt is not waited for."""


class Attempt:
    """Run ``work`` in its own thread, so that a hanging driver does not block the waiter.

    :param ended: called in that thread when the work has ended, however late.
    """

    def __init__(self, work: Callable[[], Evidence], ended: Callable[[], None], name: str) -> None:
        self._outcome: queue.SimpleQueue[Evidence | BaseException] = queue.SimpleQueue()
        self._work = work
        self._ended = ended
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin the work."""
        self._thread.start()

    def result(self, deadline: Deadline) -> Evidence:
        """Wait for the work and return its evidence, or raise its exception.

        :raises EraseTimeout: the work has not ended within :data:`GRACE` of *deadline*. It continues, and keeps its
            lock.
        :raises Stopping: see :meth:`abandon`.
        """
        try:
            outcome = self._outcome.get(timeout=deadline.remaining() + GRACE)
        except queue.Empty:
            raise EraseTimeout(
                "the cleanup did not end within cleanup_timeout and does not react; its worker still has the device"
            ) from None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def abandon(self) -> None:
        """Release the waiter because the agent stops."""
        self._outcome.put(Stopping())

    def _run(self) -> None:
        try:
            outcome: Evidence | BaseException = self._work()
        except BaseException as error:  # whatever ended the work, the waiter must not run into the timeout
            outcome = error
        finally:
            self._ended()
        self._outcome.put(outcome)


class DeviceLocks:
    """Lock devices without waiting: a second worker is refused, with a description of the holder."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._holders: dict[str, str] = {}

    def acquire(self, device_uuid: str, holder: str) -> None:
        """Lock the device for *holder*, a description of the work.

        :raises DeviceLocked: another worker holds the lock.
        """
        with self._guard:
            present = self._holders.get(device_uuid)
            if present is not None:
                raise DeviceLocked(f"device {device_uuid} is still held by {present}")
            self._holders[device_uuid] = holder

    def release(self, device_uuid: str) -> None:
        """Release the lock."""
        with self._guard:
            del self._holders[device_uuid]


PROGRESS_INTERVAL = 1.0
"""Seconds between two writes of progress; a drive may report far more often."""
_RETURNED = frozenset({Event.REQUEST_CLEANING, Event.MISSED_CLEANUP})
"""Events of devices just returned by a guest. Data on a device in ``error`` may be the operator's."""
SWAP_PATIENCE = (1.0, 5.0, 15.0)
"""Seconds to wait before each retry of writing an outcome while the database is unreachable."""


class Cleanup:
    """Clean the devices of one host, a limited number concurrently.

    :param host: the host's name.
    :param run_id: id of this run of the agent; the worker of a row with another run's id is gone.
    :param timeout: maximum seconds for an erase (``[nvme] cleanup_timeout``).
    :param pool: executor of the workers; by default its own pool of *max_concurrent* threads.
    """

    def __init__(
        self,
        ports: Ports,
        drivers: Mapping[str, Driver],
        journal: ToolJournal,
        *,
        host: str,
        run_id: str,
        timeout: float,
        max_concurrent: int,
        sleep: Callable[[float], None] = time.sleep,
        pool: futurist.ThreadPoolExecutor | None = None,
    ) -> None:
        self._ports = ports
        self._drivers = drivers
        self._journal = journal
        self._host = host
        self._run_id = run_id
        self._timeout = timeout
        self._sleep = sleep
        self._locks = DeviceLocks()
        self._pool = pool or futurist.ThreadPoolExecutor(max_workers=max_concurrent)
        self._guard = threading.Lock()
        self._queued: Counter[str] = Counter()
        self._attempts: set[Attempt] = set()
        self._stopping = False

    def request(self, context: RequestContext, device_uuid: str, state_version: int) -> bool:
        """Begin to clean a device, if it is still at the version of the request.

        A late or duplicate request fails, because version or state differ or an ARQ holds the device.

        :returns: whether this request starts a cleaning.
        :raises DatabaseUnavailable: nothing was changed; the periodic check finds the device.
        """
        with self._ports.db.read() as tx:
            device = device_rows.get(tx, device_uuid)
        if device is None or device.state_version != state_version or device.hostname != self._host:
            LOG.info("A request to clean device %s at version %d came too late.", device_uuid, state_version)
            return False
        if device.device_state is DeviceState.ERROR:
            return self.begin(context, device, Event.CLEAN_AGAIN, "asked for by the operator")
        return self.begin(context, device, Event.REQUEST_CLEANING, "released by its instance")

    def begin_returned(self, context: RequestContext, device: DeviceRecord) -> None:
        """Begin to clean a device that an instance has returned; the periodic check finds one that is missed.

        :raises DatabaseUnavailable: nothing was changed.
        """
        self.begin(context, device, Event.REQUEST_CLEANING, "returned by its instance")

    def begin(self, context: RequestContext, device: DeviceRecord, event: Event, reason: str) -> bool:
        """Move *device* to ``pending_cleaning`` and submit it to a worker; return False if it changed or the agent
        stops.
        """
        if self._stopping:
            LOG.info("Device %s is not cleaned: the agent stops. Its next start finds the device.", device.uuid)
            return False
        cause = Cause(Actor.AGENT, self._host, context.request_id, reason)
        # Announce first: the periodic check fails a pending row that has no worker.
        self._announce(device.uuid)
        try:
            pending = self._ports.db.transact(lambda tx: swap(tx, device, event, cause, {"agent_run_id": self._run_id}))
        except StateConflict as error:
            self._retire(device.uuid)
            LOG.info("Device %s is not cleaned: %s", device.uuid, error)
            return False
        except BaseException:
            self._retire(device.uuid)
            raise
        self._hand_over(context, pending, returned=event in _RETURNED)
        # The drive is now in the ledger of dirty drives, which may have made other rows with it suspect.
        settle_others(self._ports.db, self._ports.placement, pending)
        return True

    def begin_registered(self, context: RequestContext, pending: DeviceRecord) -> None:
        """Clean a device that discovery has registered in ``pending_cleaning``.

        Discovery and the periodic check never run concurrently, so the check cannot find the row without a worker.
        """
        self._announce(pending.uuid)
        self._hand_over(context, pending, returned=False)

    def _hand_over(self, context: RequestContext, pending: DeviceRecord, *, returned: bool) -> None:
        try:
            self._pool.submit(self._clean, context, pending, returned)
        except RuntimeError:  # raised by a pool that was shut down
            self._retire(pending.uuid)
            LOG.warning("Stopped before device %s was cleaned; the next start puts it into error.", pending.uuid)

    def works_on(self, device_uuid: str) -> bool:
        """Return whether a worker of this run has the device, or will get it."""
        with self._guard:
            return self._queued[device_uuid] > 0

    def _announce(self, device_uuid: str) -> None:
        with self._guard:
            self._queued[device_uuid] += 1

    def _retire(self, device_uuid: str) -> None:
        with self._guard:
            self._queued[device_uuid] -= 1
            if not self._queued[device_uuid]:
                del self._queued[device_uuid]

    def stop(self) -> None:
        """Abandon all workers. Their rows stay in ``cleaning`` for the recovery of the next run."""
        with self._guard:
            self._stopping = True
            attempts = list(self._attempts)  # an attempt that begins later abandons itself
        for attempt in attempts:
            attempt.abandon()
        self._pool.shutdown(wait=False)

    def _clean(self, context: RequestContext, pending: DeviceRecord, returned: bool) -> None:
        try:
            if not self._stopping:
                self._clean_one(context, pending, returned)
        except Stopping:
            LOG.warning("Stopped while device %s was being cleaned; the next start puts it into error.", pending.uuid)
        except Exception:
            # Nothing waits for this thread. The row is still correct, and recovery finds it.
            LOG.exception("Cleaning device %s ended unexpectedly", pending.uuid)
        finally:
            self._retire(pending.uuid)

    def _clean_one(self, context: RequestContext, pending: DeviceRecord, returned: bool) -> None:
        try:
            self._locks.acquire(pending.uuid, f"a cleanup for request {context.request_id}")
        except HardwareError as error:
            self._finish(context, pending, Event.CLEANING_FAILED, str(error), {})
            return
        handed_over = False
        try:
            cleaning = self._start(context, pending)
            if cleaning is None:
                return
            attempt, deadline = self._attempt(cleaning, returned)
            handed_over = True
        finally:
            if not handed_over:
                self._locks.release(pending.uuid)
        try:
            evidence = attempt.result(deadline)
        except Stopping:
            raise
        except SlotEmpty as error:
            self._finish(context, cleaning, Event.CLEANING_FAILED, NOT_THERE, {}, missing=str(error))
        except AutoclaveError as error:
            self._finish(context, cleaning, Event.CLEANING_FAILED, str(error), {})
        except Exception as error:
            LOG.exception("The driver's cleanup of device %s failed in a way it does not declare", cleaning.uuid)
            reason = f"the driver failed unexpectedly: {type(error).__name__}: {error}"
            self._finish(context, cleaning, Event.CLEANING_FAILED, reason, {})
        else:
            self._finish(context, cleaning, Event.CLEANED, cleaned_by(cleaning.cleanup_action), evidence)
        finally:
            with self._guard:
                self._attempts.discard(attempt)

    def _start(self, context: RequestContext, pending: DeviceRecord) -> DeviceRecord | None:
        try:
            if not self._journal.wait_out(pending.uuid, Deadline.after(0)):
                raise HardwareError("a tool of an earlier agent still works on the drive")
        except HardwareError as error:
            self._finish(context, pending, Event.CLEANING_FAILED, str(error), {})
            return None
        cause = Cause(Actor.AGENT, self._host, context.request_id, f"erasing by {pending.cleanup_action}")
        try:
            return self._ports.db.transact(lambda tx: swap(tx, pending, Event.START_CLEANING, cause))
        except StateConflict as error:
            LOG.info("Device %s is not cleaned: %s", pending.uuid, error)
            return None

    def _attempt(self, cleaning: DeviceRecord, returned: bool) -> tuple[Attempt, Deadline]:
        with self._ports.db.read() as tx:
            driver_name = device_rows.deployables_of(tx, [cleaning.id])[0].driver_name
        deadline = Deadline.after(self._timeout)
        tools = self._journal.for_device(cleaning.uuid)
        control = CleanupControl(deadline, self._progress_of(cleaning), tools, returned)

        def work() -> Evidence:
            driver = self._drivers.get(driver_name)
            if driver is None:
                raise HardwareError(
                    f"the driver {driver_name} of the device is not in [agent] enabled_drivers, and none that is has "
                    "discovered the device yet; clean it again when one has"
                )
            return driver.cleanup(cleaning, control)

        attempt = Attempt(work, lambda: self._locks.release(cleaning.uuid), f"clean-{cleaning.pci_address}")
        with self._guard:
            self._attempts.add(attempt)
            stopping = self._stopping
        attempt.start()
        if stopping:
            attempt.abandon()
        return attempt, deadline

    def _progress_of(self, cleaning: DeviceRecord) -> ProgressSink:
        written_at, written = 0.0, ("", False, False)

        def sink(progress: Progress) -> None:
            nonlocal written_at, written
            now = time.monotonic()
            news = (progress.step, progress.stalled, progress.percent is None)
            if news == written and now - written_at < PROGRESS_INTERVAL:
                return
            written_at, written = now, news
            try:
                self._ports.db.transact(
                    lambda tx: device_rows.set_progress(tx, cleaning.uuid, self._run_id, **asdict(progress))
                )
            except DatabaseUnavailable as error:
                LOG.warning("The progress of device %s could not be written: %s", cleaning.uuid, error)

        return sink

    def _finish(
        self,
        context: RequestContext,
        device: DeviceRecord,
        event: Event,
        reason: str,
        evidence: Evidence,
        *,
        missing: str | None = None,
    ) -> None:
        """Write the outcome for the version that was cleaned, then reconcile Placement. A concurrent transition takes
        precedence.

        :param missing: how the device's absence was detected; None if it is present.
        """
        cause = Cause(Actor.AGENT, self._host, context.request_id, reason, evidence)
        proved = DriveLayout.from_fields(evidence.get("layout"))
        layout = proved.to_json() if proved is not None and proved.recordable else None

        def write(tx: Connection) -> None:
            if missing is not None:
                lose(tx, device, cause, missing)
            swap(tx, device, event, cause, {"layout": layout} if event is Event.CLEANED else None)

        for patience in (*SWAP_PATIENCE, None):
            try:
                self._ports.db.transact(write)
                break
            except StateConflict as error:
                LOG.warning("The outcome of cleaning device %s came too late: %s", device.uuid, error)
                return
            except DatabaseUnavailable as error:
                if patience is None:
                    LOG.error("The outcome of cleaning device %s could not be written: %s", device.uuid, error)
                    return
                self._sleep(patience)
        if event is Event.CLEANING_FAILED:
            LOG.warning("Device %s (%s) is in error: %s", device.uuid, device.slot, reason)
        else:
            LOG.info("Device %s (%s) was %s.", device.uuid, device.slot, reason)
        try:
            settle(self._ports.db, self._ports.placement, device.uuid)
        except AutoclaveError as error:
            LOG.warning("Placement does not know yet what became of device %s: %s", device.uuid, error)
