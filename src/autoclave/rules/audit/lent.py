"""What the database and Placement say of PCI functions that instances get by flavor."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from autoclave.rules.audit.facts import Found, Lent
from autoclave.rules.audit.findings import Finding
from autoclave.rules.audit.kinds import Kind
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
    reading = Reading(stock.total, stock.reserved)
    seen = f"reserved={stock.reserved} of {stock.total}"
    if must_be_reserved(lent.facts):
        if reading.is_full:
            return
        if verdict(lent.facts, reading) is Verdict.RELEASED:
            yield about_lent(Kind.RELEASE_UNFINISHED, lent, f"{seen}, which counts as its release")
        else:
            why = "in use" if lent.facts.claimed else "not yet seen idle"
            yield about_lent(Kind.RESERVED_TOO_LOW, lent, f"{seen}, while it is burned and {why}")
    elif lent.facts.release_pending:
        yield about_lent(Kind.RELEASE_UNFINISHED, lent, f"{seen}, and it was released")
    elif reading.is_full and reading.total:
        yield about_lent(Kind.FUNCTION_HELD, lent, f"{seen}, and no instance has burned it")


def taken_lent_name(lent: Lent, other: str) -> Finding:
    """The name of a provider is another's, from which Placement may allocate what no function is behind."""
    seen = f"{lent.name} is provider {other} in Placement, {lent.uuid} in the database"
    return about_lent(Kind.PROVIDER_OF_ANOTHER, lent, seen, other)


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


def about_lent(kind: Kind, lent: Lent, seen: str, what: str | None = None) -> Finding:
    """A finding about a provider; *what* tells it from others of its kind, such as an instance."""
    what = what or lent.uuid
    names = {"slot": lent.slot, "host": lent.host, "address": lent.address, "about": what}
    text = kind.remedy.format(**names, provider=lent.uuid, resource_class=lent.resource_class)
    return Finding(kind, lent.slot, seen, text, lent.uuid, what, lent.version)
