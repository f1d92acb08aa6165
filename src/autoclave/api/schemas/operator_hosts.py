"""Answers of ``/autoclave/v1/hosts``."""

from autoclave.api.schema import BOOLEAN, INTEGER, STRING, TIMESTAMP, UUID, listed, nullable, shape

HOST = shape(
    "OperatorHost",
    {
        "hostname": STRING,
        "in_maintenance": BOOLEAN,
        "reason": nullable(STRING),
        "since": nullable(TIMESTAMP),
        "by": nullable(STRING),
        "compute_service": nullable(UUID),
        "compute_disabled": nullable(BOOLEAN),
        "devices": INTEGER,
        "devices_offered": {**INTEGER, "description": "Devices that nothing keeps from being offered."},
        "agent_last_seen": nullable(TIMESTAMP),
    },
)
HOSTS = listed("OperatorHosts", "hosts", HOST)
