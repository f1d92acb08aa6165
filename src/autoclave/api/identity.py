"""Keystone's version documents, for clients that are configured without Keystone.

openstackclient asks the identity endpoint for its version before most commands, and for nothing else.
"""

from typing import Any

import falcon

from autoclave.api.links import public_url
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.schemas.versions import IDENTITY, IDENTITY_VERSIONS


class Versions(Resource):
    """``GET /identity``."""

    @Operation("Show the versions of the identity API", answers={300: IDENTITY_VERSIONS})
    def on_get(self, req: falcon.Request, resp: falcon.Response, _asked: Asked) -> None:
        resp.status = falcon.HTTP_300
        resp.media = {"versions": {"values": [_v3(req, self._api.conf)]}}


class V3(Resource):
    """``GET /identity/v3``."""

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
