"""Give instances the devices that their flavors ask for, and take them back (one-time-use specification).

The caller's transaction assigns the functions and moves the device. It reconciles Placement before the guest can run,
and before it frees anything. After a crash in between, the instance still has its functions, and the next period of the
agent reserves the device.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy.engine import Connection

from autoclave.db import devices as device_rows
from autoclave.db import instances as instance_rows
from autoclave.db import pci
from autoclave.db.columns import utcnow
from autoclave.db.devices import NOT_BURNED, DeviceRecord, burned_for
from autoclave.db.engine import Database
from autoclave.db.pci import FunctionRecord, ProviderRecord
from autoclave.exceptions import StateConflict
from autoclave.lifecycle.tenants import of_instance
from autoclave.lifecycle.transitions import Cause, end_burn, remark, swap
from autoclave.rules.device_lifecycle import DeviceState, Event
from autoclave.rules.reclaim import Reclaim


def claim(
    tx: Connection,
    device: DeviceRecord,
    functions: Sequence[FunctionRecord],
    wanted: Sequence[FunctionRecord],
    instance_uuid: str,
    cause: Cause,
    now: datetime,
) -> DeviceRecord:
    """Give *wanted* to an instance. The device is ``allocated`` when instances have all of its functions.

    A device that does not return as it is has one instance at a time.

    :param device: its row, available, and locked by this transaction.
    :param functions: all functions of the device.
    :param wanted: free functions of it.
    :returns: the device as it is now.
    :raises StateConflict: a function is no longer free, or the drive is known to be dirty.
    """
    if not pci.claim(tx, [each.id for each in wanted], instance_uuid):
        raise StateConflict(f"{device.slot} was given to another instance at the same moment")
    told = _told(tx, cause, "claimed for", instance_uuid)
    left = [each for each in functions if each.instance_uuid is None and not each.missing and each not in wanted]
    if left and device.reclaim is Reclaim.NONE:
        remark(tx, device, Event.CLAIM.value, told, {})
        return device
    if device.reclaim is Reclaim.HOLD:
        return swap(tx, device, Event.CLAIM, told, burned_for(instance_uuid, now), locked=True)
    if device.burned_at is not None:
        # Released, and no longer one-time-use: it must not be spent again after this instance.
        end_burn(tx, device)
        device = replace(device, **NOT_BURNED)
    return swap(tx, device, Event.CLAIM, told, locked=True)


def free(tx: Connection, instance_uuid: str, cause: Cause) -> list[DeviceRecord]:
    """Take all functions of an instance back, and move their devices on by their reclaim policies.

    A one-time-use device becomes ``spent``. A device that is to be erased stays ``allocated`` until its agent begins to
    clean it.

    :returns: the devices as they are now.
    """
    own: defaultdict[int, list[FunctionRecord]] = defaultdict(list)
    for function in pci.functions_of_instances(tx, [instance_uuid]):
        own[function.provider_id].append(function)
    freed = []
    for device_id in sorted(own):  # in a fixed order, which prevents deadlocks
        device = device_rows.get_by_id(tx, device_id, lock=True)
        given = [pci.free(tx, each) for each in own[device_id]]
        if device is not None and any(given):
            freed.append(leave(tx, device, instance_uuid, _told(tx, cause, "returned by", instance_uuid)))
    return freed


def leave(tx: Connection, device: DeviceRecord, instance_uuid: str, cause: Cause) -> DeviceRecord:
    """Move a device on of which an instance has just left a function; return it as it is now.

    A device that became one-time-use while the instance had it, and that its agent has not burned yet, is burned here.
    Without that, no release would be possible.

    :param device: its row, locked by this transaction.
    """
    if device.device_state is not DeviceState.ALLOCATED:
        remark(tx, device, Event.RELEASE.value, cause, {})
        return device
    if device.is_held_back:
        burned = {} if device.burned_at is not None else burned_for(instance_uuid, utcnow())
        return swap(tx, device, Event.SPEND, cause, burned, locked=True)
    if device.supports_cleaning:
        remark(tx, device, "returned", cause, {})
        return device
    return swap(tx, device, Event.RELEASE, cause, locked=True)


def burn(tx: Connection, device: DeviceRecord, instance_uuid: str | None, cause: Cause, now: datetime) -> DeviceRecord:
    """Burn a one-time-use device that is, or was, in use without a claim; return it as it is now.

    :param instance_uuid: None if no instance is on record.
    :raises StateConflict: the row has changed, or the device is in a state that it cannot be burned in.
    """
    return swap(tx, device, Event.BURN, cause, burned_for(instance_uuid, now))


def burn_for_unknown(
    db: Database, provider: ProviderRecord, consumers: Iterable[str], now: datetime, by: Cause
) -> bool:
    """Burn a one-time-use device that consumers without an instance on record have allocated in Placement.

    The specification reserves every allocated PCI device, whatever its consumer is.

    :param by: the agent, for the history.
    :returns: whether *provider* was still current; if not, the next period retries.
    """
    names = ", ".join(sorted(consumers))
    cause = replace(by, reason=f"allocated by {names}, of which no instance is on record")

    def write(tx: Connection) -> bool:
        if pci.is_claimed(tx, provider.id):
            return False
        try:
            burn(tx, provider.device, None, cause, now)
        except StateConflict:
            return False
        return True

    return db.transact(write)


def _told(tx: Connection, cause: Cause, what: str, instance_uuid: str) -> Cause:
    instance = instance_rows.get(tx, instance_uuid)
    return of_instance(
        cause,
        what,
        instance_uuid=instance_uuid,
        project_id=instance.project_id if instance else None,
        user_id=instance.user_id if instance else None,
    )
