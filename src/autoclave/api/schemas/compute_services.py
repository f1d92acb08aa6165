"""Bodies and answers of the compute API about hosts, and lists that are always empty."""

from typing import Any

from autoclave.api.body import compiled
from autoclave.api.schema import BOOLEAN, INTEGER, STRING, UUID, listed, nullable, one_of, optional, shape
from autoclave.api.schemas.compute_common import NAME, NOVAS_MOMENT, paged

_CHANGE: dict[str, Any] = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": False,
    "properties": {
        "status": one_of(["enabled", "disabled"]),
        "disabled_reason": NAME,
        "forced_down": {"type": "boolean", "x-message": "must be true or false"},
    },
}
VALIDATE_CHANGE = compiled(_CHANGE)

_STATE = one_of(["up", "down"])
_STATUS = one_of(["enabled", "disabled"])
SERVICE = shape(
    "ComputeService",
    {
        "id": UUID,
        "binary": {"const": "nova-compute"},
        "host": STRING,
        "zone": STRING,
        "status": _STATUS,
        "state": _STATE,
        "updated_at": nullable(NOVAS_MOMENT),
        "disabled_reason": nullable(STRING),
        "forced_down": BOOLEAN,
    },
)
SERVICES = listed("ComputeServices", "services", SERVICE)
SHOWN_SERVICE = shape("ShownComputeService", {"service": SERVICE})

_GUESTS = optional({"type": "array", "items": shape("HypervisorServer", {"uuid": UUID, "name": STRING})})
_IN_SHORT = {
    "id": UUID,
    "hypervisor_hostname": STRING,
    "state": _STATE,
    "status": _STATUS,
    "servers": _GUESTS,
}
HYPERVISOR = shape(
    "Hypervisor",
    {
        **_IN_SHORT,
        "hypervisor_type": STRING,
        "hypervisor_version": INTEGER,
        "host_ip": {"type": "null"},
        "uptime": {"type": "null"},
        "service": shape("HypervisorService", {"id": UUID, "host": STRING, "disabled_reason": nullable(STRING)}),
    },
)
HYPERVISORS = paged("Hypervisors", "hypervisors", shape("HypervisorSummary", _IN_SHORT))
HYPERVISORS_IN_DETAIL = paged("HypervisorsInDetail", "hypervisors", HYPERVISOR)
SHOWN_HYPERVISOR = shape("ShownHypervisor", {"hypervisor": HYPERVISOR})

_ZONE_STATE = shape("ZoneState", {"available": BOOLEAN})
_AT_HOST = shape("ZoneService", {"active": BOOLEAN, "available": BOOLEAN, "updated_at": nullable(NOVAS_MOMENT)})
_ZONE_HOSTS = {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": _AT_HOST}}
ZONES = listed(
    "Zones",
    "availabilityZoneInfo",
    shape("Zone", {"zoneName": STRING, "zoneState": _ZONE_STATE, "hosts": {"type": "null"}}),
)
ZONES_IN_DETAIL = listed(
    "ZonesInDetail",
    "availabilityZoneInfo",
    shape("ZoneInDetail", {"zoneName": STRING, "zoneState": _ZONE_STATE, "hosts": _ZONE_HOSTS}),
)

_NONE = {"type": "array", "maxItems": 0}
AGGREGATES = shape("Aggregates", {"aggregates": _NONE})
MIGRATIONS = shape("Migrations", {"migrations": _NONE})
FLAVOR_ACCESS = shape("FlavorAccess", {"flavor_access": _NONE})
INSTANCE_ACTIONS = shape("InstanceActions", {"instanceActions": _NONE})
