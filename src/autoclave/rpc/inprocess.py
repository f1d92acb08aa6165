"""Carry RPC inside one process: a call is direct, a cast waits in a :class:`CastQueue`."""

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import futurist
from futurist import rejection
from oslo_log import log as logging

from autoclave.exceptions import RPCUnavailable
from autoclave.objects.base import RequestContext
from autoclave.rpc import port
from autoclave.rpc.port import RemoteVersion, VersionGuard, understands, unknown_version

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cast:
    """Hold a queued cast.

    :param server: None for any server of the topic.
    :param context: ``RequestContext.to_dict()``.
    :param arguments: the keyword arguments, encoded.
    """

    topic: str
    server: str | None
    method: str
    version: str
    context: Mapping[str, Any]
    arguments: str


Deliver = Callable[[Cast], None]
"""Runs a cast at its server, or drops it without one; does not raise."""


class CastQueue(Protocol):
    """Accept casts, and deliver them later, or never."""

    def put(self, cast: Cast, deliver: Deliver) -> None:
        """Enqueue *cast*.

        :raises RPCUnavailable: the queue is full.
        """

    def close(self) -> None:
        """Stop the delivery."""


class PooledCasts:
    """Deliver each cast on a thread of a pool, in approximately the order of arrival.

    :param workers: the most casts that run concurrently.
    :param capacity: the most casts that wait; the sender of another one gets an error.
    """

    def __init__(self, workers: int = 8, capacity: int = 1000) -> None:
        self._capacity = capacity
        self._pool = futurist.ThreadPoolExecutor(workers, check_and_reject=rejection.reject_when_reached(capacity))

    def put(self, cast: Cast, deliver: Deliver) -> None:
        try:
            self._pool.submit(deliver, cast)
        except futurist.RejectedSubmission as error:
            raise RPCUnavailable(
                f"{cast.method} was not sent to {cast.topic}: {self._capacity} messages of this process are waiting"
            ) from error
        except RuntimeError as error:
            raise RPCUnavailable(f"{cast.method} was not sent to {cast.topic}: its transport is closed") from error

    def close(self) -> None:
        # Servers wait for the casts in progress; joining idle threads here would only cost a second.
        self._pool.shutdown(wait=False)


class InProcessTransport:
    """Connect services that run in one process.

    Arguments and results are encoded as JSON and decoded, as with a broker. Unlike there, a call to a missing server
    fails at once, and a call has no timeout.

    :param casts: the queue of casts; by default a pool of its own.
    :param version_caps: the highest version that may be sent, by topic.
    :param remote_version: returns the version of a server outside of this process.
    """

    def __init__(
        self,
        *,
        casts: CastQueue | None = None,
        version_caps: Mapping[str, str] | None = None,
        remote_version: RemoteVersion = unknown_version,
    ) -> None:
        self._casts = casts or PooledCasts()
        self._caps = version_caps or {}
        self._recorded_version = remote_version
        self._lock = threading.Lock()
        self._servers: dict[str, dict[str, InProcessServer]] = {}
        self._turn = itertools.count()

    def client(self, topic: str, *, server: str | None = None, version: str) -> "InProcessClient":
        guard = VersionGuard(topic, server, self._caps, self._remote_version)
        return InProcessClient(self, guard, version)

    def serve(self, topic: str, server: str, endpoint: object, version: str) -> "InProcessServer":
        return InProcessServer(self, topic, server, endpoint, version)

    def close(self) -> None:
        self._casts.close()

    def register(self, server: "InProcessServer") -> None:
        """Make *server* available.

        :raises ValueError: its topic already has a server of this name.
        """
        with self._lock:
            known = self._servers.setdefault(server.topic, {})
            if known.setdefault(server.name, server) is not server:
                raise ValueError(f"a server {server} exists already")

    def unregister(self, server: "InProcessServer") -> None:
        """Make *server* unavailable."""
        with self._lock:
            self._servers.get(server.topic, {}).pop(server.name, None)

    def find(self, topic: str, name: str | None, version: str) -> "InProcessServer":
        """Return the server for a message; without a *name*, they take turns.

        :raises RPCUnavailable: none exists, or it does not support *version*.
        """
        with self._lock:
            known = self._servers.get(topic, {})
            names = sorted(known) if name is None else [name] if name in known else []
            if not names:
                raise RPCUnavailable(
                    f"no server of {topic}{'' if name is None else f' at {name}'} exists in this process"
                )
            found = known[names[next(self._turn) % len(names)]]
        if not understands(found.version, version):
            raise RPCUnavailable(f"{found} speaks RPC {found.version} and does not support {version}")
        return found

    def put(self, cast: Cast) -> None:
        """Enqueue *cast*."""
        self._casts.put(cast, self._deliver)

    def _deliver(self, cast: Cast) -> None:
        try:
            server = self.find(cast.topic, cast.server, cast.version)
        except RPCUnavailable as error:
            LOG.warning("%s expired: %s (request %s)", cast.method, error, cast.context["request_id"])
            return
        server.handle(cast.method, cast.context, cast.arguments)

    def _remote_version(self, topic: str, server: str) -> str | None:
        with self._lock:
            here = self._servers.get(topic, {}).get(server)
        return here.version if here else self._recorded_version(topic, server)


class InProcessClient:
    """Implement :class:`autoclave.rpc.port.Client`."""

    def __init__(self, transport: InProcessTransport, guard: VersionGuard, version: str) -> None:
        self._transport = transport
        self._guard = guard
        self._version = version

    def call(self, context: RequestContext, method: str, /, **arguments: Any) -> Any:
        self._guard.check_cap(self._version)
        encoded = port.encode(arguments)
        server = self._transport.find(self._guard.topic, self._guard.server, self._version)
        return port.result_of(server.handle(method, context.to_dict(), encoded))

    def cast(self, context: RequestContext, method: str, /, **arguments: Any) -> None:
        self._guard.check_cap(self._version)
        encoded = port.encode(arguments)
        self._transport.put(
            Cast(self._guard.topic, self._guard.server, method, self._version, context.to_dict(), encoded)
        )

    def refusal(self, version: str) -> str | None:
        return self._guard.refusal(version)


class InProcessServer:
    """Implement :class:`autoclave.rpc.port.Server`."""

    def __init__(self, transport: InProcessTransport, topic: str, name: str, endpoint: object, version: str) -> None:
        self.topic = topic
        self.name = name
        self.version = version
        self._transport = transport
        self._endpoint = endpoint
        self._idle = threading.Condition()
        self._running = 0

    def __str__(self) -> str:
        return f"{self.topic} at {self.name}"

    def start(self) -> None:
        self._transport.register(self)

    def stop(self) -> None:
        self._transport.unregister(self)

    def wait(self) -> None:
        with self._idle:
            self._idle.wait_for(lambda: self._running == 0)

    def handle(self, method: str, context: Mapping[str, Any], arguments: str) -> str:
        """Run a message in this thread and return the encoded reply."""
        with self._counted():
            return port.run(self._endpoint, method, context, arguments, served_by=str(self))

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._idle:
            self._running += 1
        try:
            yield
        finally:
            with self._idle:
                self._running -= 1
                self._idle.notify_all()
