"""What the database and Placement say of PCI functions that instances get by flavor."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from autoclave.rules.audit.facts import Found, Guest, Lent
from autoclave.rules.audit.kinds import Kind
from autoclave.rules.audit.model import Finding
from autoclave.rules.burn import Reading, Verdict, must_be_reserved, verdict

_NAMED = 8
"""Functions of a host that are named one by one."""


def of_lent(lent: Lent, found: Found | None) -> Iterator[Finding]:
    """One provider.

    :param found: None: Placement has none with its uuid.
    """
    if found is None:
        yield about_lent(Kind.PROVIDER_MISSING, lent, f"Placement has no provider {lent.uuid}")
        return
    stock = found.stocks.get(lent.resource_class)
    if stock is None:
        seen = f"provider {lent.uuid} has no inventory of {lent.resource_class}"
        yield about_lent(Kind.INVENTORY_MISSING, lent, seen)
        return
    reading = Reading(stock.total, stock.reserved, lent.total)
    seen = f"reserved={stock.reserved} of {stock.total}"
    if must_be_reserved(lent.facts):
        if reading.is_full and stock.reserved >= stock.total:
            return
        if verdict(lent.facts, reading) is Verdict.RELEASED:
            yield about_lent(Kind.RELEASE_UNFINISHED, lent, f"{seen}, which counts as its release")
        else:
            yield about_lent(Kind.RESERVED_TOO_LOW, lent, f"{seen}, while {_why(lent, reading)}")
    elif lent.facts.release_pending:
        yield about_lent(Kind.RELEASE_UNFINISHED, lent, f"{seen}, and it was released")
    elif lent.facts.withheld:
        yield about_lent(Kind.RELEASE_UNFINISHED, lent, f"{seen}, and it is withheld no longer")
    elif reading.is_full and reading.total:
        yield about_lent(Kind.FUNCTION_HELD, lent, f"{seen}, and no instance has burned it")


def _why(lent: Lent, reading: Reading) -> str:
    """Return why all of it must be reserved."""
    if not lent.facts.burned or lent.facts.release_pending:
        return f"it cannot be read: {lent.unreadable}" if lent.unreadable else "its entry in [pci] device_spec changed"
    if reading.is_full:
        return f"it is burned and its total is {lent.total}"
    return f"it is burned and {'in use' if lent.facts.claimed else 'not yet seen idle'}"


def of_doubt(lent: Lent) -> Iterator[Finding]:
    """What the database says of one provider by itself."""
    if lent.unreadable is not None:
        yield about_lent(Kind.FUNCTION_UNREADABLE, lent, lent.unreadable)


def taken_lent_name(lent: Lent, other: str) -> Finding:
    """The name of a provider is another's, from which Placement may allocate what no function is behind."""
    seen = f"{lent.name} is provider {other} in Placement, {lent.uuid} in the database"
    return about_lent(Kind.PROVIDER_OF_ANOTHER, lent, seen, other)


def of_lent_guests(lent: Lent, guests: Mapping[str, Sequence[Guest]]) -> Iterator[Finding]:
    """The guests that have been given one of its functions, or the device that has them, and are not to have it.

    :param guests: those of its host, by the address of each function that they have been given.
    """
    found: dict[Guest, list[str]] = defaultdict(list)
    for address in sorted(lent.functions | {lent.address}):
        for guest in guests.get(address, ()):
            if guest.uuid != lent.claims.get(address):
                found[guest].append(address)
    for guest, addresses in found.items():
        runs = "runs" if guest.running else "is off"
        has = ", ".join(f"{address} ({_with(lent, address)})" for address in addresses)
        yield about_lent(
            Kind.GUEST_WITHOUT_CLAIM, lent, f"domain {guest.name} ({guest.uuid}) {runs} and has {has}", guest.uuid
        )


def _with(lent: Lent, address: str) -> str:
    """Whose a function is by the database."""
    if address in lent.claims:
        return f"which instance {lent.claims[address]} has on record"
    return "which no instance has on record"


def uncleaned(lent: Iterable[Lent]) -> Iterator[Finding]:
    """Of each host, what goes from instance to instance as it is."""
    by_host: dict[str, list[str]] = defaultdict(list)
    for each in lent:
        if not each.facts.one_time_use:
            by_host[each.host].append(each.address)
    kind = Kind.RETURNS_UNCLEANED
    for host, addresses in sorted(by_host.items()):
        named, more = sorted(addresses)[:_NAMED], len(addresses) - _NAMED
        seen = ", ".join(named) + (f" and {more} more" if more > 0 else "")
        yield Finding(kind, host, seen, kind.remedy.format(host=host))


def about_lent(kind: Kind, lent: Lent, seen: str, what: str | None = None, **more: str) -> Finding:
    """A finding about a provider; *what* tells it from others of its kind, such as an instance.

    :param more: other names in the remedy.
    """
    what = what or lent.uuid
    names = {"slot": lent.slot, "host": lent.host, "address": lent.address, "about": what}
    text = kind.remedy.format(**names, provider=lent.uuid, resource_class=lent.resource_class, total=lent.total, **more)
    return Finding(kind, lent.slot, seen, text, lent.uuid, what, lent.version)
