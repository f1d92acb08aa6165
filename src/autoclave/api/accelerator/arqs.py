"""Serve ``/v2/accelerator_requests`` (ARQs).

Rows are created here; conductors change devices. A caller sees the requests of its project, and an administrator sees
all. A request of another project is not found (404, not 403).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import falcon
from oslo_db import exception as db_exc
from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.api import microversion, query
from autoclave.api.auth import require_service_token
from autoclave.api.body import compiled
from autoclave.api.context import Api
from autoclave.api.microversion import MANAGED, Microversion
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.query import Argument, public_url, self_link
from autoclave.api.schema import (
    BOOLEAN,
    INTEGER,
    LINKS,
    STRING,
    TIMESTAMP,
    UUID,
    listed,
    nullable,
    one_of,
    shape,
    since,
)
from autoclave.db import arqs as arq_rows
from autoclave.db import profiles as profile_rows
from autoclave.db.arqs import ARQView
from autoclave.db.tables import AttachType
from autoclave.exceptions import BadRequest, Forbidden, NotFound, RPCError
from autoclave.lifecycle.requests import make_arqs, record_unbind
from autoclave.lifecycle.transitions import Cause
from autoclave.objects.base import RequestContext
from autoclave.rules.device_lifecycle import RESOLVED, Actor, ARQState
from autoclave.rules.resource_names import read

LOG = logging.getLogger(__name__)


CREATE: dict[str, Any] = {
    "type": "object",
    "required": ["device_profile_name"],
    "additionalProperties": False,
    "properties": {
        "device_profile_name": {"type": "string", "maxLength": 255},
        # Cyborg ignores it as well: a profile's groups are requested together. openstackclient sends text, or null.
        "device_profile_group_id": {
            "type": ["integer", "string", "null"],
            "minimum": 0,
            "pattern": r"^[0-9]{1,3}$(?!\n)",
            "x-message": "must be the number of a group, or null. It is ignored: every group is requested",
        },
        "image_uuid": {"type": "null", "x-message": "an image cannot be requested"},
    },
}
VALIDATE_CREATE = compiled(CREATE)

PATHS = ("/hostname", "/device_rp_uuid", "/instance_uuid")
"""Name the paths that a bind sets and an unbind removes, each exactly once."""
PROJECT_PATH = "/project_id"

UPDATE: dict[str, Any] = {
    "type": "object",
    "minProperties": 1,
    "x-message": "must be an object that maps the UUID of each accelerator request to a list of operations",
    "propertyNames": UUID,
    "additionalProperties": {
        "type": "array",
        "minItems": 1,
        "maxItems": 8,
        "items": {
            "type": "object",
            "required": ["path", "op"],
            "additionalProperties": False,
            "properties": {
                "path": {"enum": [*PATHS, PROJECT_PATH]},
                "op": {"enum": ["add", "remove"]},
                "value": {"type": ["string", "null"], "maxLength": 255},
            },
        },
    },
}
VALIDATE_UPDATE = compiled(UPDATE)

ARQ = shape(
    "AcceleratorRequest",
    {
        "uuid": UUID,
        "state": one_of(ARQState),
        "device_profile_name": STRING,
        "device_profile_group_id": INTEGER,
        "hostname": nullable(STRING),
        "device_rp_uuid": nullable(UUID),
        "instance_uuid": nullable(UUID),
        "project_id": nullable(STRING),
        "attach_handle_type": one_of(["", *AttachType]),
        "attach_handle_uuid": nullable(UUID),
        "attach_handle_info": {
            "type": "object",
            "description": "Address of the device, such as domain, bus, device and function; empty until the bind.",
            "properties": {"managed": since(MANAGED, BOOLEAN)},
            "additionalProperties": STRING,
        },
        "links": LINKS,
        "created_at": nullable(TIMESTAMP),
        "updated_at": nullable(TIMESTAMP),
    },
)
ARQS = listed("AcceleratorRequests", "arqs", ARQ)


@dataclass(frozen=True)
class Patch:
    """Hold the content of one PATCH: binds or unbinds, never both.

    :param binds: requests as ``ConductorManager.arq_bind`` takes them.
    :param unbinds: uuids of accelerator requests.
    :param names_project: ``/project_id`` is among the paths.
    """

    binds: tuple[dict[str, Any], ...]
    unbinds: tuple[str, ...]
    names_project: bool


def parse(document: Mapping[str, Sequence[Mapping[str, Any]]]) -> Patch:
    """Parse *document*, which has the shape of the schema; check every entry.

    :raises BadRequest: an entry is incomplete, mixes add and remove, or differs from the others.
    """
    entries = {query.require(key, "an accelerator request"): value for key, value in document.items()}
    if len(entries) != len(document):
        raise BadRequest("An accelerator request is named twice, in upper and lower case.")
    kinds = {operation["op"] for operations in entries.values() for operation in operations}
    if len(kinds) != 1:
        raise BadRequest("Every operation of one PATCH must be add, or every one remove.")
    named = {arq: _by_path(arq, operations) for arq, operations in entries.items()}
    names_project = any(PROJECT_PATH in paths for paths in named.values())
    if kinds == {"remove"}:
        return Patch((), tuple(named), names_project)
    return Patch(tuple(_bind(arq, paths) for arq, paths in named.items()), (), names_project)


def _by_path(arq: str, operations: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    paths = {operation["path"]: operation for operation in operations}
    if len(paths) != len(operations):
        raise BadRequest(f"The patch of {arq} names a path twice.")
    absent = [path for path in PATHS if path not in paths]
    if absent:
        raise BadRequest(f"Fields absent in patch of {arq}: {', '.join(absent)}")
    return paths


def _bind(arq: str, paths: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    values = {}
    for path, operation in paths.items():
        value = operation.get("value")
        if not value:
            raise BadRequest(f"The patch of {arq} adds {path} without a value.")
        values[path] = value
    return {
        "arq_uuid": arq,
        "hostname": values["/hostname"],
        "device_rp_uuid": query.require(values["/device_rp_uuid"], f"/device_rp_uuid of {arq}"),
        "instance_uuid": query.require(values["/instance_uuid"], f"/instance_uuid of {arq}"),
        "project_id": values.get(PROJECT_PATH),
    }


_HAS_ITS_DEVICE = frozenset({ARQState.BOUND, ARQState.DELETING})
"""List the states that show the handle: an unfinished bind must not expose it."""


def shown(view: ARQView, version: Microversion, base: str) -> dict[str, Any]:
    """Return the representation at *version*; *base* is where links begin."""
    arq = view.arq
    attached = arq.state in _HAS_ITS_DEVICE and view.attach_handle_info is not None
    return {
        "uuid": arq.uuid,
        "state": arq.state.value,
        "device_profile_name": view.device_profile_name,
        "device_profile_group_id": arq.device_profile_group_id,
        "hostname": arq.hostname,
        "device_rp_uuid": arq.device_rp_uuid,
        "instance_uuid": arq.instance_uuid,
        "project_id": arq.project_id,
        "attach_handle_type": _kind(view) if attached else "",
        "attach_handle_uuid": view.attach_handle_uuid if attached else None,
        "attach_handle_info": _attach_info(view, version) if attached else {},
        "links": [self_link(base, "accelerator_requests", arq.uuid)],
        "created_at": arq.created_at,
        "updated_at": arq.updated_at,
    }


def _kind(view: ARQView) -> str:
    return str(getattr(view.attach_handle_type, "value", view.attach_handle_type))


def _attach_info(view: ARQView, version: Microversion) -> dict[str, Any]:
    """Return the stored handle, and whether libvirt manages it (managed-mode specification): true if nothing is
    stored.

    Skip an unreadable handle, because other requests are in the same list.
    """
    attaching = read(view.attach_handle_info or "{}")
    if attaching.fault is not None:
        LOG.error("attach_info of handle %s (ARQ %s) %s", view.attach_handle_uuid, view.arq.uuid, attaching.fault)
    if _kind(view) != AttachType.PCI.value or version < MANAGED or attaching.managed is None:
        return dict(attaching.where)
    return {**attaching.where, "managed": attaching.managed}


_ONLY_SERVICES = (
    "This operation requires a service token. Use the Compute API to manage the accelerators of an instance."
)

_UNRESOLVED = frozenset(ARQState) - RESOLVED

_INSTANCE = Argument("instance", "Only requests of this instance.", UUID)
_BIND_STATE = Argument(
    "bind_state",
    "Only requests whose bind has succeeded or failed. With instance: 423 while a bind of the instance is unfinished.",
    one_of(["resolved"]),
)
_BY_CONDUCTOR = {
    409: "The state of the request or device, or a concurrent change, forbids it; the message says which.",
    504: "No conductor answered in time; the request may still be carried out.",
}
_UPDATE = Operation(
    "Bind or unbind accelerator requests, all of them or none",
    rule="cyborg:arq:update",
    waits=True,
    body=VALIDATE_UPDATE,
    answers={202: None},
    fails={404: "A request is not visible to the caller, or no device has the provider.", **_BY_CONDUCTOR},
)


class AcceleratorRequests(Resource):
    """Serve ``GET``, ``POST``, ``PATCH`` and ``DELETE /v2/accelerator_requests``."""

    @Operation(
        "List the accelerator requests that the caller may see",
        rule="cyborg:arq:get_all",
        query=(_INSTANCE, _BIND_STATE, *query.PAGING),
        answers={200: ARQS, 423: None},
    )
    def on_get(self, req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        context, page = asked.context, query.page(asked.query)
        bind_state = asked.query.get("bind_state")
        instance = query.canonical(asked.query.get("instance", ""))
        project = None if context.is_admin else context.project_id
        _require_project(context)
        with self._api.ports.db.read() as tx:
            if page.marker is not None and not arq_rows.views(tx, uuids=[page.marker], project_id=project):
                raise query.unknown_marker(page.marker)
            if (
                bind_state
                and instance
                and arq_rows.views(tx, project_id=project, instance_uuid=instance, states=_UNRESOLVED, limit=1)
            ):
                resp.status = falcon.HTTP_423  # unfinished: Nova retries
                return
            found = arq_rows.views(
                tx,
                project_id=project,
                instance_uuid=instance,
                states=RESOLVED if bind_state else None,
                after=page.marker,
                limit=page.limit,
            )
        resp.media = self._listed(req, found)

    @Operation(
        "Create accelerator requests for a device profile",
        rule="cyborg:arq:create",
        body=VALIDATE_CREATE,
        answers={201: ARQS},
        fails={404: "The device profile does not exist."},
    )
    def on_post(self, req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        context, name = asked.context, asked.body["device_profile_name"]

        def make(tx: Connection) -> list[ARQView]:
            profile = profile_rows.find(tx, name=name)
            if profile is None:
                raise _no_profile(name)
            made = make_arqs(tx, profile, context.project_id)
            return arq_rows.views(tx, uuids=made)

        try:
            found = self._api.ports.db.transact(make)
        except db_exc.DBReferenceError:
            # Deleted between the read and the insertion.
            raise _no_profile(name) from None
        resp.status = falcon.HTTP_201
        resp.media = self._listed(req, found)

    @_UPDATE
    def on_patch(self, req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        _patch(self._api, req, resp, asked, None)

    @Operation(
        "Delete accelerator requests, by UUIDs or by instance",
        rule="cyborg:arq:delete",
        waits=True,
        query=(Argument("arqs", "UUIDs, separated by commas."), _INSTANCE),
        answers={204: None},
        fails={404: "One of them is not visible to the caller.", **_BY_CONDUCTOR},
    )
    def on_delete(self, req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        if len(asked.query) != 1:
            raise BadRequest("Set either ?arqs=uuid,uuid or ?instance=uuid.")
        if "instance" in asked.query:
            require_service_token(self._api.conf, req, _ONLY_SERVICES)
            _require_project(asked.context)
            instance = asked.query["instance"].lower()
            try:
                self._api.conductor.arq_delete_for_instance(asked.context, instance)
            except RPCError as error:
                _record(self._api, asked.context, _of_instance(self._api, asked.context, instance), error)
        else:
            _delete(self._api, req, asked.query["arqs"].split(","))
        resp.status = falcon.HTTP_204

    def _listed(self, req: falcon.Request, found: Sequence[ARQView]) -> dict[str, list[object]]:
        version, base = microversion.of(req), public_url(req, self._api.conf)
        return {"arqs": [shown(view, version, base) for view in found]}


class AcceleratorRequest(Resource):
    """Serve ``GET``, ``PATCH`` and ``DELETE /v2/accelerator_requests/{uuid}``."""

    @Operation("Show an accelerator request", rule="cyborg:arq:get_one", answers={200: ARQ})
    def on_get(self, req: falcon.Request, resp: falcon.Response, asked: Asked, uuid: str) -> None:
        [view] = _visible(self._api, asked.context, [query.require(uuid, "the accelerator request")])
        resp.media = shown(view, asked.version, public_url(req, self._api.conf))

    @_UPDATE
    def on_patch(self, req: falcon.Request, resp: falcon.Response, asked: Asked, uuid: str) -> None:
        """Accept openstacksdk's path for what Nova sends to the collection; the body is the same."""
        _patch(self._api, req, resp, asked, query.require(uuid, "the accelerator request"))

    @Operation(
        "Delete an accelerator request", rule="cyborg:arq:delete", waits=True, answers={204: None}, fails=_BY_CONDUCTOR
    )
    def on_delete(self, req: falcon.Request, resp: falcon.Response, _asked: Asked, uuid: str) -> None:
        _delete(self._api, req, [uuid])
        resp.status = falcon.HTTP_204


