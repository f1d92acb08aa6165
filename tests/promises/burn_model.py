"""Explicit-state check of the one-time-use protocol, for one device and two instances.

Every interleaving of two instances (allocated, claimed, settled, spawned, deleted), the agent's period, an operator who
cleans and lowers ``reserved``, who edits it carelessly, deletes the inventory or the provider, or releases by the API,
a second writer that amends only ``total``, a consumer without an instance that allocates the device, an operator who
takes the mark or the whole entry out of [pci] device_spec and puts it back, and deaths of the agent at any moment.
Versions and generations are kept as "still what I read?" bits.

Promises: a guest never gets a device that is dirty. A dirty device is never offered; after a careless edit, from the
end of the next whole period on. Where there is a cleaner, some path leads from every state to an offer of the device.

``explore(mutation)`` breaks one rule of the protocol; see :data:`MUTATIONS`.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from promises.search import Broken, Explored, search

MUTATIONS = {
    "row read before the generation only": ("a release by word", "never offered dirty"),
    "row read after the generation only": ("the agent dies", "never offered dirty"),
    "generation ignored": ("the agent dies", "never lost for good"),
    "release seen without confirmation": ("the agent dies", "never offered dirty"),
    "claim keeps the confirmation": ("a cleaner releases", "never offered dirty"),
    "claim of what is not released": ("somebody writes carelessly", "never given dirty"),
    "claim of what was confirmed": ("a second writer amends the total", "never given dirty"),
    "full by the total that is read": ("a second writer amends the total", "never given dirty"),
    "a stranger's allocation is not burned": ("a stranger allocates", "never offered dirty"),
    "strangers are looked for before settling": ("a stranger allocates", "never offered dirty"),
    "a release noted at any version": ("a cleaner releases", "never offered dirty"),
    "a seen release is noted at once": ("the agent dies", "never lost for good"),
    "made again as if clean": ("a provider vanishes", "never offered dirty"),
    "equal value not written": ("a cleaner releases", "never offered dirty"),
    "not written to confirm": ("somebody writes carelessly", "never given dirty"),
    "a burned row goes with its entry": ("an operator configures", "never offered dirty"),
    "a burn ends with the mark": ("an operator configures", "never lost for good"),
    "what is in use when it is marked is not burned": ("an operator configures", "never offered dirty"),
    "what is burned while it is freed is not settled": ("an operator configures", "never offered dirty"),
    "a row goes before its provider": ("an operator configures", "never lost for good"),
}
"""Each broken rule, where that shows soonest, and the promise that it breaks."""

NAMES = ("one", "two", "period", "api", "cleaner", "stranger")
INSTANCES = ("one", "two")
AGENT = ("one", "two", "period")


class Process(NamedTuple):
    """``version`` and ``generation``: what it read of them is still so. ``then``: what comes after settling.

    ``reading``: whether ``reserved`` was read as our total or more; None: there was no inventory. ``amended``: another
    total than ours was read.
    """

    at: str = "idle"
    version: bool = False
    generation: bool = False
    reading: int | None = None
    amended: bool = False
    target: str = ""
    then: str = ""


@cache
def _fresh(at: str) -> Mapping[str, Any]:
    """What a process is that comes to *at* and remembers nothing."""
    return Process(at)._asdict()


IDLE = _fresh("idle")


class State(NamedTuple):
    """``parties``: who takes part besides the instances.

    ``there``: 0 no provider, 1 a provider without inventory, 2 with one. Instances are 1 and 2, 0 is none. ``used``
    is a bit for each consumer: 1 and 2 the instances, 4 the stranger. ``total`` is Placement's; ours is 1.

    ``dirty``: a guest has had it since the operator cleaned it. ``seen``: idle and full, since it was claimed last.
    ``edited``: carelessly, since the last whole period.

    ``entry`` and ``mark`` are the configuration's: it has the device, as of one-time use. ``known``: there is a row,
    which has ``one_time_use`` and ``missing``. ``changes``: how often the operator takes away one of them.
    """

    burned: bool = False
    confirmed: bool = False
    pending: bool = False
    burned_for: int = 0
    holder: int = 0
    there: int = 2
    total: int = 1
    reserved: int = 0
    used: int = 0
    dirty: bool = False
    seen: bool = False
    edited: bool = False
    edited_in_period: bool = False
    processes: tuple[Process, ...] = (Process(),) * len(NAMES)
    parties: tuple[str, ...] = ("period", "api", "cleaner", "careless")
    lives: tuple[int, int] = (1, 1)
    deaths: int = 1
    edits: int = 1
    removals: int = 1
    entry: bool = True
    mark: bool = True
    known: bool = True
    one_time_use: bool = True
    missing: bool = False
    changes: int = 0

    def of(self, name: str) -> Process:
        return self.processes[NAMES.index(name)]

    def with_process(self, name: str, **values: Any) -> "State":
        number = NAMES.index(name)
        changed = self.processes[number]._replace(**values)
        return self._replace(processes=(*self.processes[:number], changed, *self.processes[number + 1 :]))

    def forgetting(self, what: str) -> "State":
        if not any(getattr(each, what) for each in self.processes):
            return self
        forgotten = tuple(each._replace(**{what: False}) if getattr(each, what) else each for each in self.processes)
        return self._replace(processes=forgotten)

    def row(self, **values: Any) -> "State":
        """A write of the row that moves its version."""
        return self.forgetting("version")._replace(**values)

    def provider(self, **values: Any) -> "State":
        """A write at Placement that moves the generation."""
        return self.forgetting("generation")._replace(**values)

    @property
    def offered(self) -> bool:
        return self.there == 2 and self.total - self.reserved - self.used.bit_count() > 0


def settle(s: State, name: str, mutation: str) -> Iterator[tuple[str, State]]:
    """One step of settling; it ends at ``then``, or at ``failed`` when the provider is gone."""
    p = s.of(name)
    after = _fresh(p.then)
    if p.at == "read":
        target = _decide(s, 0, mutation) if mutation == "row read before the generation only" else ""
        yield "reads the row", s.with_process(name, at="get", version=True, target=target)
    elif p.at == "get":
        if not s.there:
            yield "finds no provider", s.with_process(name, **{**after, "at": f"failed {p.then}"})
            return
        ours = s.total if mutation == "full by the total that is read" else 1
        reading = int(s.reserved >= ours) if s.there == 2 else None
        amended = s.there == 2 and s.total != 1
        x = s.with_process(name, at="again", generation=True, reading=reading, amended=amended)
        if mutation == "row read before the generation only":
            x = _judged(x, name, mutation, decided=True)
        yield "gets the inventory", x
    elif p.at == "again":
        if not p.version and mutation != "row read after the generation only":
            yield "starts over", s.with_process(name, **_anew(p))
        else:
            yield "reads the row again", _judged(s.with_process(name, version=True), name, mutation)
    elif p.at == "usage":
        if s.used:
            keeps = {"at": "put", "target": "keep"} if p.amended else after
            yield "sees a user", s.with_process(name, **keeps)
        else:
            yield "sees no user", s.with_process(name, at="put" if mutation != "not written to confirm" else "mark")
    elif p.at == "mark":
        if p.version and not s.holder:
            yield "confirms", s.row(confirmed=True).with_process(name, **after)
        else:
            yield "starts over", s.with_process(name, **_anew(p))
    elif p.at == "over":
        if mutation == "a seen release is noted at once":
            over = {"burned": False, "confirmed": False, "burned_for": 0}
            yield (
                "ends the burn",
                s.row(**over).with_process(name, **after) if p.version else s.with_process(name, **_anew(p)),
            )
        elif (p.version and not s.holder) or mutation == "a release noted at any version":
            yield "notes the release", s.row(pending=True).with_process(name, **_anew(p))
        else:
            yield "starts over", s.with_process(name, **_anew(p))
    elif p.at == "put":
        if not s.there:
            yield "finds no provider", s.with_process(name, **{**after, "at": f"failed {p.then}"})
        elif not p.generation and mutation != "generation ignored":
            yield "is refused", s.with_process(name, **_anew(p))
        else:
            kept = p.target == "keep" and not p.reading
            x = s.provider(there=2, total=1, reserved=int(p.target != "lower" and not kept))
            if p.target == "confirm":
                yield "writes to confirm", x._replace(seen=True).with_process(name, at="mark")
            else:
                owes = p.target == "lower" and s.pending
                yield f"{p.target}s", x.with_process(name, **({"at": "clear"} if owes else after))
    elif p.at == "clear":
        clean = {"burned": False, "confirmed": False, "pending": False, "burned_for": 0}
        x = s.row(**clean) if p.version else s
        yield "notes that it is lowered", x.with_process(name, **after)


def _anew(p: Process) -> dict[str, Any]:
    return Process("read", then=p.then)._asdict()


def _decide(s: State, reading: int | None, mutation: str) -> str:
    if s.burned and s.missing and s.pending and not s.holder:  # released, and not there
        return "keep" if reading else "raise"
    if s.burned and (s.holder or not s.pending):
        if reading is None:
            return "lower" if mutation == "made again as if clean" else "raise"
        if s.holder:
            return "keep" if reading and mutation == "equal value not written" else "raise"
        if reading:
            return "keep" if s.confirmed else "confirm"
        return "released" if s.confirmed or mutation == "release seen without confirmation" else "raise"
    if s.pending or reading is None:
        return "lower"
    return "keep"


def _judged(s: State, name: str, mutation: str, *, decided: bool = False) -> State:
    p = s.of(name)
    target = _decide(s, p.reading, mutation)
    if decided:  # by the row as it was before the inventory was read; what was read of that counts
        target = p.target if p.target in ("raise", "lower") and p.reading is not None else target
    if target in ("raise", "lower") or (target == "keep" and p.amended):
        return s.with_process(name, at="put", target=target)
    if target == "confirm":
        return s.with_process(name, at="usage", target=target)
    if target == "released":
        return s.with_process(name, at="over", target=target)
    return s.with_process(name, **Process(p.then)._asdict())


SETTLING = ("read", "get", "again", "usage", "mark", "over", "put", "clear")


def steps(s: State, mutation: str) -> Iterator[tuple[str, State]]:
    """Everything that can happen next."""
    for number, name in enumerate(INSTANCES, start=1):
        for what, x in _live(s, number, name, mutation):
            yield f"{name} {what}", x
    for what, x in _period(s, mutation):
        yield f"period {what}", x
    for what, x in _operator(s, mutation):
        yield what, x
    if s.deaths and any(s.of(name).at != "idle" for name in AGENT):
        x = s._replace(deaths=s.deaths - 1)
        for name in AGENT:
            was = s.of(name).at
            x = x.with_process(name, **Process("idle" if was == "idle" or name == "period" else "stuck")._asdict())
        yield "the agent dies", x


def _live(s: State, number: int, name: str, mutation: str) -> Iterator[tuple[str, State]]:
    p = s.of(name)
    if p.at in SETTLING:
        yield from settle(s, name, mutation)
    elif p.at == "idle" and s.offered and s.lives[number - 1]:
        lives = tuple(n - (i == number - 1) for i, n in enumerate(s.lives))
        yield "is allocated it", s.provider(used=s.used | number, lives=lives).with_process(name, at="allocated")
    elif (
        p.at == "allocated" and s.burned and s.confirmed and not s.pending and mutation != "claim of what was confirmed"
    ):
        # Placement has allocated it: either an operator has lowered reserved, or another has written the record.
        yield "settles before its claim", s.with_process(name, at="read", then="claiming")
    elif p.at in ("allocated", "claiming"):
        may = not s.burned or s.pending or mutation == "claim of what is not released"
        may = may or (s.confirmed and mutation == "claim of what was confirmed")
        if s.holder or not may or not s.known or s.missing:
            yield "is refused", s.with_process(name, at="stuck")
        else:
            confirmed = s.confirmed and mutation == "claim keeps the confirmation"
            burned_for = number if s.one_time_use else 0
            x = s.row(burned=s.one_time_use, confirmed=confirmed, pending=False, burned_for=burned_for, holder=number)
            x = x._replace(seen=False)
            yield "claims", x.with_process(name, at="read", then="claimed")
    elif p.at == "claimed":
        if s.dirty:
            raise Broken("never given dirty")
        yield "is spawned", s._replace(dirty=s.burned).with_process(name, at="running")
    elif p.at in ("running", "stuck") or p.at.startswith("failed"):
        settles = s.burned and number in (s.holder, s.burned_for)
        after = {"at": "read", "then": "free settled"} if settles else {"at": "free"}
        yield "is deleted", s.with_process(name, **after)
    elif p.at in ("free", "free settled"):
        # An entry that has come back since may have burned what the instance had.
        late = (
            p.at == "free" and s.burned_for == number and mutation != "what is burned while it is freed is not settled"
        )
        after = {"at": "read", "then": "deallocate"} if late else {"at": "deallocate"}
        yield "is freed", s._replace(holder=0 if s.holder == number else s.holder).with_process(name, **after)
    elif p.at == "deallocate":  # the deletion of an allocation does not move the generation
        x = s._replace(used=s.used & ~number)
        mine = number == s.burned_for
        yield "is deallocated", x.with_process(name, **({"at": "read", "then": "idle"} if mine else {"at": "idle"}))


def _period(s: State, mutation: str) -> Iterator[tuple[str, State]]:
    p = s.of("period")
    if p.at == "idle" and "period" not in s.parties:
        return
    if p.at == "idle":
        first = "observe" if "configuration" in s.parties else "make"
        yield "begins", s._replace(edited_in_period=False).with_process("period", at=first, then="look")
    elif p.at == "observe":
        yield from _observe(s, mutation)
    elif p.at == "withdraw":
        yield from _withdraw(s, mutation)
    elif p.at == "make":
        x = s if s.there else s.provider(there=1, reserved=0, total=1)
        first = "look" if mutation == "strangers are looked for before settling" else "read"
        yield "makes the provider", x.with_process("period", at=first, then="ended" if first == "look" else "look")
    elif p.at == "look":
        known = s.burned and not s.confirmed and not s.pending
        if s.used & 4 and not known and mutation != "a stranger's allocation is not burned":
            x = s.row(burned=True, confirmed=False, pending=False, burned_for=0)._replace(seen=False)
            yield "burns what a stranger has", x.with_process("period", at="read", then="ended")
        else:
            early = mutation == "strangers are looked for before settling"
            yield "finds no stranger", s.with_process("period", at="read" if early else "ended", then="ended")
    elif p.at in SETTLING:
        yield from settle(s, "period", mutation)
    elif p.at == "ended":
        x = s._replace(edited=s.edited and s.edited_in_period)
        if x.of("stranger").at == "holds" and not x.edited_in_period:
            x = x.with_process("stranger", at="known")
        yield "ends", x.with_process("period", at="idle")
    else:
        yield "fails", s.with_process("period", **IDLE)


def _observe(s: State, mutation: str) -> Iterator[tuple[str, State]]:
    """The row follows the configuration."""
    if not s.entry and s.known:
        x = s if s.missing else s.row(missing=True)
        stays = s.burned and not s.pending and mutation != "a burned row goes with its entry"
        yield "misses the device", x.with_process("period", at="make" if s.holder or stays else "withdraw")
    elif not s.entry:
        yield "finds nothing configured", s.with_process("period", at="ended")
    elif not s.known:
        used = bool(s.used) and s.mark  # whatever has it in Placement, no row tells
        x = s.row(known=True, missing=False, one_time_use=s.mark, burned=used, confirmed=False, pending=False)
        yield "finds a new device", x._replace(burned_for=0, seen=False).with_process("period", at="make")
    elif (s.one_time_use, s.missing) == (s.mark, False):
        yield "finds what is on record", s.with_process("period", at="make")
    else:
        x = s.row(one_time_use=s.mark, missing=False)
        coming = any(s.of(name).at in ("allocated", "claiming", *SETTLING) and not s.holder for name in INSTANCES)
        if s.mark and not s.one_time_use and not s.burned and (s.holder or (s.used and not coming)):
            x = x._replace(dirty=s.dirty or _is_spawned(s))
            if mutation != "what is in use when it is marked is not burned":
                x = x._replace(burned=True, confirmed=False, burned_for=s.holder, seen=False)
        if not s.mark and mutation == "a burn ends with the mark":
            x = x._replace(burned=False, confirmed=False, pending=False, burned_for=0)
        yield "follows the configuration", x.with_process("period", at="make")


def _is_spawned(s: State) -> bool:
    """The instance that holds the device has had a guest with it."""
    p = s.of(INSTANCES[s.holder - 1]) if s.holder else Process()
    return p.at in ("running", "free", "free settled") or p.then == "free settled"


_NO_ROW = {"known": False, "burned": False, "confirmed": False, "pending": False, "burned_for": 0, "missing": False}


def _withdraw(s: State, mutation: str) -> Iterator[tuple[str, State]]:
    """The provider goes first, and Placement refuses that while something is allocated from it; then the row."""
    p = s.of("period")
    if mutation == "a row goes before its provider":
        yield "deletes the row", s.row(**_NO_ROW).with_process("period", at="ended")
    elif s.there and s.used:
        yield "keeps the provider", s.with_process("period", at="ended")
    elif s.there:
        yield "deletes the provider", s.provider(there=0, reserved=0).with_process("period", version=True)
    elif s.holder or (s.burned and not s.pending and mutation != "a burned row goes with its entry") or not p.version:
        yield "keeps the row", s.with_process("period", at="ended")
    else:
        yield "deletes the row", s.row(**_NO_ROW).with_process("period", at="ended")


def _operator(s: State, mutation: str) -> Iterator[tuple[str, State]]:
    if s.changes and s.entry and s.mark:
        yield "the mark is taken away", s._replace(mark=False, changes=s.changes - 1)
        yield "the entry is taken away", s._replace(entry=False, changes=s.changes - 1)
    elif not (s.entry and s.mark):
        yield "the entry is put back", s._replace(entry=True, mark=True)
    cleaner = s.of("cleaner")
    idle_and_full = s.there == 2 and s.reserved and not s.used
    if cleaner.at == "idle" and idle_and_full and s.burned and "cleaner" in s.parties:
        yield "cleaner finds it", s.with_process("cleaner", at="cleaning", generation=True)
    elif cleaner.at == "cleaning":
        # It goes by the generation that it found; where that has moved on, it leaves what it has begun.
        if cleaner.generation and idle_and_full:
            yield "cleaner releases", s.provider(reserved=0, dirty=False).with_process("cleaner", at="idle")
        else:
            yield "cleaner leaves it", s.with_process("cleaner", at="idle", generation=False)
    if "careless" in s.parties and s.edits and s.there == 2 and s.reserved:
        x = s.provider(reserved=0, edits=s.edits - 1)
        if s.seen and not s.holder and not s.used:
            yield "somebody lowers it", x._replace(dirty=False)  # on his word: it was seen idle and burned
        else:
            yield "somebody lowers it", x._replace(edited=True, edited_in_period=True)
    if "second" in s.parties and s.edits and s.there == 2 and s.total == 1:
        x = s.provider(total=2, edits=s.edits - 1, edited=True, edited_in_period=True)
        yield "another amends the total", x
    stranger = s.of("stranger")
    if "stranger" in s.parties and stranger.at == "idle" and s.offered and s.edits and not s.dirty:
        x = s.provider(used=s.used | 4, dirty=True, edits=s.edits - 1, edited=True, edited_in_period=True)
        yield "a stranger is allocated it", x.with_process("stranger", at="holds")
    elif stranger.at == "known":  # what comes and goes between two periods is not seen by anybody
        yield "the stranger leaves", s._replace(used=s.used & ~4).with_process("stranger", at="gone")
    if s.removals and s.there and not s.used:
        yield "somebody deletes it", s.provider(there=0, reserved=0, removals=s.removals - 1)
        if s.there == 2:
            yield "somebody deletes its inventory", s.provider(there=1, reserved=0, removals=s.removals - 1)
    api = s.of("api")
    if (
        "api" in s.parties
        and api.at == "idle"
        and s.burned
        and not s.holder
        and not s.used
        and not s.pending
        and s.edits
    ):
        x = s.row(pending=True, dirty=False, edits=s.edits - 1)
        yield "api is asked", x.with_process("api", at="read", then="idle")
    elif api.at in SETTLING:
        for what, x in settle(s, "api", mutation):
            yield f"api {what}", x
    elif api.at != "idle":
        yield "api gives up", s.with_process("api", **IDLE)


CALM = State(deaths=0, edits=0, removals=0, lives=(1, 0), parties=("period", "cleaner"))
STARTS = {
    "the agent dies": CALM._replace(deaths=1),
    "a cleaner releases": CALM._replace(lives=(1, 1)),
    "somebody writes carelessly": CALM._replace(edits=1, lives=(1, 1), parties=("period", "careless")),
    "a release by word": CALM._replace(edits=1, lives=(1, 1), parties=("api",)),
    "a provider vanishes": CALM._replace(removals=1),
    "a second writer amends the total": CALM._replace(edits=1, lives=(1, 1), parties=("period", "second")),
    "an operator configures": CALM._replace(changes=1, parties=("period", "cleaner", "configuration")),
    "a stranger allocates": CALM._replace(edits=1, lives=(1, 0), parties=("period", "cleaner", "stranger")),
}
"""What goes wrong, one after the other: all at once has too many states for a test."""


def check(s: State) -> None:
    """See that *s* keeps the promise of what is offered.

    :raises Broken: it does not.
    """
    if s.offered and s.dirty and not s.edited:
        raise Broken("never offered dirty")


def explore(mutation: str = "", start: State | None = None) -> Explored:
    """Breadth first, until a promise is broken or every state was seen."""
    start = start or State()
    # Without a cleaner, what is burned stays so.
    is_good = (lambda s: s.offered) if "cleaner" in start.parties else None
    return search(start, lambda s: steps(s, mutation), check=check, is_good=is_good)
