"""Build the query for allocation candidates of an instance.

The query combines flavor, image, PCI aliases and device profile. Demands of the flavor and the image on the host itself
go to the unnumbered group. Each device has a group of its own. Extra specs and properties that have no effect are not
errors: they may be meant for Nova. ``autoclave explain`` lists them, so that operators do not rely on them.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from autoclave.exceptions import BadRequest
from autoclave.rules.flavor_image import (
    FORBIDDEN,
    HEEDED,
    REQUIRED,
    Flavor,
    TraitDemand,
    flavor_traits,
    image_traits,
    specs_of,
)
from autoclave.rules.pci_alias import PCIAlias
from autoclave.rules.resource_names import FLAVOR_TRAITS as PCI_PROVIDER_TRAITS
from autoclave.rules.resource_names import OWNER_CYBORG

OF_FLAVOR = "flavor"
"""The origin of demands from a flavor's own extra specs and, in the unnumbered group, from the image."""


@dataclass(frozen=True)
class RequestGroup:
    """Describe one request group.

    :param suffix: a group with a suffix must be satisfied by a single provider. The unnumbered group has an empty
        suffix, and several providers of a host may satisfy it.
    :param resources: amounts by resource class; none is 0.
    :param required: traits that the providers must have.
    :param forbidden: traits that the providers must not have.
    :param origin: the source of the group, in words.
    """

    suffix: str
    resources: Mapping[str, int]
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    origin: str = OF_FLAVOR

    def asked_by(self, name: str) -> str | None:
        """Describe the source of the class or trait *name* in this group, or return None without one."""
        kind = "resources" if name in self.resources else "trait"
        if kind == "trait" and name not in self.required | self.forbidden:
            return None
        if self.origin != OF_FLAVOR:
            return self.origin
        also = " or image property" if kind == "trait" and not self.suffix else ""
        return f"extra spec{also} '{kind}{self.suffix}:{name}'"

    def query(self, in_tree: str | None = None) -> list[tuple[str, str]]:
        """Return the group's parameters for ``GET /allocation_candidates``.

        :param in_tree: the provider whose tree alone may satisfy the group.
        """
        amounts = ",".join(f"{name}:{amount}" for name, amount in sorted(self.resources.items()))
        traits = [*sorted(self.required), *(f"!{name}" for name in sorted(self.forbidden))]
        parameters = [(f"resources{self.suffix}", amounts)]
        if traits:
            parameters.append((f"required{self.suffix}", ",".join(traits)))
        if in_tree is not None:
            parameters.append((f"in_tree{self.suffix}", in_tree))
        return parameters


_TWO_FUNCTIONS = "trait:CUSTOM_FPGA_XILINX"
"""A card with this trait has two functions; a guest needs a request for each."""


def counts(group: Mapping[str, str]) -> list[int]:
    """Return the number of accelerator requests for each ``resources:`` key of a group."""
    each = 2 if group.get(_TWO_FUNCTIONS) == REQUIRED else 1
    return [each * int(value) for key, value in group.items() if key.startswith("resources")]


def suffix_of(number: int) -> str:
    """Return Nova's suffix for the request group of a profile's group, counted from 0."""
    return f"device_profile_{number}"


def request_groups(profile: str, groups: Sequence[Mapping[str, str]]) -> list[RequestGroup]:
    """Convert each group of a device profile into a request group, without the keys for the driver."""
    return [_request_group(profile, number, group) for number, group in enumerate(groups)]


def _request_group(profile: str, number: int, group: Mapping[str, str]) -> RequestGroup:
    # A function for flavors may have the same class and traits, but cannot be bound to an accelerator request.
    resources, required, forbidden = {}, {OWNER_CYBORG}, set()
    for key, value in group.items():
        kind, _, name = key.partition(":")
        if kind == "resources":
            resources[name] = int(value)
        elif kind == "trait" and value == REQUIRED:
            required.add(name)
        elif kind == "trait" and value == FORBIDDEN:
            forbidden.add(name)
    return RequestGroup(
        suffix_of(number), resources, frozenset(required), frozenset(forbidden), f"device profile {profile}"
    )


_SAME_HARDWARE = (
    "no guest gets other virtual hardware for it: processors are not pinned, and there are no NUMA nodes and no huge "
    "pages"
)
_NO_QUOTA = "what a guest does with its processors, disks and network is not limited"
_BY_TRAITS_ONLY = "hosts are told apart by resources and traits only: ask for a trait"
_NOT_VERIFIED = "the signature of an image is not verified"
_UNKNOWN = "Autoclave does not know it"

_SPECS = {
    "hw:": _SAME_HARDWARE,
    "quota:": _NO_QUOTA,
    "capabilities:": _BY_TRAITS_ONLY,
    "aggregate_instance_extra_specs:": _BY_TRAITS_ONLY,
}
_PROPERTIES = {"hw_": _SAME_HARDWARE, "img_signature": _NOT_VERIFIED, "img_": _UNKNOWN, "os_": _UNKNOWN}
_ONLY_SAID = frozenset({"os_hash_algo", "os_hash_value", "os_hidden", "os_version"})
"""The properties that describe the image's data and demand nothing: Glance's own, and the release."""


