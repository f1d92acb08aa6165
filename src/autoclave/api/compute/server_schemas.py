"""Define the bodies and answers of ``/compute/v2.1/servers``."""

from typing import Any

from autoclave.api.body import compiled
from autoclave.api.compute.common import DESCRIPTION, MAP_OF_TEXTS, NAME, NOVAS_MOMENT, envelope, paged, texts
from autoclave.api.schema import (
    BOOLEAN,
    INTEGER,
    LINKS,
    STRING,
    TIMESTAMP,
    UUID,
    Schema,
    nullable,
    one_of,
    optional,
    shape,
)
from autoclave.rules.instance_states import STATUSES, PowerState, TaskState, VMState

MAX_COUNT = 64
"""Limit the servers of one request."""
MAX_METADATA = 128

METADATA = texts(
    r"^[^\x00-\x1f\x7f-\x9f]{1,255}$(?!\n)", MAX_METADATA, "has 1 to 255 characters, no control characters"
)
_COUNT = {
    "type": "integer",
    "minimum": 1,
    "maximum": MAX_COUNT,
    "x-message": f"must be a whole number from 1 to {MAX_COUNT}",
}
_HOST: dict[str, Any] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 255,
    "pattern": r"^[^\x00-\x20\x7f-\x9f]*$(?!\n)",
    "x-message": "must be the name of a host",
}
_BOOT: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "maxItems": 1,
    "x-message": "must be exactly one entry, the image on the host's own disk: there are no volumes",
    "items": {
        "type": "object",
        "required": ["uuid", "source_type", "destination_type", "boot_index"],
        "additionalProperties": False,
        "properties": {
            "uuid": UUID,
            "boot_index": {"enum": [0, "0"], "x-message": "must be 0"},
            "source_type": {"enum": ["image"], "x-message": "must be image: there are no volumes"},
            "destination_type": {"enum": ["local"], "x-message": "must be local: there are no volumes"},
            "delete_on_termination": {"enum": [True], "x-message": "must be true: the disk is deleted with the server"},
        },
    },
}
_TAGS: dict[str, Any] = {
    "type": "array",
    "maxItems": 50,
    "uniqueItems": True,
    "items": {
        "type": "string",
        "pattern": r"^[^,/\x00-\x1f\x7f-\x9f]{1,60}$(?!\n)",
        "x-message": "must be a text of 1 to 60 characters, without commas, slashes and control characters",
    },
    "x-message": "must be a list of at most 50 different tags",
}
"""Store and show these keys as they were sent. They have no effect."""


def _absent(why: str) -> dict[str, Any]:
    return {"not": {}, "x-message": f"is not served here: {why}"}


_NOT_HERE = {
    "user_data": _absent("there is neither a metadata service nor a config drive"),
    "key_name": _absent("there are no key pairs"),
    "personality": _absent("files are not injected into guests"),
    "adminPass": _absent("nothing is injected into guests"),
    "accessIPv4": _absent("there are no networks"),
    "accessIPv6": _absent("there are no networks"),
    "hostname": _absent("there is no metadata service to pass a name to the guest"),
    "trusted_image_certificates": _absent("signatures of images are not checked"),
}
"""Define the keys that Nova accepts for a new server and for a rebuild."""

_NEW: dict[str, Any] = {
    "type": "object",
    "required": ["name", "imageRef", "flavorRef"],
    "additionalProperties": False,
    "properties": {
        "name": NAME,
        "imageRef": {**UUID, "x-message": "must be the UUID of an image: there are no volumes to start from"},
        "flavorRef": {"type": "string", "minLength": 1, "maxLength": 255, "x-message": "must be the ID of a flavor"},
        "min_count": _COUNT,
        "max_count": _COUNT,
        "networks": {
            "enum": ["none", "auto", []],
            "x-message": 'must be "none" or "auto", which both mean none: there are no networks',
        },
        "block_device_mapping_v2": _BOOT,
        "metadata": METADATA,
        "description": DESCRIPTION,
        "tags": _TAGS,
        "availability_zone": {
            **_HOST,
            "maxLength": 600,
            "x-message": "must be a zone, or zone:host, or :host",
        },
        "host": _HOST,
        "hypervisor_hostname": _HOST,
        "config_drive": {"enum": [False, None], "x-message": "must be false: there are no config drives"},
        "security_groups": _absent("there are no networks"),
        "block_device_mapping": _absent("there are no volumes"),
        **_NOT_HERE,
    },
}
_HINTS = {
    "type": "object",
    "maxProperties": 0,
    "x-message": "scheduler hints are not supported; select a host by traits or by its name",
}
VALIDATE_CREATE = compiled(
    {
        **envelope("server", _NEW),
        "properties": {"server": _NEW, "os:scheduler_hints": _HINTS, "OS-SCH-HNT:scheduler_hints": _HINTS},
    }
)
VALIDATE_UPDATE = compiled(
    envelope(
        "server",
        {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": False,
            "properties": {"name": NAME, "description": DESCRIPTION},
        },
    )
)
VALIDATE_METADATA = compiled(envelope("metadata", METADATA))
VALIDATE_META = compiled(envelope("meta", {**METADATA, "minProperties": 1, "maxProperties": 1}))

