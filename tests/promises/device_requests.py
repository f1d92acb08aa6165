"""Requests of device profiles (ARQs), and the agent's worker that erases, in the protocol model."""

from collections.abc import Iterator

from promises.device_state import (
    ALLOCATED,
    AVAILABLE,
    BINDERS,
    CLEANING,
    DIRTY_GIVEN,
    ERASE,
    ERASED_IN_USE,
    ERROR,
    FLAVOR,
    HOLD,
    INSTANCES,
    NONE,
    PENDING,
    SETTLING,
    SPENT,
    State,
    settle,
)
from promises.search import Broken


def _arq(s: State, number: int, value: str) -> State:
    return s._replace(arqs=(value, s.arqs[1]) if number == 1 else (s.arqs[0], value))


def serve(s: State, number: int, name: str, mutation: str) -> Iterator[tuple[str, State]]:
    """One step of an instance of Nova, and of the conductor that unbinds its request."""
    p = s.of(name)
    arq = s.arqs[number - 1]
    if p.at == "idle":
        # Another life has another request.
        done = arq == "none" and s.of("sweep").then != f"finish {number}"
        if done and s.offered and s.lives[number - 1]:
            lives = tuple(n - (i == number - 1) for i, n in enumerate(s.lives))
            yield "is allocated it", s.provider(used=s.used | number, lives=lives).goes(name, "allocated")
    elif p.at == "allocated":
        if s.of(BINDERS[number - 1]).at == "idle":
            confirmed = s.device == SPENT and s.confirmed
            x = _arq(s, number, "started").goes(name, "waiting")
            yield "asks to bind", x.goes(BINDERS[number - 1], *(("get", "swap") if confirmed else ("swap",)))
    elif p.at == "waiting":
        if arq == "bound":
            if s.dirty:
                raise Broken(DIRTY_GIVEN)
            yield "runs", s._replace(dirty=s.reclaim != NONE).goes(name, "running")
        yield "gives up", _begin_unbind(s, number, name, mutation)
    elif p.at == "running":
        yield "is deleted", _begin_unbind(s, number, name, mutation)
    elif p.at == "deallocate":
        yield "is deallocated", s._replace(used=s.used & ~number).goes(name, "idle")
    else:
        if s.deaths and arq == "deleting":  # Nova goes on regardless
            yield "loses its conductor", s._replace(deaths=s.deaths - 1).goes(name, "deallocate")
        if p.at == "unbind":
            yield "is unbound", finish_unbind(s, number, mutation, name, "deallocate")
        elif p.at in SETTLING:
            yield from settle(s, name, mutation)
        else:  # the provider is gone: a sweep finishes it
            yield "cannot settle", s.goes(name, "deallocate")


def _begin_unbind(s: State, number: int, name: str, mutation: str) -> State:
    # A request that is Bound was reserved for by its bind.
    settled = s.arqs[number - 1] == "bound"
    x = s if mutation == "an unbind settles before Deleting" else _arq(s, number, "deleting")
    return x.goes(name, "unbind") if settled else x.goes(name, "get", "unbind")


def finish_unbind(s: State, number: int, mutation: str, name: str, then: str) -> State:
    """Free the request, move the device on, and ask the agent to clean it."""
    mine = s.holder == number
    x = _arq(s, number, "gone")
    if not mine:
        return x.goes(name, then)
    x = x._replace(holder=0)
    if x.device != ALLOCATED:
        return x.goes(name, then)
    if s.reclaim == ERASE:
        if len(x.messages) < 2:
            x = x._replace(messages=tuple(sorted((*x.messages, (ALLOCATED, True, 2)))))
        return x.goes(name, then)
    if s.reclaim == HOLD and mutation != "an unbind leaves it unspent":
        return x.moves(SPENT, burned_for=number).goes(name, "get", then)
    return x.becomes_available(mutation).goes(name, "get", then)


def bind(s: State, number: int, name: str, mutation: str) -> Iterator[tuple[str, State]]:
    """One step of the conductor that binds a request; it may be a zombie."""
    p = s.of(name)
    arq = s.arqs[number - 1]
    if p.at == "idle":
        return
    if p.at in ("swap", "failed swap"):
        if arq != "started":
            yield "stops", s.goes(name, "idle")
        elif s.device == AVAILABLE and not (s.held or s.missing or s.doubted or s.withheld or s.holder):
            if s.dirty:
                raise Broken(DIRTY_GIVEN)
            x = s.moves(ALLOCATED, holder=number, seen=False).goes(name, "get", "bound")
            yield "wins it", x.keeps(name, version=True)
        else:
            yield "is refused", _arq(s, number, "failed").goes(name, "idle")
    elif p.at in SETTLING:
        yield from settle(s, name, mutation)
        if p.at == "put" and p.then == "bound" and s.failures:
            yield "cannot reach Placement", s._replace(failures=s.failures - 1).goes(name, "back")
    elif p.at in ("back", "failed bound"):
        mine = arq == "started" and s.holder == number
        if s.device == ALLOCATED and (mine or mutation == "a binder takes back blindly"):
            x = _arq(s, number, "failed").becomes_available(mutation, holder=0)
            yield "takes it back", x.goes(name, "idle")
        else:
            yield "leaves it", s.goes(name, "idle")
    elif p.at == "bound":
        x = _arq(s, number, "bound") if arq == "started" and s.holder == number else s
        yield "is done", x.goes(name, "idle")


