"""An audit: what stands in two looks is found, what was changing meanwhile is not judged."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from autoclave.audit.holdings import Holdings
from autoclave.audit.hosts import HostView
from autoclave.audit.offers import Offers
from autoclave.audit.records import Records, read
from autoclave.db.columns import utcnow
from autoclave.db.engine import Database
from autoclave.exceptions import NotFound
from autoclave.placement.client import PlacementClient
from autoclave.rules.audit.devices import SILENCE, about, loose_request, of_agents, of_drives, of_row
from autoclave.rules.audit.instances import Part, about_lent, of_doubt, of_functions, uncleaned
from autoclave.rules.audit.kinds import Kind, Severity
from autoclave.rules.audit.model import Finding, Lent, Row

_MORE_LOOKS = 2
"""Looks after the first, at most."""


@dataclass(frozen=True)
class Scope:
    """What is audited.

    :param host: of this host only.
    :param device: this device only, by its uuid or as HOST/PCI-ADDRESS.
    """

    host: str | None = None
    device: str | None = None

    def has(self, row: Row | Lent) -> bool:
        """Whether a device is in it."""
        return self.host in (None, row.host) and self.device in (None, row.uuid, row.slot)

    def has_host(self, host: str) -> bool:
        """Whether a host is in it, with what belongs to no single device."""
        return self.device is None and self.host in (None, host)

    def require_on_record(self, db: Database) -> None:
        """Refuse a scope in which nothing is: that nothing disagrees in it would be true, and mean nothing.

        :raises NotFound: the database has no such device or host; names it.
        :raises DatabaseUnavailable: the database does not answer.
        """
        records = read(db, utcnow())
        if self.host is not None and self.host not in records.named_hosts:
            known = ", ".join(sorted(records.named_hosts)) or "none"
            raise NotFound(f"--host: nothing of {self.host!r} is on record; the hosts on record: {known}")
        devices: list[Row | Lent] = [*records.rows.values(), *records.lent.values()]
        if self.device is None or any(map(self.has, devices)):
            return
        of_host = "" if self.host is None else f" of {self.host}"
        raise NotFound(
            f"--device: no device{of_host} on record is {self.device!r}; name it by its uuid, or as HOST/PCI-ADDRESS, "
            "such as host-1/0000:41:00.0"
        )


class Auditor:
    """Compares the database with Placement and with the hosts that can be looked at from here.

    :param hosts: those hosts.
    :param unseen: what is to be told of hosts that cannot be, though they are to be looked at from here.
    :param patience: seconds after which an agent that was not seen is taken for dead.
    """

    def __init__(
        self,
        db: Database,
        placement: PlacementClient,
        hosts: Sequence[HostView],
        unseen: Sequence[Finding] = (),
        *,
        patience: float = SILENCE,
        clock: Callable[[], datetime] = utcnow,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._db = db
        self._placement = placement
        self._hosts = {host.name: host for host in hosts}
        self._unseen = unseen
        self._patience = patience
        self._clock = clock
        self._sleep = sleep

    def audit(self, scope: Scope, wait: float) -> list[Finding]:
        """All that disagrees, by the device or host that it is about.

        A bind, a clean or a build is several writes in several places. So whatever is found is looked at again: what
        the second look does not find as it was has been on its way.

        :param wait: seconds between the two looks.
        :raises DatabaseUnavailable: the database does not answer.
        """
        before = after = self._look(scope, None)
        for _ in range(_MORE_LOOKS):
            if not any(finding.counts or _unjudged(finding) for finding in before):
                break
            self._sleep(wait)
            after = self._look(scope, _again(before))
            # What is seen for the first time now has not stood before: it needs another look.
            if not any(map(_unjudged, before)) or any(map(_unjudged, after)):
                break
            before = after
        stood = {finding.identity for finding in before}
        found = [each for each in after if each.identity in stood or _unjudged(each)]
        return sorted(found, key=lambda each: (each.subject, not each.counts, each.kind.label, each.about))

    def _look(self, scope: Scope, only: Collection[str] | None) -> list[Finding]:
        """One look: the rows, everything else, the rows again.

        :param only: uuids of the devices and root providers that are looked at again; None: all of the scope.
        """
        now = self._clock()
        records = read(self._db, now)
        rows = [row for row in records.rows.values() if scope.has(row) and (only is None or row.uuid in only)]
        lent = [each for each in records.lent.values() if scope.has(each) and (only is None or each.uuid in only)]
        parts = _parts(records, scope, only)
        found = [*self._by_itself(records, rows, scope), *self._elsewhere(records, rows, lent, parts, scope)]
        present = read(self._db, now)
        moving = [row for row in rows if present.rows.get(row.uuid) != row]
        lent_moving = [each for each in lent if present.lent.get(each.uuid) != each]
        known, now_known = records.instances, present.instances
        moved = {uuid for uuid in known.keys() | now_known.keys() if known.get(uuid) != now_known.get(uuid)}
        unjudged = {row.uuid for row in moving} | {each.uuid for each in lent_moving}
        return [
            *(each for each in found if each.device not in unjudged and each.about not in moved),
            *(about(Kind.IN_MOTION, row, "its row changed") for row in moving),
            *(about_lent(Kind.IN_MOTION, each, "its row changed") for each in lent_moving),
            *{_moving(each) for each in found if each.device not in unjudged and each.about in moved},
        ]

    def _by_itself(self, records: Records, rows: Iterable[Row], scope: Scope) -> Iterator[Finding]:
        for row in rows:
            yield from of_row(row)
        wanted = {row.uuid for row in rows}
        yield from (each for each in of_drives(records.rows.values()) if each.device in wanted)
        yield from of_agents([agent for agent in records.agents if scope.has_host(agent.host)], self._patience)
        yield from uncleaned(each for each in records.lent.values() if scope.has(each))
        for each in records.lent.values():
            if scope.has(each):
                yield from of_functions(each, records.instances)
                yield from of_doubt(each)
        yield from (loose_request(host, hold) for host, hold in records.loose if scope.has_host(host))

    def _elsewhere(
        self, records: Records, rows: Sequence[Row], lent: Sequence[Lent], parts: Sequence[Part], scope: Scope
    ) -> Iterator[Finding]:
        known = frozenset(wanted.uuid for row in records.rows.values() for wanted in row.wanted)
        hosts = {row.host for row in records.rows.values() if scope.has(row)}
        offers = Offers(self._placement, known)
        yield from offers.compare(rows, lent, hosts, scope.has_host)
        if not offers.silent:
            yield from Holdings(self._placement, records, offers.consumers).compare(parts)
        hosts |= {each.host for each in records.lent.values() if scope.has(each)}
        for name in hosts & self._hosts.keys():
            of_host = [row for row in rows if row.host == name]
            yield from self._hosts[name].compare(of_host, [each for each in lent if each.host == name])
        yield from (finding for finding in self._unseen if finding.subject in hosts)


def _parts(records: Records, scope: Scope, only: Collection[str] | None) -> list[Part]:
    """What instances can hold of each host; all of it, if any of it is to be looked at again."""
    roots = {root.host: root for root in records.roots if scope.has_host(root.host)}
    lent = defaultdict(list)
    for each in records.lent.values():
        if scope.has(each):
            lent[each.host].append(each)
    parts = [Part(host, roots.get(host), lent[host]) for host in sorted(roots.keys() | lent.keys())]
    return [part for part in parts if only is None or any(each.uuid in only for each in part.providers)]


def _moving(finding: Finding) -> Finding:
    """In place of a finding about an instance whose row changed while it was looked at."""
    kind, seen = Kind.IN_MOTION, f"the row of instance {finding.about} changed"
    return Finding(kind, finding.subject, seen, kind.remedy, finding.device, finding.about)


def _unjudged(finding: Finding) -> bool:
    """Whether it says that something could not be judged."""
    return finding.kind is Kind.IN_MOTION or finding.kind.severity is Severity.UNSEEN


def _again(findings: Iterable[Finding]) -> set[str] | None:
    """Uuids of the devices to look at again; None: all of them."""
    if any(_unjudged(finding) and finding.device is None for finding in findings):
        return None
    return {finding.device for finding in findings if finding.device}
