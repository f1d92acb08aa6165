"""An accelerator request as clients see it."""

from typing import Any

from oslo_log import log as logging

from autoclave.api.links import self_link
from autoclave.api.microversion import MANAGED, Microversion
from autoclave.db.arqs import ARQView
from autoclave.db.tables import AttachType
from autoclave.rules.device_lifecycle import ARQState
from autoclave.rules.resource_names import read

LOG = logging.getLogger(__name__)

_HAS_ITS_DEVICE = frozenset({ARQState.BOUND, ARQState.DELETING})
"""While a bind is at work, its handle is nobody's to use yet."""


def shown(view: ARQView, version: Microversion, base: str) -> dict[str, Any]:
    """The representation at *version*; *base* is where links begin."""
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
    """The stored handle, and whether libvirt manages it (managed-mode specification): true if nothing is stored.

    What cannot be read is left out: others are in the same list.
    """
    attaching = read(view.attach_handle_info or "{}")
    if attaching.fault is not None:
        LOG.error("attach_info of handle %s (ARQ %s) %s", view.attach_handle_uuid, view.arq.uuid, attaching.fault)
    if _kind(view) != AttachType.PCI.value or version < MANAGED or attaching.managed is None:
        return dict(attaching.where)
    return {**attaching.where, "managed": attaching.managed}
