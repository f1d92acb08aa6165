"""Define the RPC port: messages, versions, and their form on the wire.

Arguments and results are JSON values and versioned objects, also nested; both transports encode them as JSON. An error
of ``autoclave.exceptions`` is raised at the caller with the same class and message. Any other exception arrives as
``RPCError`` without its text, which is only in the log of the service that raised it.

A reply is ``{"result": …}`` or ``{"error": {"class", "message", "attributes"}}``. Errors travel as data, so tracebacks
do not, and only classes of ``autoclave.exceptions`` are created from it.
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

LOG = logging.getLogger(__name__)


AGENT_TOPIC = "autoclave-agent"
"""The topic of the agents; a message names the server by its host."""
CONDUCTOR_TOPIC = "autoclave-conductor"
"""The topic of the conductors; any of them takes a message."""

RemoteVersion = Callable[[str, str], str | None]
"""Returns the RPC version that a server reported, by ``(topic, server)``; None if it never reported one."""


def unknown_version(topic: str, server: str) -> str | None:  # noqa: ARG001
    """Return None, as the :data:`RemoteVersion` of a process without records of the services."""
    return None


class Client(Protocol):
    """Send messages to one topic, or to one server of it.

    ``call`` and ``cast`` send messages of the version for which the client was created.
    """

    def call(self, context: RequestContext, method: str, /, **arguments: Any) -> Any:
        """Run the remote *method* and return its result.

        :raises RPCUnavailable: it was not run, since there is no broker, no server, or none that supports the version.
        :raises RPCTimeout: no answer in time; it may have been run, or may still run.
        :raises RPCError: it failed unexpectedly; only the remote log has the reason.
        :raises AutoclaveError: the method raised it.
        :raises TypeError: an argument cannot be sent.
        """

    def cast(self, context: RequestContext, method: str, /, **arguments: Any) -> None:
        """Send the message and return. It is run once, or never, without a reply.

        A message to an unreachable server expires, and so does one that the server does not support. Call
        :meth:`refusal` first.

        :raises RPCUnavailable: it could not be sent: no broker, or a full queue.
        :raises TypeError: an argument cannot be sent.
        """

    def refusal(self, version: str) -> str | None:
        """Return why the server must not get messages of *version*, and the remedy, or None.

        None requires a report of the server's version; a server without one is assumed to be too old. Without a server,
        only the topic's version cap applies.
        """


class Server(Protocol):
    """Serve an endpoint between :meth:`start` and :meth:`stop`."""

    def start(self) -> None:
        """Start to take messages.

        :raises RPCUnavailable: the broker cannot be reached.
        """

    def stop(self) -> None:
        """Stop taking messages; those in progress continue. Do nothing if the server never started."""

    def wait(self) -> None:
        """Block after :meth:`stop` until the messages in progress have ended."""


class Transport(Protocol):
    """Create clients and servers."""

    def client(self, topic: str, *, server: str | None = None, version: str) -> Client:
        """Return a client that sends messages of *version* to *server*, or to any server of *topic*."""

    def serve(self, topic: str, server: str, endpoint: object, version: str) -> Server:
        """Return a server, not yet started, for the public methods ``method(context, **arguments)`` of *endpoint*.

        *version* is the highest that it supports: it accepts the same major version, up to this minor version.
        """

    def close(self) -> None:
        """Close connections and workers, and drop waiting casts."""


def understands(spoken: str, needed: str) -> bool:
    """Return whether *spoken* supports *needed*: the same major version, and no higher minor version."""
    return bool(versionutils.is_compatible(needed, spoken, same_major=True))


def lack(spoken: str, needed: str) -> str | None:
    """Return why a peer of version *spoken* does not support *needed*, or None if it does."""
    return None if understands(spoken, needed) else f"speaks RPC {spoken}, not {needed}: upgrade it"


@dataclass(frozen=True)
class VersionGuard:
    """Check the versions that one client may send.

    :param caps: the highest version that may be sent during an upgrade, by topic.
    :param remote_version: returns the reported version of a server.
    """

    topic: str
    server: str | None
    caps: Mapping[str, str]
    remote_version: RemoteVersion

    def refusal(self, version: str) -> str | None:
        """Implement :meth:`Client.refusal`."""
        if not self._below_cap(version):
            return f"the version cap of {self.topic} is {self.caps[self.topic]}: raise [upgrade_levels]"
        if self.server is None:
            return None
        spoken = self.remote_version(self.topic, self.server)
        if spoken is None:
            return (
                f"{self.topic} at {self.server} never announced an RPC version: it never ran, or is too old for "
                f"{version}. Start or upgrade it"
            )
        lacking = lack(spoken, version)
        return None if lacking is None else f"{self.topic} at {self.server} {lacking}"

    def check_cap(self, version: str) -> None:
        """Refuse to send messages above the cap.

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


