"""Serve ``/autoclave/v1/burned``: a view of the devices that are burned, and their release.

A path names a device by the uuid of its resource provider, or as ``hostname/pci_address``. A device that is reserved
in Placement for another reason is not burned, and not listed.
"""

from collections.abc import Sequence
from datetime import UTC
from typing import Any

import falcon
from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.api import query
from autoclave.api.admin import devices
from autoclave.api.admin.devices import REASON, SAID, function_waits_for
from autoclave.api.body import compiled
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.query import Argument
from autoclave.api.schema import BOOLEAN, STRING, TIMESTAMP, UUID, listed, nullable, one_of, shape
from autoclave.db import history, pci
from autoclave.db import pci as burned_rows
from autoclave.db.pci import BurnedView, ProviderRecord
from autoclave.exceptions import BadRequest, NotFound, PlacementError
from autoclave.lifecycle.operator import release_spent, tell_placement
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.transitions import Cause
from autoclave.rules.device_lifecycle import Actor, DeviceState, Event
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.reclaim import BurnState

RELEASE: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "burned_for": {
            **UUID,
            "description": "Release only what this instance has burned. Another instance may have used the "
            "device since it was cleaned.",
        },
        "reason": {**REASON, "description": "Kept in the device's history."},
    },
}
VALIDATE_RELEASE = compiled(RELEASE)

BURNED = shape(
    "BurnedDevice",
    {
        "rp_uuid": UUID,
        "hostname": STRING,
        "pci_address": STRING,
        "serial": {
            **nullable(STRING),
            "description": "The card's: its Device Serial Number, or SN of its Vital Product Data; null: not known.",
        },
        "resource_class": STRING,
        "one_time_use": {
            **BOOLEAN,
            "description": "[pci] device_spec still says so; what is burned stays so until it is released, anyway.",
        },
        "burned_for": {**nullable(UUID), "description": "The instance that has burned it."},
        "burned_at": nullable(TIMESTAMP),
        "in_use": BOOLEAN,
        "instance_uuid": {**nullable(UUID), "description": "The instance that has it now."},
        "confirmed": {
            **BOOLEAN,
            "description": "It was seen idle and reserved since it was burned; from then on, whoever lowers reserved "
            "in Placement releases it.",
        },
        "release_pending": {**BOOLEAN, "description": "It was released, and Placement has not been told yet."},
        "missing": {**BOOLEAN, "description": "Its host, or the configuration there, has it no more."},
        "offered": {
            **nullable(BOOLEAN),
            "description": "Placement would give it to somebody now; null: it does not answer. True of what is burned: "
            "somebody has lowered reserved there, and its agent has not looked since.",
        },
        "waiting_for": {**nullable(STRING), "description": "What must happen before it is offered again."},
    },
)
BURNED_LIST = listed("BurnedDevices", "burned", BURNED)

_STATE = one_of((*DeviceState, *BurnState))
BURN_HISTORY = listed(
    "BurnHistory",
    "events",
    shape(
        "BurnEvent",
        {
            "at": TIMESTAMP,
            "event": STRING,
            "from_state": {
                **nullable(_STATE),
                "description": "null: it was not on record before. Events of older releases have other states.",
            },
            "to_state": nullable(_STATE),
            "serial": {**nullable(STRING), "description": "Of the card; null: it has none, or none is known."},
            "actor": {**STRING, "description": "Who did it; Placement: what was found there, or told to it."},
            "request_id": nullable(STRING),
            "reason": nullable(STRING),
            "evidence": {"type": "object", "description": "Host and PCI address, which the provider may outlive."},
        },
    ),
)

LOG = logging.getLogger(__name__)

