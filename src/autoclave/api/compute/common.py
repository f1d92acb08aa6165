"""Share links, timestamps, pages and visibility among the resources of the compute API.

Timestamps have no zone where Nova writes them without one, in its former extensions. A limit of 0 returns the largest
page, as in Nova. A caller sees the servers of its project, and an administrator sees all.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import falcon
from sqlalchemy.engine import Connection

from autoclave.api import query
from autoclave.api.query import Page, next_page, public_url
from autoclave.api.schema import LINKS, STRING, Schema, optional, shape
from autoclave.db import instances as instance_rows
from autoclave.db.instances import InstanceRecord
from autoclave.exceptions import Forbidden, NotFound
from autoclave.objects.base import RequestContext

ROOT = "/compute/v2.1"


def links_to(req: falcon.Request, conf: Any, resource: str, key: str) -> list[dict[str, str]]:
    """Return the links of a resource."""
    return [{"rel": "self", "href": f"{public_url(req, conf)}{ROOT}/{resource}/{key}"}]


def next_link(req: falcon.Request, conf: Any, name: str, keys: Sequence[str]) -> dict[str, Any]:
    """Return the link to the next page of a list, ``{"servers_links": [...]}``; nothing if there is none.

    :param name: of the list.
    :param keys: of the rows of the page.
    """
    following = next_page(req, keys)
    if following is None:
        return {}
    return {f"{name}_links": [{"rel": "next", "href": f"{public_url(req, conf)}{req.path}?{following}"}]}


def novas_moment(when: datetime | None) -> str | None:
    """Format *when* in UTC, such as ``2026-11-28T09:00:18.000000``: these clients accept no zone."""
    return None if when is None else when.isoformat(timespec="microseconds")


LIMIT = query.limit(0, "Maximum number of rows; all by default or with 0.")
PAGING = (LIMIT, query.MARKER)


def page(values: Mapping[str, str]) -> Page:
    """Parse the page as :func:`autoclave.api.query.page`."""
    asked = query.page(values)
    return Page(asked.limit or None, asked.marker)


def find(tx: Connection, context: RequestContext, server: str, *, lock: bool = False) -> InstanceRecord:
    """Return the instance with the uuid *server* if the caller may see it; with *lock*, lock its row.

    :raises NotFound: no such instance is visible to the caller. A name is not accepted.
    """
    uuid = query.canonical(server)
    found = None if uuid is None else instance_rows.get(tx, uuid, lock=lock)
    # "no project" must not match rows without a project
    if found is None or not (context.is_admin or found.project_id == context.project_id):
        raise NotFound(f"Instance {server} could not be found.")
    return found


def require_project(context: RequestContext) -> str:
    """Return the caller's project.

    :raises Forbidden: the caller has none.
    """
    if context.project_id is None:
        raise Forbidden("Servers belong to projects: use a token of a project.")
    return context.project_id


MAX_NUMBER = 2_147_483_647
"""Set the largest value of an INTEGER column."""

NAME: dict[str, Any] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 255,
    "pattern": r"^(?=.*\S)[^\x00-\x1f\x7f-\x9f]*$(?!\n)",
    "x-message": "must have 1 to 255 characters, not only spaces, and no control characters",
}
DESCRIPTION: dict[str, Any] = {
    "type": ["string", "null"],
    "maxLength": 4096,
    "x-message": "must be a text of at most 4096 characters, or null",
}


def number(minimum: int) -> dict[str, Any]:
    """Define a whole number that fits a column."""
    return {
        "type": "integer",
        "minimum": minimum,
        "maximum": MAX_NUMBER,
        "x-message": f"must be a whole number from {minimum} to {MAX_NUMBER}",
    }


def envelope(name: str, inner: dict[str, Any]) -> dict[str, Any]:
    """Define an object with the only key *name*, whose value is *inner*."""
    return {"type": "object", "required": [name], "additionalProperties": False, "properties": {name: inner}}


def texts(key_pattern: str, most: int, says: str) -> dict[str, Any]:
    """Define an object of texts.

    :param key_pattern: a pattern of the keys; *says* describes it.
    :param most: the largest number of keys.
    """
    return {
        "type": "object",
        "maxProperties": most,
        "propertyNames": {"pattern": key_pattern, "x-message": says},
        "additionalProperties": {
            "type": "string",
            "maxLength": 255,
            "x-message": "must be a text of at most 255 characters",
        },
    }


def paged(title: str, name: str, schema: Schema) -> Schema:
    """Define the envelope of a paged list: ``<name>_links`` has the link to the next page."""
    return shape(title, {name: {"type": "array", "items": schema}, f"{name}_links": optional(LINKS)})


NOVAS_MOMENT: Schema = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}$"}
"""Define a timestamp in UTC without a zone, as in Nova's former extensions; clients accept no other there."""
MAP_OF_TEXTS: Schema = {"type": "object", "additionalProperties": STRING}
VERSION = shape(
    "ComputeVersionDocument",
    {
        "id": STRING,
        "status": {"const": "CURRENT"},
        "version": STRING,
        "min_version": STRING,
        "updated": STRING,
        "links": LINKS,
        "media-types": {"type": "array", "items": {"type": "object"}},
    },
)
SHOWN_VERSION = shape("ShownComputeVersion", {"version": VERSION})
VERSIONS = shape("ComputeVersions", {"versions": {"type": "array", "items": VERSION}})