def _patch(api: Api, req: falcon.Request, resp: falcon.Response, asked: Asked, addressed: str | None) -> None:
    context, document = asked.context, asked.body
    if addressed is not None and [key.lower() for key in document] != [addressed]:
        raise BadRequest(f"The body must name {addressed}, as the path does, and nothing else.")
    patch = parse(document)
    if patch.names_project:
        microversion.require(req, microversion.ARQ_PROJECT_ID, "/project_id is not allowed")
        if not context.is_admin:
            raise Forbidden("Only an administrator may set /project_id.")
    require_service_token(api.conf, req, _ONLY_SERVICES)
    if patch.binds:
        api.conductor.arq_bind(context, patch.binds)
    else:
        api.conductor.arq_unbind(context, patch.unbinds)
    resp.status = falcon.HTTP_202


def _delete(api: Api, req: falcon.Request, given: Sequence[str]) -> None:
    context: RequestContext = req.context.caller
    wanted = list(dict.fromkeys(query.require(text, "an accelerator request") for text in given))
    for view in _visible(api, context, wanted):
        if view.arq.instance_uuid is not None:
            require_service_token(
                api.conf,
                req,
                f"ARQ {view.arq.uuid} is bound to instance {view.arq.instance_uuid}. Use the Compute API to delete "
                "the accelerators of an instance.",
            )
    delete_requests(api, context, wanted)


