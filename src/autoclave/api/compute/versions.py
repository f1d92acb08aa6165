"""The version documents of the compute API, by which clients choose the microversion of everything they ask."""

from typing import Any

import falcon

from autoclave.api.compute.common import ROOT
from autoclave.api.links import public_url
from autoclave.api.microversion import COMPUTE
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.schemas.compute_common import SHOWN_VERSION, VERSIONS


class Versions(Resource):
    """``GET /compute``."""

    @Operation("Show the versions of the compute API", answers={200: VERSIONS})
    def on_get(self, req: falcon.Request, resp: falcon.Response, _asked: Asked) -> None:
        resp.media = {"versions": [_document(req, self._api.conf)]}


class V21(Resource):
    """``GET /compute/v2.1``."""

    @Operation("Show the version of the compute API", answers={200: SHOWN_VERSION})
    def on_get(self, req: falcon.Request, resp: falcon.Response, _asked: Asked) -> None:
        resp.media = {"version": _document(req, self._api.conf)}


def _document(req: falcon.Request, conf: Any) -> dict[str, Any]:
    return {
        "id": "v2.1",
        "status": "CURRENT",
        "version": str(COMPUTE.maximum),
        "min_version": str(COMPUTE.minimum),
        "updated": "2013-07-23T11:33:21Z",
        "links": [{"rel": "self", "href": f"{public_url(req, conf)}{ROOT}/"}],
        "media-types": [{"base": "application/json", "type": "application/vnd.openstack.compute+json;version=2.1"}],
    }
