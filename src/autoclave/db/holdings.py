"""An ARQ and the device that it holds, in one look."""

from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.arqs import ARQ, ARQRecord
from autoclave.db.devices import DEVICE, DeviceRecord
from autoclave.db.tables import arqs, devices

_BY_ARQ = (
    sa.select(*ARQ, *DEVICE)
    .select_from(arqs.outerjoin(devices, devices.c.id == arqs.c.device_id))
    .where(arqs.c.uuid == sa.bindparam("key"))
)


class Holding(NamedTuple):
    """An ARQ with the device that it names, or None if it names none."""

    arq: ARQRecord
    device: DeviceRecord | None


def of_arq(tx: Connection, arq_uuid: str) -> Holding | None:
    """What the ARQ with *arq_uuid* holds, neither of the two locked; None if there is no such ARQ."""
    row = tx.execute(_BY_ARQ, {"key": arq_uuid}).one_or_none()
    if row is None:
        return None
    arq = ARQRecord(*row[: len(ARQ)])
    return Holding(arq, None if arq.device_id is None else DeviceRecord(*row[len(ARQ) :]))
