"""Reconcile the rows of a host's PCI functions with the host and ``[pci] device_spec``.

A row in use or burned stays as it is until that ends. Only then it follows the configuration, or is removed.
"""

import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy.engine import Connection

from autoclave.db import pci
from autoclave.db.pci import FunctionRecord, ProviderRecord
from autoclave.lifecycle.transitions import Cause, move, record
from autoclave.rules.burn import BurnEvent
from autoclave.rules.device_lifecycle import Actor
from autoclave.rules.pci_inventory import ONE_TIME_USE, ClaimableFunction, PCIProvider


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
            if values.get("one_time_use") and not row.burned and row.id not in burned
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
    rows = pci.providers(tx, hostname, lock=lock)
    members: dict[int, list[FunctionRecord]] = {row.id: [] for row in rows}
    for function in pci.functions(tx, hostname):
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
    bound = held or (list(own) if row.burned and not row.release_pending else [])
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
    one_time_use = wanted.one_time_use if _is_whole(wanted) == _was_whole(row, bound or own) else row.one_time_use
    values: dict[str, Any] = {
        "resource_class": wanted.resource_class,
        "traits": wanted.traits | ({ONE_TIME_USE} if row.burned else frozenset()),
        "total": wanted.total + held_back,
        "one_time_use": wanted.one_time_use,
    }
    if later:
        values = {
            "resource_class": row.resource_class,
            "traits": row.trait_names | ({ONE_TIME_USE} if one_time_use else frozenset()),
            "total": len(bound),
            "one_time_use": one_time_use,
        }
    if row.burned and not values["one_time_use"]:
        waiting.append(f"{row.address} is of one time use no more, but burned, and stays so until it is released")
    found.kept += waiting
    values |= {
        "traits": _as_json(values["traits"]),
        "waiting_for": "; ".join(waiting) or None,
        "outdated": bool(later),
    }
    _update(found, row, values)
    if values["one_time_use"] and held and not row.burned:
        found.burn.append((row, str(held[0].instance_uuid)))


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
    if not held and (not row.burned or row.release_pending):
        found.withdrawn.append(row)
        return
    why = (
        f"instance {held[0].instance_uuid} has it"
        if held
        else "it is burned, and must not be forgotten before its release"
    )
    waiting = f"{row.address} is not there, or not configured, any more; its provider is kept: {why}"
    found.kept.append(waiting)
    _update(found, row, {"total": len(held) or row.total, "waiting_for": waiting, "outdated": True})


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
    different = {name: value for name, value in values.items() if getattr(row, name) != value}
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
        pci.describe(tx, row, values)
    for function, values in found.functions:
        pci.describe_function(tx, function, values)
    pci.delete_functions(tx, [each.id for each in found.gone_functions])
    for row, described in found.new_functions:
        pci.insert_functions(tx, [_function(hostname, row.id, described)])
    for row, holder in found.burn:
        cause = Cause(Actor.AGENT, hostname, reason=f"it is of one time use now, and instance {holder} has it")
        move(tx, row, BurnEvent.BURN, cause, pci.burned_for(holder, now))
    for row in late:
        cause = Cause(Actor.AGENT, hostname, reason="it is of one time use now, and is allocated to nobody on record")
        move(tx, row, BurnEvent.BURN, cause, pci.burned_for(None, now))
    for wanted in found.new:
        _insert(tx, hostname, wanted, adopted.get(str(wanted.address)), now)


def _insert(tx: Connection, hostname: str, wanted: PCIProvider, adopted: Adopted | None, now: datetime) -> None:
    values: dict[str, Any] = {
        "uuid": adopted.uuid if adopted else str(uuid.uuid4()),
        "hostname": hostname,
        "address": str(wanted.address),
        "resource_class": wanted.resource_class,
        "traits": _as_json(wanted.traits),
        "total": wanted.total,
        "one_time_use": wanted.one_time_use,
    }
    if adopted is not None and adopted.used and wanted.one_time_use:
        values |= pci.burned_for(None, now)
    provider_id = pci.insert_provider(tx, values)
    pci.insert_functions(tx, [_function(hostname, provider_id, each) for each in wanted.functions])
    if "burned" in values and (made := pci.get(tx, values["uuid"])) is not None:
        cause = Cause(Actor.AGENT, hostname, reason="it was in Placement before it was on record, and somebody uses it")
        record(tx, None, made, BurnEvent.BURN, cause)


def _function(hostname: str, provider_id: int, described: ClaimableFunction) -> dict[str, Any]:
    return {
        "provider_id": provider_id,
        "hostname": hostname,
        "address": str(described.address),
        "dev_type": described.dev_type.value,
        "vendor_id": described.vendor_id,
        "product_id": described.product_id,
        "managed": described.managed,
    }


def _as_json(traits: Collection[str]) -> str:
    return json.dumps(sorted(traits))
