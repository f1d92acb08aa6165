"""Instances that ask for the device by their flavor, the agent's period, and operators, in the protocol model."""

from collections.abc import Iterator

from promises.device_state import (
    ALLOCATED,
    AVAILABLE,
    BINDERS,
    DIRTY_GIVEN,
    ERASE,
    ERROR,
    FLAVOR,
    HOLD,
    INSTANCES,
    KEPT,
    MIXED,
    NONE,
    PENDING,
    SETTLING,
    SPENT,
    State,
    is_doubted,
    must_be_reserved,
    settle,
)
from promises.search import Broken

_GUEST_WAS = ("running", "free", "deallocate")


def live(s: State, number: int, name: str, mutation: str) -> Iterator[tuple[str, State]]:
    """One step of an instance of Autoclave: its allocation, claim, guest and deletion."""
    p = s.of(name)
    if p.at in SETTLING:
        yield from settle(s, name, mutation)
    elif p.at == "idle":
        if s.offered and s.lives[number - 1]:
            lives = tuple(n - (i == number - 1) for i, n in enumerate(s.lives))
            yield "is allocated it", s.provider(used=s.used | number, lives=lives).goes(name, "allocated")
    elif p.at in ("allocated", "claiming"):
        yield from _claim(s, number, name, mutation)
    elif p.at == "claimed":
        if s.dirty:
            raise Broken(DIRTY_GIVEN)
        yield "is spawned", s._replace(dirty=s.reclaim != NONE).goes(name, "running")
    elif p.at in ("running", "stuck") or p.at.startswith("failed"):
        mine = number in (s.holder, s.burned_for)
        x = s.goes(name, "get", "free") if mine else s.goes(name, "free")
        yield "is deleted", x
    elif p.at == "free":
        yield from _free(s, number, name, mutation)
    elif p.at == "request":
        if s.device == ALLOCATED and not s.holder and s.of("worker").at == "idle":
            x = s.moves(PENDING).goes("worker", "begin").keeps("worker", version=True)
            yield "asks to clean it", x.goes(name, "get", "deallocate")
        else:
            yield "leaves it to the period", s.goes(name, "get", "deallocate")
    elif p.at == "deallocate":  # the deletion of an allocation does not move the generation
        x = s._replace(used=s.used & ~number)
        yield "is deallocated", x.goes(name, "get", "idle") if number == s.burned_for else x.goes(name, "idle")


def _claim(s: State, number: int, name: str, mutation: str) -> Iterator[tuple[str, State]]:
    confirmed = s.device == SPENT and s.confirmed
    unsettled = mutation == "claim of what was confirmed"
    if s.of(name).at == "allocated" and confirmed and not unsettled:
        # An operator may have lowered reserved since the last period; or a second writer has raised the total.
        yield "settles before its claim", s.goes(name, "get", "claiming")
        return
    may = s.device == AVAILABLE or mutation == "claim of what is not available"
    may = may or (confirmed and unsettled)
    if s.holder or not may or not s.known or s.missing or s.held or s.doubted or s.withheld:
        yield "is refused", s.goes(name, "stuck")
        return
    burned_for = number if s.reclaim == HOLD else 0
    cancels = {"pending": False} if mutation == "a claim cancels the release" else {}
    x = s.moves(ALLOCATED, burned_for=burned_for, holder=number, seen=False, **cancels)
    yield "claims", x.goes(name, "get", "claimed")


def _free(s: State, number: int, name: str, mutation: str) -> Iterator[tuple[str, State]]:
    # An entry that has come back since may have made it a device that is held or erased.
    late = mutation == "not settled again once it is freed"
    if s.holder != number:
        yield "is freed", s.goes(name, "get", "deallocate") if s.burned_for == number else s.goes(name, "deallocate")
    elif s.reclaim == ERASE:
        yield "is freed", s._replace(holder=0).goes(name, "request")
    elif s.reclaim == HOLD and mutation != "an instance leaves it unspent":
        x = s.moves(SPENT, holder=0, burned_for=number)
        yield "is freed", x.goes(name, "deallocate") if late else x.goes(name, "get", "deallocate")
    else:
        x = s.becomes_available(mutation, holder=0)
        settles = s.doubted or x.pending
        yield "is freed", x.goes(name, "get", "deallocate") if settles else x.goes(name, "deallocate")


