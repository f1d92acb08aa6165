"""The one way in which a device of one time use is burned, released and offered again: with a line in its history.

The history is kept beside that of all devices, under the uuid of the resource provider, and outlives the provider.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy.engine import Connection

from autoclave.db import history, pci
from autoclave.db.pci import ProviderRecord
from autoclave.lifecycle.transitions import Cause
from autoclave.rules.burn import BurnEvent

_SEEN = {
    BurnEvent.CONFIRM: "it was seen idle, with reserved=total",
    BurnEvent.RELEASE_SEEN: "somebody has lowered reserved there; Placement does not say who",
    BurnEvent.OFFER: "it has been told that reserved is 0",
}


def move(
    tx: Connection,
    provider: ProviderRecord,
    event: BurnEvent,
    cause: Cause | None,
    values: Mapping[str, Any],
    *,
    idle: bool = False,
) -> bool:
    """Write *values* if the row still is at the version of *provider*, and the event in the same transaction.

    :param cause: None: it follows from what Placement has, or was told, and is no caller's doing.
    :param idle: only if no instance has a function of it.
    :returns: whether it was; False: nothing was written.
    """
    if not pci.swap(tx, provider, values, idle=idle):
        return False
    record(tx, provider, replace(provider, **values), event, cause)
    if "burned" in values:
        _keep_ledger(tx, provider.uuid)
    return True


def _keep_ledger(tx: Connection, rp_uuid: str) -> None:
    """A card stays burned when it is put into another slot; its release covers the card that is in the slot then."""
    provider = pci.get(tx, rp_uuid)
    if provider is None or provider.serial is None:
        return
    if provider.burned:
        pci.note(tx, provider.serial, rp_uuid)
    else:
        pci.remove(tx, provider.serial, rp_uuid)


def record(
    tx: Connection, before: ProviderRecord | None, after: ProviderRecord, event: BurnEvent, cause: Cause | None
) -> None:
    """Append what has become of a provider to its history.

    :param before: None: it is on record from now on only.
    """
    history.append(
        tx,
        device_uuid=after.uuid,
        serial=after.serial,
        from_state=before.burn_state.value if before else None,
        to_state=after.burn_state.value,
        event=event.value,
        actor=str(cause) if cause else "Placement",
        request_id=cause.request_id if cause else None,
        reason=cause.reason if cause else _SEEN.get(event),
        evidence={"hostname": after.hostname, "pci_address": after.address, **(cause.evidence if cause else {})},
    )
