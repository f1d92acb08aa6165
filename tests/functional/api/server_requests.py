"""What tests ask of servers, and what the agent of their host was asked then."""

from typing import Any

from api_world import World

MEMBER = "mia:blue:member"


def act(world: World, server: str, action: str, value: Any = None, token: str | None = None) -> Any:
    return world.compute("POST", f"/servers/{server}/action", {action: value}, token=token)


def asked(world: World) -> list[str]:
    """The messages that the host's agent was sent."""
    return [method for method, _ in world.agent.messages]


def forbidding(world: World) -> str:
    """A flavor that forbids a trait."""
    world.ports.placement.ensure_traits(["CUSTOM_X"])
    flavor = world.add_flavor("forbids")
    world.compute("POST", f"/flavors/{flavor}/os-extra_specs", {"extra_specs": {"trait:CUSTOM_X": "forbidden"}})
    return flavor
