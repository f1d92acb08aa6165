"""Serve ``/compute/v2.1/servers``: create, list, show, update and delete.

Rows are created and marked here; conductors and agents do the work. A caller sees the servers of its project; those
of others are not found (404, not 403). An administrator sees all servers, with their hosts and devices.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from uuid import uuid4

import falcon
from sqlalchemy.engine import Connection

from autoclave.api import query
from autoclave.api.body import storable
from autoclave.api.compute import flavors, server_filters
from autoclave.api.compute.common import find, links_to, next_link, novas_moment, require_project
from autoclave.api.compute.dispatch import delete, hand_over
from autoclave.api.compute.flavors import sees_extra_specs
from autoclave.api.compute.hosts import host_states
from autoclave.api.compute.server_schemas import (
    MADE_SERVER,
    SERVERS,
    SERVERS_IN_DETAIL,
    SHOWN_SERVER,
    VALIDATE_CREATE,
    VALIDATE_UPDATE,
)
from autoclave.api.context import Api
from autoclave.api.image import images
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.query import public_url
from autoclave.db import hosts as host_rows
from autoclave.db import images as image_rows
from autoclave.db import instances as hostdevs
from autoclave.db import instances as instance_rows
from autoclave.db.flavors import FlavorRecord
from autoclave.db.images import ImageRecord
from autoclave.db.instances import Hostdev, InstanceRecord
from autoclave.exceptions import BadRequest, Forbidden, NotFound
from autoclave.objects.base import RequestContext
from autoclave.rules.flavor_image import require_fit
from autoclave.rules.instance_states import ZONE, TaskState, VMState, status_of
from autoclave.virt.guest import domain_name


def flavor_for(tx: Connection, context: RequestContext, flavorid: str) -> FlavorRecord:
    """Return the flavor for a server.

    :raises BadRequest: no flavor of that id is visible to the caller.
    """
    try:
        return flavors.find(tx, context, flavorid)
    except NotFound as error:
        raise BadRequest(f"Invalid flavorRef: {error}") from None


def image_for(tx: Connection, context: RequestContext, flavor: Mapping[str, Any], uuid: str) -> ImageRecord:
    """Return the image for a server.

    :param flavor: the snapshot of its flavor.
    :raises BadRequest: the caller may not use such an image, it has no data yet, or it needs more than the flavor or
        any guest has.
    """
    try:
        image = images.find(tx, context, uuid)
    except NotFound as error:
        raise BadRequest(f"Invalid imageRef: {error}.") from None
    if image.status != image_rows.ACTIVE:
        raise BadRequest(f"Invalid imageRef: image {uuid} is {image.status} and has no data yet.")
    require_fit(flavor, image)
    return image


def destination(tx: Connection, context: RequestContext, wanted: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the zone and the only host that the request allows: ``availability_zone`` may be ``zone:host``.

    :raises BadRequest: there is no such zone or host, or two hosts are named.
    :raises Forbidden: a host is named, and the caller is no administrator.
    """
    zone, _, place = (wanted.get("availability_zone") or "").partition(":")
    if zone not in ("", ZONE):
        raise BadRequest(f"The requested availability zone {zone} does not exist; the only one is {ZONE}.")
    named = {*place.split(":"), wanted.get("host", ""), wanted.get("hypervisor_hostname", "")} - {""}
    if not named:
        return zone or None, None
    if not context.is_admin:
        raise Forbidden("Only an administrator may select the host of a server.")
    if len(named) > 1:
        raise BadRequest(f"A server runs on one host; {' and '.join(sorted(named))} were requested.")
    [host] = named
    if host_rows.find(tx, host) is None:
        raise BadRequest(f"Compute host {host} could not be found.")
    return zone or None, host


