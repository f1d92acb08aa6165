"""What can happen to one process's calls to its database and its Placement, at a call that the test names."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from agentworld import AgentWorld
from sqlalchemy.engine import Connection

from autoclave.db.engine import Database
from autoclave.exceptions import DatabaseUnavailable
from autoclave.lifecycle.ports import Ports
from autoclave.placement.client import PlacementClient
from autoclave.placement.transport import wsgi_adapter


class Death(BaseException):
    """The process is gone. Not an Exception: a dead process handles none."""


class Strike:
    """Counts the calls of one process, from 1, and strikes one of them.

    :param at: which; None to count only.
    :param applied: the call is carried out, and what is lost is the answer.
    :param error: what the process gets instead of an answer.
    :param lasting: no later call gets through, either.
    :param reads: reads count, too; otherwise only a lasting strike keeps them from being answered.
    """

    def __init__(
        self,
        at: int | None,
        *,
        applied: bool,
        error: Callable[[], BaseException],
        lasting: bool,
        reads: bool = False,
    ) -> None:
        self._at = at
        self._applied = applied
        self._error = error
        self._lasting = lasting
        self._reads = reads
        self._guard = threading.Lock()
        self.calls = 0
        self.struck = threading.Event()

    def arm(self, at: int | None) -> None:
        """Count anew from now on, and strike the call *at*; None lets everything through again."""
        with self._guard:
            self.calls = 0
            self._at = at
            self.struck.clear()

    @contextmanager
    def write(self) -> Iterator[None]:
        """Around a call that writes."""
        self._answer()
        with self._guard:
            self.calls += 1
            chosen = self.calls == self._at
        if chosen and not self._applied:
            self._fall()
        yield
        if chosen:
            self._fall()

    @contextmanager
    def read(self) -> Iterator[None]:
        """Around a call that only reads."""
        if self._reads:
            with self.write():
                yield
        else:
            self._answer()
            yield

    def ports(self, world: AgentWorld) -> Ports:
        """The world as the process sees it: its calls to the database and to Placement count."""
        return replace(self.database_ports(world), placement=self._placement(world.faults))

    def database_ports(self, world: AgentWorld) -> Ports:
        """The world as the process sees it: its calls to the database count."""
        url = world.db.writer_engine.url.render_as_string(hide_password=False)
        return replace(world.ports, db=_StruckDatabase(url, self))

    def _placement(self, app: Any) -> PlacementClient:
        def struck(environ: Any, start_response: Any) -> Any:
            with self.read() if environ["REQUEST_METHOD"] == "GET" else self.write():
                return app(environ, start_response)

        return PlacementClient(wsgi_adapter(struck))

    def _answer(self) -> None:
        if self._lasting and self.struck.is_set():
            raise self._error()

    def _fall(self) -> None:
        self.struck.set()
        raise self._error()


def no_database(at: int | None = None, *, applied: bool = False, lasting: bool = False) -> Strike:
    """The database does not answer one of the transactions, those that read included."""

    def unavailable() -> DatabaseUnavailable:
        return DatabaseUnavailable("no connection, as arranged")

    return Strike(at, applied=applied, error=unavailable, lasting=lasting, reads=True)


def death(at: int | None = None, *, applied: bool = False) -> Strike:
    """The process dies at a write, before or after it is applied."""
    return Strike(at, applied=applied, error=Death, lasting=True)


class _StruckDatabase(Database):
    def __init__(self, url: str, strike: Strike) -> None:
        super().__init__(url)
        self._strike = strike

    @contextmanager
    def write(self, **options: Any) -> Iterator[Connection]:
        with self._strike.write(), super().write(**options) as tx:
            yield tx

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with self._strike.read(), super().read() as tx:
            yield tx
