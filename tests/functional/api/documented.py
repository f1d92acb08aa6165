"""Holds each answer of the service against the OpenAPI document that the service gives of itself."""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import falcon.testing
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from autoclave.api.microversion import RESOURCES

_UNVERSIONED = re.compile(rf"^(?=/({'|'.join(RESOURCES)})(/|$))")


class Documented:
    """*app* as it is; an answer that the document does not allow fails the test that asked.

    :param conf: the configuration that *app* was made of.
    :param mounts: prefixes below which others answer.
    :attr faults: what was wrong, for whoever asked through a socket and saw a failed service only.
    """

    def __init__(self, app: Any, conf: Any, mounts: Collection[str] = ()) -> None:
        self._app = app
        self._mounts = tuple(mounts)
        self._kind = conf.api.auth_strategy, conf.api.public_metrics, conf.compute.enabled
        self.faults: list[str] = []

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        begun: list[Any] = []

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            begun[:] = [status, headers]
            return start_response(status, headers, exc_info)

        parts = self._app(environ, start)
        body = b"".join(parts)
        if hasattr(parts, "close"):
            parts.close()
        if not environ["PATH_INFO"].startswith(self._mounts or ("//",)):
            self._hold(environ, int(begun[0].split()[0]), begun[1], body)
        return [body]

    def _hold(self, environ: Mapping[str, Any], status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        document = _DOCUMENTS.get(self._kind)
        if document is None:
            client = falcon.testing.TestClient(lambda environ, start: self._app(environ, start))
            document = Document(client.simulate_get("/openapi.json", host="localhost").json)
            _DOCUMENTS[self._kind] = document
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        fault = document.fault(method, path, status, {name.lower(): value for name, value in headers}, body)
        if fault is not None:
            self.faults.append(f"{method} {path}, {status}: {fault}")
            raise AssertionError(self.faults[-1])


class Document:
    """What the document allows."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        by_holes = sorted(document["paths"], key=lambda path: path.count("{"))
        self._paths = [(re.compile(re.sub(r"\{\w+\}", "[^/]+", path)), path) for path in by_holes]
        self._validators: dict[tuple[str, str, str], Draft202012Validator] = {}

    def fault(self, method: str, path: str, status: int, headers: Mapping[str, str], body: bytes) -> str | None:
        """What is wrong with an answer; None if nothing is."""
        operation = self._operation(method, path)
        if operation is None:
            return f"{method} is not in the document" if status < 400 and method != "OPTIONS" else None
        if status == 405:  # another method's path, or one that came later
            return None
        if str(status) not in operation["responses"]:
            return "the status is not in the document"
        response = self._resolved(operation["responses"][str(status)])
        if status == 401:  # the middleware's own
            return None
        media_type = headers.get("content-type", "").partition(";")[0]
        if "content" not in response:
            return "there is a body" if body else None
        if not body and all(part.get("schema", {}).get("x-optional") for part in response["content"].values()):
            return None
        if media_type not in response["content"]:
            return f"the body is {media_type!r}"
        if media_type != "application/json":
            return None
        version = headers.get("openstack-api-version", "")
        key = operation["operationId"], str(status), version
        if key not in self._validators:
            schema = self._exact(response["content"][media_type]["schema"], version.rpartition(" ")[2])
            self._validators[key] = Draft202012Validator(schema)
        return self._invalid(self._validators[key], json.loads(body))

    def _invalid(self, validator: Draft202012Validator, document: Any) -> str | None:
        error = best_match(validator.iter_errors(document))
        if error is not None:
            return f"{list(error.absolute_path)}: {error.message}"
        inner = validator.schema.get("properties", {}).get("error_message")
        if inner is None:
            return None
        return self._invalid(Draft202012Validator(inner["contentSchema"]), json.loads(document["error_message"]))

    def _operation(self, method: str, path: str) -> Any:
        path = path.removeprefix("/accelerator") if re.match("/accelerator(/|$)", path) else path
        path = _UNVERSIONED.sub("/v2", path.rstrip("/") or "/")
        matching = [template for pattern, template in self._paths if pattern.fullmatch(path)]
        return self._document["paths"][matching[0]].get(method.lower()) if matching else None

    def _resolved(self, found: Any) -> Any:
        if "$ref" not in found:
            return found
        _, kind, name = found["$ref"].removeprefix("#/").split("/")
        return self._document["components"][kind][name]

    def _exact(self, schema: Any, version: str) -> Any:
        """*schema* as it is at one microversion, and with no other properties than it names."""
        if isinstance(schema, list):
            return [self._exact(part, version) for part in schema]
        if not isinstance(schema, dict):
            return schema
        schema = self._resolved(schema)
        exact = {key: self._exact(part, version) for key, part in schema.items()}
        if "properties" in schema:
            since = {name: part.get("x-since") for name, part in schema["properties"].items()}
            absent = {name for name, first in since.items() if first is not None and _is_before(version, first)}
            exact["properties"] = {
                name: False if name in absent else part for name, part in exact["properties"].items()
            }
            if "required" in schema:
                maybe = absent | {name for name, part in schema["properties"].items() if part.get("x-optional")}
                exact["required"] = [name for name in schema["properties"] if name not in maybe]
            exact.setdefault("additionalProperties", False)
        return exact


_DOCUMENTS: dict[tuple[str, bool, bool], Document] = {}
"""By the options that the document depends on: making it takes longer than most tests."""


def _is_before(version: str, first: str) -> bool:
    return [int(number) for number in version.split(".")] < [int(number) for number in first.split(".")]
