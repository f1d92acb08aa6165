"""Reconcile the devices that ``[pci] device_spec`` selects with the host and that option.

A device in use or burned stays as it is until that ends. Only then it follows the configuration, or is removed. A
burned card stays burned when it is moved to another slot or host, as a dirty drive stays dirty.
"""

import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.db import attributes as attribute_rows
from autoclave.db import devices as device_rows
from autoclave.db import hosts, pci
from autoclave.db.devices import burned_for
from autoclave.db.pci import FunctionRecord, ProviderRecord
from autoclave.db.tables import DeviceType
from autoclave.exceptions import StateConflict
from autoclave.lifecycle.claims import burn
from autoclave.lifecycle.operator import debt
from autoclave.lifecycle.transitions import Cause, note_burned_card, remark, tell_history
from autoclave.rules.device_lifecycle import Actor, DeviceState
from autoclave.rules.pci_inventory import FUNCTIONS_DRIVER, ONE_TIME_USE, ClaimableFunction, PCIProvider
from autoclave.rules.reclaim import Reclaim
from autoclave.rules.resource_names import provider_name

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Adopted:
    """Describe a provider that exists in Placement before its row is inserted or becomes one-time-use.

    :param used: the provider has an allocation without an instance on record.
    """

    uuid: str
    used: bool


@dataclass
class Changes:
    """Hold the differences between the rows and what they should contain.

    :ivar withdrawn: providers to remove: not configured, not in use, and not burned unless released.
    :ivar kept: differences left for later, each described for the operator.
    """

    new: list[PCIProvider] = field(default_factory=list)
    providers: list[tuple[ProviderRecord, dict[str, Any]]] = field(default_factory=list)
    new_functions: list[tuple[ProviderRecord, ClaimableFunction]] = field(default_factory=list)
    functions: list[tuple[FunctionRecord, dict[str, Any]]] = field(default_factory=list)
    gone_functions: list[FunctionRecord] = field(default_factory=list)
    burn: list[tuple[ProviderRecord, str]] = field(default_factory=list)
    withdrawn: list[ProviderRecord] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    @property
    def becoming_one_time_use(self) -> list[ProviderRecord]:
        """Return providers on record that become one-time-use, and that no instance has according to the rows."""
        burned = {row.id for row, _ in self.burn}
        return [
            row
            for row, values in self.providers
            if values.get("reclaim") is Reclaim.HOLD and not row.burned and row.id not in burned
        ]

    @property
    def to_write(self) -> bool:
        """Return whether any row must be written."""
        return bool(
            self.new or self.providers or self.new_functions or self.functions or self.gone_functions or self.burn
        )


def changes(
    tx: Connection, hostname: str, wanted: Sequence[PCIProvider], unreadable: Collection[str], *, lock: bool = False
) -> Changes:
    """Compare the rows of a host with its PCI functions and its configuration.

    :param unreadable: addresses of functions that are present but cannot be read; their providers are skipped.
    :param lock: lock the rows until the transaction ends, so that :func:`apply` can write and no instance can claim.
    """
    found = Changes()
    rows = pci.providers(tx, hostname, driver=FUNCTIONS_DRIVER, lock=lock)
    members: dict[int, list[FunctionRecord]] = {row.id: [] for row in rows}
    for function in pci.functions(tx, hostname):
        if function.provider_id in members:
            members[function.provider_id].append(function)
    by_address = {str(each.address): each for each in wanted}
    known = {row.address for row in rows}
    found.new = [each for address, each in by_address.items() if address not in known]
    for row in rows:
        own = members[row.id]
        if not {row.address, *(each.address for each in own)}.isdisjoint(unreadable):
            continue
        if row.address in by_address:
            _compare(found, row, own, by_address[row.address])
        else:
            _withdraw(found, row, own)
    _wait_for_former_slots(found, {each.address for own in members.values() for each in own})
    return found


def _wait_for_former_slots(found: Changes, taken: set[str]) -> None:
    """Postpone functions that are still on record in another slot, until they are removed there."""
    found.new_functions = [each for each in found.new_functions if str(each[1].address) not in taken]
    found.new = [each for each in found.new if taken.isdisjoint(str(function.address) for function in each.functions)]


