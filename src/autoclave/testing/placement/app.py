"""Serve Placement's double as a WSGI application.

An invalid body gets 400.
"""

import json
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

from oslo_utils import uuidutils

from autoclave.placement.client import PlacementClient
from autoclave.placement.records import ConsumerAllocations, Inventory
from autoclave.placement.transport import MICROVERSION, wsgi_adapter
from autoclave.testing.placement.state import Entry, Ledger, Refusal, candidates, has_room, parse_amounts

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

_T = TypeVar("_T")

_DEFAULTS: Mapping[str, int | float] = {
    "reserved": 0,
    "min_unit": 1,
    "max_unit": 2**31 - 1,
    "step_size": 1,
    "allocation_ratio": 1.0,
}
_AT_LEAST = {"total": 1, "reserved": 0, "min_unit": 1, "max_unit": 1, "step_size": 1}
_GENERATION = "resource_provider_generation"


def _read_document(raw: bytes) -> Any:
    return _understood(lambda: json.loads(raw) if raw else None)


def _read_new_provider(body: Any) -> tuple[str, str, str | None]:
    """Return its uuid, name and parent."""
    return _understood(lambda: (_uuid(body["uuid"]), _text(body["name"]), body.get("parent_provider_uuid")))


def _read_name(body: Any) -> str:
    return _understood(lambda: _text(body["name"]))


def _read_generation(body: Any) -> int:
    return _understood(lambda: _integer(body, _GENERATION, 0))


def _read_inventories(body: Any) -> dict[str, Inventory]:
    return _understood(lambda: {name: _record(values) for name, values in body["inventories"].items()})


def _read_traits(body: Any) -> set[str]:
    return _understood(lambda: {_text(name) for name in body["traits"]})


def _read_claim(consumer: str, body: Any) -> ConsumerAllocations:
    return _understood(lambda: _claim(consumer, body))


def _read_claims(body: Any) -> Sequence[ConsumerAllocations]:
    return _understood(lambda: [_claim(consumer, each) for consumer, each in body.items()])


def _understood(read: Callable[[], _T]) -> _T:
    try:
        return read()
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as exc:
        raise Refusal(400, f"JSON does not validate: {exc!r}") from exc


def _record(values: Mapping[str, Any]) -> Inventory:
    # As in Placement, an omitted field is silently reset to its default.
    whole = {**_DEFAULTS, **values}
    for name, least in _AT_LEAST.items():
        _integer(whole, name, least)
    return Inventory(**whole)


def _claim(consumer: str, body: Any) -> ConsumerAllocations:
    return ConsumerAllocations(
        _uuid(consumer),
        {
            _uuid(provider): {name: _integer(held["resources"], name, 1) for name in _some(held["resources"])}
            for provider, held in body["allocations"].items()
        },
        None if body["consumer_generation"] is None else _integer(body, "consumer_generation", 0),
        _text(body["project_id"]),
        _text(body["user_id"]),
        _text(body["consumer_type"]),
    )


def _some(resources: Mapping[str, Any]) -> Mapping[str, Any]:
    if not resources:
        raise ValueError("an allocation of nothing")
    return resources


def _integer(document: Mapping[str, Any], key: str, least: int) -> int:
    value = document[key]
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{key} is {value!r}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is not text")
    return value


def _uuid(value: Any) -> str:
    if not uuidutils.is_uuid_like(value):
        raise ValueError(f"{value!r} is not a uuid")
    return _text(value)


_CUSTOM = re.compile(r"CUSTOM_[A-Z0-9_]{1,248}")
_CREATED, _EMPTY = 201, 204

Answer = tuple[int, Any]
"""The status, and the document of the answer or None."""


class Request(NamedTuple):
    """Hold a request that matched a route.

    :param name: the provider, class, trait or consumer in the path; empty for a collection.
    """

    ledger: Ledger
    name: str
    query: list[tuple[str, str]]
    body: Any


Handler = Callable[[Request], Answer]


