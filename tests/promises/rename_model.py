"""Explicit-state check of what happens to a host with a burned device when its name changes.

Every interleaving of the agent of the machine (started under either name, as DNS gives it), an agent of either name on
another machine, ``autoclave host rename``, and deaths of each at any moment. The agent of the machine and the command
exclude each other by the lock files of the data directory; the agent elsewhere has a data directory of its own.

Promises: no agent of the machine serves a name that the rows do not have: it would take the burned device for a new
one. The rows of a serving agent are not renamed under it. From every state the rename can be completed, and the machine
served under the new name.

``explore(mutation)`` breaks one rule; see :data:`MUTATIONS`.
"""

from collections.abc import Iterator
from typing import NamedTuple

from promises.search import Broken, Explored, search

OLD, NEW = "old", "new"
NAMES = (OLD, NEW)

UNKNOWN, UNDER, LOST = "takes a burned device for a new one", "is renamed while it serves", "cannot be completed"
MUTATIONS = {
    "the data directory remembers nothing": UNKNOWN,
    "agents start while a rename is on record": UNDER,
    "the record of the rename ends before the data directory knows": UNKNOWN,
    "rows are renamed before the rename is on record": UNDER,
    "an agent looks only before it registers": UNDER,
    "the command looks only before it is on record": UNDER,
    "the command starts anew only under the old name": LOST,
}
"""Each broken rule, and the promise that it breaks."""


class State(NamedTuple):
    """``rows``, ``providers`` and ``data_dir``: the name that each has. ``renaming``: the rename is on record.

    ``command``, ``here`` and ``elsewhere``: what each process does next; empty: it does not run. Agents have a name as
    well. ``strangers`` and ``deaths``: how many are still to come.
    """

    rows: str = OLD
    providers: str = OLD
    data_dir: str = OLD
    renaming: bool = False
    command: str = ""
    here: tuple[str, str] = ("", "")
    elsewhere: tuple[str, str] = ("", "")
    strangers: int = 1
    deaths: int = 2


def steps(s: State, mutation: str) -> Iterator[tuple[str, State]]:
    """Everything that can happen next."""
    yield from _machine(s, mutation)
    yield from _stranger(s, mutation)
    yield from _command(s, mutation)
    if s.deaths:
        less = s._replace(deaths=s.deaths - 1)
        if s.command:
            yield "the command dies", less._replace(command="")
        if s.here[1]:
            yield "the agent dies", less._replace(here=("", ""))


def _machine(s: State, mutation: str) -> Iterator[tuple[str, State]]:
    name, at = s.here
    if not at and not s.command:
        for each in NAMES:
            if each == s.data_dir or mutation == "the data directory remembers nothing":
                yield f"the agent starts as {each}", s._replace(here=(each, "check"))
    elif at:
        for what, now in _start(s, name, at, mutation):
            if now == "serves" and s.rows != name:
                raise Broken(UNKNOWN)
            yield f"the agent {what}", s._replace(here=(name if now else "", now))


def _stranger(s: State, mutation: str) -> Iterator[tuple[str, State]]:
    """An agent on another machine that is given one of the names; it has none of the devices."""
    name, at = s.elsewhere
    if not at and s.strangers:
        for each in NAMES:
            yield f"a stranger starts as {each}", s._replace(elsewhere=(each, "check"), strangers=0)
    elif at:
        for what, now in _start(s, name, at, mutation):
            yield f"the stranger {what}", s._replace(elsewhere=(name if now else "", now))


def _start(s: State, name: str, at: str, mutation: str) -> Iterator[tuple[str, str]]:
    others = {each for each, now in (s.here, s.elsewhere) if now in ("look", "serves")}
    refused = s.renaming and mutation != "agents start while a rename is on record"
    if at == "check":
        yield ("is refused", "") if refused or name in others else ("may start", "register")
    elif at == "register":  # what was read before may have changed: the transaction locks no row that is not there
        yield "registers", "serves" if mutation == "an agent looks only before it registers" else "look"
    elif at == "look":
        yield ("gives up", "") if refused else ("serves", "serves")
    elif at == "serves":
        yield "stops", ""


def _alive(s: State) -> bool:
    return any(now in ("look", "serves") for _, now in (s.here, s.elsewhere))


def _command(s: State, mutation: str) -> Iterator[tuple[str, State]]:
    early = mutation == "rows are renamed before the rename is on record"
    if not s.command and not s.here[1]:
        known = s.rows == OLD if mutation == "the command starts anew only under the old name" else True
        if known and (s.rows == OLD or s.renaming):
            yield "the command starts", s._replace(command="rows" if early and s.rows == OLD else "check")
    elif s.command == "check":
        refused = _alive(s) and not s.renaming
        yield "the command checks", s._replace(command="" if refused else "record")
    elif s.command == "record":
        unlooked = mutation == "the command looks only before it is on record"
        yield "the rename is on record", s._replace(renaming=True, command="providers" if unlooked else "look")
    elif s.command == "look":
        if _alive(s):
            given_up = s.rows == OLD and s.providers == OLD
            yield "the command gives up", s._replace(renaming=s.renaming and not given_up, command="")
        else:
            yield "the command finds no agent", s._replace(command="providers")
    elif s.command == "providers":
        yield "the providers are renamed", s._replace(providers=NEW, command="rows")
    elif s.command == "rows":
        if _serving(s):
            raise Broken(UNDER)
        yield "the rows are renamed", s._replace(rows=NEW, command="check" if early and not s.renaming else "data_dir")
    elif s.command == "data_dir":
        if mutation == "the record of the rename ends before the data directory knows" and s.renaming:
            yield "the record of the rename ends", s._replace(renaming=False)
        else:
            yield "the data directory knows", s._replace(data_dir=NEW, command="finish")
    elif s.command == "finish":
        yield "the rename is complete", s._replace(renaming=False, command="")


def _serving(s: State) -> bool:
    return "serves" in (s.here[1], s.elsewhere[1])


def explore(mutation: str = "") -> Explored:
    """Breadth first, until a promise is broken or every state was seen."""
    return search(
        State(),
        lambda s: steps(s, mutation),
        is_good=lambda s: (s.rows, s.providers, s.here) == (NEW, NEW, (NEW, "serves")),
        lost=LOST,
    )
