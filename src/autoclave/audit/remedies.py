"""What an audit does about what it found: only what makes devices, and hosts, less available."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autoclave.audit.allocating import allocate_again
from autoclave.audit.auditor import Scope
from autoclave.audit.records import read
from autoclave.db.columns import utcnow
from autoclave.db.engine import Database
from autoclave.exceptions import PlacementError, StateConflict
from autoclave.lifecycle.burn import settle_provider
from autoclave.lifecycle.reclaim import distrust, quarantine
from autoclave.lifecycle.reserve import raise_reserved
from autoclave.lifecycle.transitions import Cause
from autoclave.placement.client import PlacementClient
from autoclave.rules.audit.devices import SILENCE, unproved
from autoclave.rules.audit.kinds import Fix
from autoclave.rules.audit.model import Finding, Lent, Row
from autoclave.rules.burn import must_be_reserved
from autoclave.rules.device_lifecycle import Actor, DeviceState

_TOLD = {True: "reserved=total", False: "Placement does not answer and will be told later"}


@dataclass(frozen=True)
class Remedies:
    """Acts on the two records that Autoclave keeps.

    :param name: who asked for it, for the history.
    :param patience: seconds after which an agent that was not seen is taken for dead.
    """

    db: Database
    placement: PlacementClient
    name: str
    patience: float = SILENCE

    def fix(self, findings: Sequence[Finding]) -> dict[Finding, str]:
        """Do what may be done about *findings*, once for each device; what was done, by the finding."""
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
        """The devices that a restored database cannot vouch for, each with the reason, by their slots."""
        rows = [row for row in read(self.db, utcnow()).rows.values() if scope.has(row)]
        found = [(row, why) for row in rows if (why := unproved(row)) is not None]
        return sorted(found, key=lambda each: each[0].slot)

    def alive(self, rows: Sequence[Row]) -> list[str]:
        """The hosts of *rows* whose agents were seen so lately that they may be at work."""
        hosts = {row.host for row in rows}
        agents = read(self.db, utcnow()).agents
        seen = [each for each in agents if each.host in hosts and each.silent is not None]
        return [each.host for each in seen if (each.silent or 0.0) <= self.patience]

    def quarantine(self, found: Sequence[tuple[Row, str]]) -> Iterator[str]:
        """Put each of them into error; what was done, in the same order."""
        for row, why in found:
            reason = f"quarantined: {why}; see who has it, then clean it"
            try:
                told = quarantine(self.db, self.placement, row.uuid, row.version[0], self._cause(reason))
            except StateConflict as error:
                yield f"nothing: {error}"
            else:
                yield f"error, {_TOLD[told]}"

    def _burn(self, lent: Lent) -> str:
        if not must_be_reserved(lent.facts):
            return "nothing: it was released meanwhile"
        try:
            settle_provider(self.db, self.placement, lent.uuid)
        except PlacementError:
            return _TOLD[False]
        return _TOLD[True]

    def _distrust(self, row: Row, reason: str) -> str:
        try:
            told = distrust(self.db, self.placement, row.uuid, row.version[0], self._cause(f"audit: {reason}"))
        except StateConflict as error:
            return f"nothing: {error}"
        return f"error, {_TOLD[told]}"

    def _cause(self, reason: str) -> Cause:
        return Cause(Actor.OPERATOR, self.name, reason=reason)
