"""The answer of ``/autoclave/v1/explain``."""

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
