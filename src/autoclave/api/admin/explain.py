"""Serve ``/autoclave/v1/explain``: which hosts fit an instance, and what each other host lacks."""

import falcon

from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.query import Argument
from autoclave.api.schema import INTEGER, STRING, UUID, Schema, nullable, shape


def _by_name(schema: Schema) -> Schema:
    return {"type": "object", "additionalProperties": schema}


def _list(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


EXPLANATION = shape(
    "Explanation",
    {
        "flavor": STRING,
        "image": STRING,
        "query": {**STRING, "description": "What Placement is asked."},
        "groups": _list(
            shape(
                "RequestGroup",
                {
                    "suffix": STRING,
                    "asked_by": STRING,
                    "resources": _by_name(INTEGER),
                    "required": _list(STRING),
                    "forbidden": _list(STRING),
                },
            )
        ),
        "ignored_extra_specs": {
            **_by_name(STRING),
            "description": "Extra specs of the flavor that nothing follows from, with the reason.",
        },
        "ignored_properties": {
            **_by_name(STRING),
            "description": "Properties of the image that look like a demand and are none, with the reason.",
        },
        "candidates": _list(
            shape(
                "Candidate",
                {
                    "host": nullable(STRING),
                    "allocations": _by_name(_by_name(INTEGER)),
                    "groups": {**_by_name(_list(UUID)), "description": "Providers by the suffix of the group."},
                },
            )
        ),
        "hosts": _list(
            shape(
                "ExplainedHost",
                {
                    "name": STRING,
                    "candidates": INTEGER,
                    "why_not": {**_list(STRING), "description": "Why it would not get the instance; empty: it could."},
                },
            )
        ),
    },
)


class Explain(Resource):
    """Serve ``GET /autoclave/v1/explain``."""

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
