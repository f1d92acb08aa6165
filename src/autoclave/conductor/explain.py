"""Explain which hosts an instance could go to, and why not to others (``autoclave explain``)."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from sqlalchemy.engine import Connection

from autoclave.conductor.builds import Requests
from autoclave.conductor.compute_hosts import ComputeHost, ComputeHosts
from autoclave.conductor.scheduling import MAYBE_CUT, Scheduler, flavor_called, images_called
from autoclave.db import attributes as attribute_rows
from autoclave.db import devices as device_rows
from autoclave.db import pci
from autoclave.db.devices import DeviceRecord
from autoclave.db.flavors import FlavorRecord
from autoclave.db.images import ImageRecord
from autoclave.db.pci import ProviderRecord
from autoclave.exceptions import BadRequest, NotFound
from autoclave.lifecycle.ports import Ports
from autoclave.rules.device_lifecycle import DeviceState, Withheld, shown_state
from autoclave.rules.flavor_image import require_fit
from autoclave.rules.resource_request import HOST_TRAIT, RequestGroup, ResourceRequest

_MOST = 10
"""Maximum number of devices named in an explanation."""


def not_free(tx: Connection, host: str, resource_class: str, trait: str | None = None) -> str | None:
    """Describe the devices of a class and why each is not free; None if the host has none on record.

    :param trait: only devices with this trait.
    """
    named = [*_devices(tx, host, resource_class, trait), *_functions(tx, host, resource_class, trait)]
    more = f" and {len(named) - _MOST} more" if len(named) > _MOST else ""
    return "; ".join(named[:_MOST]) + more if named else None


def _devices(tx: Connection, host: str, resource_class: str, trait: str | None) -> Iterator[str]:
    records = {device.id: device for device in device_rows.list_all(tx, hostname=host)}
    for deployable in device_rows.deployables_of(tx, list(records)):
        if deployable.resource_class != resource_class:
            continue
        if trait is None or trait in attribute_rows.traits_of(tx, deployable.id):
            device = records[deployable.device_id]
            yield f"{device.pci_address} is {_state(device)}"


def _state(device: DeviceRecord) -> str:
    state = shown_state(device.offer)
    reasons = {
        Withheld.HELD: device.hold_reason,
        Withheld.EXCLUDED: device.excluded_reason,
        DeviceState.ERROR: device.state_reason,
    }
    why = next((reason for name, reason in reasons.items() if name == state), None)
    if state == DeviceState.AVAILABLE:
        return "available, and reserved or allocated in Placement"
    return f"{state or 'in no known state'}{f' ({why})' if why else ''}"


def _functions(tx: Connection, host: str, resource_class: str, trait: str | None) -> Iterator[str]:
    for provider in pci.providers(tx, host):
        if provider.resource_class == resource_class and (trait is None or trait in provider.trait_names):
            yield f"{provider.address} is {_use(tx, provider)}"


def _use(tx: Connection, provider: ProviderRecord) -> str:
    if any(function.instance_uuid is not None for function in pci.functions_of(tx, provider)):
        return "in use"
    return "burned" if provider.burned else "reserved or allocated in Placement"


class Explainer:
    """Ask Placement as the scheduler does, then part by part for each host without a candidate."""

    def __init__(self, ports: Ports, requests: Requests, scheduler: Scheduler, hosts: ComputeHosts) -> None:
        self._ports = ports
        self._requests = requests
        self._scheduler = scheduler
        self._hosts = hosts

    def explain(self, flavor: str, image: str, host: str | None = None) -> dict[str, Any]:
        """Return the explanation as it is shown.

        :param flavor: name or id of the flavor.
        :param image: name or uuid of the image.
        :param host: explain only this host. Each host that lacks something costs several requests to Placement.
        :raises NotFound: no such flavor, image or host.
        :raises BadRequest: flavor and image contradict each other, or no host can satisfy them; the message says why.
        :raises PlacementError: Placement failed.
        """
        found, picture = self._flavor(flavor), self._image(image)
        require_fit(found.snapshot, picture)
        request, _ = self._requests.of(found.snapshot, picture.snapshot)
        hosts = [each for each in self._hosts.all() if host in (None, each.name)]
        if host is not None and not hosts:
            raise NotFound(f"There is no host {host!r} that runs instances.")
        only = hosts[0].root if host is not None else None
        answer = self._scheduler.ask(request, only)
        names = {each.root: each.name for each in hosts}
        counts = Counter(answer.root_of(candidate) for candidate in answer.candidates)
        cut = len(answer.candidates) >= MAYBE_CUT
        return {
            "flavor": found.name,
            "image": picture.name or picture.uuid,
            "query": f"/allocation_candidates?{urlencode(request.query(only), safe=':,!')}",
            "groups": [_group(group) for group in request.groups.values()],
            "ignored_extra_specs": dict(request.ignored_extra_specs),
            "ignored_properties": dict(request.ignored_properties),
            "candidates": [
                {
                    "host": names.get(answer.root_of(candidate)),
                    "allocations": {uuid: dict(amounts) for uuid, amounts in candidate.allocations.items()},
                    "groups": {suffix: list(uuids) for suffix, uuids in candidate.mappings.items()},
                }
                for candidate in answer.candidates
            ],
            "hosts": [self._host(each, request, None if cut else counts[each.root]) for each in hosts],
        }

    def _host(self, host: ComputeHost, request: ResourceRequest, candidates: int | None) -> dict[str, Any]:
        if candidates is None:
            candidates = len(self._scheduler.ask(request, host.root).candidates)
        why_not = [] if host.why_not is None else [f"It {host.why_not}."]
        if not candidates:
            why_not += self._lacking(host, request)
        return {"name": host.name, "candidates": candidates, "why_not": why_not}

    def _lacking(self, host: ComputeHost, request: ResourceRequest) -> list[str]:
        if not self._ports.placement.providers_in_tree(host.root):
            return ["It has no resource provider in Placement."]
        if HOST_TRAIT not in self._ports.placement.get_traits(host.root).names:
            return [f"Its resource provider lacks the trait {HOST_TRAIT}, which its agent sets."]
        why = [f"{_called(group)}: {reason}" for group in request.groups.values() for reason in self._of(host, group)]
        return why or ["It satisfies each group alone, but not all groups together."]

    def _of(self, host: ComputeHost, group: RequestGroup) -> Iterator[str]:
        """Yield why the host cannot satisfy *group* alone; nothing if it can."""
        if self._has(host, group):
            return
        bare = replace(group, required=frozenset(), forbidden=frozenset())
        if not self._has(host, bare):
            yield from self._missing_resources(host, bare)
            return
        kinds = " and ".join(sorted(group.resources))
        lacking = [
            name for name in sorted(group.required) if not self._has(host, replace(bare, required=frozenset({name})))
        ]
        everywhere = [
            name for name in sorted(group.forbidden) if not self._has(host, replace(bare, forbidden=frozenset({name})))
        ]
        for name in lacking:
            taken = [known for each in group.resources if (known := self._known(host, each, name)) is not None]
            yield f"no provider with free {kinds} has the trait {name}{': ' if taken else ''}{'; '.join(taken)}."
        for name in everywhere:
            yield f"every provider with free {kinds} has the forbidden trait {name}."
        if not lacking and not everywhere:
            demands = [*sorted(group.required), *(f"not {name}" for name in sorted(group.forbidden))]
            yield f"no provider with free {kinds} meets all of: {', '.join(demands)}."

    def _missing_resources(self, host: ComputeHost, bare: RequestGroup) -> Iterator[str]:
        missing = False
        for name, amount in sorted(bare.resources.items()):
            if self._has(host, replace(bare, resources={name: amount})):
                continue
            missing = True
            known = self._known(host, name)
            if amount > 1 and self._has(host, replace(bare, resources={name: 1})):
                where = " at one provider" if bare.suffix else ""
                yield f"less than {amount} of {name} is free{where}{f': {known}' if known else ''}."
            else:
                yield f"no {name} is free: {known or 'the host has none, or all are in use or reserved'}."
        if not missing:
            yield f"no single provider has free {' and '.join(sorted(bare.resources))}."

    def _known(self, host: ComputeHost, resource_class: str, trait: str | None = None) -> str | None:
        with self._ports.db.read() as tx:
            return not_free(tx, host.name, resource_class, trait)

    def _has(self, host: ComputeHost, group: RequestGroup) -> bool:
        return bool(self._scheduler.ask(ResourceRequest({group.suffix: group}), host.root).candidates)

    def _flavor(self, key: str) -> FlavorRecord:
        with self._ports.db.read() as tx:
            found = flavor_called(tx, key)
        if found is None:
            raise NotFound(f"There is no flavor {key!r}.")
        return found

    def _image(self, key: str) -> ImageRecord:
        with self._ports.db.read() as tx:
            found = images_called(tx, key)
        if not found:
            raise NotFound(f"There is no image {key!r}.")
        if len(found) > 1:
            raise BadRequest(f"{len(found)} images have the name {key!r}: specify one by its UUID.")
        return found[0]


def _group(group: RequestGroup) -> dict[str, Any]:
    return {
        "suffix": group.suffix,
        "asked_by": group.origin,
        "resources": dict(group.resources),
        "required": sorted(group.required),
        "forbidden": sorted(group.forbidden),
    }


def _called(group: RequestGroup) -> str:
    return f"Group {group.suffix} ({group.origin})" if group.suffix else "The host itself"
