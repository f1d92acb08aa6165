"""One lock per device, within the one agent of a host."""

import threading

from autoclave.exceptions import DeviceLocked


class DeviceLocks:
    """Who works on which device. Nobody waits: a second worker is told who has it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._holders: dict[str, str] = {}

    def acquire(self, device_uuid: str, holder: str) -> None:
        """Take the device's lock for *holder*, a description of the work.

        :raises DeviceLocked: somebody has it.
        """
        with self._guard:
            present = self._holders.get(device_uuid)
            if present is not None:
                raise DeviceLocked(f"device {device_uuid} is still held by {present}")
            self._holders[device_uuid] = holder

    def release(self, device_uuid: str) -> None:
        """Give the lock back."""
        with self._guard:
            del self._holders[device_uuid]
