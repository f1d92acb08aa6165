"""The double's requests: which path means what, and what the answer says."""

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, NamedTuple

from autoclave.testing.placement import bodies
from autoclave.testing.placement.candidates import candidates, has_room, parse_amounts
from autoclave.testing.placement.ledger import Entry, Ledger, Refusal

_CUSTOM = re.compile(r"CUSTOM_[A-Z0-9_]{1,248}")
_CREATED, _EMPTY = 201, 204

Answer = tuple[int, Any]
"""Status, and the document to answer with or None."""


class Request(NamedTuple):
    """A request that found its handler.

    :param name: the provider, class, trait or consumer that the path is about; empty if it is about all.
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
    return 200, _provider(req.ledger.create(*bodies.new_provider(req.body)))


def _get_provider(req: Request) -> Answer:
    return 200, _provider(req.ledger.entry(req.name))


def _rename_provider(req: Request) -> Answer:
    return 200, _provider(req.ledger.rename(req.name, bodies.name(req.body)))


def _delete_provider(req: Request) -> Answer:
    req.ledger.delete(req.name)
    return _EMPTY, None


def _get_inventories(req: Request) -> Answer:
    return 200, _inventories(req.ledger.entry(req.name))


def _put_inventories(req: Request) -> Answer:
    req.ledger.entry(req.name)
    entry = req.ledger.set_inventories(req.name, bodies.generation(req.body), bodies.inventories(req.body))
    return 200, _inventories(entry)


def _get_usages(req: Request) -> Answer:
    entry = req.ledger.entry(req.name)
    used = req.ledger.used(req.name)
    usages = {name: used[name] for name in entry.inventories}
    return 200, {"resource_provider_generation": entry.generation, "usages": usages}


def _get_traits(req: Request) -> Answer:
    return 200, _traits(req.ledger.entry(req.name))


def _put_traits(req: Request) -> Answer:
    entry = req.ledger.set_traits(req.name, bodies.generation(req.body), bodies.traits(req.body))
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
    req.ledger.replace([bodies.claim(req.name, req.body)])
    return _EMPTY, None


def _post_allocations(req: Request) -> Answer:
    req.ledger.replace(bodies.claims(req.body))
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
