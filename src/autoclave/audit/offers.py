"""Compare what Placement offers with the records."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple

from autoclave.exceptions import PlacementError, PlacementNotFound, PlacementUnavailable
from autoclave.placement.client import PlacementClient
from autoclave.placement.records import Provider
from autoclave.rules.audit.devices import about, of_provider, taken_name, without_device
from autoclave.rules.audit.instances import about_lent, of_lent, taken_lent_name
from autoclave.rules.audit.kinds import Kind
from autoclave.rules.audit.model import Finding, Found, Lent, Row, Stock
from autoclave.rules.resource_names import OWNER_CYBORG, split_provider_name


class Offers:
    """Inspect Placement once: one request per host, three or four per provider, and one for all our providers.

    :param known: uuids of the providers of all devices, inside and outside the scope.
    """

    def __init__(self, placement: PlacementClient, known: frozenset[str]) -> None:
        self._placement = placement
        self._known = known
        self._roots: dict[str, str | None] = {}
        self.consumers: dict[str, Mapping[str, Mapping[str, int]]] = {}
        """Allocations of each consumer, by uuid of the providers that were read."""
        self.silent = False
        """Whether Placement was unreachable."""

    def compare(
        self, rows: Sequence[Row], lent: Iterable[Lent], hosts: Iterable[str], strays_of: Callable[[str], bool]
    ) -> Iterator[Finding]:
        """Yield where Placement disagrees with *rows* and *lent*, and providers of some hosts without a device.

        A read failure is a finding. After Placement was unreachable once, it is not queried again.

        :param hosts: hosts whose root providers are searched.
        :param strays_of: returns whether to search the providers of a host.
        """
        done = 0
        try:
            ours = {each.uuid: each for each in self._placement.providers_with_trait(OWNER_CYBORG)}
            for host in sorted(hosts):
                yield from self._root(host)
            for row in rows:
                yield from self._device(row, ours)
                done += 1
            for each in lent:
                yield from self._lent(each)
            for stray in ours.values():
                yield from self._stray(stray, strays_of)
        except PlacementUnavailable as error:
            self.silent = True
            yield unreadable("Placement", f"{error}; {len(rows) - done} devices were not compared")
        except PlacementError as error:
            yield unreadable("Placement", str(error))

    def _root(self, host: str) -> Iterator[Finding]:
        found = self._placement.find_provider(host)
        self._roots[host] = found.uuid if found else None
        if found is None:
            kind = Kind.ROOT_MISSING
            yield Finding(kind, host, f"Placement has no provider named {host}", kind.remedy.format(host=host))

    def _device(self, row: Row, ours: Mapping[str, Provider]) -> Iterator[Finding]:
        for wanted in row.wanted:
            try:
                found = self._found(ours.get(wanted.uuid), wanted.uuid)
                other = self._placement.find_provider(wanted.name) if found is None else None
            except PlacementUnavailable:
                raise
            except PlacementError as error:
                yield about(Kind.PLACEMENT_UNREADABLE, row, str(error), wanted.uuid)
                continue
            if other is not None:
                yield taken_name(row, wanted, other.uuid)
            else:
                yield from of_provider(row, wanted, found, self._roots.get(row.host))

    def _lent(self, lent: Lent) -> Iterator[Finding]:
        try:
            found = self._found(None, lent.uuid)
            other = self._placement.find_provider(lent.name) if found is None else None
        except PlacementUnavailable:
            raise
        except PlacementError as error:
            yield about_lent(Kind.PLACEMENT_UNREADABLE, lent, str(error))
            return
        if other is not None:
            yield taken_lent_name(lent, other.uuid)
        else:
            yield from of_lent(lent, found)

    def _found(self, provider: Provider | None, uuid: str) -> Found | None:
        """Return everything about a provider; None if it does not exist, or is deleted concurrently."""
        try:
            provider = provider or self._placement.get_provider(uuid)
            traits = self._placement.get_traits(uuid).names
            records = self._placement.get_inventories(uuid).records
            consumers = self._placement.get_allocations_for_provider(uuid)
        except PlacementNotFound:
            return None
        self.consumers[uuid] = consumers
        stocks = {name: Stock(*astuple(record)) for name, record in records.items()}
        return Found(provider.uuid, provider.name, provider.parent, traits, stocks, consumers)

    def _stray(self, provider: Provider, strays_of: Callable[[str], bool]) -> Iterator[Finding]:
        named = split_provider_name(provider.name)
        if provider.uuid in self._known or named is None or not strays_of(named[0]):
            return
        found = self._found(provider, provider.uuid)
        if found is not None:
            yield without_device(found, named[0])


def unreadable(subject: str, why: str) -> Finding:
    """Return a finding that Placement could not be read."""
    kind = Kind.PLACEMENT_UNREADABLE
    return Finding(kind, subject, why, kind.remedy)
