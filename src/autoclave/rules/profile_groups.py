"""The groups of a device profile, as they are stored: every value a string."""

from collections.abc import Mapping, Sequence

from autoclave.rules.request_group import RequestGroup
from autoclave.rules.resource_names import OWNER_CYBORG
from autoclave.rules.traits import FORBIDDEN, REQUIRED

_TWO_FUNCTIONS = "trait:CUSTOM_FPGA_XILINX"
"""Such a card has two functions, and a guest needs a request for each."""


def counts(group: Mapping[str, str]) -> list[int]:
    """How many accelerator requests each ``resources:`` key of a group stands for."""
    each = 2 if group.get(_TWO_FUNCTIONS) == REQUIRED else 1
    return [each * int(value) for key, value in group.items() if key.startswith("resources")]


def suffix_of(number: int) -> str:
    """The suffix of the request group of a profile's group, counted from 0; Nova's."""
    return f"device_profile_{number}"


def request_groups(profile: str, groups: Sequence[Mapping[str, str]]) -> list[RequestGroup]:
    """One request group for each group of the *profile* of that name; what is for the driver only is left out."""
    return [_request_group(profile, number, group) for number, group in enumerate(groups)]


def _request_group(profile: str, number: int, group: Mapping[str, str]) -> RequestGroup:
    # A function for flavors may have the same class and traits, and is nothing that a request can be bound to.
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
