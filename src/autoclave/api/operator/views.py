"""A device as its operator sees it: everything that is known of it."""

import json
from typing import Any

from autoclave.api.operator.waiting import silence, waiting_for
from autoclave.db.columns import utcnow
from autoclave.db.device_views import DeviceView
from autoclave.db.history import EventRecord
from autoclave.rules.device_lifecycle import shown_state
from autoclave.rules.drive_layout import DriveLayout


def device(view: DeviceView) -> dict[str, Any]:
    """The representation of a device; ``instance_uuid`` is that of the first request that holds it."""
    record = view.device
    provider = view.deployables[0] if view.deployables else None
    return {
        "uuid": record.uuid,
        "hostname": record.hostname,
        "pci_address": record.pci_address,
        "type": record.type.value,
        "vendor": record.vendor,
        "model": record.model,
        "serial": record.serial,
        "drive_model": record.drive_model,
        "found_serial": record.found_serial,
        "found_drive_model": record.found_drive_model,
        "layout": _layout(record.layout),
        "found_layout": _layout(record.found_layout),
        "device_state": shown_state(record.offer),
        "state_reason": record.state_reason,
        "status": record.status.value,
        "held": record.held,
        "hold_reason": record.hold_reason,
        "host_maintained": record.host_maintained,
        "rewritten": record.rewritten,
        "forgetting": record.forgetting,
        "missing": record.missing,
        "excluded_reason": record.excluded_reason,
        "unreadable_reason": record.unreadable_reason,
        "release_pending": record.release_pending,
        "cleanup_action": record.cleanup_action,
        "progress": {
            "percent": record.progress_percent,
            "step": record.progress_step,
            "stalled": record.progress_stalled,
            "seconds_left": record.progress_seconds_left,
        },
        "rp_uuid": provider.rp_uuid if provider else None,
        "rp_name": provider.name if provider else None,
        "resource_class": provider.resource_class if provider else None,
        "instance_uuid": next((holder.instance_uuid for holder in view.holders), None),
        "arqs": [
            {"uuid": holder.uuid, "state": holder.state, "instance_uuid": holder.instance_uuid}
            for holder in view.holders
        ],
        "agent_last_seen": view.agent_last_seen,
        "waiting_for": waiting_for(record, silence(view, utcnow()), view.host_disabled, view.holders),
        "created_at": record.created_at,
        "updated_at": record.updated_at,
    }


def _layout(recorded: str | None) -> str | None:
    layout = DriveLayout.from_json(recorded)
    return None if layout is None else str(layout)


def event(record: EventRecord) -> dict[str, Any]:
    """The representation of one line of a history."""
    return {
        "at": f"{record.created_at.isoformat(timespec='milliseconds')}+00:00",
        "event": record.event,
        "from_state": record.from_state,
        "to_state": record.to_state,
        "serial": record.serial,
        "actor": record.actor,
        "request_id": record.request_id,
        "reason": record.reason,
        "evidence": json.loads(record.evidence) if record.evidence else None,
    }


def device_event(record: EventRecord) -> dict[str, Any]:
    """The same of a device's history, with the slot, and whose instance had the device."""
    shown = event(record)
    tenant = (shown["evidence"] or {}).get("tenant", {})
    return {
        **shown,
        "device_uuid": record.device_uuid,
        **{name: tenant.get(name) for name in ("instance_uuid", "project_id", "user_id")},
    }
