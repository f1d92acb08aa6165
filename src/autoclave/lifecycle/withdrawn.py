"""Devices that must not be offered, of which Placement may not have been told."""

from oslo_log import log as logging

from autoclave.db import devices as device_rows
from autoclave.db.devices import DeviceRecord
from autoclave.exceptions import PlacementError, PlacementNotFound, PlacementUnavailable
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.settle import settle

LOG = logging.getLogger(__name__)

ROUND = 50
"""Devices that one round tells of: few enough that no sweep waits long for it."""


class Withdrawals:
    """Tells Placement of each of them, once for each time that it was withdrawn.

    Whoever withdraws a device tells Placement himself, and if that is away, or he dies in between, the agent of the
    device's host does in its next period. This is for hosts that no agent serves. What was told is remembered by
    this process alone: one that has just started tells of all. Raising is always safe (design §3, rule 2).
    """

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._told: dict[str, tuple[object, ...]] = {}

    def tell(self) -> None:
        """One round. What Placement does not hear is told in the next.

        :raises DatabaseUnavailable: nothing could be read.
        """
        with self._ports.db.read() as tx:
            withdrawn = {device.uuid: device for device in device_rows.withdrawn(tx)}
        self._told = {uuid: told for uuid, told in self._told.items() if uuid in withdrawn}
        untold = [device for device in withdrawn.values() if self._told.get(device.uuid) != _version(device)]
        for device in untold[:ROUND]:
            try:
                settle(self._ports.db, self._ports.placement, device.uuid)
            except PlacementNotFound:
                LOG.debug("Device %s has no provider; whoever makes it reserves it.", device.uuid)
            except PlacementUnavailable as error:
                LOG.warning("Placement does not know yet that device %s must not be offered: %s", device.uuid, error)
                return
            except PlacementError as error:
                LOG.warning("Placement does not know yet that device %s must not be offered: %s", device.uuid, error)
                continue
            self._told[device.uuid] = _version(device)


def _version(device: DeviceRecord) -> tuple[object, ...]:
    return device.state_version, device.release_number, device.offer
