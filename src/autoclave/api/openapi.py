"""Serve ``GET /openapi.json``: an OpenAPI 3.1 document, made from the routes and their declarations."""

import re
from collections.abc import Mapping
from functools import cached_property
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

import falcon

from autoclave.api.auth import is_public
from autoclave.api.context import Api
from autoclave.api.errors import error_at
from autoclave.api.microversion import HEADER, Microversion, VersionedAPI, api_at
from autoclave.api.operation import OCTETS, Asked, Operation, Resource, operations_of
from autoclave.api.query import public_url
from autoclave.api.schema import STRING, TEXT, UUID, Schema

_PCI_ADDRESS = {"type": "string", "pattern": r"^[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7]$"}
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_PARAMETERS: Mapping[str, tuple[str, Schema]] = {
    "uuid": ("Its uuid.", UUID),
    "key": ("UUID; from microversion 2.2 on, also the name.", TEXT),
    "provider": ("UUID of the resource provider; before a PCI address, the name of the host.", TEXT),
    "host": ("Name of the host.", TEXT),
    "device": ("UUID of the device; before a PCI address, the name of the host.", TEXT),
    "address": ("PCI address on that host, such as 0000:41:00.0.", _PCI_ADDRESS),
    "flavor": ("Its id.", TEXT),
    "spec": ("Key of an extra spec.", TEXT),
    "server": ("UUID; names are not accepted.", TEXT),
    "item": ("Key of a metadata item.", TEXT),
    "service": ("Its id.", TEXT),
    "hypervisor": ("Its id.", TEXT),
    "image": ("UUID; names are not accepted.", TEXT),
}
_ALWAYS = (400, 403, 406, 500, 503)
_WITH_BODY = (413, 415)
_FAILURES = {
    400: "The request is invalid; the message says what to correct.",
    401: "Authentication required. With Keystone, the text is that of its middleware.",
    403: "The policy forbids the request, or the host name is not served.",
    404: "No such object is visible to the caller.",
    405: "The method requires a later microversion.",
    406: "The microversion is not supported, or the client does not accept JSON.",
    413: "The body is too large.",
    415: "The content type of the body is not supported.",
    500: "The service failed; its log shows the cause under the ID of the request.",
    503: "A required service is unavailable; retry later.",
}
"""List the errors that any operation may return."""


class OpenAPI(Resource):
    """Return the document.

    :param at_both: operations that are served below ``/accelerator`` as well, by path.
    :param at_root: the other operations.
    """

    def __init__(self, api: Api, at_both: Mapping[str, Resource], at_root: Mapping[str, Resource]) -> None:
        super().__init__(api)
        self._at_both = at_both
        self._at_root = at_root

    @Operation("Show this document", answers={200: {"type": "object"}})
    def on_get(self, req: falcon.Request, resp: falcon.Response, _asked: Asked) -> None:
        root = {"url": public_url(req, self._api.conf)}
        both = [root, {"url": f"{root['url']}/accelerator"}]
        below_root = {path: {"servers": [root], **item} for path, item in self._made["paths"].items()}
        paths = {**self._made["paths"], **{path: below_root[path] for path in self._at_root}}
        resp.media = {**self._made, "servers": both, "paths": paths}

    @cached_property
    def _made(self) -> dict[str, Any]:
        components = _Components()
        paths = {
            path or "/": _path_item(self._api, path or "/", operations_of(resource), components)
            for path, resource in {**self._at_both, **self._at_root}.items()
        }
        return {
            "openapi": "3.1.0",
            "info": {
                "title": "Autoclave",
                "version": version("autoclave"),
                "description": "Cyborg's accelerator API, with Autoclave's extensions from microversion 2.4 on; the "
                "operator API; and, if this deployment runs instances itself, a subset of Nova's and "
                "Glance's APIs. A property or operation with x-since exists from that microversion "
                "on.",
            },
            "paths": paths,
            "components": {
                "schemas": components.schemas,
                "headers": _HEADERS,
                "responses": _failures(self._api, components),
                "securitySchemes": _SCHEMES,
            },
        }


_SCHEMES = {
    "token": {"type": "apiKey", "in": "header", "name": "X-Auth-Token"},
    "basic": {"type": "http", "scheme": "basic"},
}
_HEADERS = {
    "x-openstack-request-id": {"description": "ID of the request, as in the log.", "schema": STRING},
    HEADER: {"description": "Microversion of the response.", "schema": STRING},
    "OpenStack-API-Minimum-Version": {"description": "Oldest supported microversion.", "schema": STRING},
    "OpenStack-API-Maximum-Version": {"description": "Newest supported microversion.", "schema": STRING},
}


class _Components:
    """Define each schema with a title once, and refer to it."""

    def __init__(self) -> None:
        self.schemas: dict[str, Any] = {}

    def shown(self, schema: Any) -> Any:
        """Return *schema* with references in place of components."""
        if isinstance(schema, list | tuple):
            return [self.shown(part) for part in schema]
        if not isinstance(schema, Mapping):
            return schema
        plain = {key: self.shown(part) for key, part in schema.items()}
        title = plain.get("title")
        if not isinstance(title, str):
            return plain
        if self.schemas.setdefault(title, plain) != plain:
            raise ValueError(f"two schemas have the title {title}")
        return {"$ref": f"#/components/schemas/{title}"}


