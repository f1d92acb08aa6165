"""Serve ``/autoclave/v1/devices``: all attributes of a device, what it waits for, and its history.

A path names a device by uuid or as ``hostname/pci_address``.
"""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import falcon
from sqlalchemy.engine import Connection

from autoclave.api import query
from autoclave.api.body import compiled
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.query import Argument
from autoclave.api.schema import BOOLEAN, NUMBER, STRING, TIMESTAMP, UUID, listed, nullable, one_of, shape
from autoclave.db import device_views, history
from autoclave.db import devices as device_rows
from autoclave.db.columns import utcnow
from autoclave.db.device_views import DeviceView, Holder
from autoclave.db.devices import DeviceRecord
from autoclave.db.history import EventRecord
from autoclave.db.pci import ProviderRecord
from autoclave.db.tables import DeviceStatus, DeviceType
from autoclave.exceptions import BadRequest, NotFound
from autoclave.rules.audit.devices import SILENCE
from autoclave.rules.device_lifecycle import BEING_CLEANED, SHOWN_STATES, ARQState, DeviceState, shown_state
from autoclave.rules.drive_layout import DriveLayout
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.reclaim import BurnState, Reclaim, RequestedBy, guarantee

REASON = {"type": "string", "minLength": 1, "maxLength": 1000, "pattern": r"\S", "x-message": "say why, in words"}

WITH_REASON: dict[str, Any] = {
    "type": "object",
    "required": ["reason"],
    "additionalProperties": False,
    "properties": {"reason": REASON},
}
VALIDATE_WITH_REASON = compiled(WITH_REASON)

REASON_IF_ANY: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"reason": {"anyOf": [REASON, {"type": "null"}]}},
}
VALIDATE_REASON_IF_ANY = compiled(REASON_IF_ANY)

TAKE_BACK: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {**REASON_IF_ANY["properties"], "instance_uuid": {"anyOf": [UUID, {"type": "null"}]}},
}
"""Name the deleted server by ``instance_uuid``, if several servers share the device."""
VALIDATE_TAKE_BACK = compiled(TAKE_BACK)

_STATE = nullable(one_of((*DeviceState, *BurnState)))
DEVICE = shape(
    "OperatorDevice",
    {
        "uuid": UUID,
        "hostname": STRING,
        "pci_address": STRING,
        "type": one_of(DeviceType),
        "requested_by": {**one_of(RequestedBy), "description": "Who asks for it: device profiles, or flavors."},
        "reclaim": {**one_of(Reclaim), "description": "What becomes of it after each instance."},
        "guarantee": {**STRING, "description": "What its next instance can expect."},
        "vendor": STRING,
        "model": STRING,
        "serial": nullable(STRING),
        "drive_model": nullable(STRING),
        "found_serial": nullable(STRING),
        "found_drive_model": nullable(STRING),
        "layout": {**nullable(STRING), "description": "The namespaces of the drive that are on record."},
        "found_layout": {**nullable(STRING), "description": "Another layout, which waits for accept or clean."},
        "device_state": nullable(one_of(SHOWN_STATES)),
        "state_reason": nullable(STRING),
        "status": one_of(DeviceStatus),
        "held": BOOLEAN,
        "hold_reason": nullable(STRING),
        "host_maintained": BOOLEAN,
        "rewritten": BOOLEAN,
        "forgetting": BOOLEAN,
        "missing": BOOLEAN,
        "excluded_reason": nullable(STRING),
        "unreadable_reason": nullable(STRING),
        "release_pending": BOOLEAN,
        "cleanup_action": nullable(STRING),
        "progress": shape(
            "Progress",
            {
                "percent": nullable(NUMBER),
                "step": nullable(STRING),
                "stalled": BOOLEAN,
                "seconds_left": nullable(NUMBER),
            },
        ),
        "burned_for": {**nullable(UUID), "description": "The instance that has burned the one-time-use device."},
        "burned_at": nullable(TIMESTAMP),
        "burn_confirmed": {
            **BOOLEAN,
            "description": "The spent device was seen idle and reserved. Since then, lowering reserved in Placement "
            "releases it.",
        },
        "outdated": {**BOOLEAN, "description": "Its configuration has changed, and it follows when it is free."},
        "rp_uuid": nullable(UUID),
        "rp_name": nullable(STRING),
        "resource_class": nullable(STRING),
        "instance_uuid": nullable(UUID),
        "arqs": {
            "type": "array",
            "items": shape("Holder", {"uuid": UUID, "state": one_of(ARQState), "instance_uuid": nullable(UUID)}),
        },
        "functions": {
            "type": "array",
            "description": "The functions that instances have by their flavors.",
            "items": shape("HeldFunction", {"pci_address": STRING, "instance_uuid": UUID}),
        },
        "agent_last_seen": nullable(TIMESTAMP),
        "waiting_for": {
            **nullable(STRING),
            "description": "Steps of an operator before it is offered again.",
        },
        "created_at": nullable(TIMESTAMP),
        "updated_at": nullable(TIMESTAMP),
    },
)
DEVICES = listed("OperatorDevices", "devices", DEVICE)

