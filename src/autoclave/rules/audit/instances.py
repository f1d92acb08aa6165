"""Compare the records of instances and of their PCI functions.

The records are the rows of the database, and the inventories and allocations in Placement.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from autoclave.rules.audit.kinds import Kind
from autoclave.rules.audit.model import Finding, Found, Guest, Instance, Lent, Root
from autoclave.rules.device_lifecycle import DeviceState, Reading, Verdict, verdict
from autoclave.rules.reclaim import Reclaim
from autoclave.rules.resource_names import CONSUMER_TYPE

_NAMED = 8
"""The most functions of a host that a finding lists."""


def of_lent(lent: Lent, found: Found | None) -> Iterator[Finding]:
    """Yield the findings about one provider.

    :param found: None if Placement has no provider with its uuid.
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
    if lent.must_be_reserved:
        if reading.is_full and stock.reserved >= stock.total:
            return
        if verdict(lent.reserving, reading) is Verdict.RELEASED:
            yield about_lent(Kind.RELEASE_UNFINISHED, lent, f"{seen}, which counts as its release")
        else:
            yield about_lent(Kind.RESERVED_TOO_LOW, lent, f"{seen}, while {_why(lent, reading)}")
    elif lent.reserving.release_pending:
        yield about_lent(Kind.RELEASE_UNFINISHED, lent, f"{seen}, and it was released")
    elif lent.reserving.withheld:
        yield about_lent(Kind.RELEASE_UNFINISHED, lent, f"{seen}, and it is withheld no longer")
    elif reading.is_full and reading.total:
        yield about_lent(Kind.FUNCTION_HELD, lent, f"{seen}, and no instance has burned it")


def _why(lent: Lent, reading: Reading) -> str:
    """Return why all of it must be reserved."""
    offer = lent.reserving.offer
    if offer.device_state is DeviceState.AVAILABLE or (offer.device_state is DeviceState.ALLOCATED and offer.lent):
        if offer.outdated and lent.unreadable is None:
            return "its entry in [pci] device_spec changed"
        return f"it cannot be read: {lent.unreadable}" if lent.unreadable else f"it is {', '.join(offer.withheld)}"
    if reading.is_full:
        return f"it is {offer.device_state} and its total is {lent.total}"
    if lent.reclaim is not Reclaim.HOLD and offer.device_state is not DeviceState.SPENT:
        return f"it is {offer.device_state}"
    return f"it is burned and {'not yet seen idle' if offer.device_state is DeviceState.SPENT else 'in use'}"


def of_doubt(lent: Lent) -> Iterator[Finding]:
    """Yield the findings that follow from the row of one provider alone."""
    if lent.unreadable is not None:
        yield about_lent(Kind.FUNCTION_UNREADABLE, lent, lent.unreadable)


def taken_lent_name(lent: Lent, other: str) -> Finding:
    """Return the finding that another provider has the name; Placement may allocate from it, without a function behind
    it.
    """
    seen = f"{lent.name} is provider {other} in Placement, {lent.uuid} in the database"
    return about_lent(Kind.PROVIDER_OF_ANOTHER, lent, seen, other)


def of_lent_guests(lent: Lent, guests: Mapping[str, Sequence[Guest]]) -> Iterator[Finding]:
    """Yield the guests that have one of its functions, or the physical function, without a claim.

    :param guests: the guests of its host, by the address of each attached function.
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
    """Describe the owner of a function by the database."""
    if address in lent.claims:
        return f"which instance {lent.claims[address]} has on record"
    return "which no instance has on record"


def uncleaned(lent: Iterable[Lent]) -> Iterator[Finding]:
    """Yield for each host the functions that pass uncleaned between instances."""
    by_host: dict[str, list[str]] = defaultdict(list)
    for each in lent:
        if each.reclaim is Reclaim.NONE:
            by_host[each.host].append(each.address)
    kind = Kind.RETURNS_UNCLEANED
    for host, addresses in sorted(by_host.items()):
        named, more = sorted(addresses)[:_NAMED], len(addresses) - _NAMED
        seen = ", ".join(named) + (f" and {more} more" if more > 0 else "")
        yield Finding(kind, host, seen, kind.remedy.format(host=host))


def about_lent(kind: Kind, lent: Lent, seen: str, what: str | None = None, **more: str) -> Finding:
    """Return a finding about a provider; *what* distinguishes it from others of its kind, such as by an instance.

    :param more: other names in the remedy.
    """
    what = what or lent.uuid
    names = {"slot": lent.slot, "host": lent.host, "address": lent.address, "about": what}
    text = kind.remedy.format(**names, provider=lent.uuid, resource_class=lent.resource_class, total=lent.total, **more)
    return Finding(kind, lent.slot, seen, text, lent.uuid, what, lent.version)


HOST_CLASSES = frozenset({"VCPU", "MEMORY_MB", "DISK_GB"})
"""The resource classes of every host's root provider."""

