"""Send Placement the requests that Autoclave needs.

This module never retries. After :class:`PlacementUnavailable` it is unknown whether the request was applied, and only
the caller can decide what to do. A repeated request has these effects:

* every GET: nothing changes.
* a PUT of inventories or traits: it names a generation, and the first success increments that. So the repetition is
  refused with :class:`PlacementConflict` and never applied twice.
* a PUT of allocations, and the POST of several: the same, by the consumer's generation.
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
"""The first os-traits with every standard trait that Autoclave sets (HW_NVME_*)."""


class PlacementClient:
    """Access Placement at one microversion. Instances are safe to share between threads.

    In addition to their own errors, all methods raise two. :class:`PlacementUnavailable` means no answer, or one of a
    proxy. :class:`PlacementRefused` means an answer that is neither success nor another listed error.

    :param adapter: from :mod:`autoclave.placement.transport`.
    """

    def __init__(self, adapter: Any) -> None:
        self._requester = Requester(adapter)
        self._known: set[str] = set()
        """Traits and resource classes that exist: only operators delete them, and only unused ones."""

    # Providers

    def get_provider(self, uuid: str) -> Provider:
        """Return a provider.

        :raises PlacementNotFound: no provider has that uuid.
        """
        return self._requester.read("GET", _provider(uuid), records.provider)

    def find_provider(self, name: str) -> Provider | None:
        """Return the provider with *name*, or None.

        Placement compares names with case, and clients write the PCI address after the last ``_`` in upper or lower
        case. So up to three spellings are queried, one request each. In a known tree, :meth:`providers_in_tree` and
        :meth:`Provider.is_named` need only one request.
        """
        head, mark, tail = name.rpartition("_")
        for spelling in dict.fromkeys((name, head + mark + tail.upper(), head + mark + tail.lower())):
            found = self._list_providers([("name", spelling)])
            if found:
                return found[0]
        return None

    def providers_in_tree(self, root: str) -> list[Provider]:
        """Return all providers of the tree that contains *root*; none if it does not exist. Sends one request."""
        return self._list_providers([("in_tree", root)])

    def providers_with_trait(self, trait: str) -> list[Provider]:
        """Return all providers with *trait*, which must exist. Sends one request."""
        return self._list_providers([("required", trait)])

    def providers_offering(self, resource_class: str) -> list[Provider]:
        """Return all providers that can allocate one more unit of *resource_class*. Sends one request.

        :raises PlacementRefused: Placement does not know the class.
        """
        return self._list_providers([("resources", f"{resource_class}:1")])

    def create_provider(self, uuid: str, name: str, parent: str | None = None) -> Provider:
        """Create a provider without inventory or traits.

        :raises PlacementConflict: the uuid or the name is taken.
        """
        body = {"uuid": uuid, "name": name}
        if parent is not None:
            body["parent_provider_uuid"] = parent
        return self._requester.read("POST", "/resource_providers", records.provider, body)

    def rename_provider(self, uuid: str, name: str) -> None:
        """Rename a provider; its generation stays the same. A repetition changes nothing.

        :raises PlacementNotFound: no provider has that uuid.
        :raises PlacementConflict: the name is taken.
        """
        self._requester.read("PUT", _provider(uuid), records.provider, {"name": name})

    def delete_provider(self, uuid: str) -> None:
        """Delete a provider with its inventories and traits.

        :raises PlacementNotFound: no provider has that uuid.
        :raises PlacementConflict: a consumer holds an allocation from it, or it has children.
        """
        self._requester.write("DELETE", _provider(uuid))

    # Inventories

    def get_inventories(self, uuid: str) -> Inventories:
        """Return the inventories of a provider.

        :raises PlacementNotFound: the provider does not exist.
        """
        return self._requester.read("GET", f"{_provider(uuid)}/inventories", records.inventories)

    def put_inventories(self, uuid: str, generation: int, records: Mapping[str, Inventory]) -> int:
        """Replace all inventories of a provider by *records*, and return its new generation.

        :raises PlacementNotFound: the provider does not exist.
        :raises PlacementConflict: the generation is outdated, or a removed class is in use.
        """
        body = {
            "resource_provider_generation": generation,
            "inventories": {name: asdict(record) for name, record in records.items()},
        }
        return self._write_named("PUT", f"{_provider(uuid)}/inventories", body)

    def get_usages(self, uuid: str) -> Resources:
        """Return the allocated amounts of a provider by resource class; 0 for an unused inventory.

        :raises PlacementNotFound: the provider does not exist.
        """
        return self._requester.read("GET", f"{_provider(uuid)}/usages", records.usages)

    def ensure_resource_class(self, name: str) -> None:
        """Create a CUSTOM_ class if it does not exist. Sends no request for a class that this client has seen.

        :raises PlacementRefused: this Placement does not have the standard class.
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
                f"Placement does not know the resource class {name}: upgrade Placement's os-resource-classes, or "
                "name the class CUSTOM_…",
                400,
            ) from exc

    # Traits

    def get_traits(self, uuid: str) -> Traits:
        """Return the traits of a provider.

        :raises PlacementNotFound: the provider does not exist.
        """
        return self._requester.read("GET", f"{_provider(uuid)}/traits", records.traits)

    def put_traits(self, uuid: str, generation: int, names: Iterable[str]) -> int:
        """Replace all traits of a provider by *names*, and return its new generation.

        :raises PlacementNotFound: the provider does not exist.
        :raises PlacementConflict: the generation is outdated.
        :raises PlacementRefused: a trait does not exist; see :meth:`ensure_traits`.
        """
        body = {"resource_provider_generation": generation, "traits": sorted(set(names))}
        return self._write_named("PUT", f"{_provider(uuid)}/traits", body)

    def ensure_traits(self, names: Iterable[str]) -> None:
        """Create the CUSTOM_ traits among *names* that do not exist.

        Sends no request for traits that this client has seen, and one request if none is missing.

        :raises PlacementRefused: this Placement does not have a standard trait.
        """
        wanted = set(names) - self._known
        missing = self.unknown_traits(wanted)
        standard = [name for name in missing if not name.startswith("CUSTOM_")]
        if standard:
            raise PlacementRefused(
                f"Placement does not know the trait {', '.join(standard)}: upgrade Placement's os-traits to "
                f"{OS_TRAITS} or later and restart Placement, or name the trait CUSTOM_…",
                400,
            )
        for name in missing:
            self._requester.write("PUT", f"/traits/{quote(name, safe='')}")
        self._known |= wanted

    def unknown_traits(self, names: Iterable[str]) -> list[str]:
        """Return those of *names* that Placement does not have, sorted. Sends one request, or none without names."""
        wanted = sorted(set(names))
        if not wanted:
            return []
        query = urlencode({"name": "in:" + ",".join(wanted)})
        known = self._requester.read("GET", f"/traits?{query}", records.trait_names)
        return [name for name in wanted if name not in known]

    def unknown_resource_classes(self, names: Iterable[str]) -> list[str]:
        """Return those of *names* that Placement does not have, sorted. Sends one request."""
        known = self._requester.read("GET", "/resource_classes", records.resource_class_names)
        return sorted(set(names) - known)

    # Allocations

    def get_allocations_for_provider(self, uuid: str) -> Mapping[str, Resources]:
        """Return the resources that each consumer holds of a provider.

        :raises PlacementNotFound: the provider does not exist.
        """
        return self._requester.read("GET", f"{_provider(uuid)}/allocations", records.resources_by_uuid)

    def get_allocations(self, consumer: str) -> ConsumerAllocations:
        """Return the allocations of *consumer*; empty, with generation None, if Placement does not know it."""
        return self._requester.read(
            "GET", _consumer(consumer), lambda answer: records.consumer_allocations(consumer, answer)
        )

    def put_allocations(self, allocations: ConsumerAllocations) -> None:
        """Replace all allocations of the consumer by *allocations*.

        Never send empty allocations for a consumer without any. Placement would keep it at a generation 0 that no GET
        shows, and refuse its next claim.

        :raises PlacementConflict: the capacity is exceeded, or the consumer's generation is outdated.
        :raises PlacementRefused: a provider does not exist.
        """
        self._requester.write("PUT", _consumer(allocations.consumer), _claim(allocations))

    def post_allocations(self, consumers: Sequence[ConsumerAllocations]) -> None:
        """Replace the allocations of several consumers, all or nothing.

        Only this moves an allocation between consumers at a reserved provider: the usage afterwards must not exceed the
        usage before. Raises as :meth:`put_allocations` does.
        """
        self._requester.write("POST", "/allocations", {each.consumer: _claim(each) for each in consumers})

    def delete_allocations(self, consumer: str) -> None:
        """Delete all allocations of *consumer*.

        :raises PlacementNotFound: it has none.
        """
        self._requester.write("DELETE", _consumer(consumer))

    def allocation_candidates(self, query: Sequence[tuple[str, str]]) -> Candidates:
        """Return the candidates that satisfy *query*.

        The embedded Placement generates at most 100, distributed over the hosts in turn. A lower ``limit`` keeps an
        arbitrary part of them, perhaps all of one host.

        :param query: the parameters in order; names may repeat.
        :raises PlacementRefused: an unknown trait or class, or a contradictory query.
        """
        return self._requester.read("GET", f"/allocation_candidates?{urlencode(query)}", records.candidates)

    def _write_named(self, method: str, path: str, body: Mapping[str, Any]) -> int:
        """Write a body with traits or classes; on refusal, clear the known ones: one may have been deleted."""
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
