"""Serve ``/v2/attributes``.

``rc`` and ``trait…`` are managed by discovery, which writes them to Placement. To schedule by a further trait, set it
on the provider in Placement: discovery keeps custom traits. All other keys belong to operators. Discovery keeps them,
and Placement does not get them.
"""

from typing import Any

import falcon
from oslo_db import exception as db_exc
from sqlalchemy.engine import Connection

from autoclave.api import query
from autoclave.api.body import compiled
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.query import Argument, public_url, self_link
from autoclave.api.schema import (
    INTEGER,
    LINKS,
    READ_ONLY,
    STRING,
    TIMESTAMP,
    UUID,
    UUID_PATTERN,
    listed,
    nullable,
    shape,
)
from autoclave.db import attributes as attribute_rows
from autoclave.db import device_views
from autoclave.db.attributes import AttributeRecord
from autoclave.exceptions import BadRequest, Conflict, NotFound
from autoclave.rules.resource_names import is_discovered

MAX_ID = 2_147_483_647
"""Set the largest id of a row."""

DEPLOYABLE_ID: dict[str, Any] = {
    # openstackclient sends the typed text, and never shows a deployable's id.
    "type": ["integer", "string"],
    "minimum": 1,
    "maximum": MAX_ID,
    "pattern": rf"^[0-9]{{1,10}}$(?!\n)|{UUID_PATTERN}",
    "x-message": "must be the ID or UUID of a deployable",
}
_NEW: dict[str, Any] = {
    "type": "object",
    "required": ["deployable_id", "key", "value"],
    "additionalProperties": False,
    "properties": {
        **READ_ONLY,
        "uuid": {"description": "Ignored: the service chooses the UUID."},
        "deployable_id": DEPLOYABLE_ID,
        "key": {
            "type": "string",
            "maxLength": 255,
            "pattern": r"^[^\x00-\x1f\x7f-\x9f]+$(?!\n)",
            "x-message": "must have 1 to 255 characters, without control characters",
        },
        "value": {"type": "string", "maxLength": 4096},
    },
}

CREATE: dict[str, Any] = {
    # openstacksdk wraps the body in an envelope.
    "if": {"type": "object", "required": ["attribute"]},
    "then": {"additionalProperties": False, "properties": {"attribute": _NEW}},
    "else": _NEW,
}
VALIDATE_CREATE = compiled(CREATE)

ATTRIBUTE = shape(
    "Attribute",
    {
        "uuid": UUID,
        "deployable_id": INTEGER,
        "key": STRING,
        "value": STRING,
        "links": LINKS,
        "created_at": nullable(TIMESTAMP),
        "updated_at": nullable(TIMESTAMP),
    },
)
ATTRIBUTES = listed("Attributes", "attributes", ATTRIBUTE)


