"""Carry RPC over RabbitMQ by oslo.messaging.

oslo.messaging declares ``[DEFAULT] transport_url`` itself, with another default, so it cannot share Autoclave's
configuration object. It reads the same files through a second one, where operators may tune it
(``[oslo_messaging_rabbit]`` and similar groups). Messages show the URL without its passwords.
"""

import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import amqp.exceptions  # type: ignore[import-untyped]
import kombu.exceptions
import oslo_messaging
import oslo_messaging.transport
from oslo_config import cfg
from oslo_log import log as logging

from autoclave.exceptions import InvalidConfiguration, RPCError, RPCTimeout, RPCUnavailable
from autoclave.objects.base import RequestContext
from autoclave.rpc import port
from autoclave.rpc.port import RemoteVersion, VersionGuard, unknown_version

LOG = logging.getLogger(__name__)


_PASSWORD = re.compile(r"((?://|,)[^:@/,]*:)[^/,]*@")


def shown(text: str) -> str:
    """Return a text, such as the URL, without its passwords."""
    return _PASSWORD.sub(r"\1***@", text)


def unusable(error: Exception) -> InvalidConfiguration:
    """Return the error for a URL that oslo.messaging refuses.

    :param error: its error; a ValueError if it could not parse the URL.
    """
    # A password with a slash is parsed as a port, so a ValueError would show the password.
    why = (
        "a port is not a number, or a character of a user or password needs percent-encoding, such as %2F for /"
        if isinstance(error, ValueError)
        else shown(str(error))
    )
    return InvalidConfiguration(
        f"cannot be used: {why}; use rabbit://user:password@host:5672/", option="[DEFAULT] transport_url"
    )


EXCHANGE = "autoclave"

RETRIES = 2
"""The number of connection retries before the sender gets an error, within a few seconds."""

_NOT_HANDED_OVER = (
    oslo_messaging.MessageDeliveryFailure,
    oslo_messaging.ClientSendError,
    # The first connection of a process fails with the broker library's own errors.
    kombu.exceptions.OperationalError,
    amqp.exceptions.AMQPError,
    OSError,
)

_NOT_RUN = ("UnsupportedVersion", "NoSuchMethod")
"""The dispatcher's own errors, raised before any method of the endpoint runs."""


