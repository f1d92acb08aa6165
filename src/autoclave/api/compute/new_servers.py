"""What a request for servers names: flavor, image, host. And the rows that are made of it."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from sqlalchemy.engine import Connection

from autoclave.api.body import storable
from autoclave.api.compute import flavors
from autoclave.api.image import visible as images
from autoclave.db import hosts as host_rows
from autoclave.db import images as image_rows
from autoclave.db.flavors import FlavorRecord
from autoclave.db.images import ImageRecord
from autoclave.exceptions import BadRequest, Forbidden, NotFound
from autoclave.objects.base import RequestContext
from autoclave.rules.flavor_image import require_fit
from autoclave.rules.instance_states import ZONE, TaskState, VMState


def flavor_for(tx: Connection, context: RequestContext, flavorid: str) -> FlavorRecord:
    """The flavor that a server is to have.

    :raises BadRequest: there is none of that id that the caller may see.
    """
    try:
        return flavors.find(tx, context, flavorid)
    except NotFound as error:
        raise BadRequest(f"Invalid flavorRef: {error}") from None


def image_for(tx: Connection, context: RequestContext, flavor: Mapping[str, Any], uuid: str) -> ImageRecord:
    """The image that a server is to be started from.

    :param flavor: the snapshot of its flavor.
    :raises BadRequest: there is none that the caller may use, it has no data yet, or it needs more than the flavor or
        any guest has.
    """
    try:
        image = images.find(tx, context, uuid)
    except NotFound as error:
        raise BadRequest(f"Invalid imageRef: {error}.") from None
    if image.status != image_rows.ACTIVE:
        raise BadRequest(f"Invalid imageRef: image {uuid} is {image.status}, it has no data yet.")
    require_fit(flavor, image)
    return image


def destination(tx: Connection, context: RequestContext, wanted: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The zone that is asked for, and the only host that will do: ``availability_zone`` may be ``zone:host``.

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
        raise Forbidden("Only an administrator may say on which host a server shall run.")
    if len(named) > 1:
        raise BadRequest(f"A server runs on one host; {' and '.join(sorted(named))} were asked for.")
    [host] = named
    if host_rows.find(tx, host) is None:
        raise BadRequest(f"Compute host {host} could not be found.")
    return zone or None, host


def rows_for(
    context: RequestContext, project_id: str, wanted: Mapping[str, Any], common: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """As many rows as servers are asked for.

    :param common: what was found for :func:`flavor_for`, :func:`image_for` and :func:`destination`, by column.
    :raises BadRequest: the counts contradict each other, or what is to be kept is too large.
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
