"""What a list of servers may be asked for."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from autoclave.api import uuids
from autoclave.api.compute import paging
from autoclave.api.operation import Asked
from autoclave.api.query import Argument
from autoclave.api.schemas.common import TEXT, UUID, one_of
from autoclave.api.schemas.servers import MAX_TAGS
from autoclave.api.tags import asked_for
from autoclave.db import instances as instance_rows
from autoclave.db.columns import lists
from autoclave.db.compute_tables import instances
from autoclave.db.paging import Order
from autoclave.exceptions import BadRequest, Forbidden
from autoclave.rules.availability_zone import ZONE
from autoclave.rules.instance_states import PowerState, TaskState, VMState, status_of

_TRUE = ("True", "true", "1")
_SWITCH = one_of([*_TRUE, "False", "false", "0"])
_SORT_KEYS = {"created_at": "created_at", "updated_at": "updated_at", "display_name": "name", "uuid": "uuid"}
_COLUMNS = {
    "host": "host",
    "node": "host",
    "project_id": "project_id",
    "tenant_id": "project_id",
    "user_id": "user_id",
    "vm_state": "vm_state",
    "task_state": "task_state",
    "power_state": "power_state",
}
_ADMINS_OWN = ("host", "node", "project_id", "tenant_id", "user_id")
_POWER = {
    "enum": [int(state) for state in PowerState],
    "x-message": f"must be {', '.join(str(int(state)) for state in PowerState)}",
    "type": "integer",
}
_LONGEST_PART = 257
"""A name has 255 characters at most, and ``^`` and ``$`` may be around it. SQLite looks for no text of any length."""
_PART_OF_NAME = {
    **TEXT,
    "maxLength": _LONGEST_PART,
    "x-message": f"must have at most {_LONGEST_PART} characters, and no control character",
}

ARGUMENTS = (
    Argument(
        "name", "Only those whose name holds this text; ^ in front or $ behind: begins, ends with it.", _PART_OF_NAME
    ),
    Argument("status", "Only those with this status."),
    Argument("image", "Only those of this image.", UUID),
    Argument("flavor", "Only those that were made by the flavor with this id."),
    Argument("uuid", "Only this one.", UUID),
    Argument("host", "Only those on this host; administrators only."),
    Argument("node", "The same."),
    Argument("project_id", "Only those of this project; administrators only, with all_tenants."),
    Argument("tenant_id", "The same."),
    Argument("user_id", "Only those of this user; administrators only."),
    Argument("availability_zone", "Only those that are in this zone, or have asked for it and are on no host."),
    Argument("vm_state", "Only those in this state.", one_of(VMState)),
    Argument("task_state", "Only those with which this is being done.", one_of(TaskState)),
    Argument("power_state", "Only those whose guest is in this state.", _POWER),
    Argument("changes-since", "Only those that were changed at or after this moment (ISO 8601)."),
    Argument("changes-before", "Only those that were changed at or before this moment (ISO 8601)."),
    Argument("tags", "Only those with all of these tags, separated by commas."),
    Argument("tags-any", "Only those with one of these tags."),
    Argument("not-tags", "Only those that lack one of these tags."),
    Argument("not-tags-any", "Only those with none of these tags."),
    Argument("deleted", "True: those that are deleted, and of those there is no record.", _SWITCH),
    Argument("all_tenants", "True: those of all projects; administrators only.", _SWITCH),
    Argument("sort_key", "What they are sorted by; created_at if not said.", one_of(_SORT_KEYS)),
    Argument("sort_dir", "desc if not said.", one_of(["asc", "desc"])),
    *paging.PAGING,
)


def list_arguments(asked: Asked) -> dict[str, Any]:
    """What :func:`autoclave.db.instances.list_for` is to be called with.

    :raises Forbidden: it is only for administrators.
    :raises BadRequest: a moment is none, or there are too many tags.
    """
    given, context, page = asked.query, asked.context, paging.page(asked.query)
    everywhere = given.get("all_tenants") in _TRUE
    if not context.is_admin:
        beyond = [name for name in _ADMINS_OWN if name in given] + ["all_tenants"] * everywhere
        if beyond:
            raise Forbidden(f'Only an administrator may ask for "{beyond[0]}".')
    filters: dict[str, Any] = {column: given[name] for name, column in _COLUMNS.items() if name in given}
    if "power_state" in filters:
        filters["power_state"] = int(filters["power_state"])
    for name, column in (("image", "image_uuid"), ("uuid", "uuid")):
        if name in given:
            filters[column] = uuids.require(given[name], name)
    return {
        # "no project" must not turn into "no filter"
        "project_id": None if everywhere else context.project_id or "",
        "filters": filters,
        "conditions": _conditions(given),
        "order": Order(
            _SORT_KEYS[given.get("sort_key", "created_at")], descending=given.get("sort_dir", "desc") == "desc"
        ),
        "after": page.marker,
        "limit": page.limit,
    }


def _all_of(tags: Iterable[str]) -> sa.ColumnElement[bool]:
    return sa.and_(*(lists(instances.c.tags, tag) for tag in tags))


def _any_of(tags: Iterable[str]) -> sa.ColumnElement[bool]:
    return sa.or_(*(lists(instances.c.tags, tag) for tag in tags))


_BY_TAGS: Mapping[str, Callable[[Iterable[str]], sa.ColumnElement[bool]]] = {
    "tags": _all_of,
    "tags-any": _any_of,
    "not-tags": lambda tags: sa.not_(_all_of(tags)),
    "not-tags-any": lambda tags: sa.not_(_any_of(tags)),
}


def _conditions(given: Mapping[str, str]) -> list[sa.ColumnElement[bool]]:
    found: list[sa.ColumnElement[bool]] = []
    if "name" in given:
        found.append(_named(given["name"]))
    if "status" in given:
        found.append(_with_status(given["status"].upper()))
    if "availability_zone" in given:
        found.append(_in_zone(given["availability_zone"]))
    found += [
        condition(asked_for(given[name].split(","), name, MAX_TAGS))
        for name, condition in _BY_TAGS.items()
        if name in given
    ]
    if "flavor" in given:
        found.append(instance_rows.has_flavor(given["flavor"]))
    if given.get("deleted") in _TRUE:
        found.append(sa.false())
    changed = sa.func.coalesce(instances.c.updated_at, instances.c.created_at)
    if "changes-since" in given:
        found.append(changed >= _moment("changes-since", given["changes-since"]))
    if "changes-before" in given:
        found.append(changed <= _moment("changes-before", given["changes-before"]))
    return found


def _named(text: str) -> sa.ColumnElement[bool]:
    """Nova takes a regular expression; an expression that a caller sends can keep a database busy for hours."""
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


def _in_zone(zone: str) -> sa.ColumnElement[bool]:
    """Every host is in the one zone, whatever its servers have asked for; as servers are shown."""
    host = instances.c.host
    waiting = sa.and_(host.is_(None), instances.c.availability_zone == zone)
    return sa.or_(host.is_not(None), waiting) if zone == ZONE else waiting


def _with_status(status: str) -> sa.ColumnElement[bool]:
    """One that no server can have, such as SUSPENDED, is no server's."""
    tasks: tuple[TaskState | None, ...] = (None, *TaskState)
    pairs = [(vm, task) for vm in VMState for task in tasks if status_of(vm, task) == status]
    state, doing = instances.c.vm_state, instances.c.task_state
    return sa.or_(
        sa.false(), *(sa.and_(state == vm, doing.is_(None) if task is None else doing == task) for vm, task in pairs)
    )


def _moment(name: str, text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
        return found if found.tzinfo is None else found.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise BadRequest(
            f'The argument "{name}" must be a moment such as 2026-11-28T09:00:18Z, not {text!r}.'
        ) from None
