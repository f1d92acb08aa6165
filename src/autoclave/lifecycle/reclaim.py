"""Take devices back: suspect ones, those of removed hosts, and those of vanished instances.

An audit or a restored backup marks devices suspect. The devices of a removed host become ``missing``: they stay on
record and are not offered until an operator forgets them or the host reports again. Burned devices stay burned, and the
ledger of dirty drives is kept.

The agent normally takes PCI functions back when it deletes their instance. If the instance has vanished, an operator
must do so, after verifying that no guest has the function.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.db import agents as agent_rows
from autoclave.db import arqs, pci
from autoclave.db import arqs as arq_rows
from autoclave.db import devices as device_rows
from autoclave.db import hosts as host_rows
from autoclave.db import instances as instance_rows
from autoclave.db.agents import AgentRecord
from autoclave.db.devices import DeviceRecord
from autoclave.db.engine import Database
from autoclave.db.hosts import ComputeHostRecord
from autoclave.db.pci import FunctionRecord
from autoclave.exceptions import Conflict, NotFound, PlacementConflict, PlacementNotFound, StateConflict
from autoclave.lifecycle.claims import leave
from autoclave.lifecycle.operator import tell_placement
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.requests import end_unbind, fail_bind
from autoclave.lifecycle.reserve import raise_reserved, settle_others
from autoclave.lifecycle.transitions import Cause, miss, remark, swap
from autoclave.placement.client import PlacementClient
from autoclave.placement.provider_tree import change_inventories, delete_provider, reserve_all
from autoclave.rules.device_lifecycle import BEING_CLEANED, ARQState, DeviceState, Event
from autoclave.rules.instance_states import UNSETTLED

LOG = logging.getLogger(__name__)


def distrust(db: Database, placement: PlacementClient, uuid: str, version: int, cause: Cause) -> bool:
    """Mark an available device suspect: available → error, and ``reserved=total``.

    :param version: version of the row that was judged; a newer row is left alone.
    :returns: whether Placement is reconciled.
    :raises StateConflict: the row has changed, is gone, or is not available.
    """
    return _told(db, placement, db.transact(lambda tx: swap(tx, _locked(tx, uuid, version), Event.DISTRUST, cause)))


def quarantine(db: Database, placement: PlacementClient, uuid: str, version: int, cause: Cause) -> bool:
    """Quarantine a device: available or allocated → error, and ``reserved=total``. Unfinished requests end with it.

    :param version: see :func:`distrust`.
    :returns: whether Placement is reconciled.
    :raises StateConflict: the row has changed or is gone, or a request in Bound holds the device.
    """

    def write(tx: Connection) -> DeviceRecord:
        device = _locked(tx, uuid, version)
        if device.device_state is DeviceState.ALLOCATED:
            for arq in arq_rows.active_of_device(tx, device.id):
                if arq.state is ARQState.BIND_STARTED:
                    # This bind dates from the backup; Nova no longer waits for it.
                    fail_bind(tx, arq.uuid, cause.reason or "", event_debt=arqs.NOT_OWED)
                elif arq.state is ARQState.DELETING:
                    end_unbind(tx, arq)
        return swap(tx, device, Event.QUARANTINE, cause)

    with db.read() as tx:
        before = device_rows.get(tx, uuid)
    if before is not None and before.device_state is DeviceState.ALLOCATED:
        # A client may drop its allocation as soon as its request is gone, so reserved=total must be written first.
        raise_reserved(db, placement, uuid)
    return _told(db, placement, db.transact(write))


def _locked(tx: Connection, uuid: str, version: int) -> DeviceRecord:
    device = device_rows.get(tx, uuid, lock=True)
    if device is None or device.state_version != version:
        raise StateConflict(f"device {uuid} has changed since it was looked at")
    return device


def _told(db: Database, placement: PlacementClient, device: DeviceRecord) -> bool:
    LOG.warning("Device %s (%s) is in error: %s", device.uuid, device.slot, device.state_reason)
    told = raise_reserved(db, placement, device.uuid)
    settle_others(db, placement, device)
    return told


_REASON = "its host was taken out of the cloud"
_NAMED = 3
"""Maximum number of instance UUIDs in a refusal."""


def take_out(ports: Ports, host_uuid: str, cause: Cause, patience: timedelta) -> None:
    """Remove a compute host and its agent from the record.

    Placement is updated first, because nothing reconciles the host's root provider once the host is forgotten. An agent
    that reports again registers the host again, which reverses the removal.

    :param patience: silence after which an agent counts as dead.
    :raises NotFound: no such host.
    :raises Conflict: its agent is alive, it has instances, or requests hold its devices.
    :raises PlacementError: Placement failed; the host is unchanged, and the removal can be retried.
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
    """Stop Placement from offering a host: without the root's VCPU and memory, the providers below it are unusable."""
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


