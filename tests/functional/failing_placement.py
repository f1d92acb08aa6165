"""Every way in which Placement can fail one request of a service, at the request that the test names."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from agentworld import AgentWorld

from autoclave.testing.placement.faults import Call, Effect, answer, lose_answer, refuse, time_out

SETTLE = ("GET inventories", "PUT inventories")
"""The requests with which Placement is made to agree with one device."""
OFFER = ("GET inventories", "GET traits", "PUT inventories")
"""The same, of a device that is offered by that."""

FAILURES = {
    "500": (answer(500), 1),
    "409": (answer(409, "placement.concurrent_update"), 1),
    "timeout": (time_out, 1),
    "answer lost": (lose_answer, 1),
    "down from then on": (refuse, None),
}


def every_failure_at(requests: Sequence[str]) -> pytest.MarkDecorator:
    """At each of *requests*, by its number, each of the failures."""
    return pytest.mark.parametrize(
        ("at", "effect", "times"),
        [
            pytest.param(at, *failure, id=f"{at}-{request}-{name}")
            for at, request in enumerate(requests)
            for name, failure in FAILURES.items()
        ],
    )


def shape(calls: Sequence[Call]) -> tuple[str, ...]:
    """The calls without what differs from run to run: method and resource."""
    kinds = ("usages", "inventories", "traits", "resource_classes", "resource_providers")
    return tuple(f"{call.method} {next(kind for kind in kinds if f'/{kind}' in call.path)}" for call in calls)


@contextmanager
def failing(world: AgentWorld, at: int, effect: Effect, times: int | None) -> Iterator[None]:
    """Placement fails at the request *at*, from now on counted; it must come to that, and then Placement is well."""
    world.faults.clear()
    fault = world.faults.add(effect, skip=at, times=times)
    yield
    assert fault.struck, f"there was no request {at}: {shape(world.faults.calls)}"
    world.faults.clear()
