"""Serve ``/v2/devices``, and parse the queries that lists of devices and deployables share.

``disable`` and ``enable`` record the intent before they answer: 200 without a body if Placement agrees, as Cyborg's
clients expect. If Placement is down, the answer is 202 with ``{"placement_settled": false}``, and Placement is
updated later. An optional body ``{"reason": "…"}`` extends Cyborg's API; the device's history keeps it.

Cyborg's clients write a filter as ``filters.field=F&filters.value=V``, once or several times. As in Cyborg, a
filtered list is sorted by creation, newest first, unless ``sort_key`` and ``sort_dir`` are given. An unfiltered list
is sorted by row id.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import falcon

from autoclave.api import microversion, query
from autoclave.api.admin.actions import Action, clean, say
from autoclave.api.admin.devices import SAID, VALIDATE_REASON_IF_ANY
from autoclave.api.context import Api
from autoclave.api.microversion import DEVICE_STATE, DEVICE_STATUS
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.query import Argument, Page, public_url, resource_link
from autoclave.api.schema import LINKS, STRING, TIMESTAMP, UUID, listed, nullable, one_of, shape, since
from autoclave.db import devices
from autoclave.db import devices as device_rows
from autoclave.db.devices import DeviceRecord, DeviceSummary
from autoclave.db.query import BY_ID, FIELDS, NEWEST_FIRST, Order
from autoclave.db.tables import DeviceStatus, DeviceType
from autoclave.exceptions import BadRequest, NotFound
from autoclave.lifecycle import operator
from autoclave.rules.device_lifecycle import SHOWN_STATES, DeviceState, Withheld
from autoclave.rules.reclaim import RequestedBy

_STATES = [state for state in SHOWN_STATES if state not in (Withheld.MAINTAINING, DeviceState.SPENT)]
"""List the states of the filter; ``status`` shows maintenance instead."""

DEVICE = shape(
    "Device",
    {
        "uuid": UUID,
        "type": one_of(DeviceType),
        "vendor": STRING,
        "model": STRING,
        "std_board_info": {**nullable(STRING), "description": "An object, written as JSON."},
        "vendor_board_info": nullable(STRING),
        "hostname": STRING,
        "links": LINKS,
        "created_at": nullable(TIMESTAMP),
        "updated_at": nullable(TIMESTAMP),
        "status": since(DEVICE_STATUS, one_of(DeviceStatus)),
        "device_state": since(DEVICE_STATE, nullable(one_of(_STATES))),
    },
)
DEVICES = listed("Devices", "devices", DEVICE)

_SORTING = ("sort_key", "sort_dir")
_KNOWN = (*FIELDS, *(argument.name for argument in query.PAGING), *_SORTING)
_FIELD = Argument("filters.field", "Field to filter by, once for each filters.value.", one_of(_KNOWN), repeated=True)
_VALUE = Argument("filters.value", "Required value of a field, in the order of the fields.", repeated=True)
ARGUMENTS = (_FIELD, _VALUE, *query.PAGING)
"""Declare the arguments that every such list accepts."""


@dataclass(frozen=True)
class Listing:
    """:param own: values of the list's own arguments; :param related: values by field of ``db.query``."""

    own: Mapping[str, str]
    related: Mapping[str, str]
    order: Order
    page: Page


def listing_of(req: falcon.Request, given: Mapping[str, str], *, sort_keys: Collection[str]) -> Listing:
    """Parse the filters, the order and the page of *req*.

    :param given: its arguments other than the fields; those that do not page are filters.
    :raises BadRequest: a field is given twice, or cannot have its value.
    """
    fields = _fields(req)
    twice = fields.keys() & given.keys()
    if twice:
        raise BadRequest(f"{sorted(twice)[0]} is given as an argument and as a field.")
    for argument in query.PAGING:
        if argument.name in fields:
            argument.check(fields[argument.name])
    page = query.page({**given, **fields})
    paging = {argument.name for argument in query.PAGING}
    filters = {name: value for name, value in given.items() if name not in paging}
    related = {name: fields[name] for name in FIELDS if name in fields}
    return Listing(filters, related, _order(fields, bool(filters or fields), sort_keys), page)


def _fields(req: falcon.Request) -> dict[str, str]:
    names, values = req.get_param_as_list(_FIELD.name) or [], req.get_param_as_list(_VALUE.name) or []
    if len(names) != len(values):
        raise BadRequest(f"Each {_FIELD.name} needs a {_VALUE.name}: {len(names)} and {len(values)} were given.")
    fields: dict[str, str] = {}
    for name, value in zip(names, values, strict=True):
        if name in fields:
            raise BadRequest(f"{_FIELD.name} {name} is given more than once.")
        fields[name] = value
    return fields


def _order(fields: Mapping[str, str], filtered: bool, sort_keys: Collection[str]) -> Order:
    default = NEWEST_FIRST if filtered else BY_ID
    key = fields.get("sort_key", default.key)
    if key != default.key and key not in sort_keys:
        raise BadRequest(f"sort_key can be {', '.join(sort_keys)}, not {key!r}.")
    direction = fields.get("sort_dir")
    if direction not in (None, "asc", "desc"):
        raise BadRequest(f"sort_dir can be asc or desc, not {direction!r}.")
    return Order(key, default.descending if direction is None else direction == "desc")