class Attributes(Resource):
    """Serve ``GET`` and ``POST /v2/attributes``."""

    @Operation(
        "List the attributes",
        rule="cyborg:attribute:get_all",
        query=(
            Argument("deployable_id", "Only attributes of this deployable, by its ID or UUID.", DEPLOYABLE_ID),
            Argument("key", "Only attributes with this key."),
            *query.PAGING,
        ),
        answers={200: ATTRIBUTES},
    )
    def on_get(self, req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        page = query.page(asked.query)
        deployable = asked.query.get("deployable_id")
        with self._api.ports.db.read() as tx:
            if page.marker is not None and attribute_rows.get(tx, page.marker) is None:
                raise query.unknown_marker(page.marker)
            found = attribute_rows.list_all(
                tx,
                # no row has the id 0
                deployable_id=None if deployable is None else _deployable_id(tx, deployable) or 0,
                key=asked.query.get("key"),
                after=page.marker,
                limit=page.limit,
            )
        base = public_url(req, self._api.conf)
        resp.media = {"attributes": [_shown(record, base) for record in found]}

    @Operation(
        "Add an attribute to a deployable",
        rule="cyborg:attribute:create",
        body=VALIDATE_CREATE,
        answers={201: ATTRIBUTE},
        fails={404: "The deployable does not exist.", 409: "The deployable has an attribute with this key already."},
    )
    def on_post(self, req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        wanted = asked.body.get("attribute", asked.body)
        named, key = wanted["deployable_id"], wanted["key"]
        deployable = named if isinstance(named, str) else str(int(named))  # to JSON, 7.0 is a whole number
        if is_discovered(key):
            raise BadRequest(
                f"Attribute {key} is managed by discovery and cannot be set. Set a custom trait with `openstack "
                "resource provider trait set`; discovery keeps it."
            )

        def make(tx: Connection) -> AttributeRecord:
            deployable_id = _deployable_id(tx, deployable)
            if deployable_id is None:
                raise _no_deployable(deployable)
            made = attribute_rows.get(tx, attribute_rows.insert(tx, deployable_id, key, wanted["value"]))
            if made is None:
                raise _no_deployable(deployable)  # flavors ask for its device, which this API does not show
            return made

        try:
            made = self._api.ports.db.transact(make)
        except db_exc.DBDuplicateEntry:
            raise Conflict(
                f"Deployable {deployable} already has an attribute with the key {key}. Delete it first."
            ) from None
        except db_exc.DBReferenceError:
            raise _no_deployable(deployable) from None
        resp.status = falcon.HTTP_201
        resp.media = _shown(made, public_url(req, self._api.conf))


class Attribute(Resource):
    """Serve ``GET`` and ``DELETE /v2/attributes/{uuid}``."""

    @Operation("Show an attribute", rule="cyborg:attribute:get_one", answers={200: ATTRIBUTE})
    def on_get(self, req: falcon.Request, resp: falcon.Response, _asked: Asked, uuid: str) -> None:
        with self._api.ports.db.read() as tx:
            found = _find(tx, uuid)
        resp.media = _shown(found, public_url(req, self._api.conf))

    @Operation(
        "Delete an attribute",
        rule="cyborg:attribute:delete",
        answers={204: None},
        fails={409: "The attribute is managed by discovery."},
    )
    def on_delete(self, _req: falcon.Request, resp: falcon.Response, _asked: Asked, uuid: str) -> None:
        def delete(tx: Connection) -> None:
            found = _find(tx, uuid)
            if is_discovered(found.key):
                raise Conflict(f"Attribute {found.uuid} ({found.key}) is managed by discovery and cannot be deleted.")
            attribute_rows.delete(tx, found)

        self._api.ports.db.transact(delete)
        resp.status = falcon.HTTP_204


def _find(tx: Connection, uuid: str) -> AttributeRecord:
    found = attribute_rows.get(tx, query.require(uuid, "the attribute"))
    if found is None:
        raise NotFound(f"Attribute not found with uuid={uuid}")
    return found


def _deployable_id(tx: Connection, text: str) -> int | None:
    """Return the id of the deployable that *text* names by id or uuid; None if the uuid is unknown.

    :raises BadRequest: it is neither.
    """
    canonical = query.canonical(text)
    if canonical is not None:
        rows, _ = device_views.views(tx, uuid=canonical)
        return rows[0].id if rows else None
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and 1 <= int(text) <= MAX_ID):
        raise BadRequest(f"deployable_id must be the ID or UUID of a deployable, not {text!r}.")
    return int(text)


def _no_deployable(text: str) -> NotFound:
    return NotFound(f"Deployable not found with {'id' if text.isdigit() else 'uuid'}={text}")


def _shown(record: AttributeRecord, base: str) -> dict[str, Any]:
    return {
        "uuid": record.uuid,
        "deployable_id": record.deployable_id,
        "key": record.key,
        "value": record.value,
        "links": [self_link(base, "attributes", record.uuid)],
        "created_at": record.created_at,
        "updated_at": record.updated_at,
    }