class MessagingTransport:
    """Connect services on many machines.

    :param conf: ``[DEFAULT] transport_url`` locates the broker. ``[conductor] rpc_timeout`` is the time that a call
        waits for its answer, and a cast for its server.
    :param version_caps: the highest version that may be sent, by topic.
    :param remote_version: returns the reported version of a server.
    :raises InvalidConfiguration: ``transport_url`` cannot be used.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        *,
        version_caps: Mapping[str, str] | None = None,
        remote_version: RemoteVersion = unknown_version,
    ) -> None:
        self._caps = version_caps or {}
        self._remote_version = remote_version
        self._shown = shown(conf.transport_url or "")
        self._timeout = conf.conductor.rpc_timeout
        self._replies_arrive = False
        oslo_messaging.set_transport_defaults(EXCHANGE)
        try:
            plain = oslo_messaging.get_rpc_transport(own_configuration(conf), url=conf.transport_url)
        except (oslo_messaging.InvalidTransportURL, oslo_messaging.DriverLoadFailure, ValueError) as error:
            raise unusable(error) from error
        self._transport = _ExpiringTransport(plain, self._timeout)

    def client(self, topic: str, *, server: str | None = None, version: str) -> "MessagingClient":
        guard = VersionGuard(topic, server, self._caps, self._remote_version)
        target = oslo_messaging.Target(topic=topic, server=server, version=version)
        return MessagingClient(self, self._client_for(target), guard, version)

    def serve(self, topic: str, server: str, endpoint: object, version: str) -> "MessagingServer":
        target = oslo_messaging.Target(topic=topic, server=server)
        handler = _Handler(endpoint, version, served_by=f"{topic} at {server}")
        return MessagingServer(self, oslo_messaging.get_rpc_server(self._transport, target, [handler]))

    def close(self) -> None:
        self._transport.cleanup()

    def check_broker(self) -> None:
        """Verify that the broker is reachable by a message without a receiver.

        Only sending accepts a number of retries. Opening the queue for answers, and listening, retry forever and would
        block the caller.

        :raises RPCUnavailable: the broker is not reachable.
        """
        nobody = self._client_for(oslo_messaging.Target(topic="autoclave-nobody"))
        try:
            with _our_errors(f"[DEFAULT] transport_url: {self._shown} cannot be used"):
                nobody.cast({}, "nothing")
        except RPCUnavailable as error:
            raise RPCUnavailable(
                f"{error}; check that the broker runs there, and that user, password and virtual host are right"
            ) from error

    def check_replies(self) -> None:
        """Run :meth:`check_broker` before the first call of this process."""
        if not self._replies_arrive:
            self.check_broker()

    def replies_arrive(self) -> None:
        """Record that the queue for answers is open; from now on it reconnects by itself."""
        self._replies_arrive = True

    def _client_for(self, target: Any) -> Any:
        return oslo_messaging.get_rpc_client(self._transport, target, timeout=self._timeout, retry=RETRIES)


class MessagingClient:
    """Implement :class:`autoclave.rpc.port.Client`."""

    def __init__(self, transport: MessagingTransport, client: Any, guard: VersionGuard, version: str) -> None:
        self._transport = transport
        self._client = client
        self._guard = guard
        self._version = version

    def call(self, context: RequestContext, method: str, /, **arguments: Any) -> Any:
        self._guard.check_cap(self._version)
        encoded = port.encode(arguments)
        self._transport.check_replies()
        with _our_errors(f"{method} to {self._receiver}"):
            reply = self._client.call(context.to_dict(), method, arguments=encoded)
        self._transport.replies_arrive()
        return port.result_of(reply)

    def cast(self, context: RequestContext, method: str, /, **arguments: Any) -> None:
        self._guard.check_cap(self._version)
        encoded = port.encode(arguments)
        with _our_errors(f"{method} to {self._receiver}"):
            self._client.cast(context.to_dict(), method, arguments=encoded)

    def refusal(self, version: str) -> str | None:
        return self._guard.refusal(version)

    @property
    def _receiver(self) -> str:
        server = self._guard.server
        return self._guard.topic if server is None else f"{self._guard.topic} at {server}"


class MessagingServer:
    """Implement :class:`autoclave.rpc.port.Server`."""

    def __init__(self, transport: MessagingTransport, server: Any) -> None:
        self._transport = transport
        self._server = server
        self._started = False

    def start(self) -> None:
        self._transport.check_broker()
        self._server.start()
        self._started = True

    def stop(self) -> None:
        if self._started:  # otherwise, oslo.messaging waits forever for the start
            self._server.stop()

    def wait(self) -> None:
        if self._started:
            self._server.wait()


class _Handler:
    """Expose each public method of the endpoint to oslo.messaging; :mod:`autoclave.rpc.port` runs it."""

    def __init__(self, endpoint: object, version: str, *, served_by: str) -> None:
        self.target = oslo_messaging.Target(version=version)
        self._endpoint = endpoint
        self._served_by = served_by

    def __getattr__(self, name: str) -> Callable[..., str]:
        if port.public_method(self._endpoint, name) is None:
            raise AttributeError(name)
        return partial(self._run, name)

    def _run(self, method: str, context: Mapping[str, Any], arguments: str) -> str:
        return port.run(self._endpoint, method, context, arguments, served_by=self._served_by)


class _ExpiringTransport(oslo_messaging.transport.RPCTransport):  # type: ignore[misc]
    """Make casts expire at the broker, as calls do; oslo.messaging itself lets them wait forever.

    :param plain: the transport whose driver to use.
    :param seconds: the time that a cast waits for its server.
    """

    def __init__(self, plain: Any, seconds: float) -> None:
        super().__init__(plain._driver)
        self._seconds = seconds

    def _send(self, target: Any, ctxt: Any, message: Any, *, timeout: float | None = None, **options: Any) -> Any:
        return super()._send(target, ctxt, message, timeout=timeout or self._seconds, **options)


def own_configuration(conf: cfg.ConfigOpts) -> cfg.ConfigOpts:
    """Return a second configuration from the same files, for oslo.messaging alone."""
    own = cfg.ConfigOpts()
    own([], project="autoclave", default_config_files=conf.config_file, default_config_dirs=conf.config_dir)
    # oslo.messaging reads these two groups from the given configuration, but registers them only on the global one.
    # Tracing exists since release 18.
    for part in ("metrics", "tracing"):
        if importlib.util.find_spec(f"oslo_messaging._{part}"):
            module = importlib.import_module(f"oslo_messaging._{part}.client")
            group = f"oslo_messaging_{part}"
            own.register_opts(getattr(module, group), group=group)
    return own


@contextmanager
def _our_errors(what: str) -> Iterator[None]:
    try:
        yield
    except oslo_messaging.MessagingTimeout as error:
        raise RPCTimeout(f"{what}: no answer; it may have been carried out") from error
    except _NOT_HANDED_OVER as error:
        raise RPCUnavailable(f"{what}: not sent: {error}") from error
    except oslo_messaging.RemoteError as error:
        if error.exc_type in _NOT_RUN:
            raise RPCUnavailable(f"{what}: refused: {error.value}") from error
        raise RPCError(f"{what}: the remote service failed; its log shows the cause") from error
