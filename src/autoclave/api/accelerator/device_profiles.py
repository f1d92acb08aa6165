"""``/v2/device_profiles``: what flavors and users ask for, by name."""

import json
from typing import Any
from uuid import uuid4

import falcon
from oslo_db import exception as db_exc
from sqlalchemy.engine import Connection

from autoclave.api import microversion, query, uuids
from autoclave.api.accelerator.profile_groups import normalized
from autoclave.api.context import Api
from autoclave.api.links import public_url, self_link
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.query import Argument
from autoclave.api.schema import TEXT
from autoclave.api.schemas.device_profiles import PROFILE, PROFILES, SHOWN_PROFILE, VALIDATE_CREATE
from autoclave.db import profiles as profile_rows
from autoclave.db.profiles import ProfileRecord
from autoclave.exceptions import BadRequest, Conflict, NotFound

_MAX_STORED = 60_000
"""Bytes of groups: MariaDB's TEXT holds 65,535."""
_NAMES = {"allOf": [TEXT, {"pattern": "[^,]"}], "x-message": "must name one at least"}
_USED = "An accelerator request was made by it; delete that first."


class DeviceProfiles(Resource):
    """``GET``, ``POST`` and ``DELETE /v2/device_profiles``."""

    @Operation(
        "List the device profiles",
        rule="cyborg:device_profile:get_all",
        query=(Argument("name", "Only those with these names, separated by commas."), *query.PAGING),
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
        "Make a device profile",
        rule="cyborg:device_profile:create",
        body=VALIDATE_CREATE,
        answers={201: PROFILE},
        fails={409: "A device profile has this name or uuid already."},
    )
    def on_post(self, req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        [wanted] = asked.body
        stored = json.dumps({"groups": normalized(wanted["groups"])})
        if len(stored) > _MAX_STORED:
            raise BadRequest(f"The groups take {len(stored)} bytes; {_MAX_STORED} is the most.")
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
            by_uuid = f" or the uuid {values['uuid']}" if "uuid" in wanted else ""
            raise Conflict(f"A device profile with the name {values['name']}{by_uuid} exists already.") from None
        resp.status = falcon.HTTP_201
        resp.media = _shown(profile, public_url(req, self._api.conf))

    @Operation(
        "Delete device profiles, all of them or none",
        rule="cyborg:device_profile:delete",
        query=(Argument("value", "Say which: ?value=name,name.", _NAMES, required=True),),
        answers={204: None},
        fails={404: "One of them does not exist.", 409: _USED},
    )
    def on_delete(self, _req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        names = _split(asked.query["value"])
        _delete(self._api, names)
        resp.status = falcon.HTTP_204


class DeviceProfile(Resource):
    """``GET`` and ``DELETE /v2/device_profiles/{uuid or name}``."""

    @Operation("Show a device profile", rule="cyborg:device_profile:get_one", answers={200: SHOWN_PROFILE})
    def on_get(self, req: falcon.Request, resp: falcon.Response, _asked: Asked, key: str) -> None:
        if uuids.canonical(key) is None:
            microversion.require(req, microversion.PROFILE_BY_NAME, "A device profile is shown by its uuid")
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
    canonical = uuids.canonical(key)
    profile = None
    if canonical is not None:
        profile = profile_rows.find(tx, uuid=canonical)
    if profile is None and key.isprintable():
        profile = profile_rows.find(tx, name=key)
    if profile is None:
        raise NotFound(f"Device Profile not found with {'name' if canonical is None else 'uuid'}={key}")
    return profile


def _delete(api: Api, keys: list[str]) -> None:
    """All of them or none."""

    def delete(tx: Connection) -> None:
        found = {profile.id: profile for profile in (_find(tx, key) for key in keys)}
        for _, profile in sorted(found.items()):  # one order, no deadlock
            if profile_rows.in_use(tx, profile):
                raise _in_use(profile.name)
            profile_rows.delete(tx, profile)

    try:
        api.ports.db.transact(delete)
    except db_exc.DBReferenceError:
        # Asked for between the look and the deletion.
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
