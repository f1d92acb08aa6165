"""Compare the records of devices in the database, on the host and in Placement.

:func:`unproved` decides what a restored database still proves (``autoclave audit --quarantine``). It is true only of
the time of the backup. Since then, an available drive may have been bound and written to, and a bind may have
completed. After an unbind, an erase and the next guest may have followed. Other records prove nothing either: Placement
may have been restored from the same time, and any client may write ``reserved``. The drive's sanitize log reports the
last sanitize, not later writes. Some drives report writes (the bit "global data erased"), but only on their host and
without a guest.

So no device of a cleaned type is proved if the system would use it by itself. This is every available device, and every
allocated one without a request in Bound. A request in BindStarted would be rolled back, and its device offered. A
device in Deleting, or without a request, would be erased without an operator's command. By now it may be the drive of a
guest that is off. A device that is in error, or waits for a worker, is offered only after a proved erase by an
operator's command. (When it starts, the agent puts a device that a worker had into error.)

A type that is never erased has no cleanliness to prove. Without a request in Bound, an allocated one goes to error as
well, since another guest may have it.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

from autoclave.rules.audit.kinds import Kind
from autoclave.rules.audit.model import Agent, Drive, Finding, Found, Guest, Hold, Row, Slot, Stock, Wanted
from autoclave.rules.device_lifecycle import IDLE_STATES, ARQState, DeviceState, must_be_reserved
from autoclave.rules.resource_names import OWNER_CYBORG, OWNER_NOVA, may_be_the_operators, same_provider_name

SILENCE = 300.0
"""Seconds without a sign of life after which an agent counts as dead: five periods of the default."""

SWEPT = 60.0
"""Seconds after its expiry by which a running conductor has swept a lease."""

_LOOSE = (
    "See which device the guest has (`virsh dumpxml` on the host), and delete the instance: its service deletes the "
    "request. A request whose instance is gone keeps nothing from others."
)

UNFINISHED = frozenset({ARQState.BIND_STARTED, ARQState.DELETING})
"""The states in which a conductor works on the request."""


def about(kind: Kind, row: Row, seen: str, what: str = "", **names: str) -> Finding:
    """Return a finding about a device; *what* distinguishes it from others of its kind."""
    known = {"slot": row.slot, "host": row.host, "address": row.address, "about": what, **names}
    return Finding(kind, row.slot, seen, kind.remedy.format(**known), row.uuid, what, row.version)


def of_row(row: Row) -> Iterator[Finding]:
    """Yield the findings that follow from the row of one device."""
    offer, state = row.offer, row.offer.device_state
    linked = [hold for hold in row.holds if hold.linked]
    if state is None:
        yield about(Kind.STATE_UNKNOWN, row, "device_state is NULL")
    if state is DeviceState.ALLOCATED and not linked and not row.claimed_by:
        yield about(Kind.ALLOCATED_WITHOUT_REQUEST, row, "allocated, and no active accelerator request has it")
    if state not in (None, DeviceState.ALLOCATED) and (row.cleaned or len(linked) >= row.handles):
        for hold in linked:
            yield about(
                Kind.REQUEST_WITHOUT_DEVICE, row, f"request {hold.arq} is {hold.state}, it is {state}", hold.arq
            )
    for hold in row.holds:
        if hold.state in UNFINISHED and hold.overdue > SWEPT:
            seen = f"request {hold.arq} is {hold.state}; its lease ended {hold.overdue:.0f} s ago"
            yield about(Kind.LEASE_EXPIRED, row, seen, hold.arq)
    if state is DeviceState.AVAILABLE and row.known_dirty and row.drive:
        yield about(Kind.KNOWN_DIRTY, row, f"available, and its drive {row.drive[0]} is in the ledger of dirty drives")
    if row.rewritten:
        yield about(Kind.PROVIDER_REWRITTEN, row, "another service has written its provider in Placement")
    if state is DeviceState.ERROR:
        yield about(Kind.DEVICE_IN_ERROR, row, row.reasons["state"] or "error")
    flags = (
        (offer.held, Kind.DEVICE_HELD, row.reasons["held"] or "held"),
        (offer.excluded, Kind.DEVICE_EXCLUDED, row.reasons["excluded"] or "excluded"),
        (offer.missing, Kind.DEVICE_MISSING, "missing"),
        (offer.unreadable, Kind.DEVICE_UNREADABLE, row.reasons["unreadable"] or "unreadable"),
        (offer.maintaining, Kind.DEVICE_IN_MAINTENANCE, "maintaining"),
    )
    for said, kind, seen in flags:
        if said:
            yield about(kind, row, seen)


def loose_request(host: str, hold: Hold) -> Finding:
    """Return the finding about a request that is bound to no device."""
    seen = f"request {hold.arq} of instance {hold.instance or '(none)'} is {hold.state}, and has no device"
    return Finding(Kind.REQUEST_WITHOUT_DEVICE, host, seen, _LOOSE, about=hold.arq)


def of_drives(rows: Iterable[Row]) -> Iterator[Finding]:
    """Yield drives that are on record in several slots and were not seen to leave any."""
    slots: dict[Drive, list[Row]] = defaultdict(list)
    for row in rows:
        if row.drive is not None and not row.offer.missing:
            slots[row.drive].append(row)
    for (serial, _), found in slots.items():
        for row in found if len(found) > 1 else ():
            others = " and ".join(other.slot for other in found if other is not row)
            yield about(Kind.DRIVE_IN_TWO_ROWS, row, f"its drive {serial} is on record at {others} too")


def of_agents(agents: Sequence[Agent], patience: float = SILENCE) -> Iterator[Finding]:
    """Yield the hosts without a live agent.

    :param patience: seconds without a sign of life after which an agent counts as dead.
    """
    for agent in agents:
        if agent.silent is None or agent.silent > patience:
            seen = "never seen" if agent.silent is None else f"last seen {agent.silent:.0f} s ago"
            kind = Kind.AGENT_SILENT
            yield Finding(kind, agent.host, f"its agent was {seen}", kind.remedy.format(host=agent.host))


_HOST_DRIVER = "nvme"


def of_slot(row: Row, slot: Slot) -> Iterator[Finding]:
    """Yield the findings about the slot of a device; few are possible while a worker or a guest has it."""
    if not slot.present:
        if row.in_slot and not row.offer.missing:
            yield about(Kind.SLOT_EMPTY, row, f"there is no PCI function {row.address}")
        return
    if not row.cleaned:
        return
    if row.offer.device_state in IDLE_STATES:
        yield from _drive(row, slot)
    if row.offer.device_state is DeviceState.AVAILABLE:
        yield from _others(row, slot)
    bound = [hold.instance for hold in row.holds if hold.state is ARQState.BOUND]
    if row.offer.device_state is DeviceState.ALLOCATED and bound and slot.driver == _HOST_DRIVER:
        yield about(Kind.GUEST_NOT_RUNNING, row, f"bound to instance {bound[0]}; the host's nvme driver has it")


def of_guests(row: Row, guests: Sequence[Guest]) -> Iterator[Finding]:
    """Yield the guests that have the device's function without an active request."""
    asking = {hold.instance for hold in row.holds} | row.claimed_by
    for guest in guests:
        if guest.uuid not in asking:
            runs = "runs" if guest.running else "is off"
            seen = f"domain {guest.name} ({guest.uuid}) has it and {runs}, and no active request of it does"
            yield about(Kind.GUEST_WITHOUT_REQUEST, row, seen, guest.uuid)