def ignored_extra_specs(extra_specs: Mapping[str, str], known: Collection[str]) -> dict[str, str]:
    """Return the keys of a flavor that have no effect, in order, each with the reason.

    :param known: the keys that have an effect.
    """
    return {key: _reason(key, _SPECS) or _unknown(key) for key in sorted(extra_specs) if key not in known}


def ignored_properties(properties: Collection[str]) -> dict[str, str]:
    """Return the properties that only Nova obeys, in order, each with the reason.

    All other properties of an image demand nothing.
    """
    found = {key: _reason(key, _PROPERTIES) for key in sorted(properties) if key not in _ONLY_SAID | HEEDED}
    return {key: reason for key, reason in found.items() if reason is not None}


def _reason(key: str, reasons: Mapping[str, str]) -> str | None:
    return next((reason for prefix, reason in reasons.items() if key.startswith(prefix)), None)


def _unknown(key: str) -> str:
    # Nova compares keys without a scope with the properties of hosts and of their aggregates.
    return _UNKNOWN if ":" in key else _BY_TRAITS_ONLY


ALIAS_KEY = "pci_passthrough:alias"
PROFILE_KEY = "accel:device_profile"
POLICY_KEY = "group_policy"

LIMIT = 1000
"""The most candidates requested. The embedded Placement generates fewer, so no host is left out."""

HOST_TRAIT = "COMPUTE_NODE"
"""The trait of the root provider of every host that runs instances; no other tree has it."""

MAX_DEVICES = 64
"""The most devices that a flavor may request by alias."""

_MAX_AMOUNT = 2**31 - 1
_POLICIES = ("none", "isolate")
_COUNT = re.compile(r"\d{1,10}", re.ASCII)
_EMPTY = TraitDemand()


@dataclass(frozen=True)
class ResourceRequest:
    """Hold the complete request of an instance.

    :param groups: by suffix; the unnumbered group, if any, is first.
    :param group_policy: groups with a suffix may share a provider (``none``), or may not (``isolate``).
    :param ignored_properties: the reason by key, for properties of the image that have no effect.
    :param ignored_extra_specs: the reason by key, for extra specs of the flavor that have no effect.
    """

    groups: Mapping[str, RequestGroup]
    group_policy: str = "none"
    ignored_properties: Mapping[str, str] = field(default_factory=dict)
    ignored_extra_specs: Mapping[str, str] = field(default_factory=dict)

    def asked_by(self, name: str) -> list[str]:
        """Describe all sources of a resource class or a trait, without duplicates."""
        return list(dict.fromkeys(asker for group in self.groups.values() if (asker := group.asked_by(name))))

    def query(self, in_tree: str | None = None) -> list[tuple[str, str]]:
        """Return the parameters of ``GET /allocation_candidates``.

        :param in_tree: the root provider of the only host to consider.
        """
        # Placement places one group after the other, and backtracks when no provider is left for the next group. So
        # groups that the fewest providers satisfy are first. In the opposite order, a mixture of five and six takes
        # half a minute.
        choosy_first = sorted(
            self.groups.values(), key=lambda group: (bool(group.suffix), -len(group.required | group.forbidden))
        )
        parameters = [pair for group in choosy_first for pair in group.query(in_tree)]
        parameters.append(("root_required", HOST_TRAIT))
        if len(self.groups.keys() - {""}) > 1:
            # Placement requires the policy from its caller.
            parameters.append(("group_policy", self.group_policy))
        return [*parameters, ("limit", str(LIMIT))]


def build_request(
    flavor: Flavor,
    image_properties: Mapping[str, object],
    aliases: Mapping[str, PCIAlias],
    profile_groups: Sequence[Mapping[str, str]] = (),
) -> ResourceRequest:
    """Build the request of a *flavor* and an image.

    :param aliases: the aliases of ``[pci] alias`` by name.
    :param profile_groups: the stored groups of the device profile of :func:`device_profile_name`.
    :raises BadRequest: an extra spec is invalid, two demands contradict each other, or nothing is requested. The
        message names the keys.
    """
    image = image_traits(image_properties)
    groups = _of_flavor(flavor, image.required)
    devices = [
        *_of_aliases(flavor.extra_specs, aliases),
        *request_groups(device_profile_name(flavor.extra_specs) or "", profile_groups),
    ]
    for group in devices:
        if group.suffix in groups:
            raise BadRequest(
                f"Flavor {flavor.name!r} has extra specs with the suffix {group.suffix!r}, which is the name of the "
                f"group for {group.origin}; give them another one."
            )
        groups[group.suffix] = group
    if not groups:
        raise BadRequest(f"Flavor {flavor.name!r} asks for no resources at all.")
    return ResourceRequest(
        groups,
        _policy(flavor.extra_specs),
        {**image.ignored, **ignored_properties(image_properties)},
        ignored_extra_specs(flavor.extra_specs, _known(flavor.extra_specs)),
    )


