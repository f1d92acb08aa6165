"""Actors that stop before and after every call to the world, and go on when a scheduler says so."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy.engine import Connection

from autoclave.db.engine import Database
from autoclave.exceptions import DatabaseUnavailable
from autoclave.placement.transport import call_joined

PATIENCE = 60.0
"""Seconds until an actor that reaches no gate fails the test; nothing else here depends on time."""


class Died(BaseException):
    """The process of an actor is dead: it does nothing more. Not an Exception, so that nobody handles it."""


class Actor:
    """A thread that runs from gate to gate.

    :param group: the process it belongs to; it dies with it.
    """

    def __init__(self, stage: "Stage", name: str, group: str, work: Callable[[], Any]) -> None:
        self.name, self.group = name, group
        self.at = "start"
        self.fate: str | None = None
        self.dead = self.done = False
        self.device: str | None = None
        self.error: BaseException | None = None
        self.go = threading.Semaphore(0)
        self._stage, self._work = stage, work
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        self._stage.here.actor = self
        self.go.acquire()
        try:
            if not self.dead:
                self._work()
        except Died:
            pass
        except BaseException as error:  # kept for the scheduler, which fails the history with it
            self.error = error
        self.done = True
        self._stage.reached.release()


class Stage:
    """One actor runs at a time; :meth:`run` lets it go to its next gate."""

    def __init__(self) -> None:
        self.here = threading.local()
        self.reached = threading.Semaphore(0)
        self.actors: list[Actor] = []

    def add(self, name: str, group: str, work: Callable[[], Any]) -> Actor:
        actor = Actor(self, name, group, work)
        self.actors.append(actor)
        return actor

    def run(self, actor: Actor, fate: str | None = None) -> None:
        actor.fate = fate
        actor.go.release()
        if not self.reached.acquire(timeout=PATIENCE):
            raise AssertionError(f"{actor.name} reached no gate after {actor.at}")
        if actor.done:
            self.actors.remove(actor)
        if actor.error is not None:
            raise AssertionError(f"{actor.name} failed after {actor.at}") from actor.error

    def kill(self, group: str | None = None) -> None:
        """The process dies: its actors do nothing more at the world."""
        for actor in [a for a in self.actors if group in (None, a.group)]:
            actor.dead = True
            self.run(actor)
            assert actor.done, f"{actor.name} went on after its death, to {actor.at}"

    def gate(self, at: str) -> str | None:
        """Wait for the scheduler; returns what is to happen to the call. Outside actors: nothing, at once."""
        actor: Actor | None = getattr(self.here, "actor", None)
        if actor is None:
            return None
        if actor.dead:
            raise Died
        actor.at = at
        self.reached.release()
        actor.go.acquire()
        if actor.dead:
            raise Died
        return actor.fate


class GatedDatabase(Database):
    """A database with a gate before and after each transaction, none inside."""

    def __init__(self, url: str, stage: Stage) -> None:
        super().__init__(url)
        self._stage = stage
        self.writes = 0

    @contextmanager
    def write(self) -> Iterator[Connection]:
        fate = self._stage.gate("db write")
        if fate == "fail":
            raise DatabaseUnavailable("no connection, as arranged")
        with super().write() as tx:
            yield tx
        self.writes += 1
        self._stage.gate("db written")
        if fate == "lose":
            raise DatabaseUnavailable("connection lost after the commit, as arranged")

    @contextmanager
    def read(self) -> Iterator[Connection]:
        if self._stage.gate("db read") in ("fail", "lose"):
            raise DatabaseUnavailable("no connection, as arranged")
        with super().read() as tx:
            yield tx
        self._stage.gate("db was read")


class GatedPlacement:
    """WSGI middleware with a gate before and after each request."""

    def __init__(self, app: Any, stage: Stage) -> None:
        self._app, self._stage = app, stage
        self.writes = 0

    def __call__(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        what = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO'].rpartition('/')[2][:11]}"
        fate = self._stage.gate(what)
        if fate == "fail":
            raise ConnectionRefusedError("connection refused, as arranged")
        body = call_joined(self._app, environ, start_response)
        self.writes += environ["REQUEST_METHOD"] != "GET"
        self._stage.gate(f"{what} answered")
        if fate == "lose":
            raise ConnectionResetError("connection lost before the answer, as arranged")
        return [body]
