"""The accelerator API behind the real Keystone: whose token says what, by role and project."""

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import falcon.testing
import pytest
from keystone_process import prepare
from keystoneauth1.identity.v3 import Password
from keystoneauth1.session import Session
from processes import Process

from autoclave.api.app import create_app
from autoclave.conductor.manager import ConductorManager
from autoclave.conf import new_config
from autoclave.lifecycle.ports import Ports, RPCCleaners
from autoclave.rpc import conductor_api
from autoclave.rpc.inprocess import InProcessTransport
from autoclave.rpc.port import CONDUCTOR_TOPIC
from autoclave.testing.placement import FakePlacement
from dbfixtures import make_profile, sqlite_database
from freeport import free_port

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(importlib.util.find_spec("keystone") is None, reason="keystone is not installed"),
]

ARQS = "/v2/accelerator_requests"
PASSWORD = "secret"
PEOPLE = {
    "mara": ("blue", "manager"),
    "mia": ("blue", "member"),
    "rita": ("blue", "reader"),
    "otto": ("red", "member"),
    "nova": ("service", "service"),
    "autoclave": ("service", "service"),
}
"""Name to project and role."""


@dataclass
class Keystone:
    """A Keystone that knows :data:`PEOPLE`, and ``admin``."""

    url: str
    _tokens: dict[str, str] = field(default_factory=dict)

    def session(self, user: str, project: str) -> Any:
        return Session(
            auth=Password(
                self.url,
                username=user,
                password=PASSWORD,
                project_name=project,
                user_domain_id="default",
                project_domain_id="default",
            )
        )

    def token(self, user: str) -> str:
        if user not in self._tokens:
            project = "admin" if user == "admin" else PEOPLE[user][0]
            self._tokens[user] = str(self.session(user, project).get_token())
        return self._tokens[user]

    def introduce(self) -> None:
        """Make the projects and the people in them."""
        admin = self.session("admin", "admin")

        def make(kind: str, **values: str) -> str:
            made = admin.post(f"{self.url}/{kind}s", json={kind: values}).json()
            return str(made[kind]["id"])

        roles = {role["name"]: role["id"] for role in admin.get(f"{self.url}/roles").json()["roles"]}
        projects = {name: make("project", name=name, domain_id="default") for name in ("blue", "red", "service")}
        for name, (project, role) in PEOPLE.items():
            user = make("user", name=name, password=PASSWORD, domain_id="default")
            admin.put(f"{self.url}/projects/{projects[project]}/users/{user}/roles/{roles[role]}")

    def configuration(self) -> str:
        return "\n".join(
            [
                "[keystone_authtoken]",
                f"www_authenticate_uri = {self.url}",
                f"auth_url = {self.url}",
                "auth_type = password",
                "username = autoclave",
                f"password = {PASSWORD}",
                "project_name = service",
                "user_domain_id = default",
                "project_domain_id = default",
                "",
            ]
        )


@pytest.fixture(scope="module")
def keystone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keystone]:
    directory = tmp_path_factory.mktemp("keystone")
    port = free_port()
    url = f"http://127.0.0.1:{port}/v3"
    prepare(directory, url, PASSWORD)
    script = Path(__file__).with_name("keystone_process.py")
    process = Process([sys.executable, str(script), str(directory), str(port)], directory / "log")
    try:
        process.wait_for_http(url)
        made = Keystone(url)
        made.introduce()
        yield made
    finally:
        process.kill()


class API:
    """The API with a conductor, asked with tokens of Keystone's."""

    def __init__(self, directory: Path, keystone: Keystone) -> None:
        config = directory / "autoclave.conf"
        config.write_text(keystone.configuration())
        conf = new_config([str(config)], {("api", "auth_strategy"): "keystone"})
        self._keystone = keystone
        self.database = sqlite_database(directory)
        self._transport = InProcessTransport()
        ports = Ports(self.database, FakePlacement().client(), RPCCleaners(self._transport))
        manager = ConductorManager(ports, "conductor", 240)
        self._transport.serve(CONDUCTOR_TOPIC, "any", manager, conductor_api.VERSION).start()
        app = create_app(conf, ports, self._transport)
        # Falcon's client wants to inspect a plain function.
        self._http = falcon.testing.TestClient(lambda environ, start: app(environ, start))

    def close(self) -> None:
        self._transport.close()
        self.database.dispose()

    def ask(
        self, token: str | None, method: str, path: str, body: Any = None, *, service: str | None = None
    ) -> falcon.testing.Result:
        tokens = {"X-Auth-Token": token, "X-Service-Token": service}
        headers = {name: value for name, value in tokens.items() if value is not None}
        headers["OpenStack-API-Version"] = "accelerator 2.5"
        return self._http.simulate_request(method, path, json=body, headers=headers)

    def ask_as(self, user: str, method: str, path: str, body: Any = None) -> falcon.testing.Result:
        return self.ask(self._keystone.token(user), method, path, body)


