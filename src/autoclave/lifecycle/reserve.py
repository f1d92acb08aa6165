"""Reconcile Placement with the database.

Make Placement agree with the database (protocol page, rules 2 to 4). Of devices, nothing else writes ``reserved``.

Nothing is offered before its provider has the traits that say what it is.

Devices that must not be offered, of which Placement may not have been told.

Devices whose provider another service has rewritten as its own: a second writer in Placement.

Nova does that to a device that its ``[pci] device_spec`` matches, too. It writes its own class over ours, with nothing
reserved, and may have given the device to a guest past us. So nothing is known of the device from then on.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType

import sqlalchemy as sa
from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.db import arqs as arq_rows
from autoclave.db import attributes as attribute_rows
from autoclave.db import devices as device_rows
from autoclave.db.columns import utcnow
from autoclave.db.devices import DeployableRecord, DeviceRecord
from autoclave.db.engine import Database
from autoclave.db.tables import devices
from autoclave.exceptions import (
    PlacementConflict,
    PlacementError,
    PlacementNotFound,
    PlacementUnavailable,
    TraitsMissing,
)
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.transitions import Cause, remark, swap
from autoclave.placement.client import PlacementClient
from autoclave.placement.provider_tree import ProviderState, by_generation, put_inventories, whole_record
from autoclave.placement.records import Inventory, Traits
from autoclave.rules.burn import Reading
from autoclave.rules.device_lifecycle import Actor, DeviceState, Event, must_be_reserved
from autoclave.rules.resource_names import OWNER_CYBORG, OWNER_NOVA


def require_traits(
    placement: PlacementClient,
    rp_uuid: str,
    generation: int,
    wanted: frozenset[str],
    known: ProviderState | None = None,
) -> None:
    """See that a provider has *wanted* at *generation*: what is written at that generation finds them there.

    Without this, a request that forbids a trait could get a device that has it, while its agent is about to write it.

    :param known: the provider as it was read or written at some generation; its traits are read if it is another.
    :raises TraitsMissing: it has not all of them. Its agent writes them in its next period.
    :raises PlacementConflict: the provider is at another generation.
    :raises PlacementError: Placement did not tell.
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


LOG = logging.getLogger(__name__)


def is_rewritten(placement: PlacementClient, rp_uuid: str) -> bool:
    """Return whether a provider of ours says that it is Nova's.

    :raises PlacementError: Placement did not tell.
    """
    return OWNER_NOVA in placement.get_traits(rp_uuid).names