def _compare(found: Changes, row: ProviderRecord, own: Sequence[FunctionRecord], wanted: PCIProvider) -> None:
    held = [each for each in own if each.instance_uuid is not None]
    bound = held or (list(own) if row.device.device_state is DeviceState.SPENT else [])
    later = _later(row, bound, wanted)
    waiting = []
    if later:
        why = f"instance {held[0].instance_uuid} has it" if held else "it is burned; release it"
        waiting.append(
            f"{row.address} stays as it is; [pci] device_spec takes effect later ({', '.join(later)}): {why}"
        )
    given = {str(each.address): each for each in wanted.functions}
    if not later:
        known = {each.address for each in own}
        found.new_functions += [(row, each) for address, each in given.items() if address not in known]
    held_back = 0
    for function in own:
        described = given.get(function.address)
        if described is not None:
            _describe(found, function, described)
            if function.instance_uuid is not None and function.managed != described.managed:
                waiting.append(
                    f"managed={described.managed} of {function.address} takes effect later: instance "
                    f"{function.instance_uuid} has it"
                )
        elif function in bound:
            held_back += 1
            _miss(found, function)
            if not later:
                waiting.append(
                    f"{function.address} is gone from the host or from [pci] device_spec, and is kept: instance "
                    f"{function.instance_uuid} has it"
                )
        else:
            found.gone_functions.append(function)
    reclaim = wanted.reclaim if _is_whole(wanted) == _was_whole(row, bound or own) else row.device.reclaim
    values: dict[str, Any] = {
        "resource_class": wanted.resource_class,
        "traits": wanted.traits | ({ONE_TIME_USE} if row.burned else frozenset()),
        "total": wanted.total + held_back,
        "reclaim": wanted.reclaim,
        "std_board_info": _board_info(wanted),
    }
    if later:
        values = {
            "resource_class": row.resource_class,
            "traits": row.trait_names | ({ONE_TIME_USE} if reclaim is Reclaim.HOLD else frozenset()),
            "total": len(bound),
            "reclaim": reclaim,
        }
    if row.device.keeps_erase(values["reclaim"]):
        values |= {"reclaim": row.device.reclaim, "std_board_info": row.device.std_board_info}
        waiting.append(f"reclaim={wanted.reclaim} of {row.address} takes effect later: it must be erased first")
    if row.burned and values["reclaim"] is not Reclaim.HOLD:
        waiting.append(f"{row.address} is of one time use no more, but burned, and stays so until it is released")
    found.kept += waiting
    missing = bool(own) and not any(each.address in given for each in own) and not _gets_functions(found, row)
    values |= {"waiting_for": "; ".join(waiting) or None, "outdated": bool(later), "missing": missing}
    _update(found, row, values)
    if values["reclaim"] is Reclaim.HOLD and held and not row.burned:
        found.burn.append((row, str(held[0].instance_uuid)))


def _gets_functions(found: Changes, row: ProviderRecord) -> bool:
    """Return whether *row* gets new functions."""
    return any(each.id == row.id for each, _ in found.new_functions)


def _later(row: ProviderRecord, bound: Sequence[FunctionRecord], wanted: PCIProvider) -> list[str]:
    """Return the changes that wait until *bound*, the functions in use or burned, are free; empty if none waits."""
    if not bound:
        return []
    later = []
    if _is_whole(wanted) != _was_whole(row, bound):
        later.append("the whole device" if _is_whole(wanted) else "its virtual functions")
    if wanted.resource_class != row.resource_class:
        later.append(f"class {wanted.resource_class}")
    if wanted.traits - {ONE_TIME_USE} != row.trait_names - {ONE_TIME_USE}:
        later.append(f"traits {' '.join(sorted(wanted.traits))}")
    return later


def _is_whole(wanted: PCIProvider) -> bool:
    return wanted.functions[0].address == wanted.address


def _was_whole(row: ProviderRecord, own: Sequence[FunctionRecord]) -> bool:
    return any(each.address == row.address for each in own)


def _withdraw(found: Changes, row: ProviderRecord, own: Sequence[FunctionRecord]) -> None:
    held = [each for each in own if each.instance_uuid is not None]
    for function in own:
        _miss(found, function)
    if not held and row.device.device_state is not DeviceState.SPENT and not _is_busy(row):
        found.withdrawn.append(row)
        _update(found, row, {"missing": True})
        return
    why = f"it is {row.device.device_state}, and must not be forgotten before it is clean"
    if held:
        why = f"instance {held[0].instance_uuid} has it"
    elif row.burned:
        why = "it is burned, and must not be forgotten before its release"
    waiting = f"{row.address} is not there, or not configured, any more; its provider is kept: {why}"
    found.kept.append(waiting)
    _update(found, row, {"total": len(held) or row.total, "waiting_for": waiting, "outdated": True, "missing": True})


