"""Burn devices that serve one instance only, and end that.

This implements the one-time-use specification. Only this module writes ``reserved`` of providers of PCI functions. As
in ``lifecycle.reserve``, the database decides and Placement follows, so interrupted work can be finished later.

A burned card stays burned when it is moved to another slot or host, as a dirty drive stays dirty.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.db import pci
from autoclave.db.engine import Database
from autoclave.db.pci import NOT_BURNED, ProviderRecord
from autoclave.exceptions import Conflict, NotFound, PlacementConflict, PlacementNotFound
from autoclave.lifecycle.reserve import require_traits
from autoclave.lifecycle.transitions import Cause, move
from autoclave.placement.client import PlacementClient
from autoclave.placement.provider_tree import ProviderState, by_generation, put_inventories, whole_record
from autoclave.placement.records import Inventories, Inventory
from autoclave.rules.burn import BurnEvent, BurnFacts, Reading, Verdict, must_be_reserved, verdict
from autoclave.rules.device_lifecycle import Actor

LOG = logging.getLogger(__name__)


class Settled(StrEnum):
    """Name the outcome of reconciling a provider of PCI functions."""

    RAISED = "raised"
    LOWERED = "lowered"
    CONFIRMED = "confirmed"
    UNCHANGED = "unchanged"
    OPERATORS_HOLD = "operator's hold"
    GONE = "gone"


@dataclass(frozen=True)
class _Row:
    provider: ProviderRecord
    claimed: int
    missing: bool
    added: frozenset[str]
    """Resource classes added by the operator's provider configuration; Autoclave does not manage them."""

    @property
    def facts(self) -> BurnFacts:
        return self.provider.facts(claimed=self.claimed, missing=self.missing)


def burn(tx: Connection, provider: ProviderRecord, instance_uuid: str, now: datetime, by: Cause) -> bool:
    """Burn *provider* for *instance_uuid*, or end an earlier burn if the device is no longer one-time-use.

    Call this in the transaction of the claim. Reconcile the provider before the guest can run.

    :param by: the agent, for the history.
    :returns: whether *provider* was still current; if not, the caller must roll back the transaction.
    """
    if not provider.one_time_use and not provider.burned:
        return True
    cause = replace(by, reason=f"instance {instance_uuid} gets it")
    if not provider.one_time_use:
        return move(tx, provider, BurnEvent.BURN_ENDS, cause, NOT_BURNED)
    return move(tx, provider, BurnEvent.BURN, cause, pci.burned_for(instance_uuid, now))


def burn_for_unknown(
    db: Database, provider: ProviderRecord, consumers: Iterable[str], now: datetime, by: Cause
) -> bool:
    """Burn a one-time-use device that consumers without an instance on record have allocated in Placement.

    The specification reserves every allocated PCI device, whatever its consumer is.

    :param by: the agent, for the history.
    :returns: whether *provider* was still current; if not, the next period retries.
    """
    names = ", ".join(sorted(consumers))
    cause = replace(by, reason=f"allocated by {names}, of which no instance is on record")
    return db.transact(lambda tx: move(tx, provider, BurnEvent.BURN, cause, pci.burned_for(None, now), idle=True))