def _list_providers(req: Request) -> Answer:
    found: Iterable[Entry] = req.ledger.entries.values()
    for key, value in req.query:
        if key == "in_tree":
            tree = {entry.uuid for entry in req.ledger.tree(value)}
            found = [entry for entry in found if entry.uuid in tree]
        elif key == "required":
            found = [entry for entry in found if value in entry.traits]
        elif key == "resources":
            amounts = parse_amounts(req.ledger, value)
            found = [entry for entry in found if has_room(req.ledger, entry, amounts)]
        elif key in ("name", "uuid"):
            found = [entry for entry in found if getattr(entry, key) == value]
        else:
            raise Refusal(400, f"The query parameter {key} is not known here")
    return 200, {"resource_providers": [_provider(entry) for entry in found]}


def _create_provider(req: Request) -> Answer:
    return 200, _provider(req.ledger.create(*_read_new_provider(req.body)))


def _get_provider(req: Request) -> Answer:
    return 200, _provider(req.ledger.entry(req.name))


def _rename_provider(req: Request) -> Answer:
    return 200, _provider(req.ledger.rename(req.name, _read_name(req.body)))


def _delete_provider(req: Request) -> Answer:
    req.ledger.delete(req.name)
    return _EMPTY, None


def _get_inventories(req: Request) -> Answer:
    return 200, _inventories(req.ledger.entry(req.name))


def _put_inventories(req: Request) -> Answer:
    req.ledger.entry(req.name)
    entry = req.ledger.set_inventories(req.name, _read_generation(req.body), _read_inventories(req.body))
    return 200, _inventories(entry)


def _get_usages(req: Request) -> Answer:
    entry = req.ledger.entry(req.name)
    used = req.ledger.used(req.name)
    usages = {name: used[name] for name in entry.inventories}
    return 200, {"resource_provider_generation": entry.generation, "usages": usages}


def _get_traits(req: Request) -> Answer:
    return 200, _traits(req.ledger.entry(req.name))


def _put_traits(req: Request) -> Answer:
    entry = req.ledger.set_traits(req.name, _read_generation(req.body), _read_traits(req.body))
    return 200, _traits(entry)


def _list_traits(req: Request) -> Answer:
    names = dict(req.query).get("name", "")
    if not names.startswith("in:"):
        raise Refusal(400, f"name is {names!r}, not in:…")
    return 200, {"traits": sorted(req.ledger.traits.intersection(names.removeprefix("in:").split(",")))}


def _put_trait(req: Request) -> Answer:
    return _make_name(req.ledger.traits, req.name)


def _put_class(req: Request) -> Answer:
    return _make_name(req.ledger.resource_classes, req.name)


def _list_classes(req: Request) -> Answer:
    return 200, {"resource_classes": [{"name": name, "links": []} for name in sorted(req.ledger.resource_classes)]}


def _get_class(req: Request) -> Answer:
    if req.name not in req.ledger.resource_classes:
        raise Refusal(404, f"No such resource class {req.name}")
    return 200, {"name": req.name, "links": []}


def _holders(req: Request) -> Answer:
    allocations = {
        consumer: {"resources": dict(held.allocations[req.name]), "consumer_generation": held.generation}
        for consumer, held in req.ledger.holders(req.name).items()
    }
    generation = req.ledger.entry(req.name).generation
    return 200, {"allocations": allocations, "resource_provider_generation": generation}


def _get_allocations(req: Request) -> Answer:
    held = req.ledger.held_by(req.name)
    allocations = {
        uuid: {"resources": dict(resources), "generation": req.ledger.entry(uuid).generation}
        for uuid, resources in held.allocations.items()
    }
    if not allocations:
        return 200, {"allocations": {}}
    about = {
        "consumer_generation": held.generation,
        "project_id": held.project_id,
        "user_id": held.user_id,
        "consumer_type": held.consumer_type,
    }
    return 200, {"allocations": allocations, **about}


def _put_allocations(req: Request) -> Answer:
    req.ledger.replace([_read_claim(req.name, req.body)])
    return _EMPTY, None


def _post_allocations(req: Request) -> Answer:
    req.ledger.replace(_read_claims(req.body))
    return _EMPTY, None


def _delete_allocations(req: Request) -> Answer:
    req.ledger.release(req.name)
    return _EMPTY, None


def _candidates(req: Request) -> Answer:
    return 200, candidates(req.ledger, req.query)