def delete_requests(api: Api, context: RequestContext, arq_uuids: Sequence[str]) -> None:
    """Ask a conductor to delete accelerator requests. If none answers, record the deletion for a later sweep.

    :raises RPCError: no conductor answers, and a bind is unfinished: the caller keeps its allocation until the
        request is gone.
    """
    try:
        api.conductor.arq_delete(context, arq_uuids)
    except RPCError as error:
        _record(api, context, arq_uuids, error)


def _record(api: Api, context: RequestContext, arq_uuids: Sequence[str], error: RPCError) -> None:
    """Record a deletion for a later sweep. Raise *error* if the caller must not rely on it yet."""
    cause = Cause(Actor.OPERATOR, context.user_id or "", context.request_id)
    stands = record_unbind(api.ports, arq_uuids, cause, delete=True)
    LOG.warning("No conductor answers: the deletion of %s is recorded, and a sweep completes it.", ", ".join(arq_uuids))
    if not stands:
        raise error


def _of_instance(api: Api, context: RequestContext, instance_uuid: str) -> list[str]:
    with api.ports.db.read() as tx:
        arqs = arq_rows.of_instance(tx, instance_uuid)
    return [arq.uuid for arq in arqs if context.is_admin or arq.project_id == context.project_id]


def _visible(api: Api, context: RequestContext, wanted: Sequence[str]) -> list[ARQView]:
    _require_project(context)
    project = None if context.is_admin else context.project_id
    with api.ports.db.read() as tx:
        found = arq_rows.views(tx, uuids=wanted, project_id=project)
    missing = set(wanted) - {view.arq.uuid for view in found}
    if missing:
        raise NotFound(f"ExtArq not found with uuid={', '.join(sorted(missing))}")
    return found


def _require_project(context: RequestContext) -> None:
    # "No project" must not turn into "no filter".
    if not context.is_admin and context.project_id is None:
        raise Forbidden("Accelerator requests belong to projects: use a token of a project.")


def _no_profile(name: str) -> NotFound:
    return NotFound(f"Device Profile not found with name={name}")
