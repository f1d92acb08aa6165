"""The moments of an agent's process: each of its calls to the world, and what happens at one of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from hostworld import HostWorld
from sqlalchemy.engine import Connection

from autoclave.db.engine import Database
from autoclave.exceptions import DatabaseUnavailable, GuestError
from autoclave.lifecycle.ports import Ports
from autoclave.placement.client import PlacementClient
from autoclave.placement.transport import call_joined, wsgi_adapter
from autoclave.rules.instance_states import PowerState
from autoclave.virt.driver import ComputeDriver, HostInventory
from autoclave.virt.guest import GuestSpec


class Death(BaseException):
    """The process is gone. Not an Exception: a dead process handles none."""


Deed = Callable[[str], None]
"""What happens at a moment; it is told whom the call is for: database, placement or hypervisor."""


class Moments:
    """Counts the calls of a process, before and after each, and lets something happen at one of these moments."""

    def __init__(self) -> None:
        self._left: int | None = None
        self._deed: Deed | None = None
        self._dead = False
        self.happened = False

    def arm(self, after: int, deed: Deed) -> None:
        """Let *deed* happen when *after* moments have passed."""
        self._left, self._deed, self.happened = after, deed, False

    def disarm(self) -> None:
        self._left = None

    def die(self, _whom: str) -> None:
        """The deed of a death: from now on, the process does nothing more."""
        self._dead = True
        raise Death

    def live_again(self) -> None:
        """Another process begins."""
        self._dead = False
        self.disarm()

    def pass_(self, whom: str) -> None:
        if self._dead:
            raise Death
        if self._left is None:
            return
        self._left -= 1
        if self._left < 0:
            self._left = None
            self.happened = True
            assert self._deed is not None
            self._deed(whom)


def fail(whom: str) -> None:
    """The deed of a call that fails; after it was carried out, of an answer that is lost."""
    if whom == "database":
        raise DatabaseUnavailable("no connection, as arranged")
    if whom == "placement":
        raise ConnectionResetError("connection lost, as arranged")
    raise GuestError("the hypervisor does not answer, as arranged")


class _Database(Database):
    def __init__(self, url: str, moments: Moments) -> None:
        super().__init__(url)
        self._moments = moments

    @contextmanager
    def write(self, **options: Any) -> Iterator[Connection]:
        self._moments.pass_("database")
        with super().write(**options) as tx:
            yield tx
        self._moments.pass_("database")

    @contextmanager
    def read(self) -> Iterator[Connection]:
        self._moments.pass_("database")
        with super().read() as tx:
            yield tx


class _Hypervisor:
    """See :class:`~autoclave.virt.driver.ComputeDriver`."""

    def __init__(self, driver: ComputeDriver, moments: Moments) -> None:
        self._driver = driver
        self._moments = moments

    def inventory(self) -> HostInventory:
        return self._driver.inventory()

    def spawn(self, guest: GuestSpec) -> None:
        self._call(lambda: self._driver.spawn(guest))

    def destroy(self, uuid: str) -> None:
        self._call(lambda: self._driver.destroy(uuid))

    def start(self, uuid: str) -> None:
        self._call(lambda: self._driver.start(uuid))

    def stop(self, uuid: str) -> None:
        self._call(lambda: self._driver.stop(uuid))

    def reboot(self, uuid: str) -> None:
        self._call(lambda: self._driver.reboot(uuid))

    def rebuild(self, guest: GuestSpec) -> None:
        self._call(lambda: self._driver.rebuild(guest))

    def state(self, uuid: str) -> PowerState | None:
        return self._driver.state(uuid)

    def _call(self, deed: Callable[[], None]) -> None:
        self._moments.pass_("hypervisor")
        deed()
        self._moments.pass_("hypervisor")


def ports_of(world: HostWorld, moments: Moments) -> Ports:
    """The world as a process sees it whose calls have *moments*."""

    def app(environ: Any, start_response: Any) -> list[bytes]:
        moments.pass_("placement")
        body = call_joined(world.faults, environ, start_response)
        moments.pass_("placement")
        return [body]

    url = world.db.writer_engine.url.render_as_string(hide_password=False)
    return replace(world.ports, db=_Database(url, moments), placement=PlacementClient(wsgi_adapter(app)))


def hypervisor_of(driver: ComputeDriver, moments: Moments) -> ComputeDriver:
    """The hypervisor as the same process sees it."""
    return _Hypervisor(driver, moments)
