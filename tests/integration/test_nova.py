"""Nova's double behind the real Keystone: found in the catalog, told with a token of the service's own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from keystonemiddleware.auth_token import AuthProtocol
from test_keystone import PASSWORD, Keystone, keystone, pytestmark

from autoclave.conf import new_config
from autoclave.exceptions import NovaUnavailable
from autoclave.nova.client import NovaClient, Outcome, Reception, http_adapter
from autoclave.testing.nova import FakeNova
from nova_double import served

__all__ = ["keystone", "pytestmark"]

INSTANCE, ARQ = str(uuid4()), str(uuid4())


@pytest.fixture(scope="module")
def nova(keystone: Keystone) -> Iterator[FakeNova]:
    """It takes events from whoever has a token of Keystone's, and Keystone says where it is."""
    made = FakeNova()
    made.hosts[INSTANCE] = "compute-1"
    admitting = AuthProtocol(
        made,
        {
            "www_authenticate_uri": keystone.url,
            "auth_url": keystone.url,
            "auth_type": "password",
            "username": "nova",
            "password": PASSWORD,
            "project_name": "service",
            "user_domain_id": "default",
            "project_domain_id": "default",
        },
    )
    with served(admitting) as url:
        admin = keystone.session("admin", "admin")
        [service] = [
            admin.post(f"{keystone.url}/services", json={"service": {"type": "compute", "name": "nova"}}).json()
        ]
        endpoint = {"interface": "internal", "url": url, "service_id": service["service"]["id"], "region_id": "one"}
        admin.post(f"{keystone.url}/endpoints", json={"endpoint": endpoint})
        yield made


def client(keystone: Keystone, directory: Path, **changes: Any) -> NovaClient:
    """As a conductor has it that was configured as the documentation says."""
    said = {
        "auth_type": "password",
        "auth_url": keystone.url,
        "username": "autoclave",
        "password": PASSWORD,
        "project_name": "service",
        "user_domain_name": "Default",
        "project_domain_name": "Default",
        **changes,
    }
    file = directory / "autoclave.conf"
    file.write_text("[nova]\n" + "".join(f"{name} = {value}\n" for name, value in said.items()))
    return NovaClient(http_adapter(new_config([str(file)])))


def test_nova_is_found_in_the_catalog_and_told_with_a_token_of_keystones(
    keystone: Keystone, nova: FakeNova, tmp_path: Path
) -> None:
    told = client(keystone, tmp_path)
    for bound in (True, False):
        assert told.tell(INSTANCE, [Outcome(ARQ, bound)]) == {ARQ: Reception.TAKEN}
    assert [event["status"] for event in nova.taken] == ["completed", "failed"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"password": "wrong"}, "401"),
        ({"username": "nobody"}, "401"),
        ({"region_name": "elsewhere"}, r"type compute .* in region elsewhere: .*\[nova\] region_name"),
        ({"service_type": "computer"}, "type computer .* in any region"),
        ({"auth_url": "http://127.0.0.1:1/v3"}, "127.0.0.1:1"),
    ],
)
def test_what_is_wrong_in_the_configuration_is_said_and_no_crash(
    keystone: Keystone, nova: FakeNova, tmp_path: Path, change: dict[str, str], said: str
) -> None:
    with pytest.raises(NovaUnavailable, match=f"was not sent, or not answered.*{said}"):
        client(keystone, tmp_path, **change).tell(INSTANCE, [Outcome(ARQ, True)])


def test_a_token_that_nova_refuses_is_told_from_a_nova_that_is_away(
    keystone: Keystone, nova: FakeNova, tmp_path: Path
) -> None:
    endpoint = keystone.session("admin", "admin").get_endpoint(service_type="compute", interface="internal")
    forged = client(keystone, tmp_path, auth_type="admin_token", endpoint=endpoint, token="forged")
    with pytest.raises(NovaUnavailable, match=r"answered 401.*\[nova\] auth_type"):
        forged.tell(INSTANCE, [Outcome(ARQ, True)])