def period(s: State, mutation: str) -> Iterator[tuple[str, State]]:
    """One step of the agent's period."""
    p = s.of("period")
    if p.at == "idle":
        if "period" in s.parties and (s.requested_by == FLAVOR or s.edited or is_unsettled(s)):
            first = "observe" if "configuration" in s.parties else "make"
            yield "begins", s._replace(edited_in_period=False).goes("period", first)
    elif p.at == "observe":
        yield from _observe(s, mutation)
    elif p.at == "withdraw":
        yield from _withdraw(s, mutation)
    elif p.at == "make":
        x = s if s.there else s.provider(there=1, reserved=0, total=1)
        early = mutation == "strangers are looked for before settling"
        yield "makes the provider", x.goes("period", "look") if early else x.goes("period", "get", "look")
    elif p.at == "look":
        yield from _look(s, mutation)
    elif p.at in SETTLING:
        yield from settle(s, "period", mutation)
    elif p.at == "ended":
        x = s._replace(edited=s.edited and s.edited_in_period)
        if x.of("stranger").at == "holds" and not x.edited_in_period:
            x = x.goes("stranger", "known")
        yield "ends", x.goes("period", "idle")
    else:
        yield "fails", s.goes("period", "idle")


def is_unsettled(s: State) -> bool:
    """Something is left to write, or to see."""
    if must_be_reserved(s):
        idle = s.device == SPENT and not s.used
        return not s.reserved or s.there < 2 or (idle and not s.confirmed)
    if is_doubted(s):
        return not s.reserved
    return s.pending or s.withheld or s.there < 2


def _look(s: State, mutation: str) -> Iterator[tuple[str, State]]:
    """A consumer without an instance on record has allocated a device that is held after use."""
    known = s.device == ALLOCATED or (s.device == SPENT and not s.confirmed)
    early = mutation == "strangers are looked for before settling"
    if s.reclaim == HOLD and s.used & 4 and not known and mutation != "a stranger's allocation is not burned":
        x = s.moves(SPENT, confirmed=False, burned_for=0, seen=False)
        yield "burns what a stranger has", x.goes("period", "get", "ended")
    else:
        yield "finds no stranger", s.goes("period", "get", "ended") if early else s.goes("period", "ended")


_STRICT = {NONE: 0, HOLD: 1, ERASE: 1}


def _observe(s: State, mutation: str) -> Iterator[tuple[str, State]]:
    """The row follows the configuration and the host."""
    if "doubt" in s.parties and s.changes:
        x = s._replace(doubted=not s.doubted, changes=s.changes - 1)
        if s.doubted and mutation == "withheld not recorded":
            x = x.owes()
        yield "can no longer read it" if x.doubted else "can read it again", x.goes("period", "make")
    policy = s.policy if s.mark else NONE
    if not s.entry and s.known:
        stays = s.device != AVAILABLE and mutation != "a spent row goes with its entry"
        x = s._replace(missing=True)
        yield "misses the device", x.goes("period", "make" if s.holder or stays else "withdraw")
    elif not s.entry:
        yield "finds nothing configured", s.goes("period", "ended")
    elif not s.known:
        # No row tells what has it in Placement.
        found = {HOLD: SPENT, ERASE: ERROR, NONE: AVAILABLE}[policy] if s.used else AVAILABLE
        x = s.moves(found, known=True, missing=False, reclaim=policy, confirmed=False, pending=False)
        yield "finds a new device", x._replace(burned_for=0, seen=False).goes("period", "make")
    elif (s.reclaim, s.missing) == (policy, False):
        yield "finds what is on record", s.goes("period", "make")
    else:
        x = s._replace(missing=False)
        if s.missing and s.device == AVAILABLE:
            x = x.owes()
        yield "follows the configuration", _with_policy(x, policy, mutation).goes("period", "make")


