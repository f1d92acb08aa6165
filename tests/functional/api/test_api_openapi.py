"""The OpenAPI document says what the service does, all of it."""

import re
from collections.abc import Iterator
from typing import Any

import falcon
import pytest
from api_world import World
from openapi_spec_validator import validate
from routed import routed

from autoclave.api import policy, routes
from autoclave.api.context import Api
from autoclave.api.operation import Resource


def document(world: World, path: str = "/openapi.json") -> Any:
    answer = world.http.simulate_get(path)
    assert answer.status_code == 200
    return answer.json


def operations(world: World) -> Iterator[tuple[str, str, Any]]:
    for path, item in document(world)["paths"].items():
        for method in item.keys() - {"parameters", "servers"}:
            yield method.upper(), path, item[method]


def test_the_document_is_valid_openapi(world: World) -> None:
    made = document(world)
    validate(made)
    assert made["openapi"].startswith("3.1")


def test_every_method_of_every_path_is_in_the_document_and_nothing_else(world: World) -> None:
    assert {(method, path) for method, path, _ in operations(world)} == routed(world)


def test_what_is_not_declared_cannot_be_served(world: World) -> None:
    class Undeclared(Resource):
        def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
            resp.media = {}

    with pytest.raises(TypeError, match=r"GET of .*Undeclared is not declared"):
        routes.add(falcon.App(), "/undeclared", Undeclared(Api(None, world.ports, *[None] * 5)))  # type: ignore[arg-type]


def test_the_document_says_where_the_service_is_below_both_mounts(world: World) -> None:
    made = document(world)
    assert made == document(world, "/accelerator/openapi.json")
    assert [server["url"] for server in made["servers"]] == ["http://localhost", "http://localhost/accelerator"]
    assert [server["url"] for server in made["paths"]["/healthcheck"]["servers"]] == ["http://localhost"]


def test_each_policy_rule_governs_what_its_description_says(world: World) -> None:
    """The sample policy file is made from these descriptions."""
    described = {
        (rule.name, operation["method"], re.sub(r"\{\w+\}", "{}", operation["path"]))
        for rule in (*policy.RULES, *policy.COMPUTE_RULES)
        for operation in rule.operations
    }
    governed = {
        (rule, method, re.sub(r"\{\w+\}", "{}", path).replace("/{}/{}", "/{}"))
        for method, path, shown in operations(world)
        for rule in (shown.get("x-policy-rule"), *shown.get("x-policy-rules", ()))
        if rule is not None
    }
    assert governed == described
