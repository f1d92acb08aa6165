"""The version documents, by which clients find the API."""

from typing import Any

import falcon

from autoclave.api.links import public_url
from autoclave.api.microversion import MAXIMUM, MINIMUM
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.schemas.versions import VERSION, VERSIONS


class Root(Resource):
    """``GET /``: the versions there are."""

    @Operation("Show the versions of the accelerator API", answers={200: VERSIONS})
    def on_get(self, req: falcon.Request, resp: falcon.Response, _asked: Asked) -> None:
        version = _document("v2", f"{public_url(req, self._api.conf)}/accelerator/v2")
        resp.media = {
            "name": "Autoclave accelerator API",
            "description": "Life-cycle management of the devices that hosts pass through to virtual machines.",
            "versions": [version],
            "default_version": version,
        }


class V2(Resource):
    """``GET /v2``: the one major version, without an envelope."""

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