def _path_item(api: Api, path: str, operations: Mapping[str, Operation], components: _Components) -> dict[str, Any]:
    item: dict[str, Any] = {
        method.lower(): _operation(api, path, method, declared, components) for method, declared in operations.items()
    }
    placeholders = _PLACEHOLDER.findall(path)
    if placeholders:
        item["parameters"] = [_path_parameter(name) for name in placeholders]
    return item


def _path_parameter(name: str) -> dict[str, Any]:
    meaning, schema = _PARAMETERS[name]
    return {"name": name, "in": "path", "required": True, "description": meaning, "schema": schema}


def _operation(api: Api, path: str, method: str, declared: Operation, components: _Components) -> dict[str, Any]:
    api_here = api_at(path)
    shown: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{method.lower()}{path}").strip("_"),
        "summary": declared.summary,
        "tags": [_tag(path)],
        "parameters": [
            *_query_parameters(declared),
            *([] if api_here is None else [_version_parameter(api_here, declared.since, components)]),
        ],
        "responses": _responses(api, path, declared, components),
        "security": [] if is_public(api.conf, path) else _security(api),
    }
    if declared.rule is not None:
        shown["x-policy-rule"] = declared.rule
    if declared.rules:
        shown["x-policy-rules"] = list(declared.rules)
    if declared.since is not None:
        shown["x-since"] = str(declared.since)
    if declared.body is not None:
        content = {"schema": components.shown(declared.body.schema)}
        shown["requestBody"] = {"required": not declared.body_optional, "content": {declared.body_type: content}}
    if declared.takes_data:
        shown["requestBody"] = {"required": True, "content": {OCTETS: {}}}
    return shown


def _security(api: Api) -> list[dict[str, Any]]:
    """Require one of these; an empty one means no authentication."""
    by_strategy: dict[str, list[dict[str, Any]]] = {
        "keystone": [{"token": []}],
        "http_basic": [{"basic": []}],
        "noauth": [{"token": []}, {}],
    }
    return by_strategy[api.conf.api.auth_strategy]


def _tag(path: str) -> str:
    parts = path.split("/")
    if path.startswith("/v2/"):
        return parts[2]
    return {"autoclave": "operator", "compute": "compute", "image": "image"}.get(parts[1], "service")


def _query_parameters(declared: Operation) -> list[dict[str, Any]]:
    return [
        {
            "name": argument.name,
            "in": "query",
            "required": argument.required,
            "description": argument.meaning,
            "schema": {"type": "array", "items": argument.schema} if argument.repeated else argument.schema,
        }
        for argument in declared.query
    ]


def _version_parameter(api: VersionedAPI, since: Microversion | None, components: _Components) -> dict[str, Any]:
    first = since or api.minimum
    served = [str(Microversion(first.major, minor)) for minor in range(first.minor, api.maximum.minor + 1)]
    asked = [f"{api.service_type} {text}" for text in [*served, "latest"]]
    # the same for all operations
    title = {} if since else {"title": f"{api.service_type.capitalize()}Version"}
    return {
        "name": HEADER,
        "in": "header",
        "required": since is not None,
        "description": f"The microversion; {api.minimum} if the header is absent or empty.",
        "schema": components.shown({**title, "enum": asked if since else ["", *asked]}),
    }


def _responses(api: Api, path: str, declared: Operation, components: _Components) -> dict[str, Any]:
    common = [
        *_ALWAYS,
        *(() if is_public(api.conf, path) else (401,)),
        *((404,) if _PLACEHOLDER.search(path) else ()),
        *((405,) if declared.since is not None else ()),
        *(_WITH_BODY if declared.body is not None or declared.takes_data else ()),
    ]
    names = list(_HEADERS) if api_at(path) is not None else ["x-openstack-request-id"]
    headers = {name: {"$ref": f"#/components/headers/{name}"} for name in names}
    found: dict[int, dict[str, Any]] = {
        code: {"$ref": f"#/components/responses/{_failure_name(path, code)}"} for code in common
    }
    for code, text in declared.fails.items():
        found[code] = _error(path, text, components)
    for code, schema in declared.answers.items():
        found[code] = {"description": HTTPStatus(code).phrase, "headers": headers}
        if schema is not None:
            found[code]["content"] = {declared.media_type: {"schema": components.shown(schema)}}
    return {str(code): found[code] for code in sorted(found)}


def _failures(api: Api, components: _Components) -> dict[str, Any]:
    compute = [f"/{service}" for service in ("compute", "image") if api.conf.compute.enabled]
    found = {
        _failure_name(path, code): _error(path, text, components)
        for path in ("/", *compute)
        for code, text in _FAILURES.items()
    }
    if api.conf.api.auth_strategy == "keystone":
        # Keystone's middleware answers in a shape of its own if a token is invalid or Keystone is down.
        for path in ("/", *compute):
            del found[_failure_name(path, 401)]["content"]
            found[_failure_name(path, 503)]["content"]["text/plain"] = {"schema": STRING}
    return found


def _failure_name(path: str, code: int) -> str:
    service = path.split("/")[1]
    return f"{service}-{code}" if service in ("compute", "image") else str(code)


def _error(path: str, text: str, components: _Components) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": components.shown(error_at(path))}}}
