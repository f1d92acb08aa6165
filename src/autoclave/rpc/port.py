"""The RPC port: what services know of messages, whichever transport carries them.

Arguments and results are JSON values and versioned objects, also nested; both transports write them
to JSON and read them back. A method that raises an error of ``autoclave.exceptions`` makes the caller
raise the same class with the same message; any other exception arrives as ``RPCError`` without its
text, which stays in the log of the service that raised it.
"""

from collections.abc import Callable
from typing import Any, Protocol

from autoclave.objects.context import RequestContext

AGENT_TOPIC = "autoclave-agent"
"""The agents; a message names the server, which is the host's name."""
CONDUCTOR_TOPIC = "autoclave-conductor"
"""The conductors; any of them takes a message."""

RemoteVersion = Callable[[str, str], str | None]
"""``(topic, server)`` to the RPC version that this server said it speaks; None: it never said."""


def unknown_version(topic: str, server: str) -> str | None:  # noqa: ARG001
    """The :data:`RemoteVersion` of a process that keeps no record of the services."""
    return None


class Client(Protocol):
    """Sends to one topic, or to one server of it.

    ``call`` and ``cast`` send messages of the version that the client was made for.
    """

    def call(self, context: RequestContext, method: str, /, **arguments: Any) -> Any:
        """Run *method* over there and return its result.

        :raises RPCUnavailable: it was not run: no broker, no server, or none that speaks the version.
        :raises RPCTimeout: no answer in time; it may have been run, or still be running.
        :raises RPCError: it failed in a way that only the log over there tells.
        :raises AutoclaveError: what the method raised.
        :raises TypeError: an argument cannot be sent.
        """

    def cast(self, context: RequestContext, method: str, /, **arguments: Any) -> None:
        """Hand the message over and return. It is run once, or never: nobody waits for it.

        A message to a server that is away expires. So does one that the server cannot understand;
        ask :meth:`refusal` first.

        :raises RPCUnavailable: it was not handed over: no broker, or too much work is waiting.
        :raises TypeError: an argument cannot be sent.
        """

    def refusal(self, version: str) -> str | None:
        """Why the server must not be sent messages of *version*, and what to do about it; None if it may be.

        None only on its own word: a server that never said what it speaks is not trusted with more.
        Without a server the topic's version cap alone decides.
        """


class Server(Protocol):
    """An endpoint that takes messages between :meth:`start` and :meth:`stop`."""

    def start(self) -> None:
        """Begin to take messages.

        :raises RPCUnavailable: the broker cannot be reached.
        """

    def stop(self) -> None:
        """Take no more messages; those begun go on. Nothing, if it never started."""

    def wait(self) -> None:
        """After :meth:`stop`: block until the messages begun are done."""


class Transport(Protocol):
    """Makes clients and servers."""

    def client(self, topic: str, *, server: str | None = None, version: str) -> Client:
        """A client that sends messages of *version* to *server*, or to any server of *topic*."""

    def serve(self, topic: str, server: str, endpoint: object, version: str) -> Server:
        """A server, not started yet, whose public methods ``method(context, **arguments)`` are *endpoint*'s.

        *version* is the highest that it understands: all of the same major, up to its minor.
        """

    def close(self) -> None:
        """Let go of connections and workers; casts that wait are not run any more."""