def _known(extra_specs: Mapping[str, str]) -> set[str]:
    asked = {spec.key for kind in ("resources", "trait") for spec in specs_of(kind, extra_specs)}
    return asked | {ALIAS_KEY, PROFILE_KEY, POLICY_KEY}


def unnumbered_resources(flavor: Flavor) -> Mapping[str, int]:
    """Return the amounts by resource class that a flavor requests of the host itself, without zeros.

    :raises BadRequest: an extra spec is invalid; the message names the key.
    """
    group = _of_flavor(flavor, frozenset()).get("")
    return group.resources if group else {}


def device_profile_name(extra_specs: Mapping[str, str]) -> str | None:
    """Return the name of the flavor's device profile, or None.

    :raises BadRequest: the name is empty.
    """
    name = extra_specs.get(PROFILE_KEY)
    if name is not None and not name.strip():
        raise BadRequest(f"Flavor extra spec {PROFILE_KEY!r} names no device profile.")
    return name


def alias_counts(extra_specs: Mapping[str, str]) -> list[tuple[str, int]]:
    """Return the aliases of a flavor with their counts, in its order; the default count is one.

    :raises BadRequest: ``pci_passthrough:alias`` is not ``NAME[:COUNT],…``, or requests too many devices.
    """
    text = extra_specs.get(ALIAS_KEY)
    counts = [] if text is None else [_alias_count(part.strip()) for part in text.split(",")]
    if sum(count for _, count in counts) > MAX_DEVICES:
        raise BadRequest(f"Flavor extra spec {ALIAS_KEY!r} asks for more than {MAX_DEVICES} devices.")
    return counts


def _alias_count(text: str) -> tuple[str, int]:
    name, colon, number = (part.strip() for part in text.partition(":"))
    if not name or (colon and not (_COUNT.fullmatch(number) and 1 <= int(number) <= MAX_DEVICES)):
        raise BadRequest(
            f"Flavor extra spec {ALIAS_KEY!r}: {text!r} is not NAME or NAME:COUNT with a count from 1 to {MAX_DEVICES}."
        )
    return name, int(number) if colon else 1


def _of_aliases(extra_specs: Mapping[str, str], aliases: Mapping[str, PCIAlias]) -> Iterator[RequestGroup]:
    number = 0
    for name, count in alias_counts(extra_specs):
        if name not in aliases:
            raise BadRequest(f"Flavor extra spec {ALIAS_KEY!r}: there is no PCI alias {name!r}.")
        alias = aliases[name]
        # An accelerator may have the same class, but flavors cannot request it by alias.
        required = alias.required | PCI_PROVIDER_TRAITS
        for _ in range(count):
            amount = {alias.resource_class: 1}
            yield RequestGroup(f"pci{number}", amount, required, alias.forbidden, f"PCI alias {name}")
            number += 1


def _of_flavor(flavor: Flavor, image_required: frozenset[str]) -> dict[str, RequestGroup]:
    amounts: dict[str, dict[str, int]] = {"": flavor.resources()}
    for spec in specs_of("resources", flavor.extra_specs):
        if not _COUNT.fullmatch(spec.value) or int(spec.value) > _MAX_AMOUNT:
            raise BadRequest(
                f"Flavor extra spec {spec.key!r} is {spec.value!r}; it must be a whole number from 0 to {_MAX_AMOUNT}."
            )
        amounts.setdefault(spec.suffix, {})[spec.name] = int(spec.value)
    traits = flavor_traits(flavor.extra_specs)
    unnumbered = traits.get("", _EMPTY)
    if conflict := sorted(unnumbered.forbidden & image_required):
        raise BadRequest(
            f"Flavor {flavor.name!r} forbids what the image requires: {', '.join(conflict)} (extra spec "
            f"'trait:{conflict[0]}=forbidden', image property 'trait:{conflict[0]}=required')."
        )
    traits[""] = TraitDemand(unnumbered.required | image_required, unnumbered.forbidden)
    groups = {}
    for suffix in sorted(amounts.keys() | traits.keys()):
        wanted = {name: amount for name, amount in amounts.get(suffix, {}).items() if amount}
        demand = traits.get(suffix, _EMPTY)
        if wanted:
            groups[suffix] = RequestGroup(suffix, wanted, demand.required, demand.forbidden)
        elif demand != _EMPTY:
            raise BadRequest(_traits_of_nothing(flavor, suffix, demand))
    return groups


def _traits_of_nothing(flavor: Flavor, suffix: str, demand: TraitDemand) -> str:
    names = ", ".join(f"trait{suffix}:{name}" for name in sorted(demand.required | demand.forbidden))
    return (
        f"{names} ask for the traits of a provider, but flavor {flavor.name!r} takes nothing from one: add a "
        f"'resources{suffix}:CLASS' of 1 or more."
    )


def _policy(extra_specs: Mapping[str, str]) -> str:
    policy = extra_specs.get(POLICY_KEY, _POLICIES[0])
    if policy not in _POLICIES:
        raise BadRequest(f"Flavor extra spec {POLICY_KEY!r} is {policy!r}; it must be one of {', '.join(_POLICIES)}.")
    return policy
