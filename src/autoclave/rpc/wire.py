"""What is put on the wire, the same for both transports: values, and how a method ended.

A reply is ``{"result": …}`` or ``{"error": {"class", "message", "attributes"}}``. Errors travel as data,
so that no traceback does, and only classes of ``autoclave.exceptions`` are ever made from it.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from oslo_log import log as logging
from oslo_versionedobjects import exception as object_errors

from autoclave import exceptions
from autoclave.exceptions import ApiError, AutoclaveError, RPCError, RPCUnavailable
from autoclave.objects import device  # noqa: F401 - an object can be read once its class is registered
from autoclave.objects.base import AutoclaveSerializer
from autoclave.objects.context import RequestContext

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