Amounts = Mapping[str, int]
"""The amounts held of a provider, by resource class."""


class Part(NamedTuple):
    """Hold the providers of one host from which instances allocate: the root provider, and those of PCI functions.

    :param root: None if it is not audited.
    :param lent: the audited providers of PCI functions.
    """

    host: str
    root: Root | None
    lent: Sequence[Lent]

    @classmethod
    def of(cls, host: str, roots: Iterable[Root], lent: Iterable[Lent]) -> "Part":
        """Select the providers of *host*."""
        root = next((each for each in roots if each.host == host), None)
        return cls(host, root, [each for each in lent if each.host == host])

    @property
    def providers(self) -> Sequence[Root | Lent]:
        """Return all its providers."""
        return (*((self.root,) if self.root else ()), *self.lent)

    @property
    def device(self) -> str:
        """Return the uuid for findings about the whole host, so that the host is audited again."""
        return self.providers[0].uuid


def lacking(part: Part, instance: Instance, held: Mapping[str, Amounts]) -> dict[str, dict[str, int]]:
    """Return by provider what the instance has by its rows, but not in Placement.

    Burned functions are left out: ``reserved`` protects them. What the flavor requests of the host itself may also come
    from a provider that an operator created.

    :param held: the amounts by provider of this host.
    """
    found: dict[str, dict[str, int]] = {}
    if part.root and instance.launched:
        has = sum((Counter(amounts) for amounts in held.values()), Counter[str]())
        found[part.root.uuid] = {
            name: amount - has[name]
            for name, amount in instance.asked.items()
            if name in HOST_CLASSES and amount > has[name]
        }
    for lent in part.lent:
        short = _claimed(lent, instance) - _allocated(lent, held)
        if short > 0 and not lent.must_be_reserved:
            found[lent.uuid] = {lent.resource_class: short}
    return {provider: amounts for provider, amounts in found.items() if amounts}


def of_instance(part: Part, instance: Instance, held: Mapping[str, Amounts]) -> Iterator[Finding]:
    """Yield the findings about an instance of the host.

    :param held: as for :func:`lacking`.
    """
    if not instance.settled:
        return
    lost = lacking(part, instance, held)
    if lost:
        names = {each.uuid: each.name for each in part.providers}
        due = _words(lost, names)
        has = f"lacks {due}; it has {_words(held, names)}" if held else f"has nothing allocated; it should have {due}"
        yield _about(Kind.INSTANCE_WITHOUT_ALLOCATION, part, f"instance {instance.uuid} {has}", instance)
    for lent in part.lent:
        claimed, allocated = _claimed(lent, instance), _allocated(lent, held)
        if claimed > allocated and lent.must_be_reserved:
            seen = (
                f"instance {instance.uuid} has {claimed} functions of provider {lent.name} ({lent.uuid}), and "
                f"{allocated} {lent.resource_class} of it allocated"
            )
            yield about_lent(Kind.FUNCTION_WITHOUT_ALLOCATION, lent, seen, instance.uuid)
        elif claimed < allocated and instance.launched:
            seen = (
                f"instance {instance.uuid} has {allocated} {lent.resource_class} of provider {lent.name} ({lent.uuid}) "
                f"allocated, and {claimed} functions of it"
            )
            yield about_lent(Kind.ALLOCATION_WITHOUT_FUNCTION, lent, seen, instance.uuid)