@dataclass(frozen=True)
class TakenBack:
    """Report what became of one function.

    :param instance_uuid: the instance that had it; None if none had, and nothing was done.
    :param device: its device as it is now.
    """

    address: str
    instance_uuid: str | None
    device: DeviceRecord


def take_back(db: Database, host: str, addresses: Sequence[str], cause: Cause) -> list[TakenBack]:
    """Take functions of one host back, all or none, each with an event in its device's history.

    Each device then moves on by its reclaim policy. A one-time-use device is spent and unconfirmed: no instance may
    claim it, whatever Placement has, until it was seen idle and reserved, and was released. The caller must reconcile
    the devices afterwards.

    :raises NotFound: the host has no such function on record.
    :raises Conflict: its instance is on the host, or is being built or deleted.
    """

    def work(tx: Connection) -> list[TakenBack]:
        owned = {each.id: each.device for each in pci.providers(tx, host, lock=True)}
        taken = []
        for address, function in on_record(tx, host, addresses).items():
            before = owned[function.provider_id]
            if function.instance_uuid is not None:
                _require_not_there(tx, function, function.instance_uuid)
                owned[before.id] = _take(tx, before, function, function.instance_uuid, cause)
            taken.append((address, function.instance_uuid, before.id))
        return [TakenBack(address, instance, owned[device_id]) for address, instance, device_id in taken]

    return db.transact(work)


def on_record(tx: Connection, host: str, addresses: Sequence[str]) -> dict[str, FunctionRecord]:
    """Return functions of one host by their addresses.

    :raises NotFound: the host has no such function on record.
    """
    known = {each.address: each for each in pci.functions(tx, host)}
    for address in addresses:
        if address not in known:
            raise NotFound(f"{host} has no PCI function {address} for instances on record.")
    return {address: known[address] for address in addresses}


def _require_not_there(tx: Connection, function: FunctionRecord, instance_uuid: str) -> None:
    instance = instance_rows.get(tx, instance_uuid, lock=True)
    if instance is None:
        return
    if instance.task_state in UNSETTLED:
        raise Conflict(
            f"{function.address} of {function.hostname} is instance {instance_uuid}'s, which is {instance.task_state}: "
            "wait until that is over."
        )
    if instance.host == function.hostname:
        raise Conflict(
            f"{function.address} of {function.hostname} is instance {instance_uuid}'s, which is on that host: delete "
            "the instance, and its agent takes the function back."
        )


def _take(
    tx: Connection, device: DeviceRecord, function: FunctionRecord, instance_uuid: str, cause: Cause
) -> DeviceRecord:
    why = f"taken back from instance {instance_uuid}" + (f": {cause.reason}" if cause.reason else "")
    told = replace(cause, reason=why, evidence={"function": function.address, "instance": instance_uuid})
    if not pci.free(tx, function):
        raise Conflict(f"{function.address} of {function.hostname} was changed at the same moment.")
    remark(tx, device, "take_back", told, {})
    return leave(tx, device, instance_uuid, told)