def _drive(row: Row, slot: Slot) -> Iterator[Finding]:
    if slot.drive is not None and row.drive is not None and slot.drive not in (row.drive, row.found):
        serial, model = slot.drive
        yield about(Kind.OTHER_DRIVE, row, f"in the slot is {model} {serial}, on record {row.drive[1]} {row.drive[0]}")


def _others(row: Row, slot: Slot) -> Iterator[Finding]:
    if slot.driver is None:
        yield about(Kind.NO_DRIVER, row, "available, and no kernel driver has it")
    elif slot.driver != _HOST_DRIVER:
        yield about(Kind.DRIVER_DIFFERS, row, f"available, and the driver {slot.driver} has it", slot.driver)
    if slot.users:
        yield about(Kind.USED_BY_HOST, row, f"available, and the host uses it: {'; '.join(slot.users)}")
    if slot.other_paths:
        yield about(Kind.SECOND_PATH, row, f"available, and also reached through {', '.join(slot.other_paths)}")


def unproved(row: Row) -> str | None:
    """Return why a restored database does not prove the state of a device, or None."""
    state = row.offer.device_state
    linked = [hold for hold in row.holds if hold.linked]
    if state is DeviceState.AVAILABLE and row.cleaned:
        return "available when the backup was made; nobody knows who has had it since"
    if state is not DeviceState.ALLOCATED or row.claimed_by or any(hold.state is ARQState.BOUND for hold in linked):
        return None
    if linked:
        return f"request {linked[0].arq} was {linked[0].state} when the backup was made; nobody knows what came of it"
    return "allocated when the backup was made, and no request had it; nobody knows who has had it since"


