"""Notify Nova of the outcome of binds.

Pending events are stored in the database, and any conductor sends and retries them. A bind neither waits for its event
nor is rolled back by a failure. Nova reads the outcome itself when its host builds the instance. It waits for the event
only if there is no outcome yet.
"""

from datetime import datetime, timedelta

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.db import arqs
from autoclave.db.arqs import EventRecord
from autoclave.exceptions import NovaUnavailable
from autoclave.lifecycle.ports import Ports
from autoclave.nova.client import Nova, Outcome, Reception
from autoclave.rules.device_lifecycle import ARQState

LOG = logging.getLogger(__name__)

CLAIM = timedelta(seconds=30)
"""Time for which a claimed event belongs to one conductor.

If this conductor dies, Nova still waits after that time. If it is slow, Nova is notified twice.
"""

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
"""Minimum and maximum seconds between two attempts for one event."""

NOVA_IS_AWAY = 5.0
"""Seconds until the next round after Nova did not answer."""

_WHY = {
    Reception.UNKNOWN_INSTANCE: "it has no such instance, or the [nova] credentials lack the role admin",
    Reception.NOT_UNDERSTOOD: "it does not support the event",
}


class Teller:
    """Send pending Nova events.

    :param patience: seconds for which Nova waits (``[nova] arq_binding_timeout``).
    """

    def __init__(self, ports: Ports, nova: Nova, patience: float) -> None:
        self._ports = ports
        self._nova = nova
        self._patience = timedelta(seconds=patience)

    def tell(self) -> float | None:
        """Send every event that is due, until Nova does not answer.

        :returns: seconds until the next round is useful; None if no event is pending.
        :raises DatabaseUnavailable: outcomes not written are sent again.
        """
        self._give_up_overdue()
        with self._ports.db.read() as tx:
            instances = arqs.due(tx, self._ports.clock())
        for instance in instances:
            if not self._tell_of(instance):
                return NOVA_IS_AWAY
        with self._ports.db.read() as tx:
            moment = arqs.next_due(tx)
        return None if moment is None else max((moment - self._ports.clock()).total_seconds(), FIRST_PAUSE)

    def _give_up_overdue(self) -> None:
        now = self._ports.clock()
        for event in self._ports.db.transact(lambda tx: arqs.take_overdue(tx, now, now - self._patience)):
            waited = (now - event.event_owed_at).total_seconds()
            LOG.error("Nova was not notified %s: it did not accept the event for %d s", _news(event), waited)

    def _tell_of(self, instance: str) -> bool:
        """Notify Nova about one instance; return False if Nova does not answer."""
        now = self._ports.clock()
        until = now + CLAIM
        events = self._ports.db.transact(lambda tx: arqs.claim(tx, instance, now, until))
        if not events:
            return True
        outcomes = [Outcome(event.uuid, event.state is ARQState.BOUND) for event in events]
        try:
            received = self._nova.tell(instance, outcomes)
        except NovaUnavailable as error:
            LOG.warning("Nova was not notified of the binds for instance %s yet: %s", instance, error)
            self._settle([], events, until)
            return False
        waiting = [event for event in events if received[event.uuid] is Reception.NO_HOST_YET]
        self._settle([event for event in events if event not in waiting], waiting, until)
        for event in events:
            _log(event, received[event.uuid])
        return True

    def _settle(self, done: list[EventRecord], waiting: list[EventRecord], claimed_until: datetime) -> None:
        now = self._ports.clock()

        def settle(tx: Connection) -> None:
            arqs.paid(tx, done, claimed_until)
            for event in waiting:
                # Wait as long again as the event has waited, so that retries become less frequent.
                waited = (now - event.event_owed_at).total_seconds()
                pause = timedelta(seconds=min(max(waited, FIRST_PAUSE), LONGEST_PAUSE))
                arqs.postpone(tx, [event], claimed_until, now + pause)

        self._ports.db.transact(settle)


def _news(event: EventRecord) -> str:
    return f"that accelerator request {event.uuid} of instance {event.instance_uuid} is {event.state.value}"


def _log(event: EventRecord, reception: Reception) -> None:
    news = _news(event)
    if reception is Reception.TAKEN:
        LOG.info("Nova was notified %s.", news)
    elif reception is Reception.NO_HOST_YET:
        LOG.debug("Nova was not notified %s yet: the instance has no host.", news)
    else:
        LOG.error("Nova was not notified %s: %s", news, _WHY[reception])
