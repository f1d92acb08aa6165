"""What every error answers."""

from autoclave.api.schemas.common import STRING, shape

_FAULT = shape(
    "Fault", {"faultcode": {"enum": ["Client", "Server"]}, "faultstring": STRING, "debuginfo": {"type": "null"}}
)
ERROR = shape(
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
