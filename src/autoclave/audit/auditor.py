"""Audit: compare two looks, and report what stands in both.

What changes in the meantime is not judged. No drive is opened or queried, because a worker may be using it.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from autoclave.audit.offers import Offers, unreadable
from autoclave.audit.records import Records, read
from autoclave.db.columns import utcnow
from autoclave.db.engine import Database
from autoclave.exceptions import (
    DeviceVanished,
    DriverMismatch,
    HardwareError,
    NotFound,
    PlacementError,
    PlacementNotFound,
    PlacementUnavailable,
)
from autoclave.hardware.host import HostPaths
from autoclave.hardware.nvme import controller_at
from autoclave.hardware.sysfs import pci_function
from autoclave.hardware.usage import holders
from autoclave.placement.client import PlacementClient
from autoclave.rules.audit.devices import (
    SILENCE,
    about,
    loose_request,
    of_agents,
    of_drives,
    of_guests,
    of_row,
    of_slot,
)
from autoclave.rules.audit.instances import (
    Amounts,
    Part,
    about_lent,
    by_consumer,
    of_consumers,
    of_doubt,
    of_functions,
    of_instance,
    of_lent_guests,
    of_unknown,
    uncleaned,
)
from autoclave.rules.audit.kinds import Kind, Severity
from autoclave.rules.audit.model import Finding, Guest, Lent, Row, Slot
from autoclave.rules.device_lifecycle import DeviceState
from autoclave.rules.pci_address import PCIAddress
from autoclave.virt.domains import Domains


class Holdings:
    """Compare Placement with the instances, with one request per provider and one per doubtful consumer.

    :param seen: the allocations of each consumer, by uuid of the providers read already.
    """

    def __init__(self, placement: PlacementClient, records: Records, seen: Mapping[str, Mapping[str, Amounts]]) -> None:
        self._placement = placement
        self._records = records
        self._seen = seen

    def compare(self, parts: Iterable[Part]) -> Iterator[Finding]:
        """Yield where Placement disagrees with the instances of each host, and unknown consumers of its providers.

        A read failure is a finding. After Placement was unreachable once, it is not queried again.
        """
        for part in parts:
            try:
                yield from self._part(part)
            except PlacementUnavailable as error:
                yield unreadable("Placement", f"{error}; the instances of {part.host} and of others were not compared")
                return
            except PlacementError as error:
                yield unreadable(part.host, f"{error}; its instances were not compared")

    def _part(self, part: Part) -> Iterator[Finding]:
        consumers = {each.uuid: self._of_provider(each.uuid) for each in part.providers}
        if part.root and consumers[part.root.uuid] is None:
            kind, seen = Kind.PROVIDER_MISSING, f"Placement has no provider {part.root.uuid} ({part.host})"
            yield Finding(kind, part.host, seen, kind.remedy.format(host=part.host), part.device)
        held = by_consumer({provider: each for provider, each in consumers.items() if each})
        for instance in self._records.by_host.get(part.host, ()):
            # Most instances match the host's providers. Only for the others, read all their allocations.
            if any(of_instance(part, instance, held.get(instance.uuid, {}))):
                whole = self._placement.get_allocations(instance.uuid).allocations
                yield from of_instance(part, instance, self._records.of_host(part.host, whole))
        yield from of_consumers(part, held, self._records.instances)
        for consumer in sorted(held.keys() - self._records.instances.keys() - self._records.asking):
            now = self._placement.get_allocations(consumer)
            if now.allocations:
                yield of_unknown(part, consumer, held[consumer], now.consumer_type)

    def _of_provider(self, uuid: str) -> Mapping[str, Amounts] | None:
        if uuid in self._seen:
            return self._seen[uuid]
        try:
            return self._placement.get_allocations_for_provider(uuid)
        except PlacementNotFound:
            return None


class HostView:
    """Inspect one host, repeatedly.

    :param allowed: devices that may be offered although the host uses them (``[agent] allow_host_device``).
    :param domains: its guests; None if libvirt cannot be queried.
    """

    def __init__(self, name: str, paths: HostPaths, allowed: frozenset[PCIAddress], domains: Domains | None) -> None:
        self.name = name
        self._paths = paths
        self._allowed = allowed
        self._domains = domains

    def guests(self) -> Mapping[str, Sequence[Guest]] | None:
        """Return its guests by the address of each function that they have; None if libvirt cannot be queried.

        :raises HardwareError: libvirt does not answer.
        """
        return None if self._domains is None else _guests(self._domains)

    def compare(self, rows: Sequence[Row], lent: Sequence[Lent]) -> Iterator[Finding]:
        """Yield where the host disagrees with its rows *rows* and *lent*. A read failure is a finding."""
        guests: Mapping[str, Sequence[Guest]] | None = {}
        try:
            guests = self.guests()
        except HardwareError as error:
            kind = Kind.LIBVIRT_UNREADABLE
            yield Finding(kind, self.name, str(error), kind.remedy.format(host=self.name))
        if guests is None:
            kind = Kind.LIBVIRT_NOT_LOOKED_AT
            yield Finding(kind, self.name, "its libvirt was not looked at", kind.remedy)
            guests = {}
        for each in lent:
            yield from of_lent_guests(each, guests)
        for row in rows:
            yield from of_guests(row, guests.get(row.address, ()))
            try:
                yield from of_slot(row, self._slot(row))
            except HardwareError as error:
                yield about(Kind.HOST_UNREADABLE, row, str(error))

    def _slot(self, row: Row) -> Slot:
        address = PCIAddress.parse(row.address)
        try:
            function = pci_function(self._paths, address)
        except DeviceVanished:
            return Slot(False, None, None, (), ())
        if not row.cleaned:
            return Slot(True, function.driver, None, (), ())
        try:
            controller = controller_at(self._paths, address)
        except DriverMismatch as error:
            return Slot(True, error.driver, None, (), ())
        users: tuple[str, ...] = ()
        if row.offer.device_state is DeviceState.AVAILABLE and address not in self._allowed:
            users = tuple(holders(self._paths, controller))
        drive = (controller.serial, controller.model)
        return Slot(True, function.driver, drive, users, controller.other_paths)


def _guests(domains: Domains) -> Mapping[str, Sequence[Guest]]:
    found: defaultdict[str, list[Guest]] = defaultdict(list)
    for domain in domains.all():
        for function in domain.functions:
            found[str(function)].append(Guest(domain.uuid, domain.name, domain.running))
    return found


_MORE_LOOKS = 2
"""Maximum number of looks after the first."""


@dataclass(frozen=True)
class Scope:
    """Limit an audit.

    :param host: audit this host only.
    :param device: audit this device only, given by uuid or as HOST/PCI-ADDRESS.
    """

    host: str | None = None
    device: str | None = None

    def has(self, row: Row | Lent) -> bool:
        """Return whether the scope includes a device."""
        return self.host in (None, row.host) and self.device in (None, row.uuid, row.slot)

    def has_host(self, host: str) -> bool:
        """Return whether the scope includes a host as a whole, beyond its devices."""
        return self.device is None and self.host in (None, host)

    def require_on_record(self, db: Database) -> None:
        """Refuse an empty scope, in which an audit without findings would have no meaning.

        :raises NotFound: the database has no such device or host; the message names it.
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
    """Compare the database with Placement and with the hosts that this process can inspect.

    :param hosts: those hosts.
    :param unseen: findings for hosts that should be inspected here, but cannot.
    :param patience: seconds of silence after which an agent counts as dead.
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
        """Return all disagreements, ordered by their device or host.

        A bind, a clean or a build consists of several writes in several places. Therefore every finding is checked by a
        second look. If it has changed by then, an operation was in progress.

        :param wait: seconds between the looks.
        :raises DatabaseUnavailable: the database does not answer.
        """
        before = after = self._look(scope, None)
        for _ in range(_MORE_LOOKS):
            if not any(finding.counts or _unjudged(finding) for finding in before):
                break
            self._sleep(wait)
            after = self._look(scope, _again(before))
            # A finding that could not be judged in the first look needs a third.
            if not any(map(_unjudged, before)) or any(map(_unjudged, after)):
                break
            before = after
        stood = {finding.identity for finding in before}
        found = [each for each in after if each.identity in stood or _unjudged(each)]
        return sorted(found, key=lambda each: (each.subject, not each.counts, each.kind.label, each.about))

    def _look(self, scope: Scope, only: Collection[str] | None) -> list[Finding]:
        """Look once: at the rows, at everything else, and at the rows again.

        :param only: uuids of the devices and root providers to look at again; None for the whole scope.
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
    """Return the providers of each host that instances can allocate; all of a host if any of them is in *only*."""
    roots = {root.host: root for root in records.roots if scope.has_host(root.host)}
    lent = defaultdict(list)
    for each in records.lent.values():
        if scope.has(each):
            lent[each.host].append(each)
    parts = [Part(host, roots.get(host), lent[host]) for host in sorted(roots.keys() | lent.keys())]
    return [part for part in parts if only is None or any(each.uuid in only for each in part.providers)]


def _moving(finding: Finding) -> Finding:
    """Return a finding that replaces one about an instance whose row changed during the look."""
    kind, seen = Kind.IN_MOTION, f"the row of instance {finding.about} changed"
    return Finding(kind, finding.subject, seen, kind.remedy, finding.device, finding.about)


def _unjudged(finding: Finding) -> bool:
    """Return whether the finding says that something could not be judged."""
    return finding.kind is Kind.IN_MOTION or finding.kind.severity is Severity.UNSEEN


def _again(findings: Iterable[Finding]) -> set[str] | None:
    """Return the uuids of the devices to look at again; None for all."""
    if any(_unjudged(finding) and finding.device is None for finding in findings):
        return None
    return {finding.device for finding in findings if finding.device}
