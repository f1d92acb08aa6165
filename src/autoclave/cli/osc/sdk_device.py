"""openstacksdk's accelerator Device, with what microversion 2.5 brought."""

from typing import Any, Self

from openstack import exceptions, resource
from openstack.accelerator.v2 import device


class Device(device.Device):  # type: ignore[misc]  # openstacksdk's classes are not typed strictly
    """A device with ``device_state``, that can be cleaned.

    Its actions fail where the service refuses; those of openstacksdk 4.22 ignore the answer.
    """

    _max_microversion = "2.5"

    device_state = resource.Body("device_state")
    """available, allocated, pending_cleaning, cleaning or error; None below microversion 2.5."""

    def clean(self, session: Any) -> None:
        """Start to clean the device again; it must be in ``error``.

        :param session: openstacksdk's accelerator proxy.
        :raises openstack.exceptions.HttpException: the service refused, with its reason.
        """
        self._act(session, "clean", "2.5")

    def enable(self, session: Any) -> Self:
        """Offer the device again.

        :param session: openstacksdk's accelerator proxy.
        :raises openstack.exceptions.HttpException: the service refused, with its reason.
        """
        self._act(session, "enable", "2.3")
        return self

    def disable(self, session: Any) -> Self:
        """Keep the device from being offered.

        :param session: openstacksdk's accelerator proxy.
        :raises openstack.exceptions.HttpException: the service refused, with its reason.
        """
        self._act(session, "disable", "2.3")
        return self

    def _act(self, session: Any, action: str, microversion: str) -> None:
        answer = session.post(f"{self.base_path}/{self.id}/{action}", microversion=microversion)
        exceptions.raise_from_response(answer)