ROUTES: list[tuple[str, re.Pattern[str], Handler]] = [
    (method, re.compile(path), handler)
    for method, path, handler in [
        ("GET", r"/resource_providers/([^/]+)/inventories", _get_inventories),
        ("PUT", r"/resource_providers/([^/]+)/inventories", _put_inventories),
        ("GET", r"/resource_providers", _list_providers),
        ("POST", r"/resource_providers", _create_provider),
        ("GET", r"/resource_providers/([^/]+)", _get_provider),
        ("PUT", r"/resource_providers/([^/]+)", _rename_provider),
        ("DELETE", r"/resource_providers/([^/]+)", _delete_provider),
        ("GET", r"/resource_providers/([^/]+)/usages", _get_usages),
        ("GET", r"/resource_providers/([^/]+)/traits", _get_traits),
        ("PUT", r"/resource_providers/([^/]+)/traits", _put_traits),
        ("GET", r"/resource_providers/([^/]+)/allocations", _holders),
        ("GET", r"/traits", _list_traits),
        ("PUT", r"/traits/([^/]+)", _put_trait),
        ("GET", r"/resource_classes", _list_classes),
        ("GET", r"/resource_classes/([^/]+)", _get_class),
        ("PUT", r"/resource_classes/([^/]+)", _put_class),
        ("GET", r"/allocations/([^/]+)", _get_allocations),
        ("PUT", r"/allocations/([^/]+)", _put_allocations),
        ("POST", r"/allocations", _post_allocations),
        ("DELETE", r"/allocations/([^/]+)", _delete_allocations),
        ("GET", r"/allocation_candidates", _candidates),
    ]
]


def _provider(entry: Entry) -> dict[str, Any]:
    return {
        "uuid": entry.uuid,
        "name": entry.name,
        "generation": entry.generation,
        "parent_provider_uuid": entry.parent,
        "root_provider_uuid": entry.root,
        "links": [],
    }


def _inventories(entry: Entry) -> dict[str, Any]:
    records = {name: asdict(record) for name, record in entry.inventories.items()}
    return {"resource_provider_generation": entry.generation, "inventories": records}


def _traits(entry: Entry) -> dict[str, Any]:
    return {"resource_provider_generation": entry.generation, "traits": sorted(entry.traits)}


def _make_name(known: set[str], name: str) -> Answer:
    if not _CUSTOM.fullmatch(name):
        raise Refusal(400, f"{name} does not start with CUSTOM_, or has other characters than A-Z, 0-9 and _")
    if name in known:
        return _EMPTY, None
    known.add(name)
    return _CREATED, None


class FakePlacement:
    """Answer as Placement does at the client's microversion."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self._lock = threading.Lock()

    def client_session(self) -> Any:
        """Return a keystoneauth1 adapter, as :class:`~autoclave.placement.embedded.EmbeddedPlacement` does."""
        return wsgi_adapter(self)

    def client(self) -> PlacementClient:
        return PlacementClient(self.client_session())

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        try:
            with self._lock:
                status, document = self._answer(environ)
        except Refusal as refusal:
            status, document = refusal.status, error_document(refusal.status, str(refusal), refusal.code)
        body = b"" if document is None else json.dumps(document).encode()
        headers = [("Content-Length", str(len(body)))]
        if body:
            headers.append(("Content-Type", "application/json"))
        start_response(f"{status} {HTTPStatus(status).phrase}", headers)
        return [body]

    def _answer(self, environ: "WSGIEnvironment") -> Answer:
        version = environ.get("HTTP_OPENSTACK_API_VERSION", "")
        if version != f"placement {MICROVERSION}":
            raise Refusal(406, f"Unacceptable version header: {version}")
        size = int(environ.get("CONTENT_LENGTH") or 0)
        body = _read_document(environ["wsgi.input"].read(size))
        for method, path, handler in ROUTES:
            match = path.fullmatch(environ["PATH_INFO"]) if method == environ["REQUEST_METHOD"] else None
            if match is not None:
                query = parse_qsl(environ.get("QUERY_STRING", ""))
                return handler(Request(self.ledger, "".join(match.groups()), query, body))
        raise Refusal(404, "The resource could not be found.")


def error_document(status: int, detail: str, code: str = "placement.undefined_code") -> dict[str, Any]:
    """Return Placement's error document, by the API working group's guideline."""
    error = {"status": status, "title": HTTPStatus(status).phrase, "detail": detail, "code": code}
    return {"errors": [error]}
