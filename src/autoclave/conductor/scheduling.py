"""Find a host for an instance.

With many identical request groups, Placement may take minutes, because it tries every assignment of devices to groups.
For example, this happens with eleven groups on a host with ten devices, and blocks other requests. Therefore, such
requests are first reduced to one group of each kind.
"""

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.conductor.compute_hosts import ComputeHost, ComputeHosts
from autoclave.db import flavors as flavor_rows
from autoclave.db import images as image_rows
from autoclave.db.flavors import FlavorRecord
from autoclave.db.images import ImageRecord
from autoclave.db.instances import InstanceRecord
from autoclave.exceptions import BadRequest, NoValidHost, PlacementConflict, PlacementRefused, PlacementUnavailable
from autoclave.lifecycle.ports import Ports
from autoclave.placement.records import GENERATIONS_OF_NOTHING, Candidates, ConsumerAllocations, Resources, Summary
from autoclave.rules.instance_states import ZONE
from autoclave.rules.resource_request import RequestGroup, ResourceRequest

LOG = logging.getLogger(__name__)


MANY = 6
"""Minimum number of identical groups for which a request is reduced first."""

_Kind = tuple[frozenset[tuple[str, int]], frozenset[str], frozenset[str]]


def one_of_each(request: ResourceRequest) -> ResourceRequest | None:
    """Return *request* with one group of each kind; None if no kind has :data:`MANY` groups."""
    if max(_counts(request).values(), default=0) < MANY:
        return None
    first: dict[_Kind | str, RequestGroup] = {}
    for group in request.groups.values():
        first.setdefault(_kind(group) if group.suffix else "", group)
    return replace(request, groups={group.suffix: group for group in first.values()})


def with_enough(request: ResourceRequest, summaries: Mapping[str, Summary]) -> set[str]:
    """Return the roots of the trees that have enough resources for each kind of group, each considered alone.

    :param summaries: summaries of all providers of the trees, by uuid.
    """
    trees: dict[str, list[Summary]] = defaultdict(list)
    for summary in summaries.values():
        trees[summary.root].append(summary)
    counts = _counts(request)
    return {
        root for root, tree in trees.items() if all(sum(_room(tree, *kind)) >= count for kind, count in counts.items())
    }


def _counts(request: ResourceRequest) -> Counter[_Kind]:
    return Counter(_kind(group) for group in request.groups.values() if group.suffix)


def _kind(group: RequestGroup) -> _Kind:
    return frozenset(group.resources.items()), group.required, group.forbidden