_SERIALIZER = AutoclaveSerializer()

_ERRORS: dict[str, type[AutoclaveError]] = {
    name: value
    for name, value in vars(exceptions).items()
    if isinstance(value, type) and issubclass(value, AutoclaveError)
}
"""The errors that keep their class at the caller, by class name."""


def encode(value: Any) -> str:
    """Encode *value* as JSON, with versioned objects as their primitives.

    :raises TypeError: a part of it is neither; nothing is converted implicitly.
    :raises ValueError: it contains a number that JSON does not have (NaN, infinity).
    """
    return json.dumps(_SERIALIZER.serialize_entity(None, value), allow_nan=False)


def decode(text: str) -> Any:
    """Decode the result of :func:`encode`; tuples and sets become lists.

    :raises RPCUnavailable: it contains an object, or a version of one, that this service does not know.
    """
    try:
        return _SERIALIZER.deserialize_entity(None, json.loads(text))
    except (object_errors.IncompatibleObjectVersion, object_errors.UnsupportedObjectError) as error:
        raise RPCUnavailable(f"a message cannot be parsed: {error}; upgrade the older of the two services") from error


def public_method(endpoint: object, name: str) -> Callable[..., Any] | None:
    """Return the method of *endpoint* that messages may run, or None."""
    method = None if name.startswith("_") else getattr(endpoint, name, None)
    return method if callable(method) else None


def run(endpoint: object, method: str, context: Mapping[str, Any], arguments: str, *, served_by: str) -> str:
    """Run a message and return the reply. It never raises: errors are in the reply and in the log.

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
        LOG.error("%s was refused: %s", method, error)
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
            RPCError(f"{method} failed on {served_by}; its log shows the cause under request {request.request_id}")
        )


def result_of(reply: str) -> Any:
    """Return the result in *reply*.

    :raises AutoclaveError: the reply contains this error.
    :raises RPCUnavailable: see :func:`decode`.
    """
    content = decode(reply)
    if "error" in content:
        raise _rebuild(content["error"])
    return content["result"]


def _as_seen_from_outside(error: AutoclaveError) -> AutoclaveError:
    # The error concerns a message that the method itself sent. The caller's own message was run, and RPCUnavailable
    # would deny that.
    return RPCError(str(error)) if isinstance(error, RPCError) else error


def _error_reply(error: AutoclaveError) -> str:
    known = next(base for base in type(error).__mro__ if _ERRORS.get(base.__name__) is base)
    attributes = {name: value for name, value in vars(error).items() if not name.startswith("_")}
    content = {"error": {"class": known.__name__, "message": str(error), "attributes": attributes}}
    return json.dumps(
        content, default=str
    )  # never lose an error because an attribute, such as a path, is not serialisable


def _rebuild(error: Mapping[str, Any]) -> AutoclaveError:
    known = _ERRORS.get(error["class"], RPCError)
    # Bypass __init__: each class has its own, and the message is already complete.
    rebuilt = known.__new__(known)
    rebuilt.args = (error["message"],)
    for name, value in error["attributes"].items():
        setattr(rebuilt, name, tuple(value) if isinstance(value, list) else value)
    return rebuilt
