"""Recover what a crash or a lost message left on this host; see the protocol page."""

from collections.abc import Callable

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.agent.cleaning import Cleanup
from autoclave.db import devices as device_rows
from autoclave.db.devices import DeviceRecord
from autoclave.exceptions import AutoclaveError, HardwareError, StateConflict
from autoclave.hardware.host import Deadline
from autoclave.hardware.journal import ToolJournal
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.reserve import fail_rewritten, settle
from autoclave.lifecycle.transitions import Cause, swap
from autoclave.objects.base import RequestContext
from autoclave.rules.device_lifecycle import BEING_CLEANED, Actor, Event

LOG = logging.getLogger(__name__)

SURVIVOR_PATIENCE = 30.0
"""Seconds to wait at start for a tool that outlived its agent."""


class Recovery:
    """Recover devices that no worker of this run handles."""

    def __init__(self, ports: Ports, cleanup: Cleanup, journal: ToolJournal, *, host: str) -> None:
        self._ports = ports
        self._cleanup = cleanup
        self._journal = journal
        self._host = host

    def wait_for_survivors(self) -> None:
        """Wait, for a bounded time, for tools that outlived a killed agent.

        If a tool still runs afterwards, or its journal cannot be read, its device cannot be cleaned. Other devices can.

        :raises HardwareError: the journal cannot be listed.
        """
        deadline = Deadline.after(SURVIVOR_PATIENCE)
        for device_uuid in self._journal.devices():
            try:
                for pid, argv in self._journal.survivors(device_uuid):
                    LOG.warning(
                        "Waiting for %s (pid %d) on device %s; it outlived its agent.", argv[0], pid, device_uuid
                    )
                self._journal.wait_out(device_uuid, deadline)
            except HardwareError as error:
                LOG.error("What still works on device %s cannot be told: %s", device_uuid, error)

    def check(self, context: RequestContext) -> None:
        """Move cleanings without a worker to ``error``, and clean or offer allocated devices that no request holds.

        Called at start and in every period. A failure of one device does not stop the others.

        :raises DatabaseUnavailable: the database cannot be read.
        """
        with self._ports.db.read() as tx:
            being_cleaned = device_rows.list_all(tx, hostname=self._host, states=BEING_CLEANED)
            unheld = device_rows.held_in_part(tx, self._host)
            rewritten = device_rows.list_all(tx, hostname=self._host, rewritten=True)
        for device in being_cleaned:
            if not self._cleanup.works_on(device.uuid):
                self._attempt(self._fail, context, device)
        for device in rewritten:
            self._attempt(self._fail_rewritten, context, device)
        for device in unheld:
            self._attempt(self._release, context, device)

    def _attempt(
        self, action: Callable[[RequestContext, DeviceRecord], None], context: RequestContext, device: DeviceRecord
    ) -> None:
        try:
            action(context, device)
        except StateConflict as error:
            LOG.debug("Device %s moved on by itself: %s", device.uuid, error)
        except AutoclaveError as error:
            LOG.warning("Device %s could not be recovered yet: %s", device.uuid, error)

    def _fail(self, context: RequestContext, device: DeviceRecord) -> None:
        was = device.device_state.value if device.device_state else "unknown"
        reason = (
            f"its cleaning was cut short (it was {was}): the agent was stopped, or lost its database; "
            "look at the device, then clean it again"
        )
        cause = Cause(Actor.AGENT, self._host, context.request_id, reason)
        self._ports.db.transact(lambda tx: swap(tx, device, Event.CRASH_RECOVERY, cause))
        LOG.warning("Device %s (%s) is in error: %s", device.uuid, device.slot, reason)
        settle(self._ports.db, self._ports.placement, device.uuid)

    def _fail_rewritten(self, context: RequestContext, device: DeviceRecord) -> None:
        cause = Cause(Actor.AGENT, self._host, context.request_id)

        def fail(tx: Connection) -> DeviceRecord | None:
            locked = device_rows.get(tx, device.uuid, lock=True)
            return None if locked is None else fail_rewritten(tx, locked, cause)

        failed = self._ports.db.transact(fail)
        if failed is not None:
            LOG.error("Device %s (%s) is in error: %s", failed.uuid, failed.slot, failed.state_reason)
            settle(self._ports.db, self._ports.placement, failed.uuid)

    def _release(self, context: RequestContext, device: DeviceRecord) -> None:
        reason = "allocated, but no instance holds it, or not all of it"
        if device.supports_cleaning and not device.is_held_back:
            self._cleanup.begin(context, device, Event.MISSED_CLEANUP, reason)
            return
        cause = Cause(Actor.AGENT, self._host, context.request_id, reason)
        event = Event.SPEND if device.is_held_back else Event.RELEASE
        moved = self._ports.db.transact(lambda tx: swap(tx, device, event, cause))
        LOG.info("Device %s (%s) is %s: it was %s.", device.uuid, device.slot, moved.device_state, reason)
        settle(self._ports.db, self._ports.placement, device.uuid)
