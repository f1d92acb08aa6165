"""What instances hold in Placement, as an audit takes it down."""

from collections.abc import Iterable, Iterator, Mapping

from autoclave.audit.offers import unreadable
from autoclave.audit.records import Records
from autoclave.exceptions import PlacementError, PlacementNotFound, PlacementUnavailable
from autoclave.placement.client import PlacementClient
from autoclave.rules.audit.instances import Amounts, Part, by_consumer, of_consumers, of_instance, of_unknown
from autoclave.rules.audit.kinds import Kind
from autoclave.rules.audit.model import Finding


class Holdings:
    """One look at Placement: a request for each provider; then one for each consumer that something is wrong with.

    :param seen: what each consumer holds, by the uuids of the providers that were asked about already.
    """

    def __init__(self, placement: PlacementClient, records: Records, seen: Mapping[str, Mapping[str, Amounts]]) -> None:
        self._placement = placement
        self._records = records
        self._seen = seen

    def compare(self, parts: Iterable[Part]) -> Iterator[Finding]:
        """What of Placement disagrees with the instances of each host, and who holds something of it beside them.

        What cannot be read is a finding. When Placement does not answer at all, it is not asked again and again.
        """
        for part in parts:
            try:
                yield from self._part(part)
            except PlacementUnavailable as error:
                yield unreadable("Placement", f"{error}; the instances of {part.host} and of others were not compared")
                return
            except PlacementError as error:
                yield unreadable(part.host, f"{error}; its instances were not compared")

    def _part(self, part: Part) -> Iterator[Finding]:
        consumers = {each.uuid: self._of_provider(each.uuid) for each in part.providers}
        if part.root and consumers[part.root.uuid] is None:
            kind, seen = Kind.PROVIDER_MISSING, f"Placement has no provider {part.root.uuid} ({part.host})"
            yield Finding(kind, part.host, seen, kind.remedy.format(host=part.host), part.device)
        held = by_consumer({provider: each for provider, each in consumers.items() if each})
        for instance in self._records.by_host.get(part.host, ()):
            # Most agree with what the host's providers say already. Else what they hold is asked for as a whole.
            if any(of_instance(part, instance, held.get(instance.uuid, {}))):
                whole = self._placement.get_allocations(instance.uuid).allocations
                yield from of_instance(part, instance, self._records.of_host(part.host, whole))
        yield from of_consumers(part, held, self._records.instances)
        for consumer in sorted(held.keys() - self._records.instances.keys() - self._records.asking):
            now = self._placement.get_allocations(consumer)
            if now.allocations:
                yield of_unknown(part, consumer, held[consumer], now.consumer_type)

    def _of_provider(self, uuid: str) -> Mapping[str, Amounts] | None:
        if uuid in self._seen:
            return self._seen[uuid]
        try:
            return self._placement.get_allocations_for_provider(uuid)
        except PlacementNotFound:
            return None