def of_provider(row: Row, wanted: Wanted, found: Found | None, root: str | None) -> Iterator[Finding]:
    """Yield the findings about one provider of a device.

    :param found: None if Placement has no provider with its uuid.
    :param root: uuid of the host's root provider, or None.
    """
    if found is None:
        yield about(Kind.PROVIDER_MISSING, row, f"Placement has no provider {wanted.uuid} ({wanted.name})", wanted.uuid)
        return
    if OWNER_NOVA in found.traits:
        # Another service wrote all of it, so judge none of its fields alone.
        if not row.rewritten:
            seen = f"provider {found.uuid} has the trait {OWNER_NOVA} and {_list(found.stocks) or 'no inventory'}"
            yield about(Kind.PROVIDER_REWRITTEN, row, seen)
        yield from _allocations(row, wanted, found)
        return
    if OWNER_CYBORG not in found.traits:
        yield about(Kind.PROVIDER_NOT_OURS, row, f"provider {found.uuid} lacks {OWNER_CYBORG}", found.uuid)
    if not same_provider_name(found.name, wanted.name):
        names = {"name": wanted.name, "provider": found.uuid}
        yield about(Kind.PROVIDER_RENAMED, row, f"provider {found.uuid} is named {found.name}", found.uuid, **names)
    if root is not None and found.parent != root:
        seen = f"provider {found.uuid} is below {found.parent or 'nothing'}, not below {row.host} ({root})"
        yield about(Kind.PROVIDER_MOVED, row, seen, found.parent or "")
    yield from _traits(row, wanted, found)
    yield from _inventories(row, wanted, found)
    yield from _allocations(row, wanted, found)


def without_device(found: Found, host: str) -> Finding:
    """Return the finding about a provider of Autoclave without a device."""
    kind = Kind.PROVIDER_WITHOUT_DEVICE
    offered = "offered" if any(map(found.offers, found.stocks)) else "not offered"
    seen = f"provider {found.uuid} ({found.name}) is {offered}, and no device has it"
    return Finding(kind, host, seen, kind.remedy.format(host=host, about=found.uuid), about=found.uuid)


def taken_name(row: Row, wanted: Wanted, other: str) -> Finding:
    """Return the finding that another provider has the name of a device's provider."""
    seen = f"{wanted.name} is provider {other} in Placement, {wanted.uuid} in the database"
    return about(Kind.PROVIDER_OF_ANOTHER, row, seen, other)


def _traits(row: Row, wanted: Wanted, found: Found) -> Iterator[Finding]:
    lacking = wanted.traits - found.traits - {OWNER_CYBORG}
    surplus = {name for name in found.traits - wanted.traits if not may_be_the_operators(name)}
    if lacking or surplus:
        said = [f"lacks {_list(lacking)}"] if lacking else []
        said += [f"has {_list(surplus)} besides"] if surplus else []
        yield about(Kind.TRAITS_DIFFER, row, f"provider {found.uuid} {', '.join(said)}", found.uuid)