def note_rewritten(db: Database, device_uuid: str) -> bool:
    """Record that another service has rewritten the provider of a device, once, and stop offering the device.

    An idle device goes to ``error``. One that an instance or a worker has keeps its state, and is held.

    :returns: whether it was recorded by this call. The caller reconciles Placement.
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
    """Move a device whose provider was rewritten to ``error``, if no request has it any longer.

    :param device: its row, locked by this transaction.
    :returns: the device in ``error``; None: its provider is its own, or the device is still in use.
    """
    in_reach = device.device_state in (DeviceState.AVAILABLE, DeviceState.ALLOCATED)
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
    if device.device_state is DeviceState.AVAILABLE and not in_use:
        return swap(tx, device, Event.REWRITTEN, cause, changes)
    if device.device_state is not DeviceState.ERROR and not device.held:
        changes |= {"held": True, "hold_reason": cause.reason}
    remark(tx, device, Event.REWRITTEN.value, cause, changes)
    return device


def _because(device: DeviceRecord, cause: Cause) -> Cause:
    return Cause(cause.actor, cause.name, cause.request_id, reason_of(device))


class Settled(StrEnum):
    """What settling did."""

    REWRITTEN = "rewritten"
    """Raised, since another service has written the provider."""
    RAISED = "raised"
    LOWERED = "lowered"
    UNCHANGED = "unchanged"
    OPERATORS_HOLD = "operator's hold"
    GONE = "gone"


def settle(
    db: Database,
    placement: PlacementClient,
    device_uuid: str,
    fresh: Mapping[str, ProviderState] = MappingProxyType({}),
) -> Settled:
    """Write the ``reserved`` that the row demands, and the whole inventory if there is none yet.

    The order is the protocol's: the generation is read before the row, so that news committed after
    the row was read makes the PUT fail. Raising always writes, even over an equal value: the PUT
    moves the generation and defeats a slower writer with older news. Lowering needs the debt that the
    row carries, and clears it if the row is still the one that it was read from; and it needs the traits
    to stand at the generation at which is written, or a request that forbids one of them could get the device.

    :param fresh: what has just been read or written of the device's providers, by their uuids.
    :raises PlacementUnavailable: no answer; the write may have been applied. The row still says what
        must be, so settling again is always safe.
    :raises PlacementConflict: the generation moved at every attempt.
    :raises TraitsMissing: the device is to be offered, and its traits do not stand yet: its agent writes them.
    :raises PlacementNotFound: the provider does not exist; discovery makes it again.
    :raises PlacementError: Placement refused.
    """
    with db.read() as tx:
        providers = device_rows.providers_of(tx, device_uuid)
    if providers is None:
        return Settled.GONE
    outcomes = []
    lowered_from = []
    for rp_uuid in providers:
        outcome, row = _settle_provider(db, placement, rp_uuid, fresh.get(rp_uuid))
        outcomes.append(outcome)
        if outcome is Settled.LOWERED and row is not None:
            lowered_from.append((row.state_version, row.release_number))
    if Settled.GONE in outcomes:
        return Settled.GONE
    if lowered_from and len(lowered_from) == len(providers) and len(set(lowered_from)) == 1:
        _clear_debt(db, device_uuid, *lowered_from[0])
    return next((worst for worst in Settled if worst in outcomes), Settled.UNCHANGED)


def secure(db: Database, placement: PlacementClient, device_uuid: str) -> Settled:
    """Settle where it matters only that what must not be offered is not: before a bind, or the end of one, is told.

    A device that may be offered, and lacks traits, waits for its agent; who binds and unbinds need not.

    :raises PlacementError: as :func:`settle`, but for missing traits.
    """
    try:
        return settle(db, placement, device_uuid)
    except TraitsMissing as error:
        LOG.debug("Device %s is not offered yet, and nobody waits for that: %s", device_uuid, error)
        return Settled.UNCHANGED


def _settle_provider(
    db: Database, placement: PlacementClient, rp_uuid: str, fresh: ProviderState | None
) -> tuple[Settled, DeviceRecord | None]:
    latest = [fresh]

    def attempt(in_use: bool) -> tuple[Settled, DeviceRecord | None] | None:
        state, latest[0] = latest[0], None
        return _attempt(db, placement, rp_uuid, state, others_in_use=in_use)

    return by_generation(f"the inventory of provider {rp_uuid}", attempt)


def _attempt(
    db: Database, placement: PlacementClient, rp_uuid: str, fresh: ProviderState | None, *, others_in_use: bool
) -> tuple[Settled, DeviceRecord | None] | None:
    """One attempt at what :func:`settle` says; None: start again.

    :param fresh: what the provider has, read before the row is; None: it is read here.
    :raises PlacementConflict: the generation has moved on, or an inventory that is to go is in use.
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
    if not row.rewritten and _has_others(present.records, deployable) and is_rewritten(placement, rp_uuid):
        # Recorded before it is written over: nothing else would show it then.
        note_rewritten(db, row.uuid)
        return None
    total = deployable.num_accelerators
    known = present.records.get(deployable.resource_class)
    reading = Reading(known.total, known.reserved, total) if known else None
    if must:
        outcome, reserved = Settled.REWRITTEN if row.rewritten else Settled.RAISED, total
    elif row.release_pending or reading is None:
        outcome, reserved = Settled.LOWERED, 0
    elif reading.is_full:
        outcome, reserved = Settled.OPERATORS_HOLD, total
    else:
        outcome, reserved = Settled.UNCHANGED, min(reading.reserved, total)
    if reading is not None and reading.total != total:
        _report_total(deployable, row, reading)
    # A device has one class: another one here is that of a drive accepted away, or of a driver of former times.
    others = _reserved_others(present.records, deployable.resource_class) if others_in_use else {}
    wanted = {**others, deployable.resource_class: whole_record(total, reserved)}
    stands = outcome in (Settled.OPERATORS_HOLD, Settled.UNCHANGED) and present.records == wanted
    if not stands:
        if outcome is Settled.LOWERED:
            require_traits(placement, rp_uuid, present.generation, traits | {OWNER_CYBORG}, fresh)
        put_inventories(placement, rp_uuid, present.generation, wanted)
    elif outcome is Settled.OPERATORS_HOLD:
        # The row is newer than the inventory: the release may have ended in between.
        _require_unchanged(placement, rp_uuid, present.generation)
    _note_published(db, deployable, total)
    if outcome is Settled.OPERATORS_HOLD:
        LOG.warning(
            "Device %s (%s) is available, but Placement has reserved=%d without Autoclave having asked for it: "
            "taken for an operator's hold and left alone. Lower it there, or run `autoclave device release`.",
            row.uuid,
            deployable.name,
            total,
        )
    return outcome, row