def of_functions(lent: Lent, instances: Mapping[str, Instance]) -> Iterator[Finding]:
    """Yield the findings about claimed functions whose instance is not on the host."""
    for uuid in sorted(set(lent.claims.values())):
        instance = instances.get(uuid)
        if instance is None:
            yield _unowned(lent, uuid, "there is no such instance")
        elif instance.settled and instance.host != lent.host:
            yield _unowned(lent, uuid, f"is on {instance.host or 'no host'}")


def of_consumers(
    part: Part, consumers: Mapping[str, Mapping[str, Amounts]], instances: Mapping[str, Instance]
) -> Iterator[Finding]:
    """Yield the instances that hold allocations of the host, but are not on it.

    :param consumers: by consumer, the amounts by provider.
    """
    names = {each.uuid: each.name for each in part.providers}
    for uuid, held in sorted(consumers.items()):
        instance = instances.get(uuid)
        if instance is None or not instance.settled or instance.host == part.host:
            continue
        if instance.host is None:
            seen = f"instance {uuid} is in error and on no host, and has {_words(held, names)} allocated"
            command = f"openstack server delete {uuid}"
            yield _about(Kind.ALLOCATION_WITHOUT_INSTANCE, part, seen, instance, command=command)
        else:
            seen = f"instance {uuid} is on {instance.host}, and has {_words(held, names)} allocated"
            providers = " ".join(f"--provider {provider}" for provider in sorted(held))
            yield _about(Kind.ALLOCATION_ELSEWHERE, part, seen, instance, providers=providers)


def of_unknown(part: Part, consumer: str, held: Mapping[str, Amounts], consumer_type: str) -> Finding:
    """Return the finding about a consumer that is neither an instance nor of a request.

    The consumer type shows the author of the allocation. A provider may have had another owner before Autoclave.

    :param held: the amounts by provider of the host.
    """
    words = _words(held, {each.uuid: each.name for each in part.providers})
    ours = consumer_type == CONSUMER_TYPE
    kind = Kind.ALLOCATION_WITHOUT_INSTANCE if ours else Kind.ALLOCATION_OF_ANOTHER
    what = "there is no such instance" if ours else f"its type is {consumer_type}, not {CONSUMER_TYPE}"
    command = f"openstack resource provider allocation delete {consumer}"
    text = kind.remedy.format(host=part.host, about=consumer, command=command)
    return Finding(
        kind, part.host, f"consumer {consumer} has {words} allocated, and {what}", text, part.device, consumer
    )


def by_consumer(found: Mapping[str, Mapping[str, Amounts]]) -> dict[str, dict[str, Amounts]]:
    """Return the amounts by consumer and provider; *found* has them by provider and consumer."""
    turned: defaultdict[str, dict[str, Amounts]] = defaultdict(dict)
    for provider, consumers in found.items():
        for consumer, amounts in consumers.items():
            turned[consumer][provider] = amounts
    return dict(turned)


def _claimed(lent: Lent, instance: Instance) -> int:
    return sum(uuid == instance.uuid for uuid in lent.claims.values())


def _allocated(lent: Lent, held: Mapping[str, Amounts]) -> int:
    return held.get(lent.uuid, {}).get(lent.resource_class, 0)


def _unowned(lent: Lent, instance: str, why: str) -> Finding:
    addresses = sorted(address for address, owner in lent.claims.items() if owner == instance)
    seen = f"instance {instance} has {', '.join(addresses)} of provider {lent.name} ({lent.uuid}), and {why}"
    functions = " ".join(f"{lent.host}/{address}" for address in addresses)
    return about_lent(Kind.FUNCTION_WITHOUT_INSTANCE, lent, seen, instance, functions=functions)


def _about(kind: Kind, part: Part, seen: str, instance: Instance, **names: str) -> Finding:
    text = kind.remedy.format(host=part.host, about=instance.uuid, **names)
    return Finding(kind, part.host, seen, text, part.device, instance.uuid, instance.version)


def _words(held: Mapping[str, Amounts], names: Mapping[str, str]) -> str:
    """Format amounts, such as ``2 VCPU of provider host-1 (uuid)``."""
    return " and ".join(
        f"{', '.join(f'{amount} {name}' for name, amount in sorted(amounts.items()))} of provider "
        + (f"{names[provider]} ({provider})" if provider in names else provider)
        for provider, amounts in held.items()
    )