_OF_BURNS = frozenset(
    {
        *(event.value for event in (Event.CLAIM, Event.BIND, Event.BURN, Event.SPEND, Event.CONFIRM)),
        *(event.value for event in (Event.RELEASE, Event.RELEASE_SEEN)),
        *("offer", "take_back", "unreadable", "readable", "host_renamed", "burn_ends"),
    }
)
"""The events of a device's history that the view of burns shows; older releases have recorded the last one."""
_GET = "autoclave:burned:get"
_HOST = Argument("hostname", "Only devices of this host.")


class BurnedDevices(Resource):
    """Serve ``GET /autoclave/v1/burned``."""

    @Operation("List the burned devices", rule=_GET, waits=True, query=(_HOST,), answers={200: BURNED_LIST})
    def on_get(self, _req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        with self._api.ports.db.read() as tx:
            found = burned_rows.list_all(tx, asked.query.get("hostname"))
        resp.media = {"burned": _all_shown(self._api.ports, found)}


class BurnedDevice(Resource):
    """Serve ``GET /autoclave/v1/burned/{provider}``. A device that is not burned is not found."""

    @Operation("Show a burned device", rule=_GET, waits=True, answers={200: BURNED})
    def on_get(
        self, _req: falcon.Request, resp: falcon.Response, _asked: Asked, provider: str, address: str | None = None
    ) -> None:
        with self._api.ports.db.read() as tx:
            found = burned_rows.view(tx, _find(tx, provider, address))
        if not found.provider.burned:
            raise NotFound(f"{found.provider.address} of {found.provider.hostname} is not burned.")
        [resp.media] = _all_shown(self._api.ports, [found])


class History(Resource):
    """Serve ``GET /autoclave/v1/burned/{provider}/history``. It stays under the uuid of a deleted provider."""

    @Operation("Show how a device was burned and released, and by whom", rule=_GET, answers={200: BURN_HISTORY})
    def on_get(
        self, _req: falcon.Request, resp: falcon.Response, _asked: Asked, provider: str, address: str | None = None
    ) -> None:
        with self._api.ports.db.read() as tx:
            gone = query.canonical(provider) if address is None else None
            found = history.history(tx, gone) if gone else []
            if not found:
                found = history.history(tx, _find(tx, provider, address).uuid)
        resp.media = {"events": [devices.event(record) for record in found if record.event in _OF_BURNS]}


class Release(Resource):
    """Serve ``POST /autoclave/v1/burned/{provider}/release``: see :func:`autoclave.lifecycle.operator.release_spent`.

    Answer 200 if Placement offers the device again, 202 if Placement or the device is away.
    """

    @Operation(
        "Release a burned device, which is clean",
        rule="autoclave:burned:release",
        waits=True,
        body=VALIDATE_RELEASE,
        body_optional=True,
        answers={200: SAID, 202: SAID},
        fails={409: "The device is in use, is not burned, or was burned by another instance; the text says which."},
    )
    def on_post(
        self, _req: falcon.Request, resp: falcon.Response, asked: Asked, provider: str, address: str | None = None
    ) -> None:
        ports = self._api.ports
        with ports.db.read() as tx:
            found = _find(tx, provider, address)
        where = f"{found.address} of {found.hostname} (provider {found.uuid})"
        burned_for = asked.body.get("burned_for")
        reason = asked.body.get("reason")
        cause = Cause(Actor.OPERATOR, asked.context.user_id or "", asked.context.request_id, reason)
        release_spent(ports, found.device.uuid, cause, burned_for and burned_for.lower())
        tell_placement(ports, found.device.uuid)
        LOG.info("%s was released by %s, request %s", where, asked.context.user_id, asked.context.request_id)
        settled = not _is_pending(ports, found.uuid)
        resp.status = falcon.HTTP_200 if settled else falcon.HTTP_202
        resp.media = {"placement_settled": settled}


def _is_pending(ports: Ports, rp_uuid: str) -> bool:
    with ports.db.read() as tx:
        found = pci.get(tx, rp_uuid)
    return found is not None and found.device.release_pending


def _find(tx: Connection, provider: str, address: str | None) -> ProviderRecord:
    """Return the provider that a path names.

    :raises BadRequest: *address* is no PCI address.
    :raises NotFound: there is none.
    """
    if address is not None:
        try:
            slot = str(PCIAddress.parse(address))
        except ValueError as error:
            raise BadRequest(str(error)) from None
        found = next((row for row in pci.providers(tx, provider) if row.address == slot), None)
    elif (canonical := query.canonical(provider)) is None:
        raise NotFound(
            f"No provider of PCI functions for instances is {provider}. Name it by its uuid, or as HOST/PCI-ADDRESS."
        )
    else:
        found = pci.get(tx, canonical)
    if found is None:
        named = provider if address is None else f"{provider}/{address}"
        raise NotFound(f"No provider of PCI functions for instances is {named}.")
    return found


def _all_shown(ports: Ports, views: Sequence[BurnedView]) -> list[dict[str, Any]]:
    """Add what Placement reports now, with one request for each resource class."""
    offering = {name: _offering(ports, name) for name in {view.provider.resource_class for view in views}}
    shown = []
    for view in views:
        uuids = offering[view.provider.resource_class]
        shown.append(_shown(view, None if uuids is None else view.provider.uuid in uuids))
    return shown


def _offering(ports: Ports, resource_class: str) -> frozenset[str] | None:
    """Return the providers with free units of the class; None if Placement does not answer."""
    try:
        return frozenset(each.uuid for each in ports.placement.providers_offering(resource_class))
    except PlacementError as error:
        LOG.warning("Whether burned devices of %s are offered is not known: %s", resource_class, error)
        return None


def _shown(view: BurnedView, offered: bool | None) -> dict[str, Any]:
    provider = view.provider
    return {
        "rp_uuid": provider.uuid,
        "hostname": provider.hostname,
        "pci_address": provider.address,
        "serial": provider.card_serial,
        "resource_class": provider.resource_class,
        "one_time_use": provider.one_time_use,
        "burned_for": provider.device.burned_for,
        "burned_at": provider.device.burned_at.replace(tzinfo=UTC).isoformat() if provider.device.burned_at else None,
        "in_use": view.instance_uuid is not None,
        "instance_uuid": view.instance_uuid,
        "confirmed": provider.device.burn_confirmed,
        "release_pending": provider.device.release_pending,
        "missing": view.missing,
        "offered": offered,
        "waiting_for": _waiting_for(view, offered=bool(offered)),
    }


def _waiting_for(view: BurnedView, *, offered: bool) -> str | None:
    if view.instance_uuid is not None:
        waits = function_waits_for(view.provider)
        return waits if waits is None or waits.endswith(".") else f"{waits}."
    unreadable = view.provider.device.unreadable_reason
    if unreadable is None:
        return _idle_waits_for(view, offered=offered)
    return f"It cannot be looked at: {unreadable}; see to the cause. {_idle_waits_for(view, offered=offered)}"


def _idle_waits_for(view: BurnedView, *, offered: bool) -> str:
    if view.provider.device.release_pending and view.missing:
        return f"It was released, and is not there: the agent of {view.provider.hostname} takes it from the record."
    if view.provider.device.release_pending and view.provider.device.unreadable_reason is not None:
        return "It was released, and is offered then."
    if view.provider.device.release_pending and view.provider.device.outdated:
        return "It was released: its agent follows the changed [pci] device_spec before it is offered."
    if view.provider.device.release_pending:
        return "It was released: Placement has to be told."
    if offered and view.provider.device.burn_confirmed:
        return "It was released in Placement, and is offered: its agent takes note in its next period."
    if offered:
        return "Placement offers it by somebody's hand: its agent reserves it again, and has to see it idle."
    if view.missing:
        return f"{view.provider.hostname}, or [pci] device_spec there, has it no more: put it back, or release it."
    if not view.provider.device.burn_confirmed:
        return "Its agent has to see it idle. Then clean it, and release it."
    return "Clean it, and release it."