def _room(
    tree: list[Summary], amounts: frozenset[tuple[str, int]], required: frozenset[str], forbidden: frozenset[str]
) -> Iterator[int]:
    """Yield, for each suitable provider of *tree*, how many groups of a kind it alone can satisfy."""
    for each in tree:
        if required <= each.traits and not forbidden & each.traits:
            yield min((each.capacity.get(name, 0) - each.used.get(name, 0)) // amount for name, amount in amounts)


def flavor_called(tx: Connection, key: str) -> FlavorRecord | None:
    """Return the flavor with the id *key*, or else with that name."""
    return flavor_rows.get(tx, key) or flavor_rows.find(tx, key)


def images_called(tx: Connection, key: str) -> list[ImageRecord]:
    """Return the image with the uuid *key*, or else all with that name."""
    known = image_rows.get(tx, key)
    return [known] if known else image_rows.list_for(tx, filters={"name": key})


def explain_command(tx: Connection, instance: InstanceRecord) -> str:
    """Return the shell command that explains where an instance could go.

    It uses the names of flavor and image, or id and uuid if a name is ambiguous or names another one.
    """
    words = [_flavor_word(tx, instance), _image_word(tx, instance)]
    if any(word.startswith("-") for word in words):
        words.insert(0, "--")
    if instance.requested_host is not None:
        words = [f"--host={instance.requested_host}", *words]
    return f"autoclave explain {shlex.join(words)}"


def _flavor_word(tx: Connection, instance: InstanceRecord) -> str:
    flavorid, name = str(instance.flavor["flavorid"]), str(instance.flavor["name"])
    found = flavor_called(tx, name)
    return name if found is not None and found.flavorid == flavorid else flavorid


def _image_word(tx: Connection, instance: InstanceRecord) -> str:
    name = instance.image["name"]
    if name and [each.uuid for each in images_called(tx, name)] == [instance.image_uuid]:
        return str(name)
    return instance.image_uuid


_GENERATIONS = 2 * GENERATIONS_OF_NOTHING
"""Consumer generations to try for one candidate, while the answers do not decide whether it is free."""

MAYBE_CUT = 100
"""Number of candidates from which the list may be truncated; the embedded Placement returns at most this number."""

_MOST_NAMED = 50
"""Maximum number of hosts whose reason a fault names: MariaDB limits it to 64 KiB."""


@dataclass(frozen=True)
class Claim:
    """Describe the resources that an instance has claimed.

    :param groups: providers of each request group, by its suffix.
    """

    host: str
    allocations: Mapping[str, Resources]
    groups: Mapping[str, tuple[str, ...]]


class Scheduler:
    """Claim a host's resources for an instance. Claims may run concurrently: Placement accepts one of them."""

    def __init__(self, ports: Ports, hosts: ComputeHosts) -> None:
        self._ports = ports
        self._hosts = hosts

    def claim(self, instance: InstanceRecord, request: ResourceRequest, give_up_at: datetime) -> Claim:
        """Claim the first candidate that is free.

        If a host refuses a candidate, Placement is queried again before another candidate of that host is tried. A
        concurrent claim may have taken a part of each known candidate, and there may be new ones.

        After any exception the instance may hold an allocation, for example from a claim whose answer was lost.

        :param give_up_at: time (UTC) after which no further candidate is tried.
        :raises NoValidHost: no candidate is left; the message says why.
        :raises BadRequest: Placement does not know a trait or class of the request; the message names it.
        :raises PlacementError: Placement returned no candidates, or did not answer a claim.
        """
        tried: list[Claim] = []
        why: Exception | None = None
        while True:
            refused: set[str] = set()
            for claim in self._candidates(instance, request, none_is_an_error=not tried):
                if claim.host in refused or any(claim.allocations == other.allocations for other in tried):
                    continue  # equal allocations differ only in the order of groups
                if self._ports.clock() >= give_up_at:
                    raise NoValidHost("No candidate could be claimed in time.", _last(tried, why))
                tried.append(claim)
                got, why = self._try(instance, tried)
                if got is not None:
                    return got
                refused.add(claim.host)
            if not refused:
                raise NoValidHost("Placement offered candidates, but none could be claimed.", _last(tried, why))

    def _try(self, instance: InstanceRecord, tried: Sequence[Claim]) -> tuple[Claim | None, Exception | None]:
        """Claim the last of *tried*; return what the instance holds then, perhaps an earlier claim, or the failure.

        :raises NoValidHost: the instance holds an allocation that was not tried.
        :raises PlacementError: the outcome is unknown.
        """
        why: Exception | None = None
        for generation in _GENERATIONS:
            try:
                self._ports.placement.put_allocations(_wanted(instance, tried[-1], generation))
                return tried[-1], None
            except PlacementRefused as error:
                if error.status != 400:
                    raise
                return None, error  # a provider of it was deleted concurrently
            except (PlacementConflict, PlacementUnavailable) as error:
                LOG.info("Instance %s did not get host %s: %s", instance.uuid, tried[-1].host, error)
                why = error
            if held := self._held(instance, tried):
                return held, None
            if isinstance(why, PlacementConflict) and not why.moved_on:
                break  # another consumer has taken it
        return None, why

    def _held(self, instance: InstanceRecord, tried: Sequence[Claim]) -> Claim | None:
        """Return the claim that the instance holds after a lost or late answer."""
        held = self._ports.placement.get_allocations(instance.uuid).allocations
        found = [claim for claim in tried if claim.allocations == held]
        if held and not found:
            raise NoValidHost("The instance already holds other resources.", f"It holds {dict(held)}.")
        return found[0] if found else None

    def _candidates(
        self, instance: InstanceRecord, request: ResourceRequest, *, none_is_an_error: bool
    ) -> Iterator[Claim]:
        """Yield all candidates, those of the host with the most free memory first.

        :raises NoValidHost: no host may get instances; or there is no candidate, if that is an error.
        """
        hosts = self._eligible(instance)
        usable = {host.root: host for host in hosts if host.why_not is None}
        one = instance.requested_host
        if not usable:
            barred = (
                "No host currently accepts instances." if one is None else f"Host {one} currently accepts no instances."
            )
            raise NoValidHost(barred, _why(hosts))
        only = None if one is None else next(iter(usable))
        answer = self.ask(request, only)
        found = _ranked(answer, usable)
        yield from found
        asked = {answer.root_of(candidate) for candidate in answer.candidates}
        if only is None and len(answer.candidates) >= MAYBE_CUT:
            for root in [each for each in usable if each not in asked]:
                more = _ranked(self.ask(request, root), usable)
                found += more
                yield from more
        if not found and none_is_an_error:
            having = [host for host in hosts if host.root in asked]
            if having:
                raise NoValidHost(
                    "The hosts that satisfy flavor and image currently accept no instances.", _why(having)
                )
            with self._ports.db.read() as tx:
                command = explain_command(tx, instance)
            lacking = "No host satisfies" if one is None else f"Host {one} does not satisfy"
            raise NoValidHost(f"{lacking} flavor and image.", f"To see what each host lacks, run: {command}")

    def ask(self, request: ResourceRequest, root: str | None = None) -> Candidates:
        """Return the candidates of a request, of one host if *root* is given.

        :raises BadRequest: Placement does not know a trait or class of the request; the message names it.
        :raises PlacementError: Placement failed.
        """
        sketch = one_of_each(request)
        if sketch is None:
            return self._ask(request, root)
        seen = self._ask(sketch, root)
        roots = {seen.root_of(candidate) for candidate in seen.candidates}
        able = roots & with_enough(request, seen.summaries)
        # Placement alternates between hosts: the list of hosts is complete if one has two candidates.
        all_seen = len(seen.candidates) < MAYBE_CUT or len(seen.candidates) > len(roots)
        if able == roots or not (able or all_seen):
            return self._ask(request, root)
        answers = [self._ask(request, each) for each in sorted(able)]
        return Candidates(
            tuple(candidate for answer in answers for candidate in answer.candidates),
            {uuid: summary for answer in answers for uuid, summary in answer.summaries.items()},
        )

    def _ask(self, request: ResourceRequest, root: str | None) -> Candidates:
        try:
            return self._ports.placement.allocation_candidates(request.query(root))
        except PlacementRefused as error:
            if error.status != 400:
                raise
            self.require_known(request)
            raise BadRequest(f"Placement refused the request of flavor and image: {error}") from error

    def require_known(self, request: ResourceRequest) -> None:
        """Refuse a request that names traits or classes unknown to Placement.

        :raises BadRequest: a trait or class is unknown; the message names it.
        :raises PlacementError: Placement failed.
        """
        groups = request.groups.values()
        unknown = {
            "trait": self._ports.placement.unknown_traits(
                name for group in groups for name in group.required | group.forbidden
            ),
            "resource class": self._ports.placement.unknown_resource_classes(
                name for group in groups for name in group.resources
            ),
        }
        for kind, names in unknown.items():
            if names:
                said = "; ".join(f"{name} ({', '.join(request.asked_by(name))})" for name in names)
                raise BadRequest(f"Placement knows no {kind} {said}: no host has it.")

    def _eligible(self, instance: InstanceRecord) -> list[ComputeHost]:
        if instance.availability_zone not in (None, ZONE):
            raise NoValidHost(f"There is no availability zone {instance.availability_zone!r}; the only one is {ZONE}.")
        hosts = self._hosts.all()
        if instance.requested_host is None:
            return hosts
        wanted = [host for host in hosts if host.name == instance.requested_host]
        if not wanted:
            raise NoValidHost(f"There is no host {instance.requested_host!r} that runs instances.")
        return wanted


def _ranked(answer: Candidates, usable: Mapping[str, ComputeHost]) -> list[Claim]:
    free = {
        root: summary.capacity.get("MEMORY_MB", 0) - summary.used.get("MEMORY_MB", 0)
        for root, summary in answer.summaries.items()
        if root in usable
    }
    found = [(answer.root_of(candidate), candidate) for candidate in answer.candidates]
    ordered = sorted(((root, each) for root, each in found if root in free), key=lambda pair: -free[pair[0]])
    return [Claim(usable[root].name, each.allocations, each.mappings) for root, each in ordered]


def _wanted(instance: InstanceRecord, claim: Claim, generation: int | None) -> ConsumerAllocations:
    return ConsumerAllocations(
        instance.uuid, claim.allocations, generation, project_id=instance.project_id, user_id=instance.user_id
    )


def _last(tried: Sequence[Claim], why: Exception | None) -> str:
    return f"Candidates tried: {len(tried)}, the last on {tried[-1].host}: {why}" if tried else ""


def _why(hosts: Sequence[ComputeHost]) -> str:
    barred = [f"{host.name} {host.why_not}" for host in hosts if host.why_not]
    more = [f"and {len(barred) - _MOST_NAMED} more"] if len(barred) > _MOST_NAMED else []
    return "; ".join(barred[:_MOST_NAMED] + more) or "there are no hosts"
