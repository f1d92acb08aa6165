"""Make Placement agree with the database (design §3, rules 2 to 4). Nothing else writes ``reserved``."""

from enum import StrEnum

from oslo_log import log as logging

from autoclave.db import devices as device_rows
from autoclave.db.devices import DeployableRecord, DeviceRecord
from autoclave.db.engine import Database
from autoclave.db.tables import devices, utcnow
from autoclave.exceptions import PlacementConflict, PlacementError
from autoclave.placement.client import PlacementClient
from autoclave.placement.records import Inventory
from autoclave.rules.reserved import must_be_reserved
from autoclave.rules.resource_names import is_nvme_class

LOG = logging.getLogger(__name__)

ATTEMPTS = 12
"""How often a moved generation is answered by starting again."""


class Settled(StrEnum):
    """What settling did."""

    RAISED = "raised"
    LOWERED = "lowered"
    UNCHANGED = "unchanged"
    OPERATORS_HOLD = "operator's hold"
    GONE = "gone"


def settle(db: Database, placement: PlacementClient, device_uuid: str) -> Settled:
    """Write the ``reserved`` that the row demands, and the whole inventory if there is none yet.

    The order is the protocol's: the generation is read before the row, so that news committed after
    the row was read makes the PUT fail. Raising always writes, even over an equal value: the PUT
    moves the generation and defeats a slower writer with older news. Lowering needs the debt that the
    row carries, and clears it if the row is still the one that it was read from.

    :raises PlacementUnavailable: no answer; the write may have been applied. The row still says what
        must be, so settling again is always safe.
    :raises PlacementConflict: the generation moved at every attempt.
    :raises PlacementNotFound: the provider does not exist; discovery makes it again.
    :raises PlacementError: Placement refused.
    """
    with db.read() as tx:
        device = device_rows.get(tx, device_uuid)
        deployables = device_rows.deployables_of(tx, [device.id]) if device else []
    if device is None:
        return Settled.GONE
    outcomes = []
    lowered_from = []
    for deployable in deployables:
        outcome, row = _settle_provider(db, placement, device_uuid, deployable)
        outcomes.append(outcome)
        if outcome is Settled.LOWERED and row is not None:
            lowered_from.append((row.state_version, row.release_number))
    if lowered_from and len(lowered_from) == len(deployables) and len(set(lowered_from)) == 1:
        _clear_debt(db, device_uuid, *lowered_from[0])
    return next((worst for worst in Settled if worst in outcomes), Settled.UNCHANGED)


def settle_others(db: Database, placement: PlacementClient, device: DeviceRecord) -> None:
    """Tell Placement what became of the other rows by which the drive of *device* is on record.

    Their own hosts need not be served by anybody. What Placement cannot be told now is logged.
    """
    if device.serial is None:
        return
    with db.read() as tx:
        others = device_rows.with_drive(tx, device.serial, device.drive_model or "")
    for other in others:
        if other.uuid == device.uuid or not must_be_reserved(other.offer):
            continue
        try:
            settle(db, placement, other.uuid)
        except PlacementError as error:
            LOG.warning("Placement does not know yet that device %s must not be offered: %s", other.uuid, error)


def _settle_provider(
    db: Database, placement: PlacementClient, device_uuid: str, deployable: DeployableRecord
) -> tuple[Settled, DeviceRecord | None]:
    for _ in range(ATTEMPTS):
        present = placement.get_inventories(deployable.rp_uuid)
        with db.read() as tx:
            row = device_rows.get(tx, device_uuid)
        if row is None:
            return Settled.GONE, None
        total = deployable.num_accelerators
        known = present.records.get(deployable.resource_class)
        if must_be_reserved(row.offer):
            outcome, reserved = Settled.RAISED, total
        elif row.release_pending or known is None:
            outcome, reserved = Settled.LOWERED, 0
        elif known.reserved >= known.total:
            LOG.warning(
                "Device %s (%s) is available, but Placement has reserved=%d without Autoclave having asked for it: "
                "taken for an operator's hold and left alone. Lower it there, or run `autoclave device release`.",
                row.uuid,
                deployable.name,
                known.reserved,
            )
            outcome, reserved = Settled.OPERATORS_HOLD, total
        else:
            outcome, reserved = Settled.UNCHANGED, min(known.reserved, total)
        if outcome in (Settled.OPERATORS_HOLD, Settled.UNCHANGED) and known == whole_record(total, reserved):
            return outcome, row
        try:
            placement.put_inventories(
                deployable.rp_uuid,
                present.generation,
                {
                    **{name: kept for name, kept in present.records.items() if not is_nvme_class(name)},
                    # a slot holds one drive: another NVMe class here is that of a drive accepted away
                    deployable.resource_class: whole_record(total, reserved),
                },
            )
        except PlacementConflict as error:
            LOG.debug("The generation of provider %s moved, starting again: %s", deployable.rp_uuid, error)
            continue
        return outcome, row
    raise PlacementConflict(
        f"the generation of provider {deployable.name} ({deployable.rp_uuid}) moved {ATTEMPTS} times in a row while "
        "its inventory was written; settling will be tried again"
    )


def whole_record(total: int, reserved: int) -> Inventory:
    """An inventory record with every field: Placement resets what is left out."""
    return Inventory(total=total, reserved=reserved, min_unit=1, max_unit=total, step_size=1, allocation_ratio=1.0)


def _clear_debt(db: Database, device_uuid: str, state_version: int, release_number: int) -> None:
    # A swap on the version: a debt made since then is not ours to clear.
    paid = (
        devices.update()
        .where(
            devices.c.uuid == device_uuid,
            devices.c.state_version == state_version,
            devices.c.release_number == release_number,
        )
        .values(release_pending=False, updated_at=utcnow())
    )
    db.transact(lambda tx: tx.execute(paid))