def _with_policy(s: State, policy: str, mutation: str) -> State:
    """A stricter policy holds at once, a weaker one once the device is available."""
    if _STRICT[policy] <= _STRICT[s.reclaim]:
        at_once = mutation == "a weaker policy holds at once"
        return s._replace(reclaim=policy) if s.device == AVAILABLE or at_once else s
    had = _had_guest(s)
    x = s._replace(dirty=s.dirty or had)
    if mutation == "a stricter policy waits for its end" and s.used:
        return x
    x = x._replace(reclaim=policy)
    coming = any(s.of(name).at in ("allocated", "claiming") or s.of(name).then == "claiming" for name in INSTANCES)
    if s.device == AVAILABLE and s.used and not coming:
        # An instance gave it back before the mark, and may drop its allocation before this period ends.
        x = x.moves(SPENT if policy == HOLD else ERROR, burned_for=0, seen=False)
        return x._replace(edited=s.edited or had)
    return x


def _had_guest(s: State) -> bool:
    """An instance that has not given back everything has had a guest with the device."""
    for number, name in enumerate(INSTANCES, start=1):
        p = s.of(name)
        if s.used & number and s.holder in (number, 0) and (p.at in _GUEST_WAS or p.then in _GUEST_WAS):
            return True
    return False


def _withdraw(s: State, mutation: str) -> Iterator[tuple[str, State]]:
    """The provider goes first, and Placement refuses that while something is allocated from it; then the row."""
    p = s.of("period")
    no_row = {"known": False, "confirmed": False, "pending": False, "burned_for": 0, "missing": False}
    if mutation == "a row goes before its provider":
        yield "deletes the row", s.moves(AVAILABLE, **no_row).goes("period", "ended")
    elif s.there and s.used:
        yield "keeps the provider", s.goes("period", "ended")
    elif s.there:
        yield "deletes the provider", s.provider(there=0, reserved=0).keeps("period", version=True)
    elif s.holder or (s.device != AVAILABLE and mutation != "a spent row goes with its entry") or not p.version:
        yield "keeps the row", s.goes("period", "ended")
    else:
        yield "deletes the row", s.moves(AVAILABLE, **no_row).goes("period", "ended")


def operate(s: State, mutation: str) -> Iterator[tuple[str, State]]:
    """One step of people: operators, and others who write in Placement."""
    yield from _configure(s)
    yield from _write_in_placement(s)
    yield from _ask(s, mutation)
    if "conductor" in s.parties:
        if s.of("conductor").at in SETTLING:
            for what, x in settle(s, "conductor", mutation):
                yield f"conductor {what}", x
        elif s.of("conductor").at != "idle":
            yield "conductor gives up", s.goes("conductor", "idle")
        elif is_unsettled(s):
            yield "conductor settles it", s.goes("conductor", "get", "idle")


def _configure(s: State) -> Iterator[tuple[str, State]]:
    if "configuration" not in s.parties or "doubt" in s.parties:
        return
    if s.changes and s.entry and s.mark:
        yield "the mark is taken away", s._replace(mark=False, changes=s.changes - 1)
        yield "the entry is taken away", s._replace(entry=False, changes=s.changes - 1)
    elif not (s.entry and s.mark):
        yield "the entry is put back", s._replace(entry=True, mark=True)


