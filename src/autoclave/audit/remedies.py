"""Mend what an audit found, only by making devices less available.

In addition, missing allocations of instances are restored. PCI functions of vanished instances are taken back once the
host shows that no guest has them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autoclave.audit.auditor import HostView, Scope
from autoclave.audit.records import Records, read
from autoclave.db.columns import utcnow
from autoclave.db.engine import Database
from autoclave.exceptions import (
    Conflict,
    HardwareError,
    PlacementConflict,
    PlacementError,
    PlacementUnavailable,
    StateConflict,
)
from autoclave.lifecycle.reclaim import TakenBack, distrust, on_record, quarantine, take_back
from autoclave.lifecycle.reserve import raise_reserved, settle
from autoclave.lifecycle.transitions import Cause
from autoclave.placement.client import PlacementClient
from autoclave.placement.records import GENERATIONS_OF_NOTHING, ConsumerAllocations, Resources
from autoclave.rules.audit.devices import SILENCE, unproved
from autoclave.rules.audit.instances import Part, lacking
from autoclave.rules.audit.kinds import Fix
from autoclave.rules.audit.model import Finding, Guest, Instance, Lent, Row
from autoclave.rules.device_lifecycle import Actor, DeviceState


def allocate_again(
    db: Database, placement: PlacementClient, records: Records, instance_uuids: Iterable[str]
) -> dict[str, str]:
    """Add missing allocations of instances, for each provider separately; return descriptions by instance.

    If an instance is deleted concurrently, its allocation may remain; the next audit finds it.

    :param records: the required allocations. The database is read again after all writes.
    :raises DatabaseUnavailable: the database does not answer.
    """
    tried = {uuid: _of(placement, records, uuid) for uuid in instance_uuids}
    if not any(tried.values()):
        return dict.fromkeys(tried, "nothing: it has all again")
    present = read(db, utcnow()).instances
    done = {}
    for uuid, parts in tried.items():
        if parts and present.get(uuid) != records.instances.get(uuid):
            parts.append("the instance changed meanwhile: audit again")
        done[uuid] = "; ".join(parts) or "nothing: it has all again"
    return done


def _of(placement: PlacementClient, records: Records, instance_uuid: str) -> list[str]:
    """Return descriptions of what was done for one instance; empty if nothing was missing."""
    instance = records.instances.get(instance_uuid)
    if instance is None or instance.host is None or not instance.settled:
        return ["nothing: the instance changed meanwhile"]
    part = Part.of(instance.host, records.roots, records.lent.values())
    try:
        present = placement.get_allocations(instance_uuid).allocations
    except PlacementError as error:
        return [f"nothing: {error}"]
    missing = lacking(part, instance, records.of_host(instance.host, present))
    done, failures = [], []
    for provider, amounts in missing.items():
        try:
            _add(placement, instance, provider, amounts)
        except PlacementUnavailable as error:
            failures.append(f"perhaps of provider {provider}, audit again: {error}")
        except PlacementError as error:
            failures.append(f"not of provider {provider}: {error}")
        else:
            done.append(", ".join(f"{amount} {name}" for name, amount in sorted(amounts.items())))
    if not missing:
        return []
    return [f"allocated {' and '.join(done)}" if done else "nothing", *failures]


def _add(placement: PlacementClient, instance: Instance, provider: str, amounts: Resources) -> None:
    """Add amounts of one provider to the allocations of an instance.

    :raises PlacementError: Placement refused, or the outcome is unknown.
    """
    present = placement.get_allocations(instance.uuid)
    wanted = {uuid: dict(held) for uuid, held in present.allocations.items()}
    into = wanted.setdefault(provider, {})
    for name, amount in amounts.items():
        into[name] = into.get(name, 0) + amount
    generations = (present.generation,) if present.allocations else GENERATIONS_OF_NOTHING
    for generation in generations:
        claim = ConsumerAllocations(instance.uuid, wanted, generation, instance.project_id, instance.user_id)
        try:
            placement.put_allocations(claim)
        except PlacementConflict as error:
            if not error.moved_on or generation == generations[-1]:
                raise
        else:
            return


_TOLD = {True: "reserved=total", False: "Placement does not answer and will be told later"}


@dataclass(frozen=True)
class Remedies:
    """Apply remedies in the database and in Placement.

    :param name: name of the operator, for the history.
    :param patience: seconds of silence after which an agent counts as dead.
    """

    db: Database
    placement: PlacementClient
    name: str
    patience: float = SILENCE

    def fix(self, findings: Sequence[Finding]) -> dict[Finding, str]:
        """Apply the remedies for *findings*, once for each device; return descriptions by finding."""
        records = read(self.db, utcnow())
        rows = records.rows
        lacking = [each for each in findings if each.kind.fix is Fix.ALLOCATE]
        allocated = allocate_again(self.db, self.placement, records, {each.about for each in lacking})
        done = {each: allocated[each.about] for each in lacking}
        distrusted: set[str] = set()
        for each in findings:
            lent = records.lent.get(each.device or "")
            if lent is not None and each.kind.fix is Fix.RAISE:
                done[each] = self._burn(lent)
            row = rows.get(each.device or "")
            if row is None or each.kind.fix is None:
                continue
            if each.kind.fix is Fix.RAISE:
                done[each] = _TOLD[raise_reserved(self.db, self.placement, row.uuid)]
            elif row.uuid in distrusted:
                done[each] = "put into error, see above"
            elif row.offer.device_state is DeviceState.AVAILABLE and row.version == each.version:
                done[each] = self._distrust(row, f"{each.kind.label}: {each.seen}")
                distrusted.add(row.uuid)
        return done

    def unproved(self, scope: Scope) -> list[tuple[Row, str]]:
        """Return the devices whose state a restored database cannot prove, with reasons, ordered by slot."""
        rows = [row for row in read(self.db, utcnow()).rows.values() if scope.has(row)]
        found = [(row, why) for row in rows if (why := unproved(row)) is not None]
        return sorted(found, key=lambda each: each[0].slot)

    def alive(self, rows: Sequence[Row]) -> list[str]:
        """Return the hosts of *rows* whose agents were seen recently, and may be working."""
        hosts = {row.host for row in rows}
        agents = read(self.db, utcnow()).agents
        seen = [each for each in agents if each.host in hosts and each.silent is not None]
        return [each.host for each in seen if (each.silent or 0.0) <= self.patience]

    def quarantine(self, found: Sequence[tuple[Row, str]]) -> Iterator[str]:
        """Quarantine each device; yield descriptions in the same order."""
        for row, why in found:
            reason = f"quarantined: {why}; see who has it, then clean it"
            try:
                told = quarantine(self.db, self.placement, row.uuid, row.version[0], self._cause(reason))
            except StateConflict as error:
                yield f"nothing: {error}"
            else:
                yield f"error, {_TOLD[told]}"

    def _burn(self, lent: Lent) -> str:
        if not lent.must_be_reserved:
            return "nothing: it was released meanwhile"
        return _TOLD[raise_reserved(self.db, self.placement, lent.device)]

    def _distrust(self, row: Row, reason: str) -> str:
        try:
            told = distrust(self.db, self.placement, row.uuid, row.version[0], self._cause(f"audit: {reason}"))
        except StateConflict as error:
            return f"nothing: {error}"
        return f"error, {_TOLD[told]}"

    def _cause(self, reason: str) -> Cause:
        return Cause(Actor.OPERATOR, self.name, reason=reason)


class TakingBack:
    """Take functions of hosts back.

    :param hosts: hosts that this process can inspect.
    """

    def __init__(self, db: Database, placement: PlacementClient, hosts: Sequence[HostView]) -> None:
        self._db = db
        self._placement = placement
        self._hosts = {host.name: host for host in hosts}

    def take_back(self, host: str, addresses: Sequence[str], cause: Cause, *, looked: bool) -> dict[str, str]:
        """Take functions of one host back, all or none; return descriptions by address. This can be repeated.

        :param looked: the operator has verified that no guest has them, so the host need not be inspected.
        :raises NotFound: the host has no such function on record.
        :raises Conflict: a guest has a function, the host cannot be inspected, or the function's instance is present.
        """
        with self._db.read() as tx:
            on_record(tx, host, addresses)
        guests = self._guests(host, looked=looked)
        for address in addresses:
            for guest in guests.get(address, ()):
                raise Conflict(
                    f"{address} of {host} is with domain {guest.name} ({guest.uuid}), which "
                    f"{'runs' if guest.running else 'is off'}: end and undefine that, or take the function away from it"
                )
        return {each.address: self._told(each) for each in take_back(self._db, host, addresses, cause)}

    def _guests(self, host: str, *, looked: bool) -> Mapping[str, Sequence[Guest]]:
        view, why = self._hosts.get(host), "it is another machine"
        try:
            guests = None if view is None else view.guests()
        except HardwareError as error:
            guests, why = None, str(error)
        else:
            why = why if view is None else "there is no virsh"
        if guests is None and not looked:
            raise Conflict(
                f"the guests of {host} cannot be asked for from here ({why}): run this on {host} with its agent's "
                "configuration; or look there yourself (`virsh list --all --uuid`, `virsh dumpxml`), and say --looked"
            )
        return guests or {}

    def _told(self, taken: TakenBack) -> str:
        what = "no instance has it" if taken.instance_uuid is None else f"taken back from {taken.instance_uuid}"
        if taken.device.burned_at is not None:
            what += "; it stays burned until it is released"
        try:
            settle(self._db, self._placement, taken.device.uuid)
        except PlacementError as error:
            what += f"; Placement will be told later: {error}"
        return what
