"""Declare what one method of one path takes and answers; the code enforces it, and the OpenAPI document shows it.

Every responder of every resource is declared::

    @Operation("List the devices", rule="cyborg:device:get_all", query=(TYPE, *PAGING), answers={200: DEVICES})
    def on_get(self, req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:

The responder is called when the caller may do that, and with nothing but what was declared; a resource with a
responder that is not declared cannot be routed.
"""

import functools
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

import falcon
from jsonschema import Draft202012Validator

from autoclave.api import body, microversion, query
from autoclave.api.auth import is_public
from autoclave.api.context import Api
from autoclave.api.microversion import Microversion
from autoclave.api.query import Argument
from autoclave.objects.base import RequestContext


class Resource:
    """Answer at a path, by methods named ``on_get``, ``on_post`` and so on."""

    def __init__(self, api: Api) -> None:
        self._api = api


_DECLARED = "operation"

OCTETS = "application/octet-stream"
"""Declare data that is not parsed."""

R = TypeVar("R", bound=Resource)
P = ParamSpec("P")


@dataclass(frozen=True)
class Asked:
    """Hold the content of a request, checked against the declaration.

    :param query: the arguments of the query string by name, as they were written.
    :param body: the parsed body; an empty mapping if there is none.
    """

    query: Mapping[str, str]
    body: Any
    _req: falcon.Request

    @property
    def context(self) -> RequestContext:
        """Return the caller; a public operation has none."""
        context: RequestContext = self._req.context.caller
        return context

    @property
    def version(self) -> Microversion:
        """Return the microversion, if the API has microversions."""
        return microversion.of(self._req)


@dataclass(frozen=True)
class Operation:
    """The declaration of one method of one path; a decorator of the responder.

    :param summary: what it does, in the imperative.
    :param rule: the policy rule that the caller must satisfy; None: everybody may.
    :param rules: in its place, several rules: what the body asks for says which counts, and the responder asks for it.
    :param since: the microversion that brought it; below, the method is refused as one that is not there.
    :param query: the arguments that the query string may have.
    :param body: what the body must satisfy; None: a body is not looked at.
    :param body_optional: there may be no body at all.
    :param body_type: what the body is declared as; ``application/json`` is always taken.
    :param waits: it waits for Placement or a conductor; refused while too many do (:mod:`autoclave.api.waiting`).
    :param takes_data: the body is data of any size (:data:`OCTETS`), which the responder reads.
    :param answers: status of each good answer to the schema of its body; None: no body.
    :param fails: the operation's own errors, status to when; what every operation may say goes without saying.
    :param media_type: of the good answers.
    """

    summary: str
    rule: str | None = None
    rules: tuple[str, ...] = ()
    since: Microversion | None = None
    query: tuple[Argument, ...] = ()
    body: Draft202012Validator | None = None
    body_optional: bool = False
    body_type: str = "application/json"
    takes_data: bool = False
    waits: bool = False
    answers: Mapping[int, Mapping[str, Any] | None] = field(default_factory=dict)
    fails: Mapping[int, str] = field(default_factory=dict)
    media_type: str = "application/json"

    def understand(self, api: Api, req: falcon.Request) -> Asked:
        """Parse and check *req*.

        :raises Forbidden: the policy does not allow it.
        :raises BadRequest: query string or body are not as declared.
        """
        if self.rule is not None and not is_public(api.conf, req.path):
            api.authorize(req, self.rule)
        asked = query.arguments(req, self.query)
        if self.body is None:
            return Asked(asked, {}, req)
        read = body.read_if_any if self.body_optional else body.read
        return Asked(asked, read(req, self.body, api.max_body, self.body_type), req)

    def __call__(
        self, handler: Callable[Concatenate[R, falcon.Request, falcon.Response, Asked, P], None]
    ) -> Callable[Concatenate[R, falcon.Request, falcon.Response, P], None]:
        """Declare *handler* to be this operation."""

        @functools.wraps(handler)
        def respond(
            resource: R, req: falcon.Request, resp: falcon.Response, /, *args: P.args, **kwargs: P.kwargs
        ) -> None:
            if self.since is not None and microversion.of(req) < self.since:
                raise falcon.HTTPMethodNotAllowed(_methods_at(resource, microversion.of(req)))
            asked = self.understand(resource._api, req)
            with resource._api.waiting.place() if self.waits else nullcontext():
                handler(resource, req, resp, asked, *args, **kwargs)

        vars(respond)[_DECLARED] = self
        return respond


def operations_of(resource: Resource) -> dict[str, Operation]:
    """Return the operations of *resource* by method.

    :raises TypeError: a responder is not declared.
    """
    kind = type(resource)
    responders = {name.removeprefix("on_").upper(): getattr(kind, name) for name in dir(kind) if name.startswith("on_")}
    for method, responder in responders.items():
        if _DECLARED not in vars(responder):
            raise TypeError(f"{method} of {kind.__module__}.{kind.__name__} is not declared with @Operation")
    return {method: vars(responder)[_DECLARED] for method, responder in responders.items()}


def _methods_at(resource: Resource, version: Microversion) -> list[str]:
    operations = operations_of(resource).items()
    return [method for method, found in operations if found.since is None or found.since <= version]
