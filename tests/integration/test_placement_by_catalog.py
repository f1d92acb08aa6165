"""Placement's double behind the real Keystone: found in the catalog, by region and interface."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from keystonemiddleware.auth_token import AuthProtocol
from test_keystone import PASSWORD, Keystone, keystone, pytestmark

from autoclave.conf import new_config
from autoclave.exceptions import PlacementRefused, PlacementUnavailable
from autoclave.placement.client import PlacementClient
from autoclave.placement.transport import http_adapter
from autoclave.testing.placement import FakePlacement
from autoclave.testing.placement.faults import Call, Faults, answer
from nova_double import served

__all__ = ["keystone", "pytestmark"]

ONE, TWO = ("5b5b0d1e-8c9b-4b8c-9a52-6a2c7b5b0d1e", "5b5b0d1e-8c9b-4b8c-9a52-6a2c7b5b0d1f")
FOUND = Call("GET", f"/resource_providers/{ONE}")


@dataclass
class Site:
    """Region ``one`` has the provider :data:`ONE`, region ``two`` the provider :data:`TWO`."""

    keystone: Keystone
    url: str
    arriving: Faults
    """Requests to region one, before their tokens are checked."""
    admitted: Faults
    """Requests to region one whose tokens are good."""


def admitting(app: Any, keystone: Keystone) -> AuthProtocol:
    """Ask Keystone about each token: none is believed because it was good before."""
    options = {
        "www_authenticate_uri": keystone.url,
        "auth_url": keystone.url,
        "auth_type": "password",
        "username": "nova",
        "password": PASSWORD,
        "project_name": "service",
        "user_domain_id": "default",
        "project_domain_id": "default",
        "token_cache_time": -1,
    }
    return AuthProtocol(app, options)


@pytest.fixture(scope="module")
def cloud(keystone: Keystone) -> Iterator[Site]:
    doubles = {"one": FakePlacement(), "two": FakePlacement()}
    doubles["one"].client().create_provider(ONE, "of-region-one")
    doubles["two"].client().create_provider(TWO, "of-region-two")
    admitted = Faults(doubles["one"])
    arriving = Faults(admitting(admitted, keystone))
    admin = keystone.session("admin", "admin")
    admin.post(f"{keystone.url}/regions", json={"region": {"id": "two"}})
    service = admin.post(f"{keystone.url}/services", json={"service": {"type": "placement", "name": "placement"}})
    with served(arriving, "") as one, served(admitting(doubles["two"], keystone), "") as two:
        for region, interface, url in (("one", "internal", one), ("two", "internal", two), ("two", "public", one)):
            endpoint = {"interface": interface, "url": url, "region_id": region}
            endpoint["service_id"] = service.json()["service"]["id"]
            admin.post(f"{keystone.url}/endpoints", json={"endpoint": endpoint})
        yield Site(keystone, one, arriving, admitted)


@pytest.fixture
def site(cloud: Site) -> Site:
    cloud.arriving.clear()
    cloud.admitted.clear()
    return cloud


def adapter(site: Site, directory: Path, **changes: str | None) -> Any:
    """As a service has it that is configured as the documentation says, with *changes*; None leaves an option out."""
    said = {
        "auth_type": "password",
        "auth_url": site.keystone.url,
        "username": "autoclave",
        "password": PASSWORD,
        "project_name": "service",
        "user_domain_name": "Default",
        "project_domain_name": "Default",
        "region_name": "one",
        **changes,
    }
    file = directory / "autoclave.conf"
    lines = [f"{name} = {value}\n" for name, value in said.items() if value is not None]
    file.write_text("".join(["[placement]\n", *lines]))
    return http_adapter(new_config([str(file)]))


def client(site: Site, directory: Path, **changes: str | None) -> PlacementClient:
    return PlacementClient(adapter(site, directory, **changes))


def test_placement_is_found_in_the_catalog_and_costs_no_request_of_its_own(site: Site, tmp_path: Path) -> None:
    placement = client(site, tmp_path)
    for _ in range(2):
        assert placement.get_provider(ONE).name == "of-region-one"
    assert site.arriving.calls == [FOUND, FOUND]


@pytest.mark.parametrize(
    ("change", "provider"),
    [
        ({"region_name": "two"}, TWO),
        ({"region_name": "two", "valid_interfaces": "public"}, ONE),
        ({"region_name": "two", "interface": "public"}, ONE),
        ({"region_name": "two", "valid_interfaces": "admin,internal"}, TWO),
    ],
)
def test_region_and_interface_choose_the_endpoint(
    site: Site, tmp_path: Path, change: dict[str, str], provider: str
) -> None:
    assert client(site, tmp_path, **change).get_provider(provider).uuid == provider


def test_endpoint_override_outweighs_the_catalog(site: Site, tmp_path: Path) -> None:
    assert client(site, tmp_path, region_name="two", endpoint_override=site.url).get_provider(ONE).uuid == ONE


def test_an_application_credential_opens_placement(site: Site, tmp_path: Path) -> None:
    session = site.keystone.session("autoclave", "service")
    url = f"{site.keystone.url}/users/{session.get_user_id()}/application_credentials"
    made = session.post(url, json={"application_credential": {"name": "placement", "secret": "of the credential"}})
    identity = ("username", "password", "project_name", "user_domain_name", "project_domain_name")
    changes: dict[str, str | None] = dict.fromkeys(identity)
    changes["auth_type"] = "v3applicationcredential"
    changes["application_credential_secret"] = "of the credential"
    changes["application_credential_id"] = made.json()["application_credential"]["id"]
    assert client(site, tmp_path, **changes).get_provider(ONE).uuid == ONE
    changes["application_credential_secret"] = "another"
    with pytest.raises(
        PlacementRefused, match=r"Keystone answered 401.*check \[placement\] auth_type and its credentials"
    ):
        client(site, tmp_path, **changes).get_provider(ONE)


def test_a_revoked_token_is_replaced_once_and_the_request_sent_again(site: Site, tmp_path: Path) -> None:
    made = adapter(site, tmp_path)
    placement = PlacementClient(made)
    placement.get_provider(ONE)
    revoked = made.get_token()
    site.keystone.session("admin", "admin").delete(
        f"{site.keystone.url}/auth/tokens", headers={"X-Subject-Token": revoked}
    )
    placement.ensure_resource_class("CUSTOM_AFTER_REVOCATION")
    assert made.get_token() != revoked
    put = Call("PUT", "/resource_classes/CUSTOM_AFTER_REVOCATION")
    assert site.arriving.calls == [FOUND, put, put]
    assert site.admitted.calls == [FOUND, put]


def test_a_placement_that_refuses_every_token_is_asked_twice(site: Site, tmp_path: Path) -> None:
    site.arriving.add(answer(401))
    with pytest.raises(PlacementRefused, match=r"401.*\[placement\] auth_type"):
        client(site, tmp_path).get_provider(ONE)
    assert site.arriving.calls == [FOUND, FOUND]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"region_name": "three"}, "service type placement and interface internal or public in region three"),
        ({"valid_interfaces": "admin"}, "service type placement and interface admin in region one"),
        ({"region_name": None, "service_type": "inventory"}, "service type inventory .* in any region"),
    ],
)
def test_an_endpoint_that_the_catalog_lacks_is_described_with_its_options(
    site: Site, tmp_path: Path, change: dict[str, str | None], said: str
) -> None:
    remedy = r"create it, or set \[placement\] region_name, valid_interfaces or endpoint_override"
    with pytest.raises(PlacementUnavailable, match=rf"was not sent: the catalog has no endpoint of {said}: {remedy}"):
        client(site, tmp_path, **change).get_provider(ONE)
    assert site.arriving.calls == []


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"password": "wrong"}, PlacementRefused, r"Keystone answered 401.*check \[placement\] auth_type"),
        ({"user_domain_name": None}, PlacementRefused, r"Keystone answered 400.*domain.*check \[placement\] auth_type"),
        ({"auth_url": "http://127.0.0.1:1/v3"}, PlacementUnavailable, r"check that Keystone answers at \[placement\]"),
        ({"auth_url": "http://127.0.0.1:1"}, PlacementUnavailable, r"no token .*auth_url"),
        ({"project_name": None}, PlacementUnavailable, r"catalog"),
    ],
)
def test_what_keystone_refuses_is_said_at_the_first_request(
    site: Site, tmp_path: Path, change: dict[str, str | None], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        client(site, tmp_path, **change).get_provider(ONE)
    assert site.arriving.calls == []
