"""Build the payload of an instance's versioned notification.

It has the form of Nova's ``InstanceActionPayload``, so that listeners for Nova can read it. In addition, it contains
the instance's PCI functions on the host, and their resource providers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

VERSION = "1.0"

_FLAVOR_WORDS = {"ram": "memory_mb", "disk": "root_gb", "ephemeral": "ephemeral_gb"}
"""The names in Nova's notifications that differ from its API."""


@dataclass(frozen=True)
class GivenFunction:
    """Describe a PCI function that the instance has, or had until now.

    :param address: such as ``0000:81:00.0``.
    :param burned: it is not offered until the operator releases it (one-time-use specification).
    """

    address: str
    resource_provider_uuid: str
    resource_class: str
    one_time_use: bool
    burned: bool


def instance_action(
    *,
    uuid: str,
    display_name: str,
    project_id: str,
    user_id: str,
    host: str | None,
    state: str,
    task_state: str | None,
    flavor: Mapping[str, Any],
    image_uuid: str,
    created_at: datetime,
    launched_at: datetime | None,
    pci_functions: Iterable[GivenFunction],
    terminated_at: datetime | None = None,
    fault: str | None = None,
) -> dict[str, Any]:
    """Return the payload of ``instance.<action>.<phase>``.

    :param flavor: the snapshot in the instance.
    :param fault: the error, for ``.error``.
    """
    devices = [_object("PciDevicePayload", asdict(function)) for function in pci_functions]
    return _object(
        "InstanceActionPayload",
        {
            "uuid": uuid,
            "display_name": display_name,
            "tenant_id": project_id,
            "user_id": user_id,
            "host": host,
            "node": host,
            "state": state,
            "task_state": task_state,
            "flavor": _object("FlavorPayload", {_FLAVOR_WORDS.get(name, name): flavor[name] for name in flavor}),
            "image_uuid": image_uuid,
            "created_at": _moment(created_at),
            "launched_at": _moment(launched_at),
            "terminated_at": _moment(terminated_at),
            "deleted_at": _moment(terminated_at),
            "pci_devices": devices,
            "fault": None if fault is None else _object("ExceptionPayload", {"exception_message": fault}),
        },
    )


def _object(name: str, data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "nova_object.name": name,
        "nova_object.namespace": "autoclave",
        "nova_object.version": VERSION,
        "nova_object.data": dict(data),
    }


def _moment(when: datetime | None) -> str | None:
    return None if when is None else f"{when.isoformat(timespec='seconds')}Z"
