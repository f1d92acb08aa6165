"""Who can reach the service, and under which names, where every caller is an administrator."""

from pathlib import Path
from typing import Any

import pytest
from api_world import World, fault

from autoclave.conf import new_config
from autoclave.exceptions import InvalidConfiguration
from autoclave.services.api import Listener


def listener(host: str, **options: Any) -> Listener:
    overrides = {("api", name): value for name, value in {"host_ip": host, "port": 0, **options}.items()}
    return Listener(new_config([], overrides))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "controller"])
def test_without_keystone_nobody_beyond_this_machine_is_served_unless_that_is_said(host: str) -> None:
    with pytest.raises(InvalidConfiguration, match="noauth_beyond_loopback"):
        listener(host, auth_strategy="noauth")
    listener(host, auth_strategy="noauth", noauth_beyond_loopback=True)
    listener(host, auth_strategy="keystone")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_without_keystone_this_machine_is_served(host: str) -> None:
    listener(host, auth_strategy="noauth")


@pytest.mark.parametrize(
    ("host", "why"),
    [("192.0.2.1", "it is no address of this machine"), ("no-such-host.invalid", "no-such-host.invalid is not known")],
)
def test_an_address_that_cannot_be_listened_on_is_told_in_words(host: str, why: str) -> None:
    asked = listener(host)
    with pytest.raises(InvalidConfiguration) as refused:
        asked.open()
    asked.close()
    assert str(refused.value) == f"[api] host_ip, port: cannot listen on {host}:0: {why}"


def get(world: World, host: str, path: str = "/v2/devices") -> Any:
    return world.http.simulate_get(path, headers={"Host": host})


@pytest.mark.parametrize(
    "path", ["/v2/devices", "/healthcheck", "/placement/resource_providers", "/autoclave/v1/devices"]
)
def test_a_page_whose_name_leads_to_this_machine_is_served_nothing(tmp_path: Path, path: str) -> None:
    seen: list[str] = []

    def mount(environ: Any, start_response: Any) -> list[bytes]:
        seen.append(environ["PATH_INFO"])
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b""]

    world = World(tmp_path, mounts={"/placement": mount})
    for name in ("evil.example.com:6666", "localhost.evil.example.com", "127.0.0.1.evil.example.com", "10.0.0.1", "["):
        answer = get(world, name, path)
        assert answer.status_code == 403
        assert name in fault(answer)
    forwarded = {"Host": "evil.example.com", "X-Forwarded-Host": "localhost"}
    assert world.http.simulate_get(path, headers=forwarded).status_code == 403
    assert seen == []
    for name in ("localhost", "LOCALHOST:6666", "127.0.0.1:6666", "[::1]:6666"):
        assert get(world, name, path).status_code == 200
    world.close()


def test_the_public_endpoint_is_a_good_name_too(tmp_path: Path) -> None:
    world = World(tmp_path, {("api", "public_endpoint"): "https://Autoclave.example.com/x"})
    assert get(world, "autoclave.example.com").status_code == 200
    assert get(world, "example.com").status_code == 403
    world.close()


def test_who_serves_other_machines_serves_addresses_but_no_names(tmp_path: Path) -> None:
    world = World(tmp_path, {("api", "noauth_beyond_loopback"): True})
    assert get(world, "10.0.0.1:6666").status_code == 200
    assert get(world, "evil.example.com").status_code == 403
    world.close()
