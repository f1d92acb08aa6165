"""Put a host into maintenance, and end that.

The host's record and the flags of its devices are written in one transaction. Placement follows, as in
``lifecycle.operator``. Devices in use keep their guests, and unbind and erase continue; only offering stops.
"""

from dataclasses import replace

from oslo_db.exception import DBDuplicateEntry
from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.db import devices as device_rows
from autoclave.db import hosts as rows
from autoclave.exceptions import Conflict, NotFound, PlacementError, PlacementUnavailable
from autoclave.lifecycle.operator import debt, tell_placement
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.reserve import settle
from autoclave.lifecycle.transitions import Cause, remark

LOG = logging.getLogger(__name__)


def begin(ports: Ports, hostname: str, cause: Cause) -> bool:
    """Stop offering the devices of a host until :func:`end`.

    A host already in maintenance keeps its first reason, and Placement is reconciled again.

    :returns: whether Placement is reconciled for all devices.
    :raises NotFound: no such host.
    """

    def record(tx: Connection) -> None:
        _require_host(tx, hostname)
        if rows.get_maintenance(tx, hostname) is None:
            rows.insert_maintenance(tx, hostname, cause.reason or "", str(cause))
        _flag_all(tx, hostname, cause, maintained=True)

    try:
        ports.db.transact(record)
    except DBDuplicateEntry:
        # A concurrent request inserted the host's row first; the retry finds it.
        ports.db.transact(record)
    LOG.info("Host %s is in maintenance, says %s: %s", hostname, cause, cause.reason)
    return _reconcile(ports, hostname)


def end(ports: Ports, hostname: str, cause: Cause) -> bool:
    """Offer the devices of a host again, except those withheld for another reason.

    :returns: whether Placement is reconciled for all devices.
    :raises NotFound: no such host.
    :raises Conflict: the host is not in maintenance.
    """

    def record(tx: Connection) -> None:
        _require_host(tx, hostname)
        if not rows.delete_maintenance(tx, hostname):
            raise Conflict(f"Host {hostname} is not in maintenance. `autoclave host list` shows which hosts are.")
        _flag_all(tx, hostname, cause, maintained=False)

    ports.db.transact(record)
    LOG.info("Host %s is out of maintenance, says %s.", hostname, cause)
    return _reconcile(ports, hostname)


def follow_hosts(ports: Ports, cause: Cause) -> None:
    """Set the maintenance flag of each device to that of its host.

    A device discovered while a maintenance begins or ends can miss the change.

    :raises DatabaseUnavailable: the database cannot be read or written.
    """
    with ports.db.read() as tx:
        unlike = rows.unlike_their_host(tx)
    for uuid in unlike:

        def record(tx: Connection, uuid: str = uuid) -> None:
            device = device_rows.get(tx, uuid, lock=True)
            if device is not None:
                maintained = rows.get_maintenance(tx, device.hostname) is not None
                _flag(tx, uuid, cause, maintained=maintained)

        ports.db.transact(record)
        tell_placement(ports, uuid)


def _require_host(tx: Connection, hostname: str) -> None:
    if hostname not in rows.hostnames(tx):
        raise NotFound(f"Host {hostname} not found. `autoclave host list` shows the hosts.")


def _flag_all(tx: Connection, hostname: str, cause: Cause, *, maintained: bool) -> None:
    for device in device_rows.list_all(tx, hostname=hostname):
        _flag(tx, device.uuid, cause, maintained=maintained)


def _flag(tx: Connection, uuid: str, cause: Cause, *, maintained: bool) -> None:
    device = device_rows.get(tx, uuid, lock=True)
    if device is None or device.host_maintained is maintained:
        return
    if maintained:
        remark(tx, device, "host_maintenance", cause, {"host_maintained": True})
    else:
        remark(tx, device, "host_resumed", replace(cause, evidence={}), {"host_maintained": False, **debt(device)})


def _reconcile(ports: Ports, hostname: str) -> bool:
    with ports.db.read() as tx:
        devices = device_rows.list_all(tx, hostname=hostname)
    agrees = True
    for device in devices:
        try:
            settle(ports.db, ports.placement, device.uuid)
        except PlacementUnavailable as error:
            LOG.warning("Host %s: its devices will be reconciled later: %s", hostname, error)
            return False
        except PlacementError as error:
            LOG.warning("Device %s will be reconciled later: %s", device.uuid, error)
            agrees = False
    return agrees
