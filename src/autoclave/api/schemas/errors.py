"""What every error answers, below each path."""

from autoclave.api.errors import NOVAS
from autoclave.api.schema import INTEGER, STRING, Schema, shape

_FAULT = shape(
    "Fault", {"faultcode": {"enum": ["Client", "Server"]}, "faultstring": STRING, "debuginfo": {"type": "null"}}
)
_CYBORGS = shape(
    "Error",
    {
        "error_message": {
            "type": "string",
            "description": "A document once more, written as JSON: clients of Cyborg decode twice.",
            "contentMediaType": "application/json",
            "contentSchema": _FAULT,
        }
    },
)
_NOVAS: Schema = {
    "title": "ComputeError",
    "type": "object",
    "minProperties": 1,
    "maxProperties": 1,
    "propertyNames": {"enum": [*NOVAS.values(), "computeFault"]},
    "additionalProperties": shape("ComputeFault", {"code": INTEGER, "message": STRING}),
}
_GLANCES = shape("ImageError", {"code": INTEGER, "title": STRING, "message": STRING})


def error_at(path: str) -> Schema:
    """The body of the errors at *path*."""
    return {"compute": _NOVAS, "image": _GLANCES}.get(path.split("/")[1], _CYBORGS)