_SORT_KEYS = ("created_at", "updated_at", "uuid", "type", "vendor", "model", "hostname")

_ARGUMENTS = (
    Argument("type", "Only devices of this type, such as NVME."),
    Argument("vendor", "Only devices of this vendor, by its PCI vendor id."),
    Argument("hostname", "Only devices of this host."),
    *ARGUMENTS,
)


class Devices(Resource):
    """Serve ``GET /v2/devices``."""

    @Operation("List the devices", rule="cyborg:device:get_all", query=_ARGUMENTS, answers={200: DEVICES})
    def on_get(self, req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        wanted = listing_of(req, asked.query, sort_keys=_SORT_KEYS)
        page = wanted.page
        with self._api.ports.db.read() as tx:
            if page.marker is not None and device_rows.get(tx, page.marker) is None:
                raise query.unknown_marker(page.marker)
            found = devices.summaries(
                tx,
                device_type=wanted.own.get("type"),
                vendor=wanted.own.get("vendor"),
                hostname=wanted.own.get("hostname"),
                related=wanted.related,
                order=wanted.order,
                after=page.marker,
                limit=page.limit,
            )
        resp.media = {"devices": _shown(found, asked.version, public_url(req, self._api.conf))}


class Device(Resource):
    """Serve ``GET /v2/devices/{uuid}``."""

    @Operation("Show a device", rule="cyborg:device:get_one", answers={200: DEVICE})
    def on_get(self, req: falcon.Request, resp: falcon.Response, asked: Asked, uuid: str) -> None:
        canonical = query.canonical(uuid)
        with self._api.ports.db.read() as tx:
            found = devices.find(tx, canonical) if canonical else None
        if found is None:
            raise _not_found(uuid)
        [resp.media] = _shown([found], asked.version, public_url(req, self._api.conf))


class DeviceClean(Resource):
    """Serve ``POST /v2/devices/{uuid}/clean`` (NVMe specification), from microversion 2.5 on.

    The agent makes the transition with the version in the message. Of several requests one succeeds; a late one finds
    another version and fails. An optional body ``{"reason": "…"}`` extends the specification; the device's history
    keeps the reason.
    """

    @Operation(
        "Clean a device again",
        rule="cyborg:device:clean",
        waits=True,
        since=microversion.DEVICE_STATE,
        body=VALIDATE_REASON_IF_ANY,
        body_optional=True,
        answers={202: None},
        fails={409: "Its state, its accelerator request or a concurrent change forbids it; the message says which."},
    )
    def on_post(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, uuid: str) -> None:
        clean(self._api, _find(self._api, uuid), asked)
        resp.status = falcon.HTTP_202


def _find(api: Api, uuid: str) -> DeviceRecord:
    canonical = query.canonical(uuid)
    if canonical is not None:
        with api.ports.db.read() as tx:
            record = device_rows.get(tx, canonical)
        if record is not None and record.requested_by is RequestedBy.PROFILE:
            return record
    raise _not_found(uuid)


def _not_found(uuid: str) -> NotFound:
    return NotFound(f"Device not found with uuid={uuid}")


def _shown(found: Sequence[DeviceSummary], version: microversion.Microversion, base: str) -> list[dict[str, Any]]:
    link = resource_link(base, "devices")
    shown: list[dict[str, Any]] = [
        {
            "uuid": row.uuid,
            "type": row.type,
            "vendor": row.vendor,
            "model": row.model,
            "std_board_info": row.std_board_info,
            "vendor_board_info": row.vendor_board_info,
            "hostname": row.hostname,
            "links": [{"href": link + row.uuid, "rel": "self"}],
            "created_at": row.created_at,
            "updated_at": row.updated_at,
        }
        for row in found
    ]
    if version >= microversion.DEVICE_STATUS:
        for device, row in zip(shown, found, strict=True):
            device["status"] = row.status
    if version >= microversion.DEVICE_STATE:
        for device, row in zip(shown, found, strict=True):
            # The specification has no state for a device that waits for its release.
            spent = row.device_state == DeviceState.SPENT
            device["device_state"] = DeviceState.ERROR.value if spent else row.device_state
    return shown


_ANSWERS = {200: None, 202: SAID}


class _Switch(Resource):
    def _switch(self, resp: falcon.Response, asked: Asked, uuid: str, switch: Action) -> None:
        say(self._api.ports, resp, asked, _find(self._api, uuid).uuid, switch)


class DeviceDisable(_Switch):
    """See :func:`autoclave.lifecycle.operator.disable`."""

    @Operation(
        "Disable a device",
        rule="cyborg:device:disable",
        waits=True,
        body=VALIDATE_REASON_IF_ANY,
        body_optional=True,
        answers=_ANSWERS,
    )
    def on_post(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, uuid: str) -> None:
        self._switch(resp, asked, uuid, operator.disable)


class DeviceEnable(_Switch):
    """See :func:`autoclave.lifecycle.operator.enable`."""

    @Operation(
        "Enable a device",
        rule="cyborg:device:enable",
        waits=True,
        body=VALIDATE_REASON_IF_ANY,
        body_optional=True,
        answers=_ANSWERS,
    )
    def on_post(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, uuid: str) -> None:
        self._switch(resp, asked, uuid, operator.enable)
