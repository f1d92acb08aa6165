"""Whose servers a caller sees: those of his project, and an administrator all."""

from sqlalchemy.engine import Connection

from autoclave.api import uuids
from autoclave.db import instances as instance_rows
from autoclave.db.instances import InstanceRecord
from autoclave.exceptions import Forbidden, NotFound
from autoclave.objects.base import RequestContext


def find(tx: Connection, context: RequestContext, server: str, *, lock: bool = False) -> InstanceRecord:
    """The instance that the caller knows as *server*; with *lock*, its row stays locked.

    :raises NotFound: there is none that he may see; a name is none.
    """
    uuid = uuids.canonical(server)
    found = None if uuid is None else instance_rows.get(tx, uuid, lock=lock)
    # "no project" is no project's
    if found is None or not (context.is_admin or found.project_id == context.project_id):
        raise NotFound(f"Instance {server} could not be found.")
    return found


def require_project(context: RequestContext) -> str:
    """The caller's project.

    :raises Forbidden: he has none.
    """
    if context.project_id is None:
        raise Forbidden("Servers belong to projects: use a token of a project.")
    return context.project_id
