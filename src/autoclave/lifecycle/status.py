"""Maintenance: ``status``, which says whether an operator wants a device used, whatever its ``device_state``.

Neither changes the other. An instance that has the device keeps it, an erase goes on; Placement offers the
device when both agree.
"""

from autoclave.db.devices import DeviceRecord
from autoclave.db.tables import DeviceStatus
from autoclave.lifecycle.intent import debt, say
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.transitions import Cause


def disable(ports: Ports, uuid: str, cause: Cause) -> bool:
    """Take a device out of service: it is offered no more, and not bound, until it is enabled.

    One that is disabled stays so, and Placement is told once more.

    :returns: whether Placement has been told already.
    :raises NotFound: there is no such device.
    """
    return say(ports, uuid, "disable", "disabled", cause, lambda device: _unless(device, DeviceStatus.MAINTAINING))


def enable(ports: Ports, uuid: str, cause: Cause) -> bool:
    """End the maintenance of a device. It is offered if it is available, and nothing else is against it.

    One that is enabled stays as it is: this ends no hold, neither ours nor one set by hand in Placement. A debt
    that is still open is paid.

    :returns: whether Placement has been told already.
    :raises NotFound: there is no such device.
    """

    def changes(device: DeviceRecord) -> dict[str, object] | None:
        return _unless(device, DeviceStatus.ENABLED, **debt(device))

    return say(ports, uuid, "enable", "enabled", cause, changes)


def _unless(device: DeviceRecord, status: DeviceStatus, **changes: object) -> dict[str, object] | None:
    return None if device.status is status else {"status": status, **changes}
