"""Notify Nova how binds ended, from the outbox in the database; any conductor does (protocol page, "Bind").

A bind does not wait for it, and is never undone by it. Nova asks for the outcome itself once its host works on the
instance, and waits for the event only if there is none yet.
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
"""How long no other conductor tries. If this one has died, Nova still waits then; if it is slow, Nova is told twice."""

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
"""Seconds until something is tried again."""

NOVA_IS_AWAY = 5.0
"""Seconds until the next one is tried after one to which there was no answer."""

_WHY = {
    Reception.UNKNOWN_INSTANCE: "it has no such instance, or shows it to the role admin only, which [nova] lacks",
    Reception.NOT_UNDERSTOOD: "it does not understand the event",
}


class Teller:
    """Pays what is owed.

    :param patience: seconds after which Nova waits no longer (``[nova] arq_binding_timeout``).
    """

    def __init__(self, ports: Ports, nova: Nova, patience: float) -> None:
        self._ports = ports
        self._nova = nova
        self._patience = timedelta(seconds=patience)

    def tell(self) -> float | None:
        """Try everything that is due, until Nova does not answer.

        :returns: seconds until the next round is of use; None if nothing is owed.
        :raises DatabaseUnavailable: what was not written is found due again.
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
            LOG.error("Nova was not told %s: it has not taken the event for %d seconds", _news(event), waited)

    def _tell_of(self, instance: str) -> bool:
        """Tell Nova of one instance; False if it does not answer."""
        now = self._ports.clock()
        until = now + CLAIM
        events = self._ports.db.transact(lambda tx: arqs.claim(tx, instance, now, until))
        if not events:
            return True
        outcomes = [Outcome(event.uuid, event.state is ARQState.BOUND) for event in events]
        try:
            received = self._nova.tell(instance, outcomes)
        except NovaUnavailable as error:
            LOG.warning("Nova was not told of the binds for instance %s yet: %s", instance, error)
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
                # As long again as it has been waiting: soon at first, and seldom in the end.
                waited = (now - event.event_owed_at).total_seconds()
                pause = timedelta(seconds=min(max(waited, FIRST_PAUSE), LONGEST_PAUSE))
                arqs.postpone(tx, [event], claimed_until, now + pause)

        self._ports.db.transact(settle)


def _news(event: EventRecord) -> str:
    return f"that accelerator request {event.uuid} of instance {event.instance_uuid} is {event.state.value}"


def _log(event: EventRecord, reception: Reception) -> None:
    news = _news(event)
    if reception is Reception.TAKEN:
        LOG.info("Nova was told %s.", news)
    elif reception is Reception.NO_HOST_YET:
        LOG.debug("Nova was not told %s yet: the instance has no host.", news)
    else:
        LOG.error("Nova was not told %s: %s", news, _WHY[reception])
