"""The version document of the image API.

Glance has it at its root only; clients whose endpoint ends in ``/v2`` ask there and follow its link.
"""

import falcon

from autoclave.api.image.schemas import VERSIONS
from autoclave.api.links import public_url
from autoclave.api.operation import Asked, Operation, Resource


class Versions(Resource):
    """``GET /image`` and ``GET /image/v2``."""

    @Operation("Show the versions of the image API", answers={200: VERSIONS})
    def on_get(self, req: falcon.Request, resp: falcon.Response, _asked: Asked) -> None:
        link = {"rel": "self", "href": f"{public_url(req, self._api.conf)}/image/v2/"}
        resp.media = {"versions": [{"id": "v2.17", "status": "CURRENT", "links": [link]}]}