def _write_in_placement(s: State) -> Iterator[tuple[str, State]]:
    cleaner = s.of("cleaner")
    idle_and_full = s.there == 2 and s.reserved and not s.used
    if cleaner.at == "idle" and idle_and_full and s.device == SPENT and "cleaner" in s.parties:
        yield "cleaner finds it", s.keeps("cleaner", at="cleaning", generation=True)
    elif cleaner.at == "cleaning":
        # It goes by the generation that it found; where that has moved on, it leaves what it has begun.
        if cleaner.generation and idle_and_full:
            yield "cleaner releases", s.provider(reserved=0, dirty=False).goes("cleaner", "idle")
        else:
            yield "cleaner leaves it", s.goes("cleaner", "idle")
    if "careless" in s.parties and s.edits and s.there == 2 and s.reserved:
        x = s.provider(reserved=0, edits=s.edits - 1)
        if s.seen and s.device == SPENT and not s.used:
            yield "an operator lowers it", x._replace(dirty=False)  # a release: it was seen idle and full
        else:
            yield "a careless edit lowers it", x._replace(edited=True, edited_in_period=True)
    if "second" in s.parties and s.edits and s.there == 2 and s.total == 1:
        x = s.provider(total=2, edits=s.edits - 1, edited=True, edited_in_period=True)
        yield "a second writer amends the total", x
    if "holder" in s.parties and s.there == 2 and not s.foreign and not s.reserved and s.edits:
        ours = must_be_reserved(s) or s.pending or s.withheld
        yield "another writer holds it", s.provider(reserved=1, foreign=MIXED if ours else KEPT, edits=s.edits - 1)
    if s.foreign and s.reserved:
        yield "another writer ends its hold", s.provider(reserved=0, foreign="")
    stranger = s.of("stranger")
    if "stranger" in s.parties and stranger.at == "idle" and s.offered and s.edits and not s.dirty:
        x = s.provider(used=s.used | 4, dirty=True, edits=s.edits - 1, edited=True, edited_in_period=True)
        yield "a stranger is allocated it", x.goes("stranger", "holds")
    elif stranger.at == "known":  # no period sees what comes and goes between two periods
        yield "the stranger leaves", s._replace(used=s.used & ~4).goes("stranger", "gone")
    if s.removals and s.there and not s.used:
        yield "the provider is deleted", s.provider(there=0, reserved=0, foreign="", removals=s.removals - 1)
        if s.there == 2:
            x = s.provider(there=1, reserved=0, foreign="", removals=s.removals - 1)
            yield "the inventory is deleted", x


def _ask(s: State, mutation: str) -> Iterator[tuple[str, State]]:
    """The operator asks the API, or the agent."""
    api = s.of("api")
    if api.at in SETTLING:
        for what, x in settle(s, "api", mutation):
            yield f"api {what}", x
    elif api.at != "idle":
        yield "api gives up", s.goes("api", "idle")
    else:
        if "api" in s.parties and s.device == SPENT and not s.used and s.edits:
            x = s.becomes_available(mutation, dirty=False, edits=s.edits - 1)
            yield "api releases it", x.goes("api", "get", "idle")
        if s.toggles and not s.held:
            yield "api holds it", s._replace(held=True, foreign="", toggles=s.toggles - 1).goes("api", "get", "idle")
        elif s.held:
            x = s._replace(held=False)
            x = x.owes() if s.device == AVAILABLE else x
            yield "api ends the hold", x.goes("api", "get", "idle")
    if s.device == ERROR and s.recleans and not s.messages:
        yield "api asks to clean it", s._replace(messages=((ERROR, True, 2),), recleans=s.recleans - 1)


def die(s: State) -> Iterator[tuple[str, State]]:
    """The agent dies, with all its threads; or a conductor that binds."""
    if not s.deaths:
        return
    x = s._replace(deaths=s.deaths - 1)
    for name in BINDERS:
        if s.of(name).at != "idle":
            yield f"the conductor of {name} dies", x.goes(name, "idle")
    threads = ("period", "worker", *(INSTANCES if s.requested_by == FLAVOR else ()))
    if any(s.of(name).at != "idle" for name in threads):
        for name in threads:
            was = s.of(name).at
            x = x.goes(name, "idle" if was == "idle" or name not in INSTANCES else "stuck")
        yield "the agent dies", x
