"""What an instance needs, as one query for allocation candidates: flavor, image, PCI aliases and device profile.

What the flavor and the image ask of the host itself goes to the unnumbered group; each device has a group of its own.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from autoclave.exceptions import BadRequest
from autoclave.rules.extra_specs import specs_of
from autoclave.rules.flavor_image import Flavor
from autoclave.rules.ignored import ignored_extra_specs, ignored_properties
from autoclave.rules.pci_alias import PCIAlias
from autoclave.rules.pci_matches import ALWAYS as PCI_PROVIDER_TRAITS
from autoclave.rules.profile_groups import request_groups
from autoclave.rules.request_group import RequestGroup
from autoclave.rules.traits import TraitDemand, flavor_traits, image_traits

ALIAS_KEY = "pci_passthrough:alias"
PROFILE_KEY = "accel:device_profile"
POLICY_KEY = "group_policy"

LIMIT = 1000
"""Candidates asked for at most; more than the embedded Placement makes, so that it leaves no host out."""

HOST_TRAIT = "COMPUTE_NODE"
"""What the root provider of every host that runs instances has, and that of no other tree."""

MAX_DEVICES = 64
"""Devices that a flavor may ask for by alias."""

_MAX_AMOUNT = 2**31 - 1
_POLICIES = ("none", "isolate")
_COUNT = re.compile(r"\d{1,10}", re.ASCII)
_EMPTY = TraitDemand()


@dataclass(frozen=True)
class ResourceRequest:
    """The whole of what an instance needs.

    :param groups: by suffix; the unnumbered one, where there is one, first.
    :param group_policy: whether groups with a suffix may share a provider (``none``) or not (``isolate``).
    :param ignored_properties: those of the image that look like a demand and are none, with why, by key.
    :param ignored_extra_specs: those of the flavor that nothing follows from, with why, by key.
    """

    groups: Mapping[str, RequestGroup]
    group_policy: str = "none"
    ignored_properties: Mapping[str, str] = field(default_factory=dict)
    ignored_extra_specs: Mapping[str, str] = field(default_factory=dict)

    def asked_by(self, name: str) -> list[str]:
        """Who asks for a resource class or a trait, in words; each of them once."""
        return list(dict.fromkeys(asker for group in self.groups.values() if (asker := group.asked_by(name))))

    def query(self, in_tree: str | None = None) -> list[tuple[str, str]]:
        """The parameters of ``GET /allocation_candidates``.

        :param in_tree: the root provider of the only host that is wanted.
        """
        # Placement places one group after the other, and goes back where nothing is left for the next. So those that
        # fewest providers will do for are first: the other way round, a mixture of five and six takes it half a minute.
        choosy_first = sorted(
            self.groups.values(), key=lambda group: (bool(group.suffix), -len(group.required | group.forbidden))
        )
        parameters = [pair for group in choosy_first for pair in group.query(in_tree)]
        parameters.append(("root_required", HOST_TRAIT))
        if len(self.groups.keys() - {""}) > 1:
            # Placement does not choose for its caller.
            parameters.append(("group_policy", self.group_policy))
        return [*parameters, ("limit", str(LIMIT))]


def build_request(
    flavor: Flavor,
    image_properties: Mapping[str, object],
    aliases: Mapping[str, PCIAlias],
    profile_groups: Sequence[Mapping[str, str]] = (),
) -> ResourceRequest:
    """The request of a *flavor* and an image.

    :param aliases: those of ``[pci] alias`` by name.
    :param profile_groups: the stored groups of the device profile that :func:`device_profile_name` names.
    :raises BadRequest: an extra spec cannot be understood, two demands exclude each other, or nothing is asked for;
        names the keys.
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
    """What a flavor asks of the host itself: amounts by resource class, none of them 0.

    :raises BadRequest: an extra spec cannot be understood; names the key.
    """
    group = _of_flavor(flavor, frozenset()).get("")
    return group.resources if group else {}


def device_profile_name(extra_specs: Mapping[str, str]) -> str | None:
    """The device profile that a flavor names.

    :raises BadRequest: the name is empty.
    """
    name = extra_specs.get(PROFILE_KEY)
    if name is not None and not name.strip():
        raise BadRequest(f"Flavor extra spec {PROFILE_KEY!r} names no device profile.")
    return name


def alias_counts(extra_specs: Mapping[str, str]) -> list[tuple[str, int]]:
    """How many devices of which alias a flavor asks for, in its order; without a count, one.

    :raises BadRequest: ``pci_passthrough:alias`` is not ``NAME[:COUNT],…``, or asks for too many.
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
        # An accelerator may have the same class, and is no function that a flavor can be given.
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
