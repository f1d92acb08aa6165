"""Serve ``/v2/device_profiles``, and validate the groups of a profile."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import falcon
import os_traits
from oslo_db import exception as db_exc
from sqlalchemy.engine import Connection

from autoclave.api import microversion, query
from autoclave.api.body import compiled
from autoclave.api.context import Api
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.query import Argument, public_url, self_link
from autoclave.api.schema import LINKS, READ_ONLY, STRING, TEXT, TIMESTAMP, UUID, listed, nullable, shape
from autoclave.db import profiles as profile_rows
from autoclave.db.profiles import ProfileRecord
from autoclave.exceptions import BadRequest, Conflict, NotFound
from autoclave.rules.resource_request import counts

MAX_COUNT = 64
"""Limit the devices that one key of one group may request."""
MAX_REQUESTS = 256
"""Limit the devices of one profile: each becomes an accelerator request."""
MAX_TEXT = 255

_STANDARD_CLASSES = frozenset({"FPGA", "PGPU", "VGPU"})
_CUSTOM = re.compile(r"CUSTOM_[A-Z0-9_]+", re.ASCII)
_COUNT = re.compile(r"[1-9]\d{0,3}", re.ASCII)
_TRAITS = frozenset(os_traits.get_traits())


def normalized(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return *groups* as they are stored: every value is a string.

    :raises BadRequest: a key or value is not one that can be asked for; says which and why.
    """
    stored = [_group(number, group) for number, group in enumerate(groups)]
    total = sum(sum(counts(group)) for group in stored)
    if total > MAX_REQUESTS:
        raise BadRequest(f"The profile requests {total} devices; the maximum is {MAX_REQUESTS}.")
    return stored


def _group(number: int, group: Mapping[str, Any]) -> dict[str, str]:
    stored = {}
    for key, value in group.items():
        kind, _, name = key.partition(":")
        check = _CHECKS.get(kind)
        if check is None or not name:
            raise BadRequest(
                f"Group {number} has the key {_short(key)}; keys must begin with resources:, trait: or accel:."
            )
        stored[key] = check(f"Group {number}, key {_short(key)}", name, value)
    if not counts(stored):
        raise BadRequest(f"Group {number} requests no device; add a key such as 'resources:CUSTOM_NVME'.")
    return stored


def _resource(where: str, name: str, value: Any) -> str:
    if name not in _STANDARD_CLASSES and not _custom(name):
        known = ", ".join(sorted(_STANDARD_CLASSES))
        raise BadRequest(f"{where}: the resource class must be one of {known}, or CUSTOM_ and upper-case letters.")
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not _COUNT.fullmatch(text) or int(text) > MAX_COUNT:
        raise BadRequest(f"{where}: the count must be a whole number from 1 to {MAX_COUNT}.")
    return text


def _trait(where: str, name: str, value: Any) -> str:
    if name not in _TRAITS and not _custom(name):
        raise BadRequest(f"{where}: the trait must be a standard one, or CUSTOM_ and upper-case letters.")
    if value not in ("required", "forbidden"):
        raise BadRequest(f"{where}: a trait is 'required' or 'forbidden'.")
    return str(value)


def _accel(where: str, name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT or len(name) > MAX_TEXT:
        raise BadRequest(f"{where}: key and value are strings of {MAX_TEXT} characters at most.")
    return value


_CHECKS = {"resources": _resource, "trait": _trait, "accel": _accel}


def _custom(name: str) -> bool:
    return len(name) <= MAX_TEXT and _CUSTOM.fullmatch(name) is not None


def _short(key: str) -> str:
    return repr(key if len(key) <= 80 else f"{key[:80]}…")


MAX_GROUPS = 16

CREATE: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "maxItems": 1,
    "x-message": "must be a list of exactly one device profile",
    "items": {
        "type": "object",
        "required": ["name", "groups"],
        "additionalProperties": False,
        "properties": {
            **READ_ONLY,
            "uuid": UUID,
            "name": {
                "type": "string",
                "minLength": 1,
                "maxLength": 255,
                "pattern": r"^[a-zA-Z0-9_-]+$(?!\n)",
                "x-message": "a name has 1 to 255 letters, digits, '-' and '_'",
            },
            "description": {"type": ["string", "null"], "maxLength": 4096},
            "groups": {
                "type": "array",
                "minItems": 1,
                "maxItems": MAX_GROUPS,
                "x-message": f"must be a list of 1 to {MAX_GROUPS} groups",
                "items": {
                    "type": "object",
                    "description": "Requirements of a device: resources:CLASS with a count, trait:NAME with "
                    "required or forbidden, accel:… with a key of the driver.",
                    "minProperties": 1,
                    "maxProperties": 128,
                },
            },
        },
    },
}
"""Leave the keys and values of groups to ``accelerator.profile_groups``: a schema cannot name the reason."""

VALIDATE_CREATE = compiled(CREATE)

PROFILE = shape(
    "DeviceProfile",
    {
        "uuid": UUID,
        "name": STRING,
        "description": nullable(STRING),
        "groups": {"type": "array", "items": {"type": "object", "additionalProperties": STRING}},
        "created_at": nullable(TIMESTAMP),
        "updated_at": nullable(TIMESTAMP),
        "links": LINKS,
    },
)
PROFILES = listed("DeviceProfiles", "device_profiles", PROFILE)
SHOWN_PROFILE = shape("ShownDeviceProfile", {"device_profile": PROFILE})

