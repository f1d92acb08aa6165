"""Compare the attach handles on record with those that a driver reports.

The attach handles of a device: as they are on record, and as its driver reports them.

What an active ARQ names stays as it is, whatever the configuration says by now: a guest has it, or is about to.
The rest follows the host at once.

What a discovered device is in the terms of the database.
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
    """Insert one that was not there."""
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
    """*found*, excluded while an instance has what the driver does not report any more.

    A physical function that a guest has, and virtual functions of it that somebody made meanwhile, are such a case, and
    the other way round: one takes the other away. What is given back is then not given out again either.
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
    """What is to be written of a device's handles.

    :param gone: not reported any more, and free.
    :param changed: free ones, with what ``attach_info`` is to be.
    :param new: reported for the first time.
    """

    gone: Sequence[HandleRecord]
    changed: Sequence[tuple[HandleRecord, str]]
    new: Sequence[AttachHandle]

    def __bool__(self) -> bool:
        return bool(self.gone or self.changed or self.new)


def handle_changes(known: Sequence[HandleUse], found: DiscoveredDevice) -> HandleChanges:
    """What would make the handles that nobody uses those that the driver reports.

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
    """Write *changes* of *known*, both read while the device row was locked, and how many handles there are then."""
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
    """The deployable's attributes, as Cyborg names them: ``rc`` and ``trait0``, ``trait1``, …"""
    traits = {f"trait{number}": trait for number, trait in enumerate(found.traits)}
    return {"rc": found.resource_class, **traits}


def board_info(found: DiscoveredDevice) -> str:
    """``std_board_info``, with the cleanup action locked in."""
    info = dict(found.std_board_info)
    if found.cleanup_action is not None:
        info["cleanup_action"] = found.cleanup_action
    return json.dumps(info, sort_keys=True)


def recorded_layout(found: DiscoveredDevice) -> str | None:
    """``layout`` of a drive as it was found."""
    return found.layout.to_json() if found.layout is not None and found.layout.recordable else None


def without_action(info: str | None) -> str | None:
    """``std_board_info`` without the cleanup action: that of another drive says nothing of this one."""
    if info is None:
        return None
    return json.dumps(
        {key: value for key, value in json.loads(info).items() if key != "cleanup_action"}, sort_keys=True
    )