def _is_busy(row: ProviderRecord) -> bool:
    """Return whether the device is being cleaned, or must be before it may be forgotten."""
    return row.device.device_state not in (DeviceState.AVAILABLE, DeviceState.SPENT)


def _describe(found: Changes, function: FunctionRecord, described: ClaimableFunction) -> None:
    values: dict[str, Any] = {
        "dev_type": described.dev_type.value,
        "vendor_id": described.vendor_id,
        "product_id": described.product_id,
        "missing": False,
    }
    if function.instance_uuid is None:  # a running guest keeps its managed mode
        values["managed"] = described.managed
    if any(getattr(function, name) != value for name, value in values.items()):
        found.functions.append((function, values))


def _miss(found: Changes, function: FunctionRecord) -> None:
    if not function.missing:
        found.functions.append((function, {"missing": True}))


def _update(found: Changes, row: ProviderRecord, values: Mapping[str, Any]) -> None:
    known = {
        "resource_class": row.resource_class,
        "traits": row.trait_names,
        "total": row.total,
        "reclaim": row.device.reclaim,
        "std_board_info": row.device.std_board_info,
        "waiting_for": row.device.waiting_for,
        "outdated": row.device.outdated,
        "missing": row.device.missing,
    }
    different = {name: value for name, value in values.items() if known[name] != value}
    if different:
        found.providers.append((row, different))


def apply(tx: Connection, hostname: str, found: Changes, adopted: Mapping[str, Adopted], now: datetime) -> None:
    """Write the differences that :func:`changes` found with ``lock``, in the same transaction.

    Withdrawn providers are removed later, by ``pci.delete``.

    A device that becomes one-time-use while an instance has it is burned in this transaction, without a gap. A device
    allocated by an unknown consumer is burned as well, because that consumer may use it.

    :param adopted: existing providers in Placement, by address, for rows that are new or become one-time-use.
    """
    late = [row for row in found.becoming_one_time_use if row.address in adopted and adopted[row.address].used]
    for row, values in found.providers:
        _describe_device(tx, row, values)
    for function, values in found.functions:
        pci.describe_function(tx, function, values)
    pci.delete_functions(tx, [each.id for each in found.gone_functions])
    for row, described in found.new_functions:
        pci.insert_functions(tx, row.id, [_function(described)])
    for row, holder in found.burn:
        cause = Cause(Actor.AGENT, hostname, reason=f"it is one-time-use now, and instance {holder} has it")
        _burn(tx, row, holder, cause, now)
    for row in late:
        cause = Cause(Actor.AGENT, hostname, reason="it is one-time-use now, and an unknown consumer has allocated it")
        _burn(tx, row, None, cause, now)
    for wanted in found.new:
        _insert(tx, hostname, wanted, adopted.get(str(wanted.address)), now)


def _describe_device(tx: Connection, row: ProviderRecord, values: Mapping[str, Any]) -> None:
    own = dict(values)
    if "resource_class" in own:
        device_rows.set_resource_class(tx, row.deployable, own.pop("resource_class"))
    if "total" in own:
        device_rows.set_accelerators(tx, row.deployable, own.pop("total"))
    if "traits" in own:
        attribute_rows.replace(tx, row.deployable.id, _attributes(row.resource_class, own.pop("traits")))
    if own.get("missing") is False:
        own |= debt(row.device)
    if own:
        device_rows.update(tx, row.device, own)


def _burn(tx: Connection, row: ProviderRecord, instance_uuid: str | None, cause: Cause, now: datetime) -> None:
    """Burn a device whose row this transaction has locked; its state is as the caller has read it."""
    device = device_rows.get_by_id(tx, row.id, lock=True)
    if device is not None:
        burn(tx, device, instance_uuid, cause, now)