_MAX_STORED = 60_000
"""Limit the bytes of groups: MariaDB's TEXT holds 65,535."""
_NAMES = {"allOf": [TEXT, {"pattern": "[^,]"}], "x-message": "must contain at least one name"}
_USED = "An accelerator request uses the profile; delete the request first."


class DeviceProfiles(Resource):
    """Serve ``GET``, ``POST`` and ``DELETE /v2/device_profiles``."""

    @Operation(
        "List the device profiles",
        rule="cyborg:device_profile:get_all",
        query=(Argument("name", "Only profiles with these names, separated by commas."), *query.PAGING),
        answers={200: PROFILES},
    )
    def on_get(self, req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        page = query.page(asked.query)
        names = _split(asked.query["name"]) if "name" in asked.query else None
        with self._api.ports.db.read() as tx:
            if page.marker is not None and profile_rows.find(tx, uuid=page.marker) is None:
                raise query.unknown_marker(page.marker)
            found = profile_rows.list_all(tx, names=names, after=page.marker, limit=page.limit)
        base = public_url(req, self._api.conf)
        resp.media = {"device_profiles": [_shown(profile, base) for profile in found]}

    @Operation(
        "Create a device profile",
        rule="cyborg:device_profile:create",
        body=VALIDATE_CREATE,
        answers={201: PROFILE},
        fails={409: "A device profile with this name or UUID exists already."},
    )
    def on_post(self, req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        [wanted] = asked.body
        stored = json.dumps({"groups": normalized(wanted["groups"])})
        if len(stored) > _MAX_STORED:
            raise BadRequest(f"The groups take {len(stored)} bytes; the maximum is {_MAX_STORED}.")
        values = {
            "uuid": wanted["uuid"].lower() if "uuid" in wanted else str(uuid4()),
            "name": wanted["name"],
            "description": wanted.get("description"),
            "profile_json": stored,
        }

        def make(tx: Connection) -> ProfileRecord:
            profile_rows.insert(tx, values)
            return _find(tx, str(values["uuid"]))

        try:
            profile = self._api.ports.db.transact(make)
        except db_exc.DBDuplicateEntry:
            by_uuid = f" or the UUID {values['uuid']}" if "uuid" in wanted else ""
            raise Conflict(f"A device profile with the name {values['name']}{by_uuid} exists already.") from None
        resp.status = falcon.HTTP_201
        resp.media = _shown(profile, public_url(req, self._api.conf))

    @Operation(
        "Delete device profiles, all of them or none",
        rule="cyborg:device_profile:delete",
        query=(Argument("value", "Set ?value=name,name.", _NAMES, required=True),),
        answers={204: None},
        fails={404: "One of them does not exist.", 409: _USED},
    )
    def on_delete(self, _req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        names = _split(asked.query["value"])
        _delete(self._api, names)
        resp.status = falcon.HTTP_204


class DeviceProfile(Resource):
    """Serve ``GET`` and ``DELETE /v2/device_profiles/{uuid or name}``."""

    @Operation("Show a device profile", rule="cyborg:device_profile:get_one", answers={200: SHOWN_PROFILE})
    def on_get(self, req: falcon.Request, resp: falcon.Response, _asked: Asked, key: str) -> None:
        if query.canonical(key) is None:
            microversion.require(req, microversion.PROFILE_BY_NAME, "Show a device profile by its UUID")
        with self._api.ports.db.read() as tx:
            profile = _find(tx, key)
        resp.media = {"device_profile": _shown(profile, public_url(req, self._api.conf))}

    @Operation("Delete a device profile", rule="cyborg:device_profile:delete", answers={204: None}, fails={409: _USED})
    def on_delete(self, _req: falcon.Request, resp: falcon.Response, _asked: Asked, key: str) -> None:
        _delete(self._api, [key])
        resp.status = falcon.HTTP_204


def _split(names: str) -> list[str]:
    return list(dict.fromkeys(name for name in names.split(",") if name))


def _find(tx: Connection, key: str) -> ProfileRecord:
    canonical = query.canonical(key)
    profile = None
    if canonical is not None:
        profile = profile_rows.find(tx, uuid=canonical)
    if profile is None and key.isprintable():
        profile = profile_rows.find(tx, name=key)
    if profile is None:
        raise NotFound(f"Device Profile not found with {'name' if canonical is None else 'uuid'}={key}")
    return profile


def _delete(api: Api, keys: list[str]) -> None:
    """Delete all of them or none."""

    def delete(tx: Connection) -> None:
        found = {profile.id: profile for profile in (_find(tx, key) for key in keys)}
        for _, profile in sorted(found.items()):  # one order, no deadlock
            if profile_rows.in_use(tx, profile):
                raise _in_use(profile.name)
            profile_rows.delete(tx, profile)

    try:
        api.ports.db.transact(delete)
    except db_exc.DBReferenceError:
        # Requested between the read and the deletion.
        raise _in_use(", ".join(keys)) from None


def _in_use(name: str) -> Conflict:
    return Conflict(f"Device profile {name} is in use by accelerator requests; delete those first.")


def _shown(profile: ProfileRecord, base: str) -> dict[str, Any]:
    return {
        "uuid": profile.uuid,
        "name": profile.name,
        "description": profile.description,
        "groups": profile.groups,
        "created_at": profile.created_at,
        "updated_at": profile.updated_at,
        "links": [self_link(base, "device_profiles", profile.uuid)],
    }
