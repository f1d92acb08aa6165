"""Breadth-first search through every state of a model.

A model has hashable states, and ``steps``: everything that can happen next in a state, in words, with the state that it
leads to. It raises :class:`Broken` where a step breaks a promise.
"""

import gc
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TypeVar

S = TypeVar("S", bound=Hashable)

LOST = "never lost for good"


class Broken(Exception):
    """A promise."""


@dataclass
class Explored:
    """What was found; ``broken`` and ``history`` if a promise was broken."""

    states: int
    broken: str | None = None
    history: tuple[str, ...] = ()


def search(
    start: S,
    steps: Callable[[S], Iterator[tuple[str, S]]],
    *,
    check: Callable[[S], None] = lambda _state: None,
    is_good: Callable[[S], bool] | None = None,
    lost: str = LOST,
) -> Explored:
    """Look until a promise is broken or every state was seen.

    :param check: raises :class:`Broken` of a state that breaks a promise.
    :param is_good: from every state, some path must lead to one that is good; None: that is no promise here.
    :param lost: the name of that promise.
    """
    collects = gc.isenabled()
    gc.disable()  # states form no cycles, and nearly all are kept: collecting takes a quarter of the time
    try:
        return _search(start, steps, check, is_good, lost)
    finally:
        if collects:
            gc.enable()


def _search(
    start: S,
    steps: Callable[[S], Iterator[tuple[str, S]]],
    check: Callable[[S], None],
    is_good: Callable[[S], bool] | None,
    lost: str,
) -> Explored:
    seen: dict[S, tuple[S, str] | None] = {start: None}
    before: dict[S, list[S]] = {start: []}
    queue = deque([start])
    while queue:
        s = last = queue.popleft()
        try:
            for what, x in steps(s):
                earlier = before.get(x)
                if earlier is not None:
                    earlier.append(s)
                    continue
                before[x] = [s]
                seen[x] = (s, what)
                last = x
                check(x)
                last = s
                queue.append(x)
        except Broken as error:
            return Explored(len(seen), str(error), _history(seen, last))
    if is_good is None:
        return Explored(len(seen))
    alive = set(filter(is_good, seen))
    queue = deque(alive)
    while queue:
        for s in before[queue.popleft()]:
            if s not in alive:
                alive.add(s)
                queue.append(s)
    stuck = next((s for s in seen if s not in alive), None)
    return Explored(len(seen)) if stuck is None else Explored(len(seen), lost, _history(seen, stuck))


def _history(seen: dict[S, tuple[S, str] | None], state: S) -> tuple[str, ...]:
    told = []
    while (step := seen[state]) is not None:
        state, what = step
        told.append(what)
    return tuple(reversed(told))
