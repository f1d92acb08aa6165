"""Whose accelerator requests a caller may touch."""

from collections.abc import Sequence

from sqlalchemy.engine import Connection

from autoclave.db import arqs as arq_rows
from autoclave.db.arqs import ARQRecord
from autoclave.exceptions import NotFound
from autoclave.objects.base import RequestContext


def visible_arqs(tx: Connection, context: RequestContext, uuids: Sequence[str]) -> dict[str, ARQRecord]:
    """The ARQs with *uuids* by uuid.

    :raises NotFound: one does not exist, or is another project's: the caller is not told which.
    """
    found = {
        arq.uuid: arq
        for arq in arq_rows.get_many(tx, list(uuids))
        if context.is_admin or arq.project_id == context.project_id
    }
    for uuid in uuids:
        if uuid not in found:
            raise NotFound(f"ExtArq not found with uuid={uuid}")
    return found
