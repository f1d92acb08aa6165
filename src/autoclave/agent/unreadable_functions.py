"""PCI functions for flavors that their agent cannot look at: after a while they are not offered."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from oslo_log import log as logging

from autoclave.agent.compute.functions import Look
from autoclave.db import pci
from autoclave.db.pci import ProviderRecord
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.transitions import Cause, move
from autoclave.rules.burn import BurnEvent
from autoclave.rules.device_lifecycle import Actor

LOG = logging.getLogger(__name__)


class UnreadableFunctions:
    """Records why providers are not to be offered until their functions can be read again.

    Nothing else follows from that. What is burned stays burned, what an instance has stays with it, and what others
    have reserved in Placement stays reserved.

    :param patience: seconds for which a function may be one that cannot be looked at, as with devices.
    """

    def __init__(self, ports: Ports, host: str, patience: float) -> None:
        self._ports = ports
        self._host = host
        self._patience = timedelta(seconds=patience)
        self._since: dict[str, datetime] = {}
        """When a provider, by its uuid, was first one of which a function could not be looked at."""

    def note(self, look: Look) -> None:
        """Record what one look at the bus has not shown.

        :raises DatabaseUnavailable: nothing could be read or written.
        """
        for row, addresses in self._rows():
            if (why := _first(look.unclear, row, addresses)) is not None:
                self._since.setdefault(row.uuid, self._ports.clock())
                self._write(row, why)
            else:
                self._judge(row, _first(look.unreadable, row, addresses))

    def note_blind(self, why: str) -> None:
        """Record that the bus could not be listed.

        :raises DatabaseUnavailable: nothing could be read or written.
        """
        for row, _ in self._rows():
            self._judge(row, why)

    def _rows(self) -> list[tuple[ProviderRecord, set[str]]]:
        with self._ports.db.read() as tx:
            rows = pci.providers(tx, self._host)
            functions = pci.functions(tx, self._host)
        addresses: defaultdict[int, set[str]] = defaultdict(set)
        for each in functions:
            addresses[each.provider_id].add(each.address)
        return [(row, addresses[row.id]) for row in rows]

    def _judge(self, row: ProviderRecord, why: str | None) -> None:
        if why is None:
            self._since.pop(row.uuid, None)
            self._write(row, None)
            return
        now = self._ports.clock()
        since = self._since.setdefault(row.uuid, now)
        # What is withheld already stays so without a patience; its reason may change.
        if row.unreadable_reason is not None or now - since >= self._patience:
            self._write(row, why)

    def _write(self, row: ProviderRecord, why: str | None) -> None:
        """Write the reason if it is news. If the row has moved on, the next period does it."""
        if why == row.unreadable_reason:
            return
        cause = Cause(Actor.AGENT, self._host, reason=why or "its agent can tell again what is in the slot")
        event = BurnEvent.READABLE if why is None else BurnEvent.UNREADABLE
        values = {"unreadable_reason": why}
        if why is not None and row.unreadable_reason is not None:
            self._ports.db.transact(lambda tx: pci.describe(tx, row, values))
        elif self._ports.db.transact(lambda tx: move(tx, row, event, cause, values)):
            if why is None:
                LOG.info("%s of %s can be read again.", row.address, self._host)
            else:
                LOG.warning("%s of %s is not offered until it can be read: %s", row.address, self._host, why)


def _first(reasons: Mapping[str, str], row: ProviderRecord, addresses: Collection[str]) -> str | None:
    """Return why the first function of a provider, in the order of addresses, could not be read; None: all could."""
    for address in sorted({row.address, *addresses}):
        if (why := reasons.get(address)) is not None:
            return why if address == row.address else f"{address}: {why}"
    return None
