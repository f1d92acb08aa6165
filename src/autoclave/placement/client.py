"""Placement, as far as Autoclave uses it.

Nothing is retried here: a caller that gets :class:`PlacementUnavailable` does not know whether
its request was applied, and only the caller can tell what to do. What a repetition does:

* every GET: nothing changes.
* a PUT of inventories or traits: it names a generation; the first success moves that on, so the
  repetition is refused with :class:`PlacementConflict`. It is never applied twice.
* a PUT of allocations, and the POST of several: likewise, by the consumer's generation.
* a PUT of a trait, a resource class or a provider's name: the same end state.
* the POST of a provider: it names the uuid; the repetition is a :class:`PlacementConflict`.
* a DELETE: the repetition is a :class:`PlacementNotFound`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import quote, urlencode

from autoclave.exceptions import PlacementNotFound, PlacementRefused
from autoclave.placement import records
from autoclave.placement.records import (
    Candidates,
    ConsumerAllocations,
    Inventories,
    Inventory,
    Provider,
    Resources,
    Traits,
)
from autoclave.placement.transport import Requester

OS_TRAITS = "3.9.0"
"""The first os-traits that has every standard trait Autoclave sets (HW_NVME_*)."""


class PlacementClient:
    """Placement at one microversion. Safe to share between threads.

    Besides what each method says, all of them raise :class:`PlacementUnavailable` (no answer, or a
    proxy's) and :class:`PlacementRefused` (an answer that is neither success nor named below).

    :param adapter: from :mod:`autoclave.placement.transport`.
    """

    def __init__(self, adapter: Any) -> None:
        self._requester = Requester(adapter)
        self._known: set[str] = set()
        """Traits and resource classes that exist: they go only by hand, and only unused."""

    # Providers

    def get_provider(self, uuid: str) -> Provider:
        """:raises PlacementNotFound: there is none with that uuid."""
        return self._requester.read("GET", _provider(uuid), records.provider)

    def find_provider(self, name: str) -> Provider | None:
        """The provider that has *name*, or None.

        Placement compares names by case, and the PCI address after the last ``_`` is written in
        upper case by some and in lower case by others. So all three spellings are asked for, one
        request each, until one is found. In a known tree :meth:`providers_in_tree` and
        :meth:`Provider.is_named` cost one request.
        """
        head, mark, tail = name.rpartition("_")
        for spelling in dict.fromkeys((name, head + mark + tail.upper(), head + mark + tail.lower())):
            found = self._list_providers([("name", spelling)])
            if found:
                return found[0]
        return None

    def providers_in_tree(self, root: str) -> list[Provider]:
        """All providers of the tree that *root* is in; none if it does not exist. One request."""
        return self._list_providers([("in_tree", root)])

    def providers_with_trait(self, trait: str) -> list[Provider]:
        """All providers that have *trait*, which must exist. One request."""
        return self._list_providers([("required", trait)])

    def providers_offering(self, resource_class: str) -> list[Provider]:
        """All providers that would give somebody one more of *resource_class*. One request.

        :raises PlacementRefused: Placement does not know the class.
        """
        return self._list_providers([("resources", f"{resource_class}:1")])

    def create_provider(self, uuid: str, name: str, parent: str | None = None) -> Provider:
        """Make a provider without inventory or traits.

        :raises PlacementConflict: the uuid or the name is taken.
        """
        body = {"uuid": uuid, "name": name}
        if parent is not None:
            body["parent_provider_uuid"] = parent
        return self._requester.read("POST", "/resource_providers", records.provider, body)

    def rename_provider(self, uuid: str, name: str) -> None:
        """Give a provider another name; its generation stays. A repetition changes nothing.

        :raises PlacementNotFound: there is none with that uuid.
        :raises PlacementConflict: the name is taken.
        """
        self._requester.read("PUT", _provider(uuid), records.provider, {"name": name})

    def delete_provider(self, uuid: str) -> None:
        """Delete it with its inventories and traits.

        :raises PlacementNotFound: there is none with that uuid.
        :raises PlacementConflict: somebody holds an allocation from it, or it has children.
        """
        self._requester.write("DELETE", _provider(uuid))

    # Inventories

    def get_inventories(self, uuid: str) -> Inventories:
        """:raises PlacementNotFound: there is no such provider."""
        return self._requester.read("GET", f"{_provider(uuid)}/inventories", records.inventories)

    def put_inventories(self, uuid: str, generation: int, records: Mapping[str, Inventory]) -> int:
        """Make *records* all the inventories of the provider, and return its new generation.

        :raises PlacementNotFound: there is no such provider.
        :raises PlacementConflict: the provider has moved on from *generation*, or a class that is
            no longer named is in use.
        """
        body = {
            "resource_provider_generation": generation,
            "inventories": {name: asdict(record) for name, record in records.items()},
        }
        return self._write_named("PUT", f"{_provider(uuid)}/inventories", body)

    def get_usages(self, uuid: str) -> Resources:
        """What is allocated from the provider, by resource class; 0 for an unused inventory.

        :raises PlacementNotFound: there is no such provider.
        """
        return self._requester.read("GET", f"{_provider(uuid)}/usages", records.usages)

    def ensure_resource_class(self, name: str) -> None:
        """Make a CUSTOM_ class if it does not exist. No request for a class that this client has seen.

        :raises PlacementRefused: a standard class that this Placement does not have.
        """
        if name in self._known:
            return
        path = f"/resource_classes/{quote(name, safe='')}"
        if name.startswith("CUSTOM_"):
            self._requester.write("PUT", path)
            self._known.add(name)
            return
        try:
            self._requester.read("GET", path, lambda answer: records.text(answer, "name"))
            self._known.add(name)
        except PlacementNotFound as exc:
            raise PlacementRefused(
                f"Placement does not know the resource class {name}: upgrade os-resource-classes beside it, "
                "or name the class CUSTOM_…",
                400,
            ) from exc

    # Traits

    def get_traits(self, uuid: str) -> Traits:
        """:raises PlacementNotFound: there is no such provider."""
        return self._requester.read("GET", f"{_provider(uuid)}/traits", records.traits)

    def put_traits(self, uuid: str, generation: int, names: Iterable[str]) -> int:
        """Make *names* all the traits of the provider, and return its new generation.

        :raises PlacementNotFound: there is no such provider.
        :raises PlacementConflict: the provider has moved on from *generation*.
        :raises PlacementRefused: a trait does not exist; see :meth:`ensure_traits`.
        """
        body = {"resource_provider_generation": generation, "traits": sorted(set(names))}
        return self._write_named("PUT", f"{_provider(uuid)}/traits", body)

    def ensure_traits(self, names: Iterable[str]) -> None:
        """Make the CUSTOM_ traits among *names* that do not exist.

        No request for traits that this client has seen; else one if none is missing.

        :raises PlacementRefused: a standard trait that this Placement does not have.
        """
        wanted = set(names) - self._known
        missing = self.unknown_traits(wanted)
        standard = [name for name in missing if not name.startswith("CUSTOM_")]
        if standard:
            raise PlacementRefused(
                f"Placement does not know the trait {', '.join(standard)}: upgrade os-traits beside Placement to "
                f"{OS_TRAITS} or later and restart it, or name the trait CUSTOM_…",
                400,
            )
        for name in missing:
            self._requester.write("PUT", f"/traits/{quote(name, safe='')}")
        self._known |= wanted

    def unknown_traits(self, names: Iterable[str]) -> list[str]:
        """Those of *names* that Placement does not have, sorted. One request, or none for no name."""
        wanted = sorted(set(names))
        if not wanted:
            return []
        query = urlencode({"name": "in:" + ",".join(wanted)})
        known = self._requester.read("GET", f"/traits?{query}", records.trait_names)
        return [name for name in wanted if name not in known]

    def unknown_resource_classes(self, names: Iterable[str]) -> list[str]:
        """Those of *names* that Placement does not have, sorted. One request."""
        known = self._requester.read("GET", "/resource_classes", records.resource_class_names)
        return sorted(set(names) - known)

    # Allocations

    def get_allocations_for_provider(self, uuid: str) -> Mapping[str, Resources]:
        """What each consumer holds of the provider.

        :raises PlacementNotFound: there is no such provider.
        """
        return self._requester.read("GET", f"{_provider(uuid)}/allocations", records.resources_by_uuid)

    def get_allocations(self, consumer: str) -> ConsumerAllocations:
        """What *consumer* holds; nothing, with generation None, if Placement does not know it."""
        return self._requester.read(
            "GET", _consumer(consumer), lambda answer: records.consumer_allocations(consumer, answer)
        )

    def put_allocations(self, allocations: ConsumerAllocations) -> None:
        """Make *allocations* all that the consumer holds.

        A consumer that holds nothing must not be told to hold nothing: Placement then keeps it at a
        generation 0 that no GET shows, and refuses its next claim.

        :raises PlacementConflict: there is not enough left, or the consumer has moved on from the
            generation.
        :raises PlacementRefused: a provider does not exist.
        """
        self._requester.write("PUT", _consumer(allocations.consumer), _claim(allocations))

    def post_allocations(self, consumers: Sequence[ConsumerAllocations]) -> None:
        """Replace what several consumers hold, all or nothing.

        Only so does an allocation pass from one consumer to another at a provider that is reserved:
        the use after it must not exceed the use before it. Raises as :meth:`put_allocations` does.
        """
        self._requester.write("POST", "/allocations", {each.consumer: _claim(each) for each in consumers})

    def delete_allocations(self, consumer: str) -> None:
        """Give back everything that *consumer* holds.

        :raises PlacementNotFound: it holds nothing.
        """
        self._requester.write("DELETE", _consumer(consumer))

    def allocation_candidates(self, query: Sequence[tuple[str, str]]) -> Candidates:
        """The ways to satisfy *query*.

        The embedded Placement generates at most 100, dealt out over the hosts in turn. A ``limit``
        below that keeps an arbitrary part of them, perhaps all of one host.

        :param query: the parameters in order; names may repeat.
        :raises PlacementRefused: an unknown trait or class, or a contradictory query.
        """
        return self._requester.read("GET", f"/allocation_candidates?{urlencode(query)}", records.candidates)

    def _write_named(self, method: str, path: str, body: Mapping[str, Any]) -> int:
        """Write what names traits or classes; forget which exist if Placement refuses: one may have been deleted."""
        try:
            return self._requester.read(method, path, records.provider_generation, body)
        except PlacementRefused:
            self._known.clear()
            raise

    def _list_providers(self, query: Sequence[tuple[str, str]]) -> list[Provider]:
        return self._requester.read("GET", f"/resource_providers?{urlencode(query)}", records.providers)


def _provider(uuid: str) -> str:
    return f"/resource_providers/{quote(uuid, safe='')}"


def _consumer(uuid: str) -> str:
    return f"/allocations/{quote(uuid, safe='')}"


def _claim(allocations: ConsumerAllocations) -> dict[str, Any]:
    return {
        "allocations": {uuid: {"resources": dict(held)} for uuid, held in allocations.allocations.items()},
        "consumer_generation": allocations.generation,
        "project_id": allocations.project_id,
        "user_id": allocations.user_id,
        "consumer_type": allocations.consumer_type,
    }
