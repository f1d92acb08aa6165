"""A service with Keystone, and those who ask it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_world import World
from falcon.testing import Result
from keystone_double import Keystone

USERS = {
    "admin": ("root", "ops", ("admin", "manager", "member", "reader")),
    "manager": ("mara", "blue", ("manager", "member", "reader")),
    "member": ("mia", "blue", ("member", "reader")),
    "reader": ("rita", "blue", ("reader",)),
    "nobody": ("ned", "blue", ()),
    "nova": ("nova", "service", ("service",)),
    "other": ("otto", "red", ("member", "reader")),
    "system": ("root", None, ("admin", "manager", "member", "reader")),
}


@pytest.fixture(scope="module")
def keystone() -> Iterator[Keystone]:
    made = Keystone()
    made.tokens = {f"{name}-token": user for name, user in USERS.items()}
    yield made
    made.stop()


@pytest.fixture
def cloud(tmp_path: Path, keystone: Keystone) -> Iterator[World]:
    config = tmp_path / "autoclave.conf"
    config.write_text(keystone.config())
    made = World(tmp_path, {("api", "auth_strategy"): "keystone"}, (str(config),))
    yield made
    made.close()


def ask(
    world: World, user: str | None, method: str, path: str, body: Any = None, *, service: str | None = None
) -> Result:
    headers = {"OpenStack-API-Version": "compute 2.96" if path.startswith("/compute") else "accelerator 2.5"}
    if user is not None:
        headers["X-Auth-Token"] = f"{user}-token"
    if service is not None:
        headers["X-Service-Token"] = f"{service}-token"
    if isinstance(body, bytes):
        headers["Content-Type"] = "application/octet-stream"
        return world.http.simulate_request(method, path, body=body, headers=headers)
    return world.http.simulate_request(method, path, json=body, headers=headers)
