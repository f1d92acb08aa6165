"""Define the RPC port: messages, versions, and their form on the wire.

The RPC port: what services know of messages, whichever transport carries them.

Arguments and results are JSON values and versioned objects, also nested; both transports write them
to JSON and read them back. A method that raises an error of ``autoclave.exceptions`` makes the caller
raise the same class with the same message; any other exception arrives as ``RPCError`` without its
text, which stays in the log of the service that raised it.

Which versions may be sent.

What is put on the wire, the same for both transports: values, and how a method ended.

A reply is ``{"result": …}`` or ``{"error": {"class", "message", "attributes"}}``. Errors travel as data,
so that no traceback does, and only classes of ``autoclave.exceptions`` are ever made from it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from oslo_log import log as logging
from oslo_utils import versionutils
from oslo_versionedobjects import exception as object_errors

from autoclave import exceptions
from autoclave.exceptions import ApiError, AutoclaveError, RPCError, RPCUnavailable
from autoclave.objects.base import AutoclaveSerializer, RequestContext

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


def understands(spoken: str, needed: str) -> bool:
    """Whether one that speaks *spoken* understands *needed*: the same major, and no higher minor."""
    return bool(versionutils.is_compatible(needed, spoken, same_major=True))


def lack(spoken: str, needed: str) -> str | None:
    """What is wrong with one that speaks *spoken*, where *needed* is; None: it understands that."""
    return None if understands(spoken, needed) else f"speaks RPC {spoken}, not {needed}: upgrade it"


@dataclass(frozen=True)
class VersionGuard:
    """Decides for one client.

    :param caps: topic to the highest version that may be sent there while an upgrade is under way.
    :param remote_version: what each server says it speaks.
    """

    topic: str
    server: str | None
    caps: Mapping[str, str]
    remote_version: RemoteVersion

    def refusal(self, version: str) -> str | None:
        """See ``Client.refusal``."""
        if not self._below_cap(version):
            return f"the version cap of {self.topic} is {self.caps[self.topic]}: raise [upgrade_levels]"
        if self.server is None:
            return None
        spoken = self.remote_version(self.topic, self.server)
        if spoken is None:
            return (
                f"{self.topic} at {self.server} never said which RPC version it speaks, as one that is too old for "
                f"{version}, or never ran: upgrade it, or start it"
            )
        lacking = lack(spoken, version)
        return None if lacking is None else f"{self.topic} at {self.server} {lacking}"

    def check_cap(self, version: str) -> None:
        """Refuse to send what the cap forbids.

        :raises RPCUnavailable: *version* is above the topic's cap.
        """
        if not self._below_cap(version):
            raise RPCUnavailable(
                f"a message of version {version} to {self.topic} was not sent: the version cap is "
                f"{self.caps[self.topic]}; raise it ([upgrade_levels]) when every {self.topic} service is upgraded"
            )

    def _below_cap(self, version: str) -> bool:
        cap = self.caps.get(self.topic)
        return cap is None or understands(cap, version)


LOG = logging.getLogger(__name__)

_SERIALIZER = AutoclaveSerializer()

_ERRORS: dict[str, type[AutoclaveError]] = {
    name: value
    for name, value in vars(exceptions).items()
    if isinstance(value, type) and issubclass(value, AutoclaveError)
}
"""The errors that may come back as themselves, by class name."""


def encode(value: Any) -> str:
    """*value* as JSON text, versioned objects as their primitives.

    :raises TypeError: something in it is neither; nothing is converted in silence.
    :raises ValueError: it holds a number that JSON has not (NaN, infinity).
    """
    return json.dumps(_SERIALIZER.serialize_entity(None, value), allow_nan=False)


def decode(text: str) -> Any:
    """What :func:`encode` made *text* from; tuples and sets come back as lists.

    :raises RPCUnavailable: it holds an object that this side does not know, or not in that version.
    """
    try:
        return _SERIALIZER.deserialize_entity(None, json.loads(text))
    except (object_errors.IncompatibleObjectVersion, object_errors.UnsupportedObjectError) as error:
        raise RPCUnavailable(f"a message cannot be read: {error}; upgrade the older of the two services") from error


def public_method(endpoint: object, name: str) -> Callable[..., Any] | None:
    """The method of *endpoint* that messages may run, or None."""
    method = None if name.startswith("_") else getattr(endpoint, name, None)
    return method if callable(method) else None


def run(endpoint: object, method: str, context: Mapping[str, Any], arguments: str, *, served_by: str) -> str:
    """Run a message and return the reply. Never raises: what goes wrong is in the reply and in the log.

    :param context: ``RequestContext.to_dict()`` of the sender.
    :param arguments: the encoded keyword arguments.
    :param served_by: topic and server, for messages.
    """
    request = RequestContext.from_dict(dict(context))
    target = public_method(endpoint, method)
    try:
        if target is None:
            raise RPCUnavailable(f"{served_by} has no method {method}")
        keywords = decode(arguments)
    except RPCUnavailable as error:
        LOG.error("%s was not run: %s", method, error)
        return _error_reply(error)
    try:
        return encode({"result": target(request, **keywords)})
    except AutoclaveError as error:
        level = logging.INFO if isinstance(error, ApiError) else logging.WARNING
        LOG.log(level, "%s on %s: %s: %s", method, served_by, type(error).__name__, error)
        return _error_reply(_as_seen_from_outside(error))
    except Exception:
        LOG.exception("%s on %s failed", method, served_by)
        return _error_reply(
            RPCError(f"{method} failed on {served_by}; its log tells why, under request {request.request_id}")
        )


def result_of(reply: str) -> Any:
    """The result that *reply* carries.

    :raises AutoclaveError: the error that it carries instead.
    :raises RPCUnavailable: see :func:`decode`.
    """
    content = decode(reply)
    if "error" in content:
        raise _rebuild(content["error"])
    return content["result"]


def _as_seen_from_outside(error: AutoclaveError) -> AutoclaveError:
    # "Not handed over" and "no answer" spoke of a message that the method itself sent. The caller's
    # own message did arrive and was run, and RPCUnavailable would tell it the opposite.
    return RPCError(str(error)) if isinstance(error, RPCError) else error


def _error_reply(error: AutoclaveError) -> str:
    known = next(base for base in type(error).__mro__ if _ERRORS.get(base.__name__) is base)
    attributes = {name: value for name, value in vars(error).items() if not name.startswith("_")}
    content = {"error": {"class": known.__name__, "message": str(error), "attributes": attributes}}
    return json.dumps(content, default=str)  # an error is never lost over a path among its attributes


def _rebuild(error: Mapping[str, Any]) -> AutoclaveError:
    known = _ERRORS.get(error["class"], RPCError)
    # Not through __init__: each class has its own, and the message is already complete.
    rebuilt = known.__new__(known)
    rebuilt.args = (error["message"],)
    for name, value in error["attributes"].items():
        setattr(rebuilt, name, tuple(value) if isinstance(value, list) else value)
    return rebuilt
