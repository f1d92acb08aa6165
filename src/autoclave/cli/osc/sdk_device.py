"""openstacksdk's accelerator Device, with what microversion 2.5 brought."""

from typing import Any

from openstack import exceptions, resource
from openstack.accelerator.v2 import device


class Device(device.Device):  # type: ignore[misc]  # openstacksdk's classes are not typed strictly
    """A device with ``device_state``, that can be cleaned."""

    _max_microversion = "2.5"

    device_state = resource.Body("device_state")
    """available, allocated, pending_cleaning, cleaning or error."""

    def clean(self, session: Any) -> None:
        """Start to clean the device again; it must be in ``error``.

        :param session: openstacksdk's accelerator proxy.
        :raises openstack.exceptions.HttpException: the service refused, with its reason.
        """
        answer = session.post(f"/devices/{self.id}/clean", microversion="2.5")
        exceptions.raise_from_response(answer)
