"""Compare the attach handles on record with those that a driver reports.

An attach handle in use by an active ARQ stays as it is, even if the configuration has changed since. All others follow
the driver's report at once.
"""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy.engine import Connection

from autoclave.db import devices as device_rows
from autoclave.db import handles as handle_rows
from autoclave.db.devices import DeployableRecord
from autoclave.db.handles import HandleRecord, HandleUse
from autoclave.db.tables import AttachType
from autoclave.drivers.base import AttachHandle, DiscoveredDevice


def insert_handle(tx: Connection, deployable_id: int, handle: AttachHandle) -> None:
    """Insert an attach handle that is not on record yet."""
    handle_rows.insert(
        tx,
        {
            "uuid": str(uuid.uuid4()),
            "deployable_id": deployable_id,
            "attach_type": AttachType(handle.attach_type),
            "attach_info": _stored(handle),
            "identity": handle.identity,
        },
    )


def as_offered(found: DiscoveredDevice, known: Sequence[HandleUse]) -> DiscoveredDevice:
    """Return *found*, excluded while an instance uses an attach handle that the driver no longer reports.

    Example: an instance has a physical function, and virtual functions of it have been created since, or the reverse.
    Each kind takes the other away. Excluding the device also keeps a returned attach handle from being bound again.
    """
    reported = {handle.identity for handle in found.attach_handles}
    odd = [use.handle.identity for use in known if use.in_use and use.handle.identity not in reported]
    if not odd:
        return found
    why = (
        f"an instance has {', '.join(odd)}, which is not offered any more; what the card offers now is offered when "
        "that instance has given it back"
    )
    return replace(found, excluded=f"{why}; {found.excluded}" if found.excluded else why)


@dataclass(frozen=True)
class HandleChanges:
    """Hold the changes to write to a device's attach handles.

    :param gone: free attach handles that the driver no longer reports.
    :param changed: free attach handles, each with its new ``attach_info``.
    :param new: attach handles that the driver reports for the first time.
    """

    gone: Sequence[HandleRecord]
    changed: Sequence[tuple[HandleRecord, str]]
    new: Sequence[AttachHandle]

    def __bool__(self) -> bool:
        return bool(self.gone or self.changed or self.new)


def handle_changes(known: Sequence[HandleUse], found: DiscoveredDevice) -> HandleChanges:
    """Diff the unused attach handles against those that the driver reports.

    Nothing is added while :func:`as_offered` excludes the device.
    """
    reported = {handle.identity: handle for handle in found.attach_handles}
    recorded = {use.handle.identity for use in known}
    free = [use.handle for use in known if not use.in_use]
    in_the_way = any(use.in_use and use.handle.identity not in reported for use in known)
    return HandleChanges(
        gone=[handle for handle in free if handle.identity not in reported],
        changed=[
            (handle, stored)
            for handle in free
            if handle.identity in reported and (stored := _stored(reported[handle.identity])) != handle.attach_info
        ],
        new=[] if in_the_way else [handle for name, handle in reported.items() if name not in recorded],
    )


def attach_as_found(
    tx: Connection, deployable: DeployableRecord, known: Sequence[HandleUse], changes: HandleChanges
) -> None:
    """Write *changes* of *known*, and the resulting number of attach handles.

    Both must have been read while this transaction held the lock on the device row.
    """
    for handle in changes.gone:
        handle_rows.delete(tx, handle)
    for handle, attach_info in changes.changed:
        handle_rows.set_attach_info(tx, handle, attach_info)
    for new in changes.new:
        insert_handle(tx, deployable.id, new)
    device_rows.set_accelerators(tx, deployable, len(known) - len(changes.gone) + len(changes.new))


def _stored(handle: AttachHandle) -> str:
    return json.dumps(dict(handle.attach_info), sort_keys=True)


def attributes_of(found: DiscoveredDevice) -> dict[str, str]:
    """Return the attributes of the deployable as Cyborg names them: ``rc`` and ``trait0``, ``trait1``, …"""
    traits = {f"trait{number}": trait for number, trait in enumerate(found.traits)}
    return {"rc": found.resource_class, **traits}


def board_info(found: DiscoveredDevice) -> str:
    """Return ``std_board_info``, with the cleanup action locked in."""
    info = dict(found.std_board_info)
    if found.cleanup_action is not None:
        info["cleanup_action"] = found.cleanup_action
    return json.dumps(info, sort_keys=True)


def recorded_layout(found: DiscoveredDevice) -> str | None:
    """Return the ``layout`` column for a drive as discovery found it."""
    return found.layout.to_json() if found.layout is not None and found.layout.recordable else None


def without_action(info: str | None) -> str | None:
    """Return ``std_board_info`` without the cleanup action.

    The action of the former drive does not apply to the drive that replaces it.
    """
    if info is None:
        return None
    return json.dumps(
        {key: value for key, value in json.loads(info).items() if key != "cleanup_action"}, sort_keys=True
    )
