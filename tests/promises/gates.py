"""Actors that stop at every call to the world, and go on when a scheduler says so."""

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
import webob
from sqlalchemy.engine import Connection

from autoclave.db.columns import metadata
from autoclave.db.engine import Database
from autoclave.exceptions import DatabaseUnavailable
from autoclave.placement.transport import MICROVERSION, OWN_ROLES, call_joined

_READER = {"OpenStack-API-Version": f"placement {MICROVERSION}", "X-Auth-Token": "watch", "X-Roles": OWN_ROLES}

_OFFERS = re.compile(r"/inventories$|/allocations\b")

PATIENCE = 60.0
"""Seconds until an actor that reaches no gate fails the test; nothing else here depends on time."""


class Died(BaseException):
    """The process of an actor is dead: it does nothing more. Not an Exception, so that nobody handles it."""


class Actor:
    """A thread that runs from gate to gate.

    :param group: the process it belongs to; it dies with it.
    :param work: what it does; None for a thread that became an actor on its way, see :meth:`Stage.part`.
    """

    def __init__(self, stage: "Stage", name: str, group: str, work: Callable[[], Any] | None) -> None:
        self.name, self.group = name, group
        self.asleep = False
        self.at = "start"
        self.fate: str | None = None
        self.dead = self.done = False
        self.device: str | None = None
        self.error: BaseException | None = None
        self.go = threading.Semaphore(0)
        self.parted = work is None
        self._stage = stage
        if work is not None:
            threading.Thread(target=self._run, args=(work,), name=name, daemon=True).start()

    def _run(self, work: Callable[[], Any]) -> None:
        self._stage.here.actor = self
        self.go.acquire()
        try:
            if not self.dead:
                work()
        except Died:
            pass
        except BaseException as error:  # kept for the scheduler, which fails the history with it
            self.error = error
        self.done = True
        self._stage.reached.release()


class Stage:
    """One actor runs at a time; :meth:`run` lets it go to its next gate.

    ``fine``: stop after each call, too. Stories name such moments. A rehearsal does without: an actor does nothing
    that another could see between the answer to one call and its next call, where it stops anyhow.
    """

    def __init__(self) -> None:
        self.fine = True
        self.here = threading.local()
        self.reached = threading.Semaphore(0)
        self.actors: list[Actor] = []

    def add(self, name: str, group: str, work: Callable[[], Any]) -> Actor:
        actor = Actor(self, name, group, work)
        self.actors.append(actor)
        return actor

    def part(self, name: str, group: str, tell: Callable[[], None]) -> None:
        """The thread that calls us goes on as an actor of its own, when its turn comes.

        :param tell: lets go of whoever waits for the thread, and runs on in its place now.
        """
        actor = Actor(self, name, group, None)
        self.here.actor = actor
        self.actors.append(actor)
        tell()
        actor.go.acquire()
        if actor.dead:
            raise Died

    def leave(self) -> None:
        """The end of an actor that came by :meth:`part`; of any other, nothing."""
        actor: Actor | None = getattr(self.here, "actor", None)
        if actor is not None and actor.parted:
            actor.done = True
            self.reached.release()

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

    def after(self, at: str) -> None:
        """A gate after a call, where stories stop."""
        if self.fine:
            self.gate(at)


class GatedDatabase(Database):
    """A database with gates around each transaction, none inside. It serves one stage after the other."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        # No power is cut here; what survives one is promised elsewhere.
        sa.event.listen(self.writer_engine, "connect", lambda made, _record: made.execute("PRAGMA synchronous=OFF"))
        self._stage = Stage()
        self.writes = 0

    def empty_for(self, stage: Stage) -> None:
        """Delete every row, and stop at *stage* from now on."""
        self._stage, self.writes = stage, 0
        with super().write() as tx:
            for table in reversed(metadata.sorted_tables):
                tx.execute(table.delete())

    @contextmanager
    def write(self, **how: bool) -> Iterator[Connection]:
        fate = self._stage.gate("db write")
        if fate == "fail":
            raise DatabaseUnavailable("no connection, as arranged")
        with super().write(**how) as tx:
            yield tx
        self.writes += 1
        self._stage.after("db written")
        if fate == "lose":
            raise DatabaseUnavailable("connection lost after the commit, as arranged")

    @contextmanager
    def read(self) -> Iterator[Connection]:
        if self._stage.gate("db read") in ("fail", "lose"):
            raise DatabaseUnavailable("no connection, as arranged")
        with super().read() as tx:
            yield tx
        self._stage.after("db was read")


class GatedPlacement:
    """WSGI middleware with gates around each request.

    ``writes`` counts those that may have changed what is offered, ``inventories`` those of an inventory.
    """

    def __init__(self, app: Any, stage: Stage) -> None:
        self._app, self._stage = app, stage
        self.writes = self.inventories = 0

    def __call__(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        what = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO'].rpartition('/')[2][:11]}"
        fate = self._stage.gate(what)
        if fate == "fail":
            raise ConnectionRefusedError("connection refused, as arranged")
        statuses: list[str] = []

        def answered(status: str, *rest: Any) -> Any:
            statuses.append(status)
            return start_response(status, *rest)

        body = call_joined(self._app, environ, answered)
        if environ["REQUEST_METHOD"] != "GET" and statuses[-1].startswith("2"):
            self.writes += _OFFERS.search(environ["PATH_INFO"]) is not None or environ["REQUEST_METHOD"] == "DELETE"
            self.inventories += what == "PUT inventories"
        self._stage.after(f"{what} answered")
        if fate == "lose":
            raise ConnectionResetError("connection lost before the answer, as arranged")
        return [body]

    def look(self, path: str) -> Any:
        """The document at *path*, past all gates; None if there is none."""
        request = webob.Request.blank(path, headers=_READER)
        answer = request.get_response(self._app)
        if answer.status_code == 404:
            return None
        assert answer.status_code == 200, answer
        return answer.json


class GatedNova:
    """WSGI middleware with a gate before each question to Nova."""

    def __init__(self, app: Any, stage: Stage) -> None:
        self._app, self._stage = app, stage

    def __call__(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        if self._stage.gate("ask nova") is not None:
            raise ConnectionRefusedError("connection refused, as arranged")
        answered: Iterable[bytes] = self._app(environ, start_response)
        return answered
