"""What callers see of servers. An administrator also sees where they are, and what they have been given of it."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import falcon
from sqlalchemy.engine import Connection

from autoclave.api.compute.common import links_to
from autoclave.api.compute.host_states import host_states
from autoclave.api.compute.moments import novas_moment
from autoclave.api.compute.seen_specs import sees_extra_specs
from autoclave.api.context import Api
from autoclave.api.links import public_url
from autoclave.db import instances as hostdevs
from autoclave.db.instances import Hostdev, InstanceRecord
from autoclave.objects.base import RequestContext
from autoclave.rules.instance_states import ZONE, VMState, status_of
from autoclave.virt.guest import domain_name


def shown(
    tx: Connection, api: Api, req: falcon.Request, context: RequestContext, instances: Sequence[InstanceRecord]
) -> list[dict[str, Any]]:
    """*instances* in detail, at the cost of one query for each kind of what hangs on them."""
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
    """An instance in short."""
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
    # Nova shows it of servers in ERROR only; here one that runs may have it too: its rebuild was refused.
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
    """Tells a project which of its servers share a host, without telling it which host that is."""
    if instance.host is None:
        return ""
    return hashlib.sha224(f"{instance.project_id}{instance.host}".encode()).hexdigest()


def _image_link(api: Api, req: falcon.Request, uuid: str) -> dict[str, str]:
    return {"rel": "bookmark", "href": f"{public_url(req, api.conf)}/image/v2/images/{uuid}"}


def _device(device: Hostdev) -> dict[str, Any]:
    return {name: value for name, value in asdict(device).items() if name != "instance_uuid"}
