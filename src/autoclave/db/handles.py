"""Attach handles. A handle is in use iff an active ARQ names it: derived, never stored."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.rows import columns, to_record
from autoclave.db.tables import AttachType, arqs, attach_handles
from autoclave.rules.arq_states import ACTIVE


@dataclass(frozen=True)
class HandleRecord:
    """An attach handle row; ``attach_info`` is JSON, ``identity`` what stays when that changes."""

    id: int
    uuid: str
    deployable_id: int
    attach_type: AttachType
    attach_info: str
    identity: str


_HANDLE = columns(HandleRecord, attach_handles)


def insert(tx: Connection, values: Mapping[str, Any]) -> int:
    """Insert a handle row and return its id."""
    return int(tx.execute(attach_handles.insert().values(**values)).inserted_primary_key[0])  # type: ignore[index]


def free(tx: Connection, deployable_id: int) -> list[HandleRecord]:
    """The handles of a deployable that no active ARQ names, in order of their id."""
    in_use = (
        sa.exists()
        .where(arqs.c.attach_handle_id == attach_handles.c.id, arqs.c.state.in_(list(ACTIVE)))
        .correlate(attach_handles)
    )
    query = (
        sa.select(*_HANDLE)
        .where(attach_handles.c.deployable_id == deployable_id, ~in_use)
        .order_by(attach_handles.c.id)
    )
    return [to_record(HandleRecord, row) for row in tx.execute(query)]