def settle_provider(
    db: Database,
    placement: PlacementClient,
    rp_uuid: str,
    known: tuple[ProviderRecord, ProviderState] | None = None,
) -> Settled:
    """Write the inventory that the row demands, with its ``reserved``; or confirm or end a burn.

    The order is: row, generation, row again, PUT. The second read of the row follows the rule of ``lifecycle.reserve``:
    a change committed after it makes the PUT fail. The first read serves the operator's release in Placement. A lowered
    ``reserved`` counts as a release only if the burn was confirmed before the inventory was read. Therefore the row
    must be unchanged between both reads. Confirming a burn is also a PUT: if it succeeds, ``reserved`` has not been
    lowered in the meantime.

    :param known: the row, and the provider as read or written after it.
    :raises PlacementUnavailable: no answer; the write may have been applied. Reconciling again is always safe.
    :raises PlacementConflict: the generation or the row changed at every attempt.
    :raises PlacementNotFound: the provider does not exist; the agent creates it in its next period.
    :raises TraitsMissing: the device is to be offered, but lacks traits; the agent writes them in its next period.
    :raises PlacementError: Placement refused.
    """

    def attempt(latest: tuple[ProviderRecord, ProviderState] | None, in_use: bool) -> Settled | None:
        before, state = latest or (None, None)
        present = state.known_inventories if state else None
        if present is None:
            with db.read() as tx:
                before, state = pci.get(tx, rp_uuid), None
            present = placement.get_inventories(rp_uuid)
        row = _read(db, rp_uuid)
        if before is None or row is None:
            return Settled.GONE
        if before.state_version != row.provider.state_version:
            return None
        return _attempt(db, placement, present, state, row, in_use)

    return by_generation(f"the inventory of provider {rp_uuid}", attempt, known)


def is_settled(db: Database, rp_uuid: str, present: Inventories) -> bool:
    """Return whether *present* is the inventory that the row demands, and no burn is left to confirm or end."""
    row = _read(db, rp_uuid)
    if row is None:
        return False
    provider, facts = row.provider, row.facts
    record = present.records.get(provider.resource_class)
    if record is None or set(present.records) - row.added != {provider.resource_class}:
        return False
    if must_be_reserved(facts):
        released = not facts.burned or facts.release_pending
        settled = facts.claimed or (facts.doubted if released else facts.confirmed)
        return settled and record == whole_record(provider.total, provider.total)
    owes = facts.release_pending or facts.withheld
    return not owes and record == whole_record(provider.total, record.reserved)


def ask_release(
    db: Database, placement: PlacementClient, rp_uuid: str, cause: Cause, burned_for: str | None = None
) -> Settled:
    """Record that the operator has cleaned a burned device, and offer it again.

    The release is committed first. The device is not offered while Placement is unreachable or the device is missing. A
    device still missing in the agent's next period is removed from the record.

    :param cause: the operator, for the history.
    :param burned_for: release only if this instance burned the device; None for any instance.
    :raises NotFound: no such provider.
    :raises Conflict: the device is not burned, was burned by another instance, or is in use.
    :raises PlacementError: Placement failed. If it could not report usage, nothing is recorded. Otherwise the release
        is recorded, and Placement is updated later.
    """
    with db.read() as tx:
        found = pci.get(tx, rp_uuid)
    if found is None:
        raise NotFound(f"There is no provider of PCI functions with the uuid {rp_uuid}.")
    try:
        used = bool(placement.get_usages(rp_uuid).get(found.resource_class))
    except PlacementNotFound:
        used = False  # Placement deletes no provider that has allocations.

    def note(tx: Connection) -> None:
        provider = pci.get(tx, rp_uuid, lock=True)
        if provider is None or not provider.burned:
            raise Conflict(f"{found.address} of {found.hostname} is not burned: there is nothing to release.")
        if used or pci.is_claimed(tx, provider):
            holder = f"instance {provider.burned_for}" if provider.burned_for else "an instance"
            raise Conflict(f"{found.address} of {found.hostname} is in use by {holder}: delete that first.")
        if burned_for not in (None, provider.burned_for):
            raise Conflict(
                f"{found.address} of {found.hostname} was burned by instance {provider.burned_for}, not by "
                f"{burned_for}: nobody has said that it was cleaned since."
            )
        if not provider.release_pending:
            move(tx, provider, BurnEvent.RELEASE, cause, {"release_pending": True})

    db.transact(note)
    return settle_provider(db, placement, rp_uuid)


def _read(db: Database, rp_uuid: str) -> _Row | None:
    with db.read() as tx:
        provider = pci.get(tx, rp_uuid)
        if provider is None:
            return None
        functions = pci.functions_of(tx, provider)
        return _Row(
            provider,
            claimed=sum(each.instance_uuid is not None for each in functions),
            missing=bool(functions) and all(each.missing for each in functions),
            added=pci.added_classes(tx, rp_uuid),
        )