def sweep(s: State, mutation: str) -> Iterator[tuple[str, State]]:
    """One step of the sweep: a lease may be over at any time."""
    p = s.of("sweep")
    if p.at == "idle":
        for number, name in enumerate(INSTANCES, start=1):
            if s.arqs[number - 1] == "started":
                x = _arq(s, number, "failed")
                if s.holder == number and s.device == ALLOCATED:
                    yield "rolls back", x.becomes_available(mutation, holder=0).goes("sweep", "get", "idle")
                elif s.holder != number:
                    yield "fails a bind", x
            elif mutation == "an unbind is left unfinished":
                continue
            elif s.arqs[number - 1] == "deleting" and s.of(name).at in ("idle", "deallocate"):
                yield "takes over an unbind", s.goes("sweep", "get", f"finish {number}")
    elif p.at in SETTLING:
        yield from settle(s, "sweep", mutation)
    elif p.at.startswith("finish"):
        number = int(p.at[-1])
        deleting = s.arqs[number - 1] == "deleting"
        yield (
            "finishes it",
            finish_unbind(s, number, mutation, "sweep", "idle") if deleting else s.goes("sweep", "idle"),
        )
    else:
        yield "gives up", s.goes("sweep", "idle")


def work(s: State, mutation: str) -> Iterator[tuple[str, State]]:
    """One step of the agent's worker, and of its watch over the time."""
    p = s.of("worker")
    if p.at == "idle":
        yield from _begin(s, mutation)
    elif p.at == "begin":
        if s.device == PENDING and p.version:
            x = s.moves(CLEANING).goes("worker", "erase")
            yield "starts", x.keeps("worker", version=True)
        else:
            yield "lost it", s.goes("worker", "idle")
    elif p.at == "erase":
        if "bound" in s.arqs or (s.requested_by == FLAVOR and s.holder):
            raise Broken(ERASED_IN_USE)
        yield "erases it", s._replace(dirty=False).keeps("worker", at="done")
        yield "fails", s.keeps("worker", at="fail")
    elif p.at in ("done", "fail"):
        if s.device != CLEANING or not p.version:
            yield "is too late", s.goes("worker", "idle")
        elif p.at == "fail":
            yield "notes the failure", s.moves(ERROR).goes("worker", "get", "idle")
        elif mutation == "cleaned without a pending release":
            yield "notes the proof", s.moves(AVAILABLE, confirmed=False).goes("worker", "get", "idle")
        else:
            yield "notes the proof", s.becomes_available(mutation).goes("worker", "get", "idle")
    elif p.at in SETTLING:
        yield from settle(s, "worker", mutation)
    else:
        yield "gives up", s.goes("worker", "idle")
    if s.device == CLEANING and p.at in ("erase", "done", "fail"):
        yield "is out of time", s.moves(ERROR)


def _begin(s: State, mutation: str) -> Iterator[tuple[str, State]]:
    careless = mutation == "late messages are obeyed"
    for message in set(s.messages):
        source, fresh, left = message
        rest = list(s.messages)
        rest.remove(message)
        if left > 1:
            rest.append((source, fresh, left - 1))
        x = s._replace(messages=tuple(sorted(rest)))
        if s.device == source and ((fresh and not s.active) or careless):
            yield "obeys a message", _pending(x)
        else:
            yield "drops a message", x
    left = not s.holder or mutation == "what is held is cleaned"
    if s.device == ALLOCATED and s.reclaim == ERASE and left:
        yield "finds it left", _pending(s)
    if s.device in (PENDING, CLEANING):
        yield "recovers it", s.moves(ERROR).goes("worker", "get", "idle")


def _pending(s: State) -> State:
    return s.moves(PENDING).goes("worker", "begin").keeps("worker", version=True)


def renewed(s: State) -> State:
    """A finished request may be asked for again, as another one."""
    for number, name in enumerate(INSTANCES, start=1):
        done = s.arqs[number - 1] in ("gone", "failed") and s.holder != number
        if done and s.of(name).at == "idle" and s.of(BINDERS[number - 1]).at == "idle":
            s = _arq(s, number, "none")
    return s
