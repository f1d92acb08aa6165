"""Bodies and answers of ``/compute/v2.1/flavors``."""

from typing import Any

from autoclave.api.body import compiled
from autoclave.api.schema import BOOLEAN, INTEGER, LINKS, NUMBER, STRING, nullable, optional, shape
from autoclave.api.schemas.compute_common import DESCRIPTION, MAP_OF_TEXTS, NAME, envelope, number, paged, texts

MAX_SPECS = 128
_SPECS = texts(
    r"^[a-zA-Z0-9_:. -]{1,255}$(?!\n)", MAX_SPECS, "has 1 to 255 letters, digits, spaces and characters of '_:.-'"
)
SPEC_KEY: dict[str, Any] = dict(_SPECS["propertyNames"])

_NEW: dict[str, Any] = {
    "type": "object",
    "required": ["name", "ram", "vcpus", "disk"],
    "additionalProperties": False,
    "properties": {
        "id": {
            "type": ["string", "null"],
            "pattern": r"^(?=.*[^ ])[a-zA-Z0-9. _-]{1,255}$(?!\n)",
            "x-message": "must be null or 'auto' for a new one, or have 1 to 255 letters, digits, spaces and '._-'",
        },
        "name": NAME,
        "ram": number(1),
        "vcpus": number(1),
        "disk": number(0),
        "swap": number(0),
        "OS-FLV-EXT-DATA:ephemeral": number(0),
        "rxtx_factor": {"type": "number", "exclusiveMinimum": 0, "maximum": 1e9, "x-message": "must be above 0"},
        "os-flavor-access:is_public": {"type": "boolean", "x-message": "must be true or false"},
        "description": DESCRIPTION,
    },
}
VALIDATE_CREATE = compiled(envelope("flavor", _NEW))
VALIDATE_UPDATE = compiled(
    envelope(
        "flavor",
        {
            "type": "object",
            "required": ["description"],
            "additionalProperties": False,
            "properties": {"description": DESCRIPTION},
        },
    )
)
VALIDATE_SPECS = compiled(envelope("extra_specs", {**_SPECS, "minProperties": 1}))
VALIDATE_SPEC = compiled({**_SPECS, "minProperties": 1, "maxProperties": 1})

FLAVOR = shape(
    "Flavor",
    {
        "id": STRING,
        "name": STRING,
        "ram": INTEGER,
        "vcpus": INTEGER,
        "disk": INTEGER,
        "swap": INTEGER,
        "OS-FLV-EXT-DATA:ephemeral": INTEGER,
        "OS-FLV-DISABLED:disabled": BOOLEAN,
        "os-flavor-access:is_public": BOOLEAN,
        "rxtx_factor": NUMBER,
        "description": nullable(STRING),
        "extra_specs": optional(MAP_OF_TEXTS),
        "links": LINKS,
    },
)
SHOWN_FLAVOR = shape("ShownFlavor", {"flavor": FLAVOR})
FLAVORS_IN_DETAIL = paged("FlavorsInDetail", "flavors", FLAVOR)
FLAVORS = paged(
    "Flavors",
    "flavors",
    shape("FlavorSummary", {"id": STRING, "name": STRING, "description": nullable(STRING), "links": LINKS}),
)
SPECS = shape("ExtraSpecs", {"extra_specs": MAP_OF_TEXTS})
SPEC = MAP_OF_TEXTS