def _attempt(
    db: Database,
    placement: PlacementClient,
    present: Inventories,
    state: ProviderState | None,
    row: _Row,
    others_in_use: bool,
) -> Settled | None:
    """Make one attempt with the data that was read; return None to start again because the row has changed.

    :raises PlacementConflict: the generation has changed, or an inventory to be removed is in use.
    """
    provider, total = row.provider, row.provider.total
    reading = _reading(present.records, row)
    judged = verdict(row.facts, reading)
    if judged is Verdict.CONFIRM and placement.get_usages(provider.uuid).get(provider.resource_class):
        judged = Verdict.KEEP  # the allocation briefly outlives the claim when its instance is deleted
    if judged is Verdict.RELEASED:
        LOG.info(
            "%s of %s (provider %s) was released in Placement.", provider.address, provider.hostname, provider.uuid
        )
        # Continue as with any release: lower by a PUT, which defeats a slower writer about to raise again.
        _write(db, provider, BurnEvent.RELEASE_SEEN, {"release_pending": True})
        return None
    if provider.burned and reading is not None and reading.total != total:
        LOG.warning(
            "Provider %s of %s had total=%d and reserved=%d; Autoclave writes total=%d. A changed total releases "
            "nothing: %s is still burned.",
            provider.uuid,
            provider.hostname,
            reading.total,
            reading.reserved,
            total,
            provider.address,
        )
    wanted = {name: kept for name, kept in present.records.items() if name in row.added}
    wanted[provider.resource_class] = whole_record(total, _reserved(judged, reading, total))
    if others_in_use:
        others = present.records.keys() - wanted.keys()
        if others and not must_be_reserved(row.facts):
            LOG.warning(
                "Provider %s is to be of the class %s, and something of the class %s is allocated from it: it is left "
                "as it is until that is given back.",
                provider.uuid,
                provider.resource_class,
                ", ".join(sorted(others)),
            )
            return Settled.UNCHANGED
        wanted |= {name: replace(present.records[name], reserved=present.records[name].total) for name in others}
    if judged in (Verdict.RAISE, Verdict.LOWER, Verdict.CONFIRM) or present.records != wanted:
        if provider.resource_class not in present.records:
            placement.ensure_resource_class(provider.resource_class)
        if judged is Verdict.LOWER:
            require_traits(placement, provider.uuid, present.generation, provider.trait_names, state)
        if judged is Verdict.RAISE and row.facts.doubted and not provider.burned and not provider.withheld:
            return _withhold(db, placement, present.generation, wanted, provider)
        put_inventories(placement, provider.uuid, present.generation, wanted)
    if judged is Verdict.CONFIRM and not _write(db, provider, BurnEvent.CONFIRM, {"burn_confirmed": True}):
        return None
    if judged is Verdict.LOWER and not _note_lowered(db, provider):
        return None  # a claim raises `reserved` by itself; a doubted device was found reserved, so nothing was written
    return _outcome(judged, provider)


def _note_lowered(db: Database, provider: ProviderRecord) -> bool:
    """Record that Placement has been updated; return False if the row has changed and may demand something else."""
    if provider.release_pending:
        return _write(db, provider, BurnEvent.OFFER, {**NOT_BURNED, "withheld": False})
    return not provider.withheld or _note_withheld(db, provider, withheld=False)


def _withhold(
    db: Database, placement: PlacementClient, generation: int, wanted: Mapping[str, Inventory], provider: ProviderRecord
) -> Settled | None:
    """Reserve a doubted device, after recording that Autoclave does so; the hold of another writer is never lowered.

    :returns: the outcome, or None to start again because the row has changed.
    :raises PlacementConflict: another writer was first, and may hold the device.
    """
    if not _note_withheld(db, provider, withheld=True):
        return None
    try:
        put_inventories(placement, provider.uuid, generation, wanted)
    except PlacementConflict:
        _note_withheld(db, replace(provider, withheld=True), withheld=False)
        raise
    return _outcome(Verdict.RAISE, provider)


