"""Devices that must not be offered, of which Placement may not have been told."""

from collections import Counter

from oslo_log import log as logging

from autoclave.db import devices as device_rows
from autoclave.db.devices import DeviceRecord
from autoclave.db.engine import Database
from autoclave.exceptions import PlacementError, PlacementNotFound, PlacementUnavailable
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.reserve import settle
from autoclave.placement.client import PlacementClient
from autoclave.rules.device_lifecycle import must_be_reserved

LOG = logging.getLogger(__name__)

ROUND = 50
"""Devices that one round tells of: few enough that no sweep waits long for it."""

_UNTOLD = "Placement does not know yet that device %s must not be offered: %s"


def raise_reserved(db: Database, placement: PlacementClient, uuid: str) -> bool:
    """Tell Placement what the row of a device that must not be offered demands.

    :returns: whether it has been told. If not, the host's agent tells it, or a conductor does; see
        :class:`Withdrawals`.
    """
    try:
        settle(db, placement, uuid)
    except PlacementError as error:
        LOG.warning(_UNTOLD, uuid, error)
        return False
    return True


def settle_others(db: Database, placement: PlacementClient, device: DeviceRecord) -> None:
    """Tell Placement what became of the other rows by which the drive of *device* is on record.

    Their own hosts need not be served by anybody. What Placement cannot be told now is logged.
    """
    # The serial of what is not erased is shown only: several cards may have it.
    if device.serial is None or not device.supports_cleaning:
        return
    with db.read() as tx:
        others = device_rows.with_drive(tx, device.serial, device.drive_model or "")
    for other in others:
        if other.uuid != device.uuid and must_be_reserved(other.offer):
            raise_reserved(db, placement, other.uuid)


class Withdrawals:
    """Tells Placement of each of them, once for each time that it was withdrawn.

    Whoever withdraws a device tells Placement himself, and if that is away, or he dies in between, the agent of the
    device's host does in its next period. This is for hosts that no agent serves. What was told is remembered by
    this process alone: one that has just started tells of all. Raising is always safe (design §3, rule 2).
    """

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._told: dict[str, tuple[object, ...]] = {}
        self._failures: Counter[str] = Counter()
        """Of what is not told yet: what Placement refuses must not keep it from hearing of the rest."""

    def tell(self) -> None:
        """One round. What Placement does not hear is told in the next.

        :raises DatabaseUnavailable: nothing could be read.
        """
        with self._ports.db.read() as tx:
            withdrawn = {device.uuid: device for device in device_rows.withdrawn(tx)}
        self._told = {uuid: told for uuid, told in self._told.items() if uuid in withdrawn}
        untold = [device for device in withdrawn.values() if self._told.get(device.uuid) != _version(device)]
        self._failures = Counter({device.uuid: self._failures[device.uuid] for device in untold})
        for device in sorted(untold, key=lambda device: self._failures[device.uuid])[:ROUND]:
            try:
                settle(self._ports.db, self._ports.placement, device.uuid)
            except PlacementNotFound:
                LOG.debug("Device %s has no provider; whoever makes it reserves it.", device.uuid)
            except PlacementUnavailable as error:
                LOG.warning(_UNTOLD, device.uuid, error)
                return
            except PlacementError as error:
                LOG.warning(_UNTOLD, device.uuid, error)
                self._failures[device.uuid] += 1
                continue
            self._told[device.uuid] = _version(device)


def _version(device: DeviceRecord) -> tuple[object, ...]:
    return device.state_version, device.release_number, device.offer