@pytest.fixture
def api(tmp_path: Path, keystone: Keystone) -> Iterator[API]:
    made = API(tmp_path, keystone)
    with made.database.write() as tx:
        make_profile(tx)
    yield made
    made.close()


def listed(answer: falcon.testing.Result) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [arq["uuid"] for arq in answer.json["arqs"]]


def test_without_a_token_of_keystones_nobody_gets_in(api: API, keystone: Keystone) -> None:
    good = keystone.token("admin")
    for token in (None, "forged", good[:-8] + "AAAAAAA="):
        answer = api.ask(token, "GET", "/v2/devices")
        assert answer.status_code == 401
        assert keystone.url in answer.headers["WWW-Authenticate"]
    assert api.ask(good, "GET", "/v2/devices").status_code == 200


def test_a_token_that_was_given_back_opens_nothing(api: API, keystone: Keystone) -> None:
    session = keystone.session("mara", "blue")
    token = session.get_token()
    session.delete(f"{keystone.url}/auth/tokens", headers={"X-Subject-Token": token})
    assert api.ask(token, "GET", "/v2/devices").status_code == 401


@pytest.mark.parametrize(
    ("user", "sees_devices", "asks"),
    [("admin", 200, 201), ("mara", 200, 201), ("mia", 403, 201), ("rita", 403, 403), ("nova", 403, 201)],
)
def test_roles_of_keystones_decide_who_sees_the_hardware_and_who_may_ask_for_it(
    api: API, user: str, sees_devices: int, asks: int
) -> None:
    assert api.ask_as(user, "GET", "/v2/devices").status_code == sees_devices
    assert api.ask_as(user, "POST", ARQS, {"device_profile_name": "fast-drive"}).status_code == asks


def test_what_a_project_asks_for_is_seen_there_and_by_administrators_only(api: API) -> None:
    made = api.ask_as("mia", "POST", ARQS, {"device_profile_name": "fast-drive"})
    [arq] = [one["uuid"] for one in made.json["arqs"]]
    assert listed(api.ask_as("rita", "GET", ARQS)) == [arq]
    assert listed(api.ask_as("admin", "GET", ARQS)) == [arq]
    assert listed(api.ask_as("otto", "GET", ARQS)) == []
    assert api.ask_as("otto", "GET", f"{ARQS}/{arq}").status_code == 404
    assert api.ask_as("otto", "DELETE", f"{ARQS}?arqs={arq}").status_code == 404
    assert listed(api.ask_as("mia", "GET", ARQS)) == [arq]


def test_a_bind_needs_the_token_of_a_service_beside_the_users(api: API, keystone: Keystone) -> None:
    user = keystone.token("mia")
    made = api.ask(user, "POST", ARQS, {"device_profile_name": "fast-drive"})
    [arq] = [one["uuid"] for one in made.json["arqs"]]
    nowhere = "3f2c8a3e-0000-4000-8000-000000000000"
    values = {"hostname": "compute-1", "device_rp_uuid": nowhere, "instance_uuid": nowhere}
    body = {arq: [{"path": f"/{name}", "op": "add", "value": value} for name, value in values.items()]}
    assert api.ask(user, "PATCH", ARQS, body).status_code == 403
    assert api.ask(user, "PATCH", ARQS, body, service=keystone.token("otto")).status_code in (401, 403)
    let_through = api.ask(user, "PATCH", ARQS, body, service=keystone.token("nova"))
    assert let_through.status_code == 404
    assert "No device has the resource provider" in let_through.text
