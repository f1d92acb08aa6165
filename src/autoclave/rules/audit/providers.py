"""What the database and Placement say of one device."""

from collections.abc import Collection, Iterator

from autoclave.rules.audit.devices import UNFINISHED, about
from autoclave.rules.audit.facts import Found, Row, Stock, Wanted
from autoclave.rules.audit.kinds import Kind
from autoclave.rules.audit.model import Finding
from autoclave.rules.device_lifecycle import DeviceState
from autoclave.rules.reserved import must_be_reserved
from autoclave.rules.resource_names import OWNER_CYBORG, OWNER_NOVA, may_be_the_operators, same_provider_name


def of_provider(row: Row, wanted: Wanted, found: Found | None, root: str | None) -> Iterator[Finding]:
    """One provider of a device.

    :param found: None: Placement has none with its uuid.
    :param root: uuid of the host's root provider; None: there is none.
    """
    if found is None:
        yield about(Kind.PROVIDER_MISSING, row, f"Placement has no provider {wanted.uuid} ({wanted.name})", wanted.uuid)
        return
    if OWNER_NOVA in found.traits:
        # All of it is another's, so none of it is judged by itself.
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
    """A provider of ours that no device has."""
    kind = Kind.PROVIDER_WITHOUT_DEVICE
    offered = "offered" if any(map(found.offers, found.stocks)) else "not offered"
    seen = f"provider {found.uuid} ({found.name}) is {offered}, and no device has it"
    return Finding(kind, host, seen, kind.remedy.format(host=host, about=found.uuid), about=found.uuid)


def taken_name(row: Row, wanted: Wanted, other: str) -> Finding:
    """The name of a device's provider is another's."""
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
    """Whether a conductor is between its claim and its word to Placement, within its lease: no guest has seen it."""
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