def _note_withheld(db: Database, provider: ProviderRecord, *, withheld: bool) -> bool:
    return db.transact(lambda tx: pci.note_withheld(tx, provider, withheld=withheld))


def _reading(records: Mapping[str, Inventory], row: _Row) -> Reading | None:
    ours = row.provider.total
    known = records.get(row.provider.resource_class)
    if known is not None:
        return Reading(known.total, known.reserved, ours)
    if row.facts.burned:
        return None
    others = [Reading(each.total, each.reserved, ours) for name, each in records.items() if name not in row.added]
    return next((each for each in others if each.is_full), None)  # held under its former resource class


def _reserved(judged: Verdict, reading: Reading | None, total: int) -> int:
    if judged is Verdict.LOWER:
        return 0
    if judged is Verdict.RAISE or reading is None or reading.is_full:
        return total
    return min(reading.reserved, total)


def _write(db: Database, provider: ProviderRecord, event: BurnEvent, values: Mapping[str, object]) -> bool:
    return db.transact(lambda tx: move(tx, provider, event, None, values, idle=True))


def _outcome(judged: Verdict, provider: ProviderRecord) -> Settled:
    where = f"{provider.address} of {provider.hostname}"
    if judged is Verdict.LOWER:
        if provider.burned or provider.withheld:
            why = "was released" if provider.burned else "was withheld"
            LOG.info("%s (provider %s) %s: it is offered again.", where, provider.uuid, why)
        return Settled.LOWERED
    if judged is Verdict.HOLD:
        return Settled.OPERATORS_HOLD
    return {Verdict.RAISE: Settled.RAISED, Verdict.CONFIRM: Settled.CONFIRMED}.get(judged, Settled.UNCHANGED)


_ONE_MOVED = 1
"""Maximum number of other slots on record for a moved card; a serial in more slots does not identify a card."""


def differs(tx: Connection, hostname: str, serials: Mapping[str, str]) -> bool:
    """Return whether :func:`follow` would write anything."""
    return any(_changed(row, serials) for row in pci.providers(tx, hostname))


def follow(tx: Connection, hostname: str, serials: Mapping[str, str], now: datetime) -> None:
    """Record which cards are in the slots of a host, and burn those that were burned elsewhere.

    The provider of the former slot stays burned until its own release, because the card in that slot is unknown.

    :param serials: serial numbers by slot address, for cards whose serial could be read.
    """
    for row in pci.providers(tx, hostname, lock=True):
        if not _changed(row, serials):
            continue
        serial = serials[row.address]
        others = [each for each in pci.with_serial(tx, serial) if each.uuid != row.uuid]
        pci.describe(tx, row, {"serial": serial})
        burned_by = pci.noted_by(tx, serial)
        if row.burned and row.serial is None and burned_by is None:
            pci.note(tx, serial, row.uuid)  # burned before its serial was known
        elif not row.burned and burned_by not in (None, row.uuid) and len(others) <= _ONE_MOVED:
            _burn(tx, hostname, replace(row, serial=serial), burned_by, now)


def _burn(tx: Connection, hostname: str, row: ProviderRecord, burned_by: str | None, now: datetime) -> None:
    former = pci.get(tx, burned_by or "")
    where = f"in slot {former.address} of host {former.hostname}" if former else "in a slot that is forgotten since"
    cause = Cause(Actor.AGENT, hostname, reason=f"its card {row.serial} was burned {where}")
    if move(tx, row, BurnEvent.BURN, cause, pci.burned_for(former.burned_for if former else None, now)):
        LOG.warning("%s of %s is burned: %s.", row.address, hostname, cause.reason)


def _changed(row: ProviderRecord, serials: Mapping[str, str]) -> bool:
    return serials.get(row.address, row.serial) != row.serial
