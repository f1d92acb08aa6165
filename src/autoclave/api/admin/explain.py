"""``/autoclave/v1/explain``: which hosts an instance could go to, and what each of the others lacks."""

import falcon

from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.query import Argument
from autoclave.api.schemas.explain import EXPLANATION


class Explain(Resource):
    """``GET /autoclave/v1/explain``."""

    @Operation(
        "Explain which hosts could take an instance of a flavor and an image, and what each of the others lacks",
        rule="autoclave:explain",
        waits=True,
        query=(
            Argument("flavor", "Name or id of the flavor.", required=True),
            Argument("image", "Name or uuid of the image.", required=True),
            Argument("host", "Only this host."),
        ),
        answers={200: EXPLANATION},
        fails={
            404: "There is no such flavor, image or host.",
            409: "The conductors have nothing to do with instances: [compute] is not enabled.",
            504: "No conductor answered in time.",
        },
    )
    def on_get(self, _req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        flavor, image = asked.query["flavor"], asked.query["image"]
        resp.media = self._api.conductor.explain(asked.context, flavor, image, asked.query.get("host"))