def rows_for(
    context: RequestContext, project_id: str, wanted: Mapping[str, Any], common: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return a row for each requested server.

    :param common: results of :func:`flavor_for`, :func:`image_for` and :func:`destination`, by column.
    :raises BadRequest: the counts contradict each other, or the texts are too large.
    """
    least = wanted.get("min_count", 1)
    most = wanted.get("max_count", least)
    if least > most:
        raise BadRequest(f"min_count, {least}, is more than max_count, {most}.")
    name = wanted["name"]
    row = {
        "description": wanted.get("description"),
        "project_id": project_id,
        "user_id": context.user_id or "",
        "metadata": storable(wanted.get("metadata", {}), "The metadata"),
        "tags": wanted.get("tags", []),
        "vm_state": VMState.BUILDING,
        "task_state": TaskState.SCHEDULING,
        **common,
    }
    names = [name] if most == 1 else [f"{name[:250]}-{number}" for number in range(1, most + 1)]
    return [{**row, "uuid": str(uuid4()), "name": one} for one in names]


def shown(
    tx: Connection, api: Api, req: falcon.Request, context: RequestContext, instances: Sequence[InstanceRecord]
) -> list[dict[str, Any]]:
    """Render *instances* in detail, with one query for each related table."""
    hidden = () if sees_extra_specs(api, context) else ("extra_specs",)
    if not context.is_admin:
        return [_shown(api, req, instance, hidden) for instance in instances]
    hosts = {instance.host for instance in instances if instance.host}
    statuses = {state.record.hostname: state.status for state in host_states(tx, api, hosts)}
    devices = hostdevs.of_instances(tx, [instance.uuid for instance in instances])
    return [
        {
            **_shown(api, req, instance, hidden, details=True),
            "host_status": statuses.get(instance.host, "UNKNOWN") if instance.host else "",
            "OS-EXT-SRV-ATTR:host": instance.host,
            "OS-EXT-SRV-ATTR:hypervisor_hostname": instance.host,
            "OS-EXT-SRV-ATTR:instance_name": domain_name(instance.uuid),
            "autoclave:hostdevs": [_device(device) for device in devices.get(instance.uuid, ())],
        }
        for instance in instances
    ]


def summary(api: Api, req: falcon.Request, instance: InstanceRecord) -> dict[str, Any]:
    """Render an instance in short form."""
    return {"id": instance.uuid, "name": instance.name, "links": links_to(req, api.conf, "servers", instance.uuid)}


def _shown(
    api: Api, req: falcon.Request, instance: InstanceRecord, hidden: Sequence[str], *, details: bool = False
) -> dict[str, Any]:
    view = {
        **summary(api, req, instance),
        "status": status_of(instance.vm_state, instance.task_state),
        "tenant_id": instance.project_id,
        "user_id": instance.user_id,
        "metadata": instance.metadata,
        "hostId": _host_id(instance),
        "image": {"id": instance.image_uuid, "links": [_image_link(api, req, instance.image_uuid)]},
        "flavor": _flavor(instance.flavor, hidden),
        "created": instance.created_at,
        "updated": instance.updated_at or instance.created_at,
        "addresses": {},
        "accessIPv4": "",
        "accessIPv6": "",
        "OS-DCF:diskConfig": "MANUAL",
        "progress": 100 if instance.vm_state is VMState.ACTIVE else 0,
        "OS-EXT-AZ:availability_zone": ZONE if instance.host else instance.availability_zone or "",
        "pinned_availability_zone": instance.availability_zone,
        "config_drive": "",
        "key_name": None,
        "OS-SRV-USG:launched_at": novas_moment(instance.launched_at),
        "OS-SRV-USG:terminated_at": None,
        "OS-EXT-STS:task_state": instance.task_state,
        "OS-EXT-STS:vm_state": instance.vm_state,
        "OS-EXT-STS:power_state": instance.power_state,
        "os-extended-volumes:volumes_attached": [],
        "locked": False,
        "locked_reason": None,
        "description": instance.description,
        "tags": instance.tags,
        "trusted_image_certificates": None,
        "server_groups": [],
        "security_groups": [],
    }
    # Nova shows a fault in ERROR only; here a running server has one after a refused rebuild.
    return view if instance.fault_message is None else {**view, "fault": _fault(instance, details=details)}


def _fault(instance: InstanceRecord, *, details: bool) -> dict[str, Any]:
    fault = {
        "code": instance.fault_code or 500,
        "created": instance.fault_at or instance.updated_at or instance.created_at,
        "message": instance.fault_message,
    }
    return {**fault, "details": instance.fault_details} if details else fault


def _flavor(snapshot: Mapping[str, Any], hidden: Sequence[str]) -> dict[str, Any]:
    names = ("vcpus", "ram", "disk", "ephemeral", "swap", "extra_specs")
    return {"original_name": snapshot["name"], **{name: snapshot[name] for name in names if name not in hidden}}


def _host_id(instance: InstanceRecord) -> str:
    """Return an opaque host id, which shows a project which of its servers share a host."""
    if instance.host is None:
        return ""
    return hashlib.sha224(f"{instance.project_id}{instance.host}".encode()).hexdigest()


def _image_link(api: Api, req: falcon.Request, uuid: str) -> dict[str, str]:
    return {"rel": "bookmark", "href": f"{public_url(req, api.conf)}/image/v2/images/{uuid}"}


def _device(device: Hostdev) -> dict[str, Any]:
    return {name: value for name, value in asdict(device).items() if name != "instance_uuid"}


class _List(Resource):
    def _found(self, tx: Connection, asked: Asked) -> list[InstanceRecord]:
        wanted = server_filters.list_arguments(asked)
        if wanted["after"] is not None:
            try:
                wanted["after"] = find(tx, asked.context, wanted["after"]).uuid
            except NotFound:
                raise query.unknown_marker(wanted["after"]) from None
        return instance_rows.list_for(tx, **wanted)

    def _further(self, req: falcon.Request, found: Sequence[InstanceRecord]) -> dict[str, Any]:
        return next_link(req, self._api.conf, "servers", [instance.uuid for instance in found])


class Servers(_List):
    """Serve ``GET`` and ``POST /compute/v2.1/servers``."""

    @Operation(
        "List the servers that the caller may see",
        rule="os_compute_api:servers:index",
        query=server_filters.ARGUMENTS,
        answers={200: SERVERS},
    )
    def on_get(self, req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        with self._api.ports.db.read() as tx:
            found = self._found(tx, asked)
        servers = [summary(self._api, req, instance) for instance in found]
        resp.media = {"servers": servers, **self._further(req, found)}

    @Operation(
        "Create servers",
        rule="os_compute_api:servers:create",
        waits=True,
        body=VALIDATE_CREATE,
        answers={202: MADE_SERVER},
        fails={504: "No conductor answered in time; nothing was done."},
    )
    def on_post(self, req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        wanted, context = asked.body["server"], asked.context
        project_id = require_project(context)
        with self._api.ports.db.read() as tx:
            common = self._named(tx, asked, wanted)
        rows = rows_for(context, project_id, wanted, common)
        self._api.conductor.check_request(context, common["flavor"], common["image"])
        self._api.ports.db.transact(lambda tx: _insert(tx, rows))
        hand_over(self._api, context, [str(row["uuid"]) for row in rows])
        first = rows[0]["uuid"]
        links = links_to(req, self._api.conf, "servers", first)
        resp.status = falcon.HTTP_202
        resp.location = links[0]["href"]
        resp.media = {
            "server": {
                "id": first,
                "links": links,
                "OS-DCF:diskConfig": "MANUAL",
                "security_groups": [],
            }
        }

    def _named(self, tx: Connection, asked: Asked, wanted: Mapping[str, Any]) -> dict[str, Any]:
        context = asked.context
        flavor = flavor_for(tx, context, wanted["flavorRef"])
        image = image_for(tx, context, flavor.snapshot, wanted["imageRef"])
        for boot in wanted.get("block_device_mapping_v2", ()):
            if boot["uuid"].lower() != image.uuid:
                raise BadRequest(
                    f"block_device_mapping_v2 names image {boot['uuid']}, but imageRef names {image.uuid}."
                )
        zone, host = destination(tx, context, wanted)
        return {
            "flavor": flavor.snapshot,
            "image_uuid": image.uuid,
            "image": image.snapshot,
            "availability_zone": zone,
            "requested_host": host,
        }


class ServersInDetail(_List):
    """Serve ``GET /compute/v2.1/servers/detail``."""

    @Operation(
        "List the servers that the caller may see, in detail",
        rule="os_compute_api:servers:detail",
        query=server_filters.ARGUMENTS,
        answers={200: SERVERS_IN_DETAIL},
    )
    def on_get(self, req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        with self._api.ports.db.read() as tx:
            found = self._found(tx, asked)
            servers = shown(tx, self._api, req, asked.context, found)
        resp.media = {"servers": servers, **self._further(req, found)}


class Server(Resource):
    """Serve ``GET``, ``PUT`` and ``DELETE /compute/v2.1/servers/{server}``."""

    @Operation("Show a server", rule="os_compute_api:servers:show", answers={200: SHOWN_SERVER})
    def on_get(self, req: falcon.Request, resp: falcon.Response, asked: Asked, server: str) -> None:
        with self._api.ports.db.read() as tx:
            found = find(tx, asked.context, server)
            [view] = shown(tx, self._api, req, asked.context, [found])
        resp.media = {"server": view}

    @Operation(
        "Change the name or description of a server",
        rule="os_compute_api:servers:update",
        body=VALIDATE_UPDATE,
        answers={200: SHOWN_SERVER},
    )
    def on_put(self, req: falcon.Request, resp: falcon.Response, asked: Asked, server: str) -> None:
        def change(tx: Connection) -> dict[str, Any]:
            instance_rows.update(tx, find(tx, asked.context, server, lock=True), asked.body["server"])
            [view] = shown(tx, self._api, req, asked.context, [find(tx, asked.context, server)])
            return view

        resp.media = {"server": self._api.ports.db.transact(change)}

    @Operation(
        "Delete a server; deletion is complete when the server is not found",
        rule="os_compute_api:servers:delete",
        waits=True,
        answers={204: None},
    )
    def on_delete(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, server: str) -> None:
        delete(self._api, asked.context, server)
        resp.status = falcon.HTTP_204


def _insert(tx: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        instance_rows.insert(tx, row)
