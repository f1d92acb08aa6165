"""State of one device in the protocol model, and the reconciliation of Placement with its row.

The order of :func:`settle`: inventory and generation, row, verdict. The verdict may read usages, or the inventory once
more, before it writes.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from promises.search import Broken

AVAILABLE, ALLOCATED, PENDING = "available", "allocated", "pending_cleaning"
CLEANING, ERROR, SPENT = "cleaning", "error", "spent"
ERASE, HOLD, NONE = "erase", "hold", "none"
PROFILE, FLAVOR = "profile", "flavor"

DIRTY_GIVEN = "never given dirty"
DIRTY_OFFERED = "never offered dirty"
ERASED_IN_USE = "never erased in use"
HOLD_LOWERED = "never lowers another's hold"

KEPT, MIXED = "kept", "mixed"
"""Holds of another writer: Autoclave has to keep the first, and cannot tell the second from its own."""

INSTANCES = ("one", "two")
BINDERS = ("binder one", "binder two")
NAMES = (*INSTANCES, *BINDERS, "period", "worker", "sweep", "api", "conductor", "cleaner", "stranger")
_NUMBERS = {name: number for number, name in enumerate(NAMES)}


class Process(NamedTuple):
    """Memory of one thread.

    :ivar version: ``state_version`` is still as read.
    :ivar number: ``release_number`` is still as read.
    :ivar generation: the provider's generation is still as read.
    :ivar reading: whether ``reserved`` was read as our total or more; None if there was no inventory.
    :ivar amended: another total than ours was read.
    :ivar owner: this process has recorded ``withheld``, which was not set before.
    :ivar then: the step after reconciling.
    """

    at: str = "idle"
    version: bool = False
    number: bool = False
    generation: bool = False
    reading: int | None = None
    amended: bool = False
    owner: bool = False
    target: str = ""
    then: str = ""


@cache
def at(place: str, then: str = "") -> Process:
    """Return a process that comes to *place* and remembers nothing."""
    return Process(place, then=then)


IDLE = at("idle")


class State(NamedTuple):
    """One device, its provider, and all processes.

    The row has ``device`` (``device_state``), ``confirmed``, ``pending`` (a release), ``burned_for``, ``holder`` (the
    instance of its function, or of the request that is linked to it), ``held``, ``doubted``, ``withheld``, ``missing``,
    and ``known``: there is a row. ``arqs`` has the state of each request.

    Placement has ``there`` (0: no provider, 1: one without inventory, 2: one with inventory), ``total`` (ours is 1),
    ``reserved``, and ``used``: bits 1 and 2 are instances, 4 is a consumer without an instance on record.

    ``dirty``: a guest has had it since it was cleaned. ``seen``: idle and full, since the last guest. ``edited``:
    carelessly, since the last whole period. ``foreign``: another writer holds it.

    The configuration has ``entry``: the device is in it, and ``mark``: with the policy ``policy``; otherwise none.
    ``changes``, ``lives``, ``edits`` and the like are how often something may still happen.
    """

    requested_by: str = FLAVOR
    policy: str = HOLD
    reclaim: str = HOLD
    device: str = AVAILABLE
    confirmed: bool = False
    pending: bool = False
    burned_for: int = 0
    holder: int = 0
    held: bool = False
    doubted: bool = False
    withheld: bool = False
    missing: bool = False
    known: bool = True
    arqs: tuple[str, str] = ("none", "none")
    messages: tuple[tuple[str, bool, int], ...] = ()
    there: int = 2
    total: int = 1
    reserved: int = 0
    used: int = 0
    dirty: bool = False
    seen: bool = False
    edited: bool = False
    edited_in_period: bool = False
    foreign: str = ""
    entry: bool = True
    mark: bool = True
    processes: tuple[Process, ...] = (IDLE,) * len(NAMES)
    parties: tuple[str, ...] = ()
    lives: tuple[int, int] = (1, 0)
    deaths: int = 0
    edits: int = 0
    removals: int = 0
    changes: int = 0
    toggles: int = 0
    recleans: int = 0
    failures: int = 0

    def of(self, name: str) -> Process:
        return self.processes[_NUMBERS[name]]

    def put(self, name: str, process: Process) -> "State":
        number = _NUMBERS[name]
        return self._replace(processes=(*self.processes[:number], process, *self.processes[number + 1 :]))

    def goes(self, name: str, place: str, then: str = "") -> "State":
        """The process comes to *place* and remembers nothing."""
        return self.put(name, at(place, then))

    def keeps(self, name: str, **values: Any) -> "State":
        """The process goes on with what it has read."""
        return self.put(name, self.of(name)._replace(**values))

    def forgetting(self, what: str) -> "State":
        if not any(getattr(each, what) for each in self.processes):
            return self
        forgotten = tuple(each._replace(**{what: False}) if getattr(each, what) else each for each in self.processes)
        return self._replace(processes=forgotten)

    def provider(self, **values: Any) -> "State":
        """A write at Placement that moves the generation."""
        return self.forgetting("generation")._replace(**values)

    def moves(self, device: str, **values: Any) -> "State":
        """A transition; it moves ``state_version``, and makes messages late."""
        late = tuple(sorted((source, False, left) for source, _, left in self.messages))
        x = self.forgetting("version")._replace(device=device, messages=late, **values)
        if not must_be_reserved(x):
            return x
        return x._replace(pending=False, foreign="")

    def becomes_available(self, mutation: str, **values: Any) -> "State":
        """A transition to ``available``. A release is pending if the device had to be reserved before."""
        needs = must_be_reserved(self) or mutation == "a release is pending without need"
        confirmed = self.confirmed and mutation == "a confirmation outlives the release"
        x = self.moves(AVAILABLE, confirmed=confirmed, burned_for=0, **values)
        return x.owes() if needs else x

    def owes(self) -> "State":
        """A release becomes pending; this moves ``release_number``."""
        return self.forgetting("number")._replace(pending=True)

    @property
    def offered(self) -> bool:
        return self.there == 2 and self.total - self.reserved - self.used.bit_count() > 0

    @property
    def active(self) -> bool:
        """A request or an instance has the device."""
        if self.requested_by == FLAVOR:
            return bool(self.holder)
        return bool(self.holder) and self.arqs[self.holder - 1] in ("started", "bound", "deleting")


def must_be_reserved(s: State) -> bool:
    """Doubt alone does not count here."""
    if s.device == AVAILABLE:
        return s.held or s.missing
    return not (s.device == ALLOCATED and s.requested_by == FLAVOR and s.reclaim == NONE)


def is_doubted(s: State) -> bool:
    """Only doubt keeps the device from being offered."""
    return s.doubted and s.device == AVAILABLE and not must_be_reserved(s)


SETTLING = frozenset(
    ("get", "row", "usage", "put", "mark", "again", "over", "withhold", "record", "give back", "clear")
)


AGENT = frozenset(("period", "worker", *INSTANCES))


def is_locked_out(s: State, name: str) -> bool:
    """Another thread of the agent reconciles the device. Only what is withheld needs that."""
    if "doubt" not in s.parties or name not in AGENT:
        return False
    return any(other != name and s.of(other).at in SETTLING - {"get"} for other in AGENT)


def settle(s: State, name: str, mutation: str) -> Iterator[tuple[str, State]]:
    """One step of reconciling; it ends at ``then``, or at ``failed`` if the provider is gone."""
    p = s.of(name)
    if p.at == "get":
        if is_locked_out(s, name) and mutation != "two threads of the agent reconcile at once":
            return
        if mutation == "row read before the generation" and not p.target:
            verdicts = "|".join(_decide(s, name, reading, mutation) for reading in (None, 0, 1))
            yield "reads the row", s.put(name, p._replace(version=True, number=True, target=verdicts))
        elif not s.there:
            yield "finds no provider", s.goes(name, f"failed {p.then}")
        else:
            ours = s.total if mutation == "full by the total that is read" else 1
            reading = int(s.reserved >= ours) if s.there == 2 else None
            amended = s.there == 2 and s.total != 1
            known = p._replace(at="row", generation=True, reading=reading, amended=amended)
            if p.target:
                yield "gets the inventory", _judged(s, name, known, _of_verdicts(p.target, reading), mutation)
            else:
                yield "gets the inventory", s.put(name, known)
    elif p.at == "row":
        if s.known:
            read = p._replace(version=True, number=True)
            yield "reads the row", _judged(s, name, read, _decide(s, name, p.reading, mutation), mutation)
        else:
            yield "finds no row", s.goes(name, p.then)
    elif p.at == "usage":
        if not s.used:
            early = mutation in ("not written to confirm", "confirmed before its PUT")
            yield "sees no user", s.put(name, p._replace(at="mark" if early else "put"))
        elif p.amended:
            yield "sees a user", s.put(name, p._replace(at="put", target="raise"))
        else:
            yield "sees a user", s.goes(name, p.then)
    elif p.at == "put":
        yield from _put(s, name, p, mutation)
    else:
        yield from _write_row(s, name, p, mutation)


def _of_verdicts(verdicts: str, reading: int | None) -> str:
    return verdicts.split("|")[0 if reading is None else reading + 1]


def _decide(s: State, name: str, reading: int | None, mutation: str) -> str:
    if must_be_reserved(s):
        target = "raise"
        if reading is None:
            target = "lower" if mutation == "made again as if clean" else "raise"
        elif s.device == SPENT and reading and not s.confirmed:
            target = "confirm"
        elif s.device == SPENT and not reading:
            released = s.confirmed or mutation == "release seen without confirmation"
            target = "released" if released else "raise"
        return "keep" if target == "raise" and reading and mutation == "equal value not written" else target
    # Only the agent withholds, and ends that.
    withholds = name in AGENT or mutation == "a conductor withholds"
    if is_doubted(s):
        return "keep" if reading or not withholds else "withhold"
    if s.pending or (s.withheld and withholds) or reading is None:
        return "lower"
    return "keep"


def _judged(s: State, name: str, p: Process, target: str, mutation: str) -> State:
    if target in ("raise", "lower") or (target == "keep" and p.amended):
        return s.put(name, p._replace(at="put", target=target))
    if target == "confirm":
        return s.put(name, p._replace(at="usage", target=target))
    if target == "released":
        early = mutation == "release seen without the second GET"
        return s.put(name, p._replace(at="over" if early else "again", target=target))
    if target == "withhold":
        late = mutation in ("withheld recorded after its PUT", "withheld not recorded")
        return s.put(name, p._replace(at="put" if late else "withhold", target=target))
    return s.goes(name, p.then)


def _put(s: State, name: str, p: Process, mutation: str) -> Iterator[tuple[str, State]]:
    if not s.there:
        yield "finds no provider", s.goes(name, f"failed {p.then}")
        return
    if not p.generation and mutation == "retried without reading":
        yield "is refused", s.put(name, p._replace(generation=True))
        return
    if not p.generation and mutation != "generation ignored":
        yield "is refused", s.put(name, p._replace(at="give back")) if p.owner else s.goes(name, "get", p.then)
        return
    reserved = int(p.target != "lower" and (p.target != "keep" or bool(p.reading)))
    if s.foreign == KEPT and not reserved:
        raise Broken(HOLD_LOWERED)
    x = s.provider(there=2, total=1, reserved=reserved, foreign=s.foreign if reserved else "")
    if p.target == "confirm":
        x = x._replace(seen=True)
        confirmed = mutation == "confirmed before its PUT"
        yield "writes to confirm", x.goes(name, p.then) if confirmed else x.keeps(name, at="mark")
    elif p.target == "withhold" and mutation == "withheld recorded after its PUT":
        yield "withholds", x.keeps(name, at="record")
    elif p.target == "lower" and (s.pending or s.withheld):
        yield "lowers", x.keeps(name, at="clear")
    else:
        yield f"{p.target}s", x.goes(name, p.then)


def _write_row(s: State, name: str, p: Process, mutation: str) -> Iterator[tuple[str, State]]:
    again = s.goes(name, "get", p.then)
    if p.at == "mark":
        if not p.version:
            yield "starts over", again
        elif mutation == "confirmed before its PUT":
            yield "confirms", s.moves(SPENT, confirmed=True).keeps(name, at="put")
        else:
            yield "confirms", s.moves(SPENT, confirmed=True).goes(name, p.then)
    elif p.at == "again":
        yield ("reads it again", s.keeps(name, at="over")) if p.generation else ("starts over", again)
    elif p.at == "over":
        if not p.version and mutation != "a release noted at any version":
            yield "starts over", again
        elif mutation == "a seen release is noted at once":
            x = s.moves(AVAILABLE, confirmed=False, burned_for=0)
            yield "notes the release", x.goes(name, p.then)
        else:
            yield "notes the release", s.becomes_available(mutation).goes(name, "get", p.then)
    elif p.at == "withhold":
        if p.version and is_doubted(s):
            again = s.withheld and mutation == "what is withheld is not recorded again"
            x = s if again else s.forgetting("number")._replace(withheld=True)
            yield "records that it withholds", x.keeps(name, at="put", number=True, owner=not s.withheld)
        else:
            yield "starts over", again
    elif p.at == "record":
        yield "records that it withheld", s._replace(withheld=True).goes(name, p.then)
    elif p.at == "give back":
        x = s._replace(withheld=False) if p.number and mutation != "withheld is not taken back" else s
        yield "records that it does not withhold", x.goes(name, "get", p.then)
    elif p.at == "clear":
        same = p.version and (p.number or mutation == "cleared at any release number")
        x = s._replace(pending=False, withheld=False) if same else s
        yield "notes that it is lowered", x.goes(name, p.then)
