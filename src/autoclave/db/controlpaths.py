"""Control paths: how the host addresses a device."""

import uuid
from collections.abc import Mapping
from typing import Any

from sqlalchemy.engine import Connection

from autoclave.db.tables import controlpath_ids


def insert(tx: Connection, device_id: int, values: Mapping[str, Any]) -> None:
    """Insert the control path of a device."""
    tx.execute(controlpath_ids.insert().values(uuid=str(uuid.uuid4()), device_id=device_id, **values))
