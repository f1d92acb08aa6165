"""Parse the filters of a list of servers."""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from autoclave.api import query
from autoclave.api.compute import common
from autoclave.api.operation import Asked
from autoclave.api.query import Argument
from autoclave.api.schema import TEXT, UUID, one_of
from autoclave.db.tables import instances
from autoclave.exceptions import Forbidden
from autoclave.rules.instance_states import TaskState, VMState, status_of

_TRUE = ("True", "true", "1")
_SWITCH = one_of([*_TRUE, "False", "false", "0"])
_ADMINS_OWN = ("host", "project_id")
_LONGEST_PART = 257
"""Limit a pattern: a name has 255 characters, ``^`` and ``$`` may enclose it. SQLite limits patterns, too."""
_PART_OF_NAME = {
    **TEXT,
    "maxLength": _LONGEST_PART,
    "x-message": f"must have at most {_LONGEST_PART} characters, and no control characters",
}

ARGUMENTS = (
    Argument(
        "name",
        "Only servers whose name contains this text; ^ before it: begins with it; $ after it: ends with it.",
        _PART_OF_NAME,
    ),
    Argument("status", "Only servers with this status."),
    Argument("uuid", "Only this server.", UUID),
    Argument("host", "Only servers on this host; administrators only."),
    Argument("project_id", "Only servers of this project; administrators only, with all_tenants."),
    Argument("deleted", "True: deleted servers, which are not recorded, so that the list is empty.", _SWITCH),
    Argument("all_tenants", "True: servers of all projects; administrators only.", _SWITCH),
    *common.PAGING,
)


def list_arguments(asked: Asked) -> dict[str, Any]:
    """Return the arguments for :func:`autoclave.db.instances.list_for`.

    :raises Forbidden: a filter is for administrators.
    :raises BadRequest: a uuid is malformed.
    """
    given, context, page = asked.query, asked.context, common.page(asked.query)
    everywhere = given.get("all_tenants") in _TRUE
    if not context.is_admin:
        beyond = [name for name in _ADMINS_OWN if name in given] + ["all_tenants"] * everywhere
        if beyond:
            raise Forbidden(f'Only an administrator may set "{beyond[0]}".')
    filters: dict[str, Any] = {name: given[name] for name in _ADMINS_OWN if name in given}
    if "uuid" in given:
        filters["uuid"] = query.require(given["uuid"], "uuid")
    return {
        # "no project" must not turn into "no filter"
        "project_id": None if everywhere else context.project_id or "",
        "filters": filters,
        "conditions": _conditions(given),
        "after": page.marker,
        "limit": page.limit,
    }


def _conditions(given: Mapping[str, str]) -> list[sa.ColumnElement[bool]]:
    found: list[sa.ColumnElement[bool]] = []
    if "name" in given:
        found.append(_named(given["name"]))
    if "status" in given:
        found.append(_with_status(given["status"].upper()))
    if given.get("deleted") in _TRUE:
        found.append(sa.false())
    return found


def _named(text: str) -> sa.ColumnElement[bool]:
    """Accept plain text only. Nova accepts a regular expression, but one can keep a database busy for hours."""
    begins, ends = text.startswith("^"), text.endswith("$")
    name = instances.c.name
    match text.removeprefix("^").removesuffix("$"), begins, ends:
        case part, True, True:
            return sa.func.lower(name) == part.lower()
        case part, True, False:
            return name.istartswith(part, autoescape=True)
        case part, False, True:
            return name.iendswith(part, autoescape=True)
        case part, _, _:
            return name.icontains(part, autoescape=True)


def _with_status(status: str) -> sa.ColumnElement[bool]:
    """Match no server for a status that no server can have, such as SUSPENDED."""
    tasks: tuple[TaskState | None, ...] = (None, *TaskState)
    pairs = [(vm, task) for vm in VMState for task in tasks if status_of(vm, task) == status]
    state, doing = instances.c.vm_state, instances.c.task_state
    return sa.or_(
        sa.false(), *(sa.and_(state == vm, doing.is_(None) if task is None else doing == task) for vm, task in pairs)
    )
