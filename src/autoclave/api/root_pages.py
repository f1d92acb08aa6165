"""Serve the pages that need no project: the health check, and the version documents.

openstackclient requests the version of the identity endpoint before most commands. Keystone's documents serve clients
that are configured without Keystone.
"""

from typing import Any

import falcon
from oslo_log import log as logging

from autoclave.api.microversion import MAXIMUM, MINIMUM
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.query import public_url
from autoclave.api.schema import INTEGER, LINKS, STRING, optional, shape
from autoclave.db.engine import current_revision
from autoclave.exceptions import DatabaseUnavailable

VERSION = shape(
    "Version",
    {"id": STRING, "status": {"const": "CURRENT"}, "max_version": STRING, "min_version": STRING, "links": LINKS},
)
VERSIONS = shape(
    "Versions",
    {
        "name": STRING,
        "description": STRING,
        "versions": {"type": "array", "items": VERSION},
        "default_version": VERSION,
    },
)

_IDENTITY = shape(
    "IdentityVersion",
    {
        "id": STRING,
        "status": STRING,
        "updated": STRING,
        "links": LINKS,
        "media-types": {"type": "array", "items": {"type": "object", "additionalProperties": STRING}},
    },
)
IDENTITY = shape("Identity", {"version": _IDENTITY})
IDENTITY_VERSIONS = shape(
    "IdentityVersions", {"versions": shape("IdentityValues", {"values": {"type": "array", "items": _IDENTITY}})}
)

HEALTH = shape(
    "Health", {"status": {"enum": ["ok", "unavailable"]}, "database": STRING, "hosts_not_yet_known": optional(INTEGER)}
)

LOG = logging.getLogger(__name__)


class Health(Resource):
    """Answer 200 if the database answers and has a schema, 503 otherwise.

    `autoclave up` also reports the number of its hosts without a discovery yet.

    Accept a schema newer than this release: old services use it during an upgrade.
    """

    @Operation("Show the health of the service", answers={200: HEALTH, 503: HEALTH})
    def on_get(self, _req: falcon.Request, resp: falcon.Response, _asked: Asked) -> None:
        resp.cache_control = ["no-store"]
        try:
            found = "ok" if current_revision(self._api.ports.db) is not None else "no schema; run 'autoclave db sync'"
        except DatabaseUnavailable as error:
            LOG.error("Not healthy: %s", error)
            found = "no answer"
        if found != "ok":
            resp.status = falcon.HTTP_503
        resp.media = {"status": "ok" if found == "ok" else "unavailable", "database": found}
        if self._api.hosts_unknown is not None:
            resp.media["hosts_not_yet_known"] = self._api.hosts_unknown()


class Versions(Resource):
    """Serve ``GET /identity``."""

    @Operation("Show the versions of the identity API", answers={300: IDENTITY_VERSIONS})
    def on_get(self, req: falcon.Request, resp: falcon.Response, _asked: Asked) -> None:
        resp.status = falcon.HTTP_300
        resp.media = {"versions": {"values": [_v3(req, self._api.conf)]}}


class V3(Resource):
    """Serve ``GET /identity/v3``."""

    @Operation("Show the version of the identity API", answers={200: IDENTITY})
    def on_get(self, req: falcon.Request, resp: falcon.Response, _asked: Asked) -> None:
        resp.media = {"version": _v3(req, self._api.conf)}


def _v3(req: falcon.Request, conf: Any) -> dict[str, Any]:
    return {
        "id": "v3.14",
        "status": "stable",
        "updated": "2020-04-07T00:00:00Z",
        "links": [{"href": f"{public_url(req, conf)}/identity/v3/", "rel": "self"}],
        "media-types": [{"base": "application/json", "type": "application/vnd.openstack.identity-v3+json"}],
    }


class Root(Resource):
    """Serve ``GET /``: the versions."""

    @Operation("Show the versions of the accelerator API", answers={200: VERSIONS})
    def on_get(self, req: falcon.Request, resp: falcon.Response, _asked: Asked) -> None:
        version = _document("v2", f"{public_url(req, self._api.conf)}/accelerator/v2")
        resp.media = {
            "name": "Autoclave accelerator API",
            "description": "Life-cycle management of PCI devices that hosts pass through to virtual machines.",
            "versions": [version],
            "default_version": version,
        }


class V2(Resource):
    """Serve ``GET /v2``: the only major version, without an envelope."""

    @Operation("Show the version", answers={200: VERSION})
    def on_get(self, req: falcon.Request, resp: falcon.Response, _asked: Asked) -> None:
        resp.media = _document("v2.0", f"{public_url(req, self._api.conf)}/accelerator/v2/")


def _document(version_id: str, href: str) -> dict[str, Any]:
    return {
        "id": version_id,
        "status": "CURRENT",
        "max_version": str(MAXIMUM),
        "min_version": str(MINIMUM),
        "links": [{"href": href, "rel": "self"}],
    }