def _insert(tx: Connection, hostname: str, wanted: PCIProvider, adopted: Adopted | None, now: datetime) -> None:
    burned = adopted is not None and adopted.used and wanted.reclaim is Reclaim.HOLD
    first = wanted.functions[0]
    device = {
        "uuid": adopted.uuid if adopted else str(uuid.uuid4()),
        "type": DeviceType.PCI,
        "vendor": first.vendor_id,
        "model": first.product_id,
        "std_board_info": _board_info(wanted),
        "hostname": hostname,
        "reclaim": wanted.reclaim,
        "device_state": DeviceState.SPENT if burned else DeviceState.AVAILABLE,
        "pci_address": str(wanted.address),
        "host_maintained": hosts.get_maintenance(tx, hostname) is not None,
        **(burned_for(None, now) if burned else {}),
    }
    deployable = {
        "name": provider_name(hostname, wanted.address),
        "num_accelerators": wanted.total,
        "resource_class": wanted.resource_class,
    }
    device_id = pci.insert_function_device(tx, device, deployable)
    pci.insert_functions(tx, device_id, [_function(each) for each in wanted.functions])
    made = pci.get(tx, str(device["uuid"]))
    assert made is not None, "the row that this transaction has just inserted"
    attribute_rows.replace(tx, made.deployable.id, _attributes(wanted.resource_class, wanted.traits))
    reason = "it was in Placement before it was on record, and is in use" if burned else "first discovery"
    cause = Cause(Actor.AGENT, hostname, reason=reason)
    tell_history(tx, made.device, None, made.device.device_state, "discovered", cause)
    if burned:
        note_burned_card(tx, made.device)


def _function(described: ClaimableFunction) -> dict[str, Any]:
    return {
        "address": str(described.address),
        "dev_type": described.dev_type.value,
        "vendor_id": described.vendor_id,
        "product_id": described.product_id,
        "managed": described.managed,
    }


def _attributes(resource_class: str, traits: Collection[str]) -> dict[str, str]:
    return {"rc": resource_class, **{f"trait{number}": trait for number, trait in enumerate(sorted(traits))}}


def _board_info(wanted: PCIProvider) -> str | None:
    """Return ``std_board_info``, with the cleanup action locked in."""
    if wanted.cleanup_action is None:
        return None
    return json.dumps({"cleanup_action": wanted.cleanup_action})


def withdraw(tx: Connection, provider: ProviderRecord) -> bool:
    """Remove a device that is no longer configured, if it is unchanged, idle and available.

    :returns: whether it was removed.
    """
    device = device_rows.get_by_id(tx, provider.id, lock=True)
    if device is None or device.state_version != provider.device.state_version or pci.is_claimed(tx, device.id):
        return False
    if device.device_state is not DeviceState.AVAILABLE:
        return False
    if device.serial is not None:
        pci.remove(tx, device.serial, device.uuid)
    remark(tx, device, "withdrawn", Cause(Actor.AGENT, device.hostname, reason="it is no longer configured"), {})
    device_rows.delete(tx, device)
    return True


_ONE_MOVED = 1
"""Maximum number of other slots on record for a moved card; a serial in more slots does not identify a card."""


def cards_differ(tx: Connection, hostname: str, serials: Mapping[str, str]) -> bool:
    """Return whether :func:`follow_cards` would write anything."""
    rows = pci.providers(tx, hostname, driver=FUNCTIONS_DRIVER)
    return any(_changed(row, serials) for row in rows)


def follow_cards(tx: Connection, hostname: str, serials: Mapping[str, str], now: datetime) -> None:
    """Record which cards are in the slots of a host, and burn those that were burned elsewhere.

    The device of the former slot stays burned until its own release, because the card in that slot is unknown.

    :param serials: serial numbers by slot address, for cards whose serial could be read.
    """
    for row in pci.providers(tx, hostname, driver=FUNCTIONS_DRIVER, lock=True):
        if not _changed(row, serials):
            continue
        serial = serials[row.address]
        others = [each for each in pci.with_serial(tx, serial) if each.uuid != row.uuid]
        device_rows.update(tx, row.device, {"serial": serial})
        device = device_rows.get_by_id(tx, row.id)
        assert device is not None, "the row that this transaction has just updated"
        burned_by = pci.noted_by(tx, serial)
        if row.burned and row.serial is None and burned_by is None:
            note_burned_card(tx, device)  # burned before its serial was known
        elif not row.burned and burned_by not in (None, row.uuid) and len(others) <= _ONE_MOVED:
            former = pci.get(tx, burned_by or "")
            where = f"in slot {former.address} of host {former.hostname}" if former else "in a slot forgotten since"
            cause = Cause(Actor.AGENT, hostname, reason=f"its card {serial} was burned {where}")
            try:
                burn(tx, device, former.device.burned_for if former else None, cause, now)
            except StateConflict as error:
                LOG.error("%s of %s should be burned: %s. %s", row.address, hostname, cause.reason, error)
                continue
            LOG.warning("%s of %s is burned: %s.", row.address, hostname, cause.reason)


def _changed(row: ProviderRecord, serials: Mapping[str, str]) -> bool:
    return serials.get(row.address, row.serial) != row.serial