NOT_SERVED = (
    "addFixedIp",
    "addFloatingIp",
    "addSecurityGroup",
    "changePassword",
    "confirmResize",
    "createBackup",
    "createImage",
    "evacuate",
    "injectNetworkInfo",
    "lock",
    "migrate",
    "os-getConsoleOutput",
    "os-getVNCConsole",
    "os-migrateLive",
    "os-resetState",
    "pause",
    "removeFixedIp",
    "removeFloatingIp",
    "removeSecurityGroup",
    "rescue",
    "resetNetwork",
    "resize",
    "restore",
    "resume",
    "revertResize",
    "shelve",
    "shelveOffload",
    "suspend",
    "trigger_crash_dump",
    "unlock",
    "unpause",
    "unrescue",
    "unshelve",
)
"""List Nova's other actions, to distinguish them from unknown ones."""

_NOTHING: dict[str, Any] = {"enum": [None, {}], "x-message": "must be null"}
ACTION: dict[str, Any] = {
    "type": "object",
    "minProperties": 1,
    "maxProperties": 1,
    "additionalProperties": False,
    "properties": {
        "os-start": _NOTHING,
        "os-stop": _NOTHING,
        "forceDelete": _NOTHING,
        "reboot": {
            "type": "object",
            "required": ["type"],
            "additionalProperties": False,
            "properties": {
                "type": {"enum": ["SOFT", "HARD", "Soft", "Hard", "soft", "hard"], "x-message": "must be SOFT or HARD"}
            },
        },
        "rebuild": {
            "type": "object",
            "required": ["imageRef"],
            "additionalProperties": False,
            "properties": {
                "imageRef": UUID,
                "name": NAME,
                "description": DESCRIPTION,
                "metadata": METADATA,
                "preserve_ephemeral": {
                    "enum": [False],
                    "x-message": "must be false: a rebuild creates the disks again",
                },
                **_NOT_HERE,
            },
        },
        **{name: {"not": {}, "x-message": "is an action that this service does not implement"} for name in NOT_SERVED},
    },
}
VALIDATE_ACTION = compiled(ACTION)

HOSTDEV = shape(
    "Hostdev",
    {
        "address": STRING,
        "rp_uuid": UUID,
        "resource_class": STRING,
        "managed": nullable(BOOLEAN),
        "one_time_use": BOOLEAN,
        "burned": BOOLEAN,
        "arq_uuid": nullable(UUID),
    },
)
_FAULT = shape(
    "ServerFault",
    {"code": INTEGER, "created": TIMESTAMP, "message": STRING, "details": optional(nullable(STRING))},
)
_FLAVOR = shape(
    "ServerFlavor",
    {
        "vcpus": INTEGER,
        "ram": INTEGER,
        "disk": INTEGER,
        "ephemeral": INTEGER,
        "swap": INTEGER,
        "original_name": STRING,
        "extra_specs": optional(MAP_OF_TEXTS),
    },
)
_EMPTY: Schema = {"type": "array", "maxItems": 0}
SERVER = shape(
    "Server",
    {
        "id": UUID,
        "name": STRING,
        "status": one_of(STATUSES),
        "tenant_id": STRING,
        "user_id": STRING,
        "metadata": MAP_OF_TEXTS,
        "hostId": STRING,
        "image": shape("ServerImage", {"id": UUID, "links": LINKS}),
        "flavor": _FLAVOR,
        "created": TIMESTAMP,
        "updated": TIMESTAMP,
        "addresses": {"type": "object", "maxProperties": 0},
        "accessIPv4": STRING,
        "accessIPv6": STRING,
        "links": LINKS,
        "OS-DCF:diskConfig": STRING,
        "progress": INTEGER,
        "OS-EXT-AZ:availability_zone": STRING,
        "pinned_availability_zone": nullable(STRING),
        "config_drive": STRING,
        "key_name": {"type": "null"},
        "OS-SRV-USG:launched_at": nullable(NOVAS_MOMENT),
        "OS-SRV-USG:terminated_at": {"type": "null"},
        "OS-EXT-STS:task_state": nullable(one_of(TaskState)),
        "OS-EXT-STS:vm_state": one_of(VMState),
        "OS-EXT-STS:power_state": {"enum": [int(state) for state in PowerState]},
        "os-extended-volumes:volumes_attached": _EMPTY,
        "locked": BOOLEAN,
        "locked_reason": {"type": "null"},
        "description": nullable(STRING),
        "tags": {"type": "array", "items": STRING},
        "trusted_image_certificates": {"type": "null"},
        "server_groups": _EMPTY,
        "security_groups": _EMPTY,
        "fault": optional(_FAULT),
        "host_status": optional(one_of(["UP", "DOWN", "UNKNOWN", "MAINTENANCE", ""])),
        "OS-EXT-SRV-ATTR:host": optional(nullable(STRING)),
        "OS-EXT-SRV-ATTR:hypervisor_hostname": optional(nullable(STRING)),
        "OS-EXT-SRV-ATTR:instance_name": optional(STRING),
        "autoclave:hostdevs": optional({"type": "array", "items": HOSTDEV}),
    },
)
SHOWN_SERVER = shape("ShownServer", {"server": SERVER})
SERVERS_IN_DETAIL = paged("ServersInDetail", "servers", SERVER)
SERVERS = paged("Servers", "servers", shape("ServerSummary", {"id": UUID, "name": STRING, "links": LINKS}))
MADE_SERVER = shape(
    "MadeServer",
    {
        "server": shape(
            "NewServer", {"id": UUID, "links": LINKS, "OS-DCF:diskConfig": STRING, "security_groups": _EMPTY}
        )
    },
)
SHOWN_METADATA = shape("Metadata", {"metadata": MAP_OF_TEXTS})
SHOWN_META = shape("Meta", {"meta": MAP_OF_TEXTS})