def _note_published(db: Database, deployable: DeployableRecord, total: int) -> None:
    # After the write: if that failed, what is there is still what was written last.
    if deployable.published_total != total:
        db.transact(lambda tx: device_rows.set_published_total(tx, deployable, total))


def _report_total(deployable: DeployableRecord, row: DeviceRecord, reading: Reading) -> None:
    """Report a total that is written anew, and accuse another writer only of what Autoclave has not written."""
    had = (deployable.rp_uuid, row.uuid, reading.total, reading.reserved, reading.ours)
    if deployable.published_total in (None, reading.total):
        LOG.info(
            "Provider %s of device %s had total=%d and reserved=%d; Autoclave writes total=%d, the number of functions "
            "that it offers.",
            *had,
        )
        return
    LOG.warning(
        "Provider %s of device %s had total=%d and reserved=%d; Autoclave writes total=%d. A total that another "
        "service or an operator has changed releases nothing.",
        *had,
    )


def _has_others(records: Mapping[str, Inventory], deployable: DeployableRecord) -> bool:
    return bool(records.keys() - {deployable.resource_class})


def _require_unchanged(placement: PlacementClient, rp_uuid: str, generation: int) -> None:
    """See that nothing was written since *generation* was read.

    :raises PlacementConflict: the provider is at another generation.
    :raises PlacementError: no answer.
    """
    now = placement.get_inventories(rp_uuid).generation
    if now != generation:
        raise PlacementConflict(f"provider {rp_uuid} is at generation {now}, no longer at {generation}")


def _reserved_others(records: Mapping[str, Inventory], resource_class: str) -> dict[str, Inventory]:
    """What somebody still has an allocation of cannot be removed; it must not be offered beside the device's class."""
    return {name: replace(kept, reserved=kept.total) for name, kept in records.items() if name != resource_class}


_PAID = devices.update().where(
    devices.c.uuid == sa.bindparam("key"),
    devices.c.state_version == sa.bindparam("version"),
    devices.c.release_number == sa.bindparam("number"),
)


def _clear_debt(db: Database, device_uuid: str, state_version: int, release_number: int) -> None:
    # A swap on the version: a debt made since then is not ours to clear.
    which = {"key": device_uuid, "version": state_version, "number": release_number}
    db.transact(lambda tx: tx.execute(_PAID, {**which, "release_pending": False, "updated_at": utcnow()}))


ROUND = 50
"""Devices that one round tells of: few enough that no sweep waits long for it."""

_UNTOLD = "Placement does not know yet that device %s must not be offered: %s"


def raise_reserved(db: Database, placement: PlacementClient, uuid: str) -> bool:
    """Tell Placement what the row of a device that must not be offered demands.

    :returns: whether it has been told. If not, the host's agent tells it, or a conductor does; see
        :class:`Withdrawals`.
    """
    try:
        settle(db, placement, uuid)
    except PlacementError as error:
        LOG.warning(_UNTOLD, uuid, error)
        return False
    return True


def settle_others(db: Database, placement: PlacementClient, device: DeviceRecord) -> None:
    """Tell Placement what became of the other rows by which the drive of *device* is on record.

    Their own hosts need not be served by anybody. What Placement cannot be told now is logged.
    """
    # The serial of what is not erased is shown only: several cards may have it.
    if device.serial is None or not device.supports_cleaning:
        return
    with db.read() as tx:
        others = device_rows.with_drive(tx, device.serial, device.drive_model or "")
    for other in others:
        if other.uuid != device.uuid and must_be_reserved(other.offer):
            raise_reserved(db, placement, other.uuid)


class Withdrawals:
    """Tells Placement of each of them, once for each time that it was withdrawn.

    Whoever withdraws a device tells Placement himself, and if that is away, or he dies in between, the agent of the
    device's host does in its next period. This is for hosts that no agent serves. What was told is remembered by
    this process alone: one that has just started tells of all. Raising is always safe (protocol page, rule 2).
    """

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._told: dict[str, tuple[object, ...]] = {}
        self._failures: Counter[str] = Counter()
        """Of what is not told yet: what Placement refuses must not keep it from hearing of the rest."""

    def tell(self) -> None:
        """One round. What Placement does not hear is told in the next.

        :raises DatabaseUnavailable: nothing could be read.
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
