"""Explicit-state check of a card whose configuration an operator changes under running instances.

The card has a physical function, the parent, and two virtual ones. Every interleaving of two instances (allocated,
claimed, deleted), of the agent's two steps of a period (the rows follow the configuration, Placement follows the rows),
and of an operator who changes [pci] device_spec from the parent to the virtual functions, and back, at any moment.

Promises: no instance has the parent while another has one of its virtual functions. What an instance has keeps its
class. When the instances are gone, some path offers what is configured.

``explore(mutation)`` breaks one rule; see :data:`MUTATIONS`.
"""

from collections.abc import Iterator
from typing import NamedTuple

from promises.search import Broken, Explored, search

MUTATIONS = {
    "an entry is applied to what is in use": "one tenant a card",
    "the class follows the entry at once": "class kept",
    "a claimed function never follows": "never lost for good",
}
"""Each broken rule, and the promise that it breaks."""

FUNCTIONS = {"parent": ("parent",), "virtual": ("virtual 0", "virtual 1")}
"""Of a line of the configuration, which is also the name of its resource class."""


class State(NamedTuple):
    """``line``, ``functions``, ``total`` and ``holders`` are the row's; ``holders`` has the function of each instance.

    ``offered`` and ``offered_total`` are Placement's; ``allocated`` has the class that each instance was allocated.
    """

    configured: str = "parent"
    line: str = "parent"
    functions: tuple[str, ...] = FUNCTIONS["parent"]
    total: int = 1
    holders: tuple[str, str] = ("", "")
    offered: str = "parent"
    offered_total: int = 1
    allocated: tuple[str, str] = ("", "")
    at: tuple[str, str] = ("idle", "idle")
    lives: tuple[int, int] = (2, 2)
    changes: int = 3

    @property
    def free(self) -> int:
        return self.offered_total - sum(each == self.offered for each in self.allocated)


def _with(values: tuple[str, str], number: int, value: str) -> tuple[str, str]:
    return (value, values[1]) if number == 0 else (values[0], value)


def steps(s: State, mutation: str) -> Iterator[tuple[str, State]]:
    """Everything that can happen next."""
    for number in (0, 1):
        for what, x in _live(s, number):
            yield f"instance {number} {what}", x
    if s.changes:
        other = "virtual" if s.configured == "parent" else "parent"
        yield f"the operator configures {other}", s._replace(configured=other, changes=s.changes - 1)
    looked = _look(s, mutation)
    if looked != s:
        yield "the rows follow", looked
    if (s.offered, s.offered_total) != (s.line, s.total):
        # Placement removes no inventory that something is allocated from; it is reserved until then.
        kept = s.offered != s.line and s.offered in s.allocated
        told = s._replace(offered_total=0) if kept else s._replace(offered=s.line, offered_total=s.total)
        if told != s:
            yield "Placement follows", told


def _live(s: State, number: int) -> Iterator[tuple[str, State]]:
    at = s.at[number]
    if at == "idle" and s.lives[number] and s.free > 0:
        lives = tuple(n - (i == number) for i, n in enumerate(s.lives))
        x = s._replace(lives=lives, allocated=_with(s.allocated, number, s.offered))
        yield "is allocated it", x._replace(at=_with(s.at, number, "allocated"))
    elif at == "allocated":
        function = next((each for each in s.functions if each not in s.holders), None)
        if function is None or s.allocated[number] != s.line:
            yield "is refused", s._replace(at=_with(s.at, number, "freed"))
        else:
            holders = _with(s.holders, number, function)
            yield f"claims {function}", s._replace(holders=holders, at=_with(s.at, number, "running"))
    elif at == "running":
        yield "is freed", s._replace(holders=_with(s.holders, number, ""), at=_with(s.at, number, "freed"))
    elif at == "freed":
        yield "is deallocated", s._replace(allocated=_with(s.allocated, number, ""), at=_with(s.at, number, "idle"))


def _look(s: State, mutation: str) -> State:
    """The rows after the agent has compared them with the configuration."""
    held = tuple(each for each in s.functions if each in s.holders)
    wanted = FUNCTIONS[s.configured]
    if mutation == "a claimed function never follows" and (held or s.configured != s.line):
        return s
    if held and s.configured != s.line:
        line = s.configured if mutation == "the class follows the entry at once" else s.line
        if mutation == "an entry is applied to what is in use":
            return s._replace(functions=held + wanted, total=len(held) + len(wanted))
        return s._replace(line=line, functions=held, total=len(held))
    return s._replace(line=s.configured, functions=wanted, total=len(wanted))


def check(s: State) -> None:
    """See that *s* keeps the promises.

    :raises Broken: it does not.
    """
    first, second = s.holders
    if first and second and "parent" in (first, second):
        raise Broken("one tenant a card")
    for number in (0, 1):
        if s.holders[number] and s.allocated[number] != s.line:
            raise Broken("class kept")


def explore(mutation: str = "") -> Explored:
    """Breadth first, until a promise is broken or every state was seen."""
    return search(
        State(),
        lambda s: steps(s, mutation),
        check=check,
        is_good=lambda s: s.offered == s.configured and s.free == len(FUNCTIONS[s.configured]),
    )
