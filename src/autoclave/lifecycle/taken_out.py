"""A host that is taken out of the cloud: its agent will say nothing of it any more.

What may hold somebody's data stays on record, and is not offered: its devices are ``missing``, until an operator
forgets each or the host reports again; what is burned stays burned; the ledger of dirty drives stays as it is.
"""

from dataclasses import replace
from datetime import timedelta

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.db import agents as agent_rows
from autoclave.db import arqs as arq_rows
from autoclave.db import devices as device_rows
from autoclave.db import hosts as host_rows
from autoclave.db import instances as instance_rows
from autoclave.db.agents import AgentRecord
from autoclave.db.devices import DeviceRecord
from autoclave.db.hosts import ComputeHostRecord
from autoclave.exceptions import Conflict, NotFound, PlacementConflict, PlacementNotFound
from autoclave.lifecycle.intent import tell_placement
from autoclave.lifecycle.missing import miss
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.transitions import Cause, swap
from autoclave.placement.client import PlacementClient
from autoclave.placement.provider_tree import change_inventories, delete_provider, reserve_all
from autoclave.rules.device_lifecycle import BEING_CLEANED, Event

LOG = logging.getLogger(__name__)

_REASON = "its host was taken out of the cloud"
_NAMED = 3
"""Of so many instances a refusal says the uuid."""
_ATTEMPTS = 4


def take_out(ports: Ports, host_uuid: str, cause: Cause, patience: timedelta) -> None:
    """Forget a host that runs instances, and its agent.

    Placement comes first, since nobody would come back to the host's root once the host is forgotten. That an agent
    which reports again takes the host in anew undoes all of it.

    :param patience: how long an agent may be silent before it counts as dead.
    :raises NotFound: there is no such host.
    :raises Conflict: its agent lives, or it has instances, or requests hold its devices.
    :raises PlacementError: Placement could not be told; the host is there as before, and may be taken out again.
    """
    with ports.db.read() as tx:
        host, _ = _idle(tx, ports, host_uuid, patience)
    _withdraw(ports.placement, host.rp_uuid)

    def forget(tx: Connection) -> list[DeviceRecord]:
        present, agent = _idle(tx, ports, host_uuid, patience)
        devices = [device for device in device_rows.list_all(tx, hostname=present.hostname) if not device.missing]
        for device in devices:
            if device.device_state in BEING_CLEANED:
                swap(tx, device, Event.CRASH_RECOVERY, replace(cause, reason=_REASON))
            miss(tx, device.uuid, cause, _REASON)
        host_rows.delete(tx, present)
        if agent is not None and not agent_rows.delete(tx, agent):
            raise _alive(present)
        return devices

    devices = ports.db.transact(forget)
    LOG.info("Host %s is taken out, says %s; %d devices of it are missing now.", host.hostname, cause, len(devices))
    for device in devices:
        tell_placement(ports, device.uuid)


def _idle(
    tx: Connection, ports: Ports, host_uuid: str, patience: timedelta
) -> tuple[ComputeHostRecord, AgentRecord | None]:
    host = host_rows.get(tx, host_uuid)
    if host is None:
        raise NotFound(f"Service {host_uuid} could not be found.")
    agent = agent_rows.get(tx, host.hostname)
    if agent is not None and ports.clock() - agent.last_seen <= patience:
        raise _alive(host)
    instances = [instance.uuid for instance in instance_rows.on_host(tx, host.hostname)]
    if instances:
        more = f" and {len(instances) - _NAMED} more" if len(instances) > _NAMED else ""
        raise Conflict(
            f"Host {host.hostname} has instances: {', '.join(instances[:_NAMED])}{more}. Delete them, and let its "
            "agent, or one in its place, end that."
        )
    for device in device_rows.list_all(tx, hostname=host.hostname):
        holders = arq_rows.active_of_device(tx, device.id)
        if holders:
            raise Conflict(f"Device {device.slot} is held by accelerator request {holders[0].uuid}: delete that first.")
    return host, agent


def _alive(host: ComputeHostRecord) -> Conflict:
    return Conflict(
        f"The agent of {host.hostname} is alive, or was a moment ago, and would report the host again: stop it, and "
        "wait until the service is down."
    )


def _withdraw(placement: PlacementClient, root: str) -> None:
    """Have Placement offer nothing of a host: without a root's VCPU and memory nobody gets what is below it."""
    try:
        if [provider.uuid for provider in placement.providers_in_tree(root)] == [root]:
            delete_provider(placement, root)
            return
    except PlacementConflict as error:
        LOG.warning("Provider %s stays, reserved: %s", root, error)
    try:
        change_inventories(placement, root, reserve_all)
    except PlacementNotFound:
        LOG.debug("Provider %s is gone already", root)
