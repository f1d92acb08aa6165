"""``/autoclave/v1/devices``: all that is known of a device, and its history.

A device is named by its uuid, or as ``hostname/pci_address``.
"""

import falcon
from sqlalchemy.engine import Connection

from autoclave.api import query, uuids
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.operator import views
from autoclave.api.query import Argument
from autoclave.api.schema import one_of
from autoclave.api.schemas.operator_devices import (
    DEVICE,
    DEVICES,
    HISTORY,
)
from autoclave.db import device_views, history
from autoclave.db import devices as device_rows
from autoclave.db.devices import DeviceRecord
from autoclave.db.history import EventRecord
from autoclave.exceptions import BadRequest, NotFound
from autoclave.rules.device_lifecycle import SHOWN_STATES
from autoclave.rules.pci_address import PCIAddress

_GET = "autoclave:device:get"
_FILTERS = (
    Argument("hostname", "Only devices of this host."),
    Argument("type", "Only devices of this type, such as NVME."),
    Argument("device_state", "Only devices that are shown with this state.", one_of(SHOWN_STATES)),
    *query.PAGING,
)


class Devices(Resource):
    """``GET /autoclave/v1/devices``."""

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
                shown_state=asked.query.get("device_state"),
                after=page.marker,
                limit=page.limit,
            )
            found = device_views.of(tx, records)
        resp.media = {"devices": [views.device(view) for view in found]}


class Device(Resource):
    """``GET /autoclave/v1/devices/{device}``."""

    @Operation("Show all that is known of a device", rule=_GET, answers={200: DEVICE})
    def on_get(
        self, _req: falcon.Request, resp: falcon.Response, _asked: Asked, device: str, address: str | None = None
    ) -> None:
        with self._api.ports.db.read() as tx:
            [view] = device_views.of(tx, [find(tx, device, address)])
        resp.media = views.device(view)


class History(Resource):
    """``GET /autoclave/v1/devices/{device}/history``: of a slot, or of a drive by its serial number.

    That of a forgotten device stays, under its uuid and under the serial numbers of its drives.
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
        resp.media = {"events": [views.device_event(record) for record in found]}


def _named_without_slot(tx: Connection, name: str) -> list[EventRecord]:
    """The events of a device by its uuid, which may be forgotten, or of a drive by its serial number.

    :raises NotFound: *name* is no uuid, and no drive of this serial number was ever seen.
    """
    canonical = uuids.canonical(name)
    found = (history.history(tx, canonical) if canonical else []) or history.history_of_drive(tx, name)
    if not found and canonical is None:
        raise NotFound(
            f"There is no device, and was no drive, {name}. Name a device by its uuid or as HOST/PCI-ADDRESS, a drive "
            "by its serial number."
        )
    return found


def find(tx: Connection, device: str, address: str | None) -> DeviceRecord:
    """The device that a path names.

    :raises BadRequest: *address* is no PCI address.
    :raises NotFound: there is none.
    """
    if address is not None:
        slot = _canonical_address(address)
        found = next((row for row in device_rows.list_all(tx, hostname=device) if row.pci_address == slot), None)
    elif (canonical := uuids.canonical(device)) is None:
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