EVENT = shape(
    "Event",
    {
        "at": TIMESTAMP,
        "event": STRING,
        "from_state": _STATE,
        "to_state": _STATE,
        "device_uuid": UUID,
        "serial": nullable(STRING),
        "instance_uuid": nullable(STRING),
        "project_id": nullable(STRING),
        "user_id": nullable(STRING),
        "actor": STRING,
        "request_id": nullable(STRING),
        "reason": nullable(STRING),
        "evidence": nullable({"type": "object"}),
    },
)
HISTORY = listed("History", "events", EVENT)

SAID = shape(
    "Said",
    {
        "placement_settled": {
            **BOOLEAN,
            "description": "Placement agrees already; otherwise it was away and will be told later.",
        }
    },
)

_GET = "autoclave:device:get"
_FILTERS = (
    Argument("hostname", "Only devices of this host."),
    Argument("type", "Only devices of this type, such as NVME."),
    Argument("requested_by", "Only devices that device profiles, or flavors, ask for.", one_of(RequestedBy)),
    Argument("reclaim", "Only devices with this reclaim policy.", one_of(Reclaim)),
    Argument("device_state", "Only devices that are shown with this state.", one_of(SHOWN_STATES)),
    *query.PAGING,
)


class Devices(Resource):
    """Serve ``GET /autoclave/v1/devices``."""

    @Operation("List all that is known of the devices", rule=_GET, query=_FILTERS, answers={200: DEVICES})
    def on_get(self, _req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        page = query.page(asked.query)
        with self._api.ports.db.read() as tx:
            if page.marker is not None and device_rows.get(tx, page.marker) is None:
                raise query.unknown_marker(page.marker)
            records = device_rows.list_all(
                tx,
                hostname=asked.query.get("hostname"),
                device_type=asked.query.get("type"),
                requested_by=asked.query.get("requested_by"),
                reclaim=asked.query.get("reclaim"),
                shown_state=asked.query.get("device_state"),
                after=page.marker,
                limit=page.limit,
            )
            found = device_views.of(tx, records)
        resp.media = {"devices": [view_of(view) for view in found]}


class Device(Resource):
    """Serve ``GET /autoclave/v1/devices/{device}``."""

    @Operation("Show all that is known of a device", rule=_GET, answers={200: DEVICE})
    def on_get(
        self, _req: falcon.Request, resp: falcon.Response, _asked: Asked, device: str, address: str | None = None
    ) -> None:
        with self._api.ports.db.read() as tx:
            [view] = device_views.of(tx, [find(tx, device, address)])
        resp.media = view_of(view)


class History(Resource):
    """Serve ``GET /autoclave/v1/devices/{device}/history``: of a slot, or of a drive by its serial number.

    The history of a forgotten device stays, under its uuid and the serial numbers of its drives.
    """

    @Operation(
        "Show what happened to a device, or to the drive with a serial number", rule=_GET, answers={200: HISTORY}
    )
    def on_get(
        self, _req: falcon.Request, resp: falcon.Response, _asked: Asked, device: str, address: str | None = None
    ) -> None:
        with self._api.ports.db.read() as tx:
            found = _named_without_slot(tx, device) if address is None else []
            if not found:
                found = history.history(tx, find(tx, device, address).uuid)
        resp.media = {"events": [device_event(record) for record in found]}


def _named_without_slot(tx: Connection, name: str) -> list[EventRecord]:
    """Return the events of a device by uuid, also a forgotten one, or of a drive by serial number.

    :raises NotFound: *name* is no uuid, and no drive of this serial number was ever seen.
    """
    canonical = query.canonical(name)
    found = (history.history(tx, canonical) if canonical else []) or history.history_of_drive(tx, name)
    if not found and canonical is None:
        raise NotFound(
            f"There is no device, and was no drive, {name}. Name a device by its uuid or as HOST/PCI-ADDRESS, a drive "
            "by its serial number."
        )
    return found


def find(tx: Connection, device: str, address: str | None) -> DeviceRecord:
    """Return the device that a path names.

    :raises BadRequest: *address* is no PCI address.
    :raises NotFound: there is none.
    """
    if address is not None:
        slot = _canonical_address(address)
        found = next((row for row in device_rows.list_all(tx, hostname=device) if row.pci_address == slot), None)
    elif (canonical := query.canonical(device)) is None:
        raise NotFound(f"There is no device {device}. Name it by its uuid, or as HOST/PCI-ADDRESS.")
    else:
        found = device_rows.get(tx, canonical)
    if found is None:
        raise NotFound(f"There is no device {device if address is None else f'{device}/{address}'}.")
    return found


def _canonical_address(address: str) -> str:
    try:
        return str(PCIAddress.parse(address))
    except ValueError as error:
        raise BadRequest(str(error)) from None


def silence(view: DeviceView, now: datetime) -> timedelta | None:
    """Return how long a needed agent has been silent; None if it is alive, or not needed."""
    unheld = view.device.device_state is DeviceState.ALLOCATED and not view.holders
    needed = unheld or view.device.device_state in BEING_CLEANED
    if not needed or view.agent_last_seen is None or now - view.agent_last_seen <= timedelta(seconds=SILENCE):
        return None
    return now - view.agent_last_seen


def waiting_for(
    device: DeviceRecord,
    agent_silent: timedelta | None = None,
    host_disabled: str | None = None,
    holders: Sequence[Holder] = (),
) -> str | None:
    """Return what an operator must do before the device is offered again; None if nothing.

    :param agent_silent: see :func:`silence`.
    :param host_disabled: why the compute service of its host is disabled; None if it is enabled.
    :param holders: the requests that hold it.
    """
    reasons = [
        *(_orphaned(device, each, holders) for each in holders),
        _unknown_state(device),
        f"It is excluded: {device.excluded_reason}." if device.excluded_reason else None,
        _silent(device, agent_silent),
        _missing(device),
        f"It cannot be looked at: {device.unreadable_reason}; see to the cause." if device.unreadable_reason else None,
        _error(device),
        _spent(device),
        device.waiting_for,
        _held(device),
        _maintained(device),
        _host_maintained(device),
        _host_disabled(host_disabled),
    ]
    return " ".join(reason for reason in reasons if reason) or None


def _orphaned(device: DeviceRecord, holder: Holder, holders: Sequence[Holder]) -> str | None:
    if holder.orphan_reason is None:
        return None
    alone = all(each.instance_uuid == holder.instance_uuid for each in holders)
    which = "" if alone else f" --server {holder.instance_uuid}"
    return (
        f"Its server {holder.instance_uuid} looks deleted, but the device is not given back by itself: "
        f"{holder.orphan_reason}. When the server is gone and no guest has the device: `autoclave device take-back "
        f"{device.hostname}/{device.pci_address}{which}`."
    )


def function_waits_for(provider: ProviderRecord) -> str | None:
    """Return what keeps a provider of PCI functions from being offered as the host and its configuration are now.

    :returns: None if nothing does.
    """
    unreadable = provider.device.unreadable_reason
    reasons = (
        f"It cannot be looked at: {unreadable}; see to the cause." if unreadable else None,
        provider.device.waiting_for,
    )
    return " ".join(reason for reason in reasons if reason) or None


def _unknown_state(device: DeviceRecord) -> str | None:
    if device.device_state is not None:
        return None
    return "Its state is unknown: run the online data migrations."


def _silent(device: DeviceRecord, agent_silent: timedelta | None) -> str | None:
    if agent_silent is None:
        return None
    return f"The agent of {device.hostname} was last seen {agent_silent.total_seconds():.0f} s ago: start it."


def _missing(device: DeviceRecord) -> str | None:
    if not device.missing:
        return None
    return f"No driver of {device.hostname} reports it now: put it, or its entry in device_spec, back, or forget it."


def _error(device: DeviceRecord) -> str | None:
    if device.device_state is not DeviceState.ERROR:
        return None
    if device.was_away:
        return "It was gone from the host for a while: clean it, or accept it if you know what was done to it."
    if device.was_replaced:
        return (
            f"Another drive (serial {device.found_serial}) is in the slot of the drive {device.serial}: accept it by "
            f"`autoclave device accept {device.hostname}/{device.pci_address}`, or put the known one back."
        )
    why = f" ({device.state_reason})" if device.state_reason else ""
    if device.found_layout is not None:
        return (
            f"It is not proved clean{why}: clean it again, which restores the layout on record, or accept the found "
            f"layout by `autoclave device accept {device.hostname}/{device.pci_address}` before."
        )
    if device.supports_cleaning:
        return f"It is not proved clean{why}: see to the cause, then clean it again."
    return f"It is not trusted{why}: see to the cause, then accept it."


def _spent(device: DeviceRecord) -> str | None:
    if device.device_state is not DeviceState.SPENT:
        return None
    return (
        f"An instance has had it: clean it, then release it by `autoclave device release "
        f"{device.hostname}/{device.pci_address}`."
    )


def _maintained(device: DeviceRecord) -> str | None:
    if device.status is not DeviceStatus.MAINTAINING:
        return None
    return "It is in maintenance: `openstack accelerator device enable` ends that."


def _host_maintained(device: DeviceRecord) -> str | None:
    if not device.host_maintained:
        return None
    return f"Its host is in maintenance: `autoclave host resume {device.hostname}` ends that."


def _host_disabled(reason: str | None) -> str | None:
    if reason is None:
        return None
    why = f" ({reason})" if reason else ""
    return f"The compute service of its host is disabled{why}: `openstack compute service set --enable` ends that."


def _held(device: DeviceRecord) -> str | None:
    if not device.held:
        return None
    return f"It is held ({device.hold_reason or 'without a reason'}): release it when it may be offered."


def view_of(view: DeviceView) -> dict[str, Any]:
    """Render a device; ``instance_uuid`` is that of the first request that holds it."""
    record = view.device
    provider = view.deployables[0] if view.deployables else None
    return {
        "uuid": record.uuid,
        "hostname": record.hostname,
        "pci_address": record.pci_address,
        "type": record.type.value,
        "requested_by": record.requested_by.value,
        "reclaim": record.reclaim.value,
        "guarantee": guarantee(record.reclaim, record.cleanup_action),
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
        "burned_for": record.burned_for,
        "burned_at": record.burned_at,
        "burn_confirmed": record.burn_confirmed,
        "outdated": record.outdated,
        "rp_uuid": provider.rp_uuid if provider else None,
        "rp_name": provider.name if provider else None,
        "resource_class": provider.resource_class if provider else None,
        "instance_uuid": next((holder.instance_uuid for holder in view.holders), None),
        "arqs": [
            {"uuid": holder.uuid, "state": holder.state, "instance_uuid": holder.instance_uuid}
            for holder in view.holders
            if holder.uuid is not None
        ],
        "functions": [
            {"pci_address": holder.address, "instance_uuid": holder.instance_uuid}
            for holder in view.holders
            if holder.address is not None
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
    """Render a line of a history."""
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
    """Render a line of a device's history, with its slot and the instance that had it."""
    shown = event(record)
    tenant = (shown["evidence"] or {}).get("tenant", {})
    return {
        **shown,
        "device_uuid": record.device_uuid,
        **{name: tenant.get(name) for name in ("instance_uuid", "project_id", "user_id")},
    }