def _inventories(row: Row, wanted: Wanted, found: Found) -> Iterator[Finding]:
    for name in sorted(set(found.stocks) - {wanted.resource_class}):
        seen = f"provider {found.uuid} has an inventory of {name}, not only of {wanted.resource_class}"
        yield about(Kind.FOREIGN_INVENTORY, row, seen, name, provider=found.uuid)
    stock = found.stocks.get(wanted.resource_class)
    if stock is None:
        seen = f"provider {found.uuid} has no inventory of {wanted.resource_class}"
        yield about(Kind.INVENTORY_MISSING, row, seen, found.uuid)
        return
    differing = [
        f"{name}={seen} instead of {due}"
        for name, due, seen in zip(Stock._fields, wanted.whole, stock, strict=True)
        if name != "reserved" and due != seen
    ]
    if differing:
        yield about(Kind.INVENTORY_DIFFERS, row, f"provider {found.uuid} has {', '.join(differing)}", found.uuid)
    yield from _reserved(row, wanted, found, stock)


def _reserved(row: Row, wanted: Wanted, found: Found, stock: Stock) -> Iterator[Finding]:
    seen = f"reserved={stock.reserved} of {stock.total}"
    if must_be_reserved(row.offer):
        if stock.reserved < wanted.whole.total and not _being_told(row):
            yield about(Kind.RESERVED_TOO_LOW, row, f"{seen}, while it is {_why(row)}", found.uuid)
    elif row.owes_offer:
        yield about(Kind.DEBT_UNPAID, row, f"{seen}, and it waits to be lowered", found.uuid)
    elif stock.reserved > 0:
        yield about(Kind.RESERVED_BY_HAND, row, f"{seen}, while it is available and nothing waits", found.uuid)


def _being_told(row: Row) -> bool:
    """Return whether a conductor is between claim and Placement write within its lease; no guest has the device yet."""
    only_allocated = row.offer == row.offer._replace(
        device_state=DeviceState.ALLOCATED,
        maintaining=False,
        held=False,
        excluded=False,
        missing=False,
        unreadable=False,
    )
    return only_allocated and any(hold.linked and hold.state in UNFINISHED and not hold.overdue for hold in row.holds)


def _allocations(row: Row, wanted: Wanted, found: Found) -> Iterator[Finding]:
    asking = {hold.instance for hold in row.holds}
    for consumer in sorted(set(found.consumers) - asking):
        held = ", ".join(f"{amount} {name}" for name, amount in sorted(found.consumers[consumer].items()))
        seen = f"consumer {consumer} has {held} of provider {found.uuid}, and no active request for it"
        yield about(Kind.ALLOCATION_WITHOUT_REQUEST, row, seen, consumer)
    if len(row.wanted) == 1:
        yield from _unallocated(row, found.uuid, found.consumers)
    used, stock = found.used(wanted.resource_class), found.stocks.get(wanted.resource_class)
    if stock is not None and used > stock.total:
        yield about(Kind.OVERUSED, row, f"{used} of {stock.total} are allocated of provider {found.uuid}", found.uuid)


def _unallocated(row: Row, provider: str, consumers: Collection[str]) -> Iterator[Finding]:
    for hold in row.holds:
        if hold.linked and hold.state not in UNFINISHED and hold.instance and hold.instance not in consumers:
            seen = f"instance {hold.instance} of request {hold.arq} has no allocation of provider {provider}"
            yield about(Kind.REQUEST_WITHOUT_ALLOCATION, row, seen, hold.arq)


def _why(row: Row) -> str:
    state = row.offer.device_state
    reasons = row.offer.withheld
    if state is not DeviceState.AVAILABLE:
        reasons.insert(0, state.value if state else "in no known state")
    return " and ".join(reasons)


def _list(names: Collection[str]) -> str:
    return ", ".join(sorted(names))
