"""Reconcile Placement with the database.

Only this module writes ``reserved`` of devices of profiles and of flavors. The database decides and Placement follows,
so interrupted work can be finished later. A device is offered only after its provider has the traits that describe it.

Nova may also write the provider of a device of profiles, if its ``[pci] device_spec`` matches the device. It replaces
the resource class, reserves nothing, and may give the device to a guest without Autoclave. Such a device is withheld as
rewritten.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType

import sqlalchemy as sa
from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.db import arqs as arq_rows
from autoclave.db import attributes as attribute_rows
from autoclave.db import devices as device_rows
from autoclave.db import pci
from autoclave.db.columns import utcnow
from autoclave.db.devices import DeployableRecord, DeviceRecord
from autoclave.db.engine import Database
from autoclave.db.tables import devices
from autoclave.exceptions import (
    PlacementConflict,
    PlacementError,
    PlacementNotFound,
    PlacementUnavailable,
    StateConflict,
    TraitsMissing,
)
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.transitions import Cause, end_burn, remark, swap
from autoclave.placement.client import PlacementClient
from autoclave.placement.provider_tree import ProviderState, by_generation, put_inventories, whole_record
from autoclave.placement.records import Inventory, Traits
from autoclave.rules.device_lifecycle import Actor, DeviceState, Event, Reading, Verdict, must_be_reserved, verdict
from autoclave.rules.reclaim import RequestedBy
from autoclave.rules.resource_names import OWNER_CYBORG, OWNER_NOVA

LOG = logging.getLogger(__name__)


def require_traits(
    placement: PlacementClient,
    rp_uuid: str,
    generation: int,
    wanted: frozenset[str],
    known: ProviderState | None = None,
) -> None:
    """Require that a provider has *wanted* at *generation*, so that a write at that generation is safe.

    Otherwise a request that forbids a trait could get a device whose agent has not written that trait yet.

    :param known: the provider as read or written before; its traits are read again if its generation differs.
    :raises TraitsMissing: traits are missing; the agent writes them in its next period.
    :raises PlacementConflict: the provider is at another generation.
    :raises PlacementError: Placement failed.
    """
    if known is not None and known.generation == generation:
        traits = Traits(generation, known.traits)
    else:
        traits = placement.get_traits(rp_uuid)
    if missing := wanted - traits.names:
        raise TraitsMissing(
            f"provider {rp_uuid} is not offered before its agent has given it the traits {', '.join(sorted(missing))}"
        )
    if traits.generation != generation:
        raise PlacementConflict(f"provider {rp_uuid} is at generation {traits.generation}, not {generation} any more")


def is_rewritten(placement: PlacementClient, rp_uuid: str) -> bool:
    """Return whether a provider of Autoclave has the trait of Nova's ownership.

    :raises PlacementError: Placement failed.
    """
    return OWNER_NOVA in placement.get_traits(rp_uuid).names


def note_rewritten(db: Database, device_uuid: str) -> bool:
    """Record once that another service has rewritten a device's provider, and stop offering the device.

    An idle device goes to ``error``. A device in use by an instance or a worker keeps its state, and is held.

    :returns: whether this call recorded it. The caller reconciles Placement.
    :raises DatabaseUnavailable: nothing was recorded.
    """
    noted = db.transact(lambda tx: _note(tx, device_uuid))
    if noted is not None:
        LOG.error("Device %s (%s) must not be offered: %s", device_uuid, noted.slot, reason_of(noted))
    return noted is not None


def reason_of(device: DeviceRecord) -> str:
    """Return why a device whose provider was rewritten is not offered, and what to do."""
    return (
        f"another service has written its provider in Placement ({OWNER_NOVA}). Let Nova's [pci] device_spec on "
        f"{device.hostname} not match it, restart nova-compute there, and make sure that no guest has it"
    )


def fail_rewritten(tx: Connection, device: DeviceRecord, cause: Cause) -> DeviceRecord | None:
    """Move a device whose provider was rewritten to ``error``, if no request holds it any longer.

    :param device: its row, locked by this transaction.
    :returns: the device in ``error``; None if it was not rewritten, or is still in use.
    """
    in_reach = device.device_state in (DeviceState.AVAILABLE, DeviceState.ALLOCATED, DeviceState.SPENT)
    if not device.rewritten or not in_reach or arq_rows.active_of_device(tx, device.id):
        return None
    return swap(tx, device, Event.REWRITTEN, _because(device, cause))


def _note(tx: Connection, device_uuid: str) -> DeviceRecord | None:
    device = device_rows.get(tx, device_uuid, lock=True)
    if device is None or device.rewritten:
        return None
    cause = _because(device, Cause(Actor.PLACEMENT, OWNER_NOVA))
    changes: dict[str, object] = {"rewritten": True}
    in_use = arq_rows.active_of_device(tx, device.id)
    if device.device_state in (DeviceState.AVAILABLE, DeviceState.SPENT) and not in_use:
        return swap(tx, device, Event.REWRITTEN, cause, changes)
    if device.device_state is not DeviceState.ERROR and not device.held:
        changes |= {"held": True, "hold_reason": cause.reason}
    remark(tx, device, Event.REWRITTEN.value, cause, changes)
    return device


def _because(device: DeviceRecord, cause: Cause) -> Cause:
    return Cause(cause.actor, cause.name, cause.request_id, reason_of(device))


class Settled(StrEnum):
    """Name the outcome of reconciling a device."""

    REWRITTEN = "rewritten"
    """Raised because another service has written the provider."""
    RAISED = "raised"
    LOWERED = "lowered"
    CONFIRMED = "confirmed"
    """The spent device is now known to be idle and reserved."""
    UNCHANGED = "unchanged"
    OPERATORS_HOLD = "operator's hold"
    GONE = "gone"


def settle(
    db: Database,
    placement: PlacementClient,
    device_uuid: str,
    fresh: Mapping[str, ProviderState] = MappingProxyType({}),
) -> Settled:
    """Write the ``reserved`` that the row demands, and the whole inventory if there is none yet; or confirm a spent
    device, or note its release.

    The generation is read before the row, so that a change committed after reading the row makes the PUT fail. Raising
    always writes, even an equal value: the PUT increments the generation and defeats a slower writer. Lowering needs
    ``release_pending`` or ``withheld``, and clears it if the row is still unchanged. It also needs the traits at the
    generation of the write, or a request that forbids one of them could get the device.

    Confirming a spent device is also a PUT: if it succeeds, ``reserved`` has not been lowered in the meantime. A
    lowered ``reserved`` counts as a release only if it was read after that PUT. So the generation must still be the
    same after the confirmation was read from the row.

    :param fresh: the device's providers as just read or written, by uuid.
    :raises PlacementUnavailable: no answer; the write may have been applied. Reconciling again is always safe.
    :raises PlacementConflict: the generation changed at every attempt.
    :raises TraitsMissing: the device is to be offered, but lacks traits; its agent writes them.
    :raises PlacementNotFound: the provider does not exist; discovery creates it again.
    :raises PlacementError: Placement refused.
    """
    outcome, paid = _settle(db, placement, device_uuid, fresh)
    if paid:
        return outcome
    # The row has changed since: it may have to be reserved again. Later changes are the work of their writers.
    return _settle(db, placement, device_uuid, {})[0]


def _settle(
    db: Database, placement: PlacementClient, device_uuid: str, fresh: Mapping[str, ProviderState]
) -> tuple[Settled, bool]:
    """Reconcile each provider once; return the outcome, and False if a release was written, but not cleared."""
    with db.read() as tx:
        providers = device_rows.providers_of(tx, device_uuid)
    if providers is None:
        return Settled.GONE, True
    outcomes = []
    lowered_from = []
    for rp_uuid in providers:
        outcome, row = _settle_provider(db, placement, rp_uuid, fresh.get(rp_uuid))
        outcomes.append(outcome)
        if outcome is Settled.LOWERED and row is not None:
            lowered_from.append(row)
    if Settled.GONE in outcomes:
        return Settled.GONE, True
    versions = {(row.state_version, row.release_number) for row in lowered_from}
    written = bool(lowered_from) and len(lowered_from) == len(providers) and len(versions) == 1
    cleared = not written or _clear_debt(db, lowered_from[0])
    return next((worst for worst in Settled if worst in outcomes), Settled.UNCHANGED), cleared


def secure(db: Database, placement: PlacementClient, device_uuid: str) -> Settled:
    """Ensure ``reserved`` for a device that must not be offered, before a bind or its end is reported.

    A device that may be offered but lacks traits waits for its agent; bind and unbind need not wait.

    :raises PlacementError: as :func:`settle`, except for missing traits.
    """
    try:
        return settle(db, placement, device_uuid)
    except TraitsMissing as error:
        LOG.debug("Device %s is not offered yet, and nobody waits for that: %s", device_uuid, error)
        return Settled.UNCHANGED


def _settle_provider(
    db: Database, placement: PlacementClient, rp_uuid: str, fresh: ProviderState | None
) -> tuple[Settled, DeviceRecord | None]:
    def attempt(known: ProviderState | None, in_use: bool) -> tuple[Settled, DeviceRecord | None] | None:
        return _attempt(db, placement, rp_uuid, known, others_in_use=in_use)

    return by_generation(f"the inventory of provider {rp_uuid}", attempt, fresh)


def _attempt(
    db: Database, placement: PlacementClient, rp_uuid: str, fresh: ProviderState | None, *, others_in_use: bool
) -> tuple[Settled, DeviceRecord | None] | None:
    """Make one attempt of :func:`settle`; return None to start again.

    :param fresh: the provider as read before the row; None to read it here.
    :raises PlacementConflict: the generation has changed, or an inventory to be removed is in use.
    """
    present = fresh.known_inventories if fresh else None
    if present is None:
        fresh, present = None, placement.get_inventories(rp_uuid)
    with db.read() as tx:
        found = device_rows.by_provider(tx, rp_uuid)
        if found is None:
            return Settled.GONE, None
        deployable, row = found
        must = must_be_reserved(row.offer)
        traits = frozenset() if must else attribute_rows.traits_of(tx, deployable.id)
        added = pci.added_classes(tx, rp_uuid) if row.is_function else frozenset()
    others = present.records.keys() - {deployable.resource_class} - added
    of_profiles = row.requested_by is RequestedBy.PROFILE  # the providers of flavors have the trait of Nova themselves
    if not row.rewritten and others and of_profiles and is_rewritten(placement, rp_uuid):
        # Record this before overwriting the evidence of it.
        note_rewritten(db, row.uuid)
        return None
    total = deployable.num_accelerators
    reading = _reading(present.records, deployable, row, others)
    judged = verdict(row.reserving, reading)
    if judged is Verdict.RELEASED:
        _require_unchanged(placement, rp_uuid, present.generation)
        _note_release(db, row, deployable)
        return None  # Continue as with any release: lower by a PUT, which defeats a slower writer about to raise again.
    if judged is Verdict.CONFIRM and placement.get_usages(rp_uuid).get(deployable.resource_class):
        judged = Verdict.KEEP  # the allocation briefly outlives the use when its instance is deleted
    if reading is not None and reading.total != total:
        _report_total(deployable, row, reading)
    wanted = {name: kept for name, kept in present.records.items() if name in added}
    wanted[deployable.resource_class] = whole_record(total, _reserved(judged, reading, total))
    if others_in_use:
        if others and row.is_function and not must:
            _report_class(deployable, others)
            return Settled.UNCHANGED, row
        # Other classes are left from a drive that was replaced by accept, or from a former driver. Allocations prevent
        # their removal.
        wanted |= {name: replace(present.records[name], reserved=present.records[name].total) for name in others}
    if judged in _WRITES or present.records != wanted:
        if row.requested_by is RequestedBy.FLAVOR and deployable.resource_class not in present.records:
            placement.ensure_resource_class(deployable.resource_class)
        if judged is Verdict.LOWER:
            require_traits(placement, rp_uuid, present.generation, traits | _owner(row), fresh)
        if judged is Verdict.WITHHOLD and not row.withheld:
            return _withhold(db, placement, present.generation, wanted, deployable, row)
        put_inventories(placement, rp_uuid, present.generation, wanted)
    elif judged is Verdict.HOLD:
        # The row is newer than the inventory: a pending release may have completed in between.
        _require_unchanged(placement, rp_uuid, present.generation)
    _note_published(db, deployable, total)
    if judged is Verdict.CONFIRM and not _confirm(db, row):
        return None
    return _outcome(judged, deployable, row), row


_WRITES = frozenset({Verdict.RAISE, Verdict.WITHHOLD, Verdict.LOWER, Verdict.CONFIRM})


def _owner(row: DeviceRecord) -> frozenset[str]:
    """Return the traits of the owner of a device's provider; those of a flavor's device are among its own."""
    return frozenset({OWNER_CYBORG}) if row.requested_by is RequestedBy.PROFILE else frozenset()


def _reading(
    records: Mapping[str, Inventory], deployable: DeployableRecord, row: DeviceRecord, others: AbstractSet[str]
) -> Reading | None:
    ours = deployable.num_accelerators
    known = records.get(deployable.resource_class)
    if known is not None:
        return Reading(known.total, known.reserved, ours)
    if not row.is_function or row.burned_at is not None:
        return None
    former = (Reading(records[name].total, records[name].reserved, ours) for name in sorted(others))
    return next((each for each in former if each.is_full), None)  # held under its former resource class


def _reserved(judged: Verdict, reading: Reading | None, total: int) -> int:
    if judged is Verdict.LOWER:
        return 0
    if judged in (Verdict.RAISE, Verdict.WITHHOLD) or reading is None or reading.is_full:
        return total
    return min(reading.reserved, total)


def _withhold(
    db: Database,
    placement: PlacementClient,
    generation: int,
    wanted: Mapping[str, Inventory],
    deployable: DeployableRecord,
    row: DeviceRecord,
) -> tuple[Settled, DeviceRecord | None] | None:
    """Reserve a doubted device, after recording that Autoclave does so; the hold of another writer is never lowered.

    :returns: the outcome, or None to start again because the row has changed.
    :raises PlacementConflict: another writer was first, and may hold the device.
    """
    if not db.transact(lambda tx: device_rows.note_withheld(tx, row, withheld=True)):
        return None
    noted = replace(row, withheld=True)
    try:
        put_inventories(placement, deployable.rp_uuid, generation, wanted)
    except PlacementConflict:
        db.transact(lambda tx: device_rows.note_withheld(tx, noted, withheld=False))
        raise
    _note_published(db, deployable, deployable.num_accelerators)
    return Settled.RAISED, noted


def _confirm(db: Database, row: DeviceRecord) -> bool:
    cause = Cause(Actor.PLACEMENT, "", reason="it was seen idle, with reserved=total")

    def write(tx: Connection) -> None:
        swap(tx, row, Event.CONFIRM, cause, {"burn_confirmed": True, "state_reason": row.state_reason})

    return _if_unchanged(db, write)


def _note_release(db: Database, row: DeviceRecord, deployable: DeployableRecord) -> None:
    cause = Cause(Actor.PLACEMENT, "", reason="reserved was lowered there; Placement does not record by whom")
    if _if_unchanged(db, lambda tx: swap(tx, row, Event.RELEASE_SEEN, cause)):
        LOG.info("%s (provider %s) was released in Placement.", row.slot, deployable.rp_uuid)


def _if_unchanged(db: Database, write: Callable[[Connection], object]) -> bool:
    """Write a transition, and return whether the row was unchanged."""
    try:
        db.transact(write)
    except StateConflict as error:
        LOG.debug("Starting again: %s", error)
        return False
    return True


def _outcome(judged: Verdict, deployable: DeployableRecord, row: DeviceRecord) -> Settled:
    if judged is Verdict.HOLD:
        LOG.warning(
            "Device %s (%s) is available, but Placement has reserved=%d without Autoclave having asked for it: "
            "taken for an operator's hold and left alone. Lower it there, or run `autoclave device release`.",
            row.uuid,
            deployable.name,
            deployable.num_accelerators,
        )
        return Settled.OPERATORS_HOLD
    if judged is Verdict.LOWER and (row.burned_at is not None or row.withheld):
        why = "was released" if row.burned_at is not None else "was withheld"
        LOG.info("%s %s, and is offered again.", row.slot, why)
    if judged in (Verdict.RAISE, Verdict.WITHHOLD):
        return Settled.REWRITTEN if row.rewritten else Settled.RAISED
    return {Verdict.LOWER: Settled.LOWERED, Verdict.CONFIRM: Settled.CONFIRMED}.get(judged, Settled.UNCHANGED)


def _report_class(deployable: DeployableRecord, others: AbstractSet[str]) -> None:
    LOG.warning(
        "Provider %s should have the class %s, but allocations of the class %s use it. Autoclave leaves it unchanged "
        "until they are gone.",
        deployable.rp_uuid,
        deployable.resource_class,
        ", ".join(sorted(others)),
    )


def _note_published(db: Database, deployable: DeployableRecord, total: int) -> None:
    # Only after the write: if it failed, the last published total is still the former one.
    if deployable.published_total != total:
        db.transact(lambda tx: device_rows.set_published_total(tx, deployable, total))


def _report_total(deployable: DeployableRecord, row: DeviceRecord, reading: Reading) -> None:
    """Log a changed total, as a warning only if Autoclave did not write the former one."""
    had = (deployable.rp_uuid, row.uuid, reading.total, reading.reserved, reading.ours)
    if deployable.published_total in (None, reading.total):
        LOG.info(
            "Provider %s of device %s had total=%d and reserved=%d; Autoclave writes total=%d, the number of functions "
            "that it offers.",
            *had,
        )
        return
    state = "still burned" if row.burned_at is not None else row.device_state
    LOG.warning(
        "Provider %s of device %s had total=%d and reserved=%d; Autoclave writes total=%d. A total that another "
        "service or an operator has changed releases nothing: the device is %s.",
        *had,
        state,
    )


def _require_unchanged(placement: PlacementClient, rp_uuid: str, generation: int) -> None:
    """Require that the provider has not been written since *generation* was read.

    :raises PlacementConflict: the provider is at another generation.
    :raises PlacementError: no answer.
    """
    now = placement.get_inventories(rp_uuid).generation
    if now != generation:
        raise PlacementConflict(f"provider {rp_uuid} is at generation {now}, no longer at {generation}")


_PAID = devices.update().where(
    devices.c.uuid == sa.bindparam("key"),
    devices.c.state_version == sa.bindparam("version"),
    devices.c.release_number == sa.bindparam("number"),
    # A doubt writes nothing over a full inventory, so it does not defeat a slower writer that lowers.
    devices.c.unreadable_reason.is_(None),
    devices.c.outdated.is_(False),
)


def _clear_debt(db: Database, row: DeviceRecord) -> bool:
    """Clear the pending release, and return whether the row was unchanged and in no doubt.

    A release that became pending since must stay.
    """
    which = {"key": row.uuid, "version": row.state_version, "number": row.release_number}

    def write(tx: Connection) -> bool:
        paid = {"release_pending": False, "withheld": False, "updated_at": utcnow()}
        if not tx.execute(_PAID, {**which, **paid}).rowcount:
            return False
        if row.burned_at is not None:
            end_burn(tx, row)
        return True

    return db.transact(write)


ROUND = 50
"""Maximum number of devices per round, so that no sweep waits long."""

_UNTOLD = "Placement does not know yet that device %s must not be offered: %s"


def raise_reserved(db: Database, placement: PlacementClient, uuid: str) -> bool:
    """Reconcile Placement for a device that must not be offered.

    :returns: whether Placement is reconciled. If not, the host's agent or a conductor retries; see
    :class:`Withdrawals`.
    """
    try:
        settle(db, placement, uuid)
    except PlacementError as error:
        LOG.warning(_UNTOLD, uuid, error)
        return False
    return True


def settle_others(db: Database, placement: PlacementClient, device: DeviceRecord) -> None:
    """Reconcile Placement for the other rows that have the drive of *device* on record.

    No agent need serve their hosts. Failures of Placement are logged.
    """
    # Devices other than drives may share a serial number, so it identifies none of them.
    if device.serial is None or not device.is_drive:
        return
    with db.read() as tx:
        others = device_rows.with_drive(tx, device.serial, device.drive_model or "")
    for other in others:
        if other.uuid != device.uuid and must_be_reserved(other.offer):
            raise_reserved(db, placement, other.uuid)


class Withdrawals:
    """Reconcile Placement for withdrawn devices, once for each withdrawal.

    A withdrawal is normally reconciled by its writer, or by the agent of the device's host in its next period. This
    class serves hosts without an agent. Its record is in memory, so that a new process reconciles all devices. Raising
    is always safe.
    """

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._told: dict[str, tuple[object, ...]] = {}
        self._failures: Counter[str] = Counter()
        """Failures by device not yet reconciled; sorting by them prevents one refusal from blocking the rest."""

    def tell(self) -> None:
        """Run one round. The next round retries failures.

        :raises DatabaseUnavailable: the database cannot be read.
        """
        with self._ports.db.read() as tx:
            withdrawn = {device.uuid: device for device in device_rows.withdrawn(tx)}
        self._told = {uuid: told for uuid, told in self._told.items() if uuid in withdrawn}
        untold = [device for device in withdrawn.values() if self._told.get(device.uuid) != _version(device)]
        self._failures = Counter({device.uuid: self._failures[device.uuid] for device in untold})
        for device in sorted(untold, key=lambda device: self._failures[device.uuid])[:ROUND]:
            try:
                settle(self._ports.db, self._ports.placement, device.uuid)
            except PlacementNotFound:
                LOG.debug("Device %s has no provider; whoever makes it reserves it.", device.uuid)
            except PlacementUnavailable as error:
                LOG.warning(_UNTOLD, device.uuid, error)
                return
            except PlacementError as error:
                LOG.warning(_UNTOLD, device.uuid, error)
                self._failures[device.uuid] += 1
                continue
            self._told[device.uuid] = _version(device)


def _version(device: DeviceRecord) -> tuple[object, ...]:
    return device.state_version, device.release_number, device.offer
