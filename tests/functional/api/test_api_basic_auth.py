"""``[api] auth_strategy = http_basic``: users in a file, in the place of Keystone."""

import base64
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import bcrypt
import openstack
import pytest
from api_world import REMOVE_OPS, World, fault, new_uuid
from falcon.testing import Result
from openstack import exceptions
from openstack_command import OpenStack

from autoclave.cli import main
from autoclave.db.tables import DeviceStatus
from autoclave.exceptions import InvalidConfiguration

pytestmark = pytest.mark.matrix

ARQS = "/v2/accelerator_requests"
ANN, BOB = ("ann", "correct horse"), ("bob", "pässwörd: with a colon")


def line(name: str, password: str) -> str:
    return f"{name}:{bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()}\n"


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def strict(tmp_path: Path, text: str | None) -> World:
    """A service that knows the users of a file."""
    users = tmp_path / "htpasswd"
    if text is not None:
        users.write_text(text)
    config = tmp_path / "autoclave.conf"
    config.write_text(f"[api]\nhttp_basic_auth_user_file = {users}\n")
    return World(tmp_path, {("api", "auth_strategy"): "http_basic"}, (str(config),))


@pytest.fixture
def users(tmp_path: Path) -> Path:
    return tmp_path / "htpasswd"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = strict(tmp_path, f"# operators\n\n{line(*ANN)}  {line(*BOB)}")
    yield made
    made.close()


def ask(world: World, said: str | None, method: str = "GET", path: str = "/v2/devices", body: Any = None) -> Result:
    headers = {"OpenStack-API-Version": "accelerator 2.5"}
    if said is not None:
        headers["Authorization"] = said
    return world.http.simulate_request(method, path, json=body, headers=headers)


@pytest.mark.parametrize("who", [ANN, BOB], ids=lambda who: who[0])
def test_a_user_of_the_file_is_an_administrator_and_the_history_names_him(world: World, who: tuple[str, str]) -> None:
    device = world.add_device()
    assert ask(world, basic(*who), "POST", f"/v2/devices/{device.uuid}/disable").status_code == 200
    *_, said = ask(world, basic(*who), path=f"/autoclave/v1/devices/{device.uuid}/history").json["events"]
    assert said["actor"] == f"operator {who[0]}"
    assert ask(world, basic(*who), path="/metrics").status_code == 200


@pytest.mark.parametrize(
    "said",
    [
        None,
        basic("ann", "wrong"),
        basic("ann", ""),
        basic("ann", BOB[1]),
        basic("nobody", ANN[1]),
        basic("", ""),
        basic("# operators", "x"),
        basic("ann", "x" * 5000),
        basic("ann", "\x00"),
        basic("an", ANN[1]),
        "Basic",
        "Basic !",
        "Basic YW5u",
        "Basic /w==",
        f"Bearer {base64.b64encode(b'ann:correct horse').decode()}",
        pytest.param(line(*ANN).strip(), id="line"),
    ],
)
def test_whoever_cannot_prove_to_be_one_is_asked_to_and_told_how(world: World, said: str | None) -> None:
    for path in ("/v2/devices", "/accelerator/v2/devices", "/metrics", "/autoclave/v1/devices", "/nothing"):
        answer = ask(world, said, path=path)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"].startswith('Basic realm="Autoclave"')
        assert answer.headers["x-openstack-request-id"]
        assert "HTTP basic authentication" in fault(answer)


def test_finding_the_service_needs_no_password(world: World) -> None:
    for path in ("/", "/v2", "/accelerator/v2", "/openapi.json", "/healthcheck", "/identity/v3"):
        assert ask(world, None, path=path).status_code == 200


def test_the_document_says_how_to_prove_who_one_is(world: World) -> None:
    made = ask(world, None, path="/openapi.json").json
    assert made["paths"]["/v2/devices"]["get"]["security"] == [{"basic": []}]
    assert made["components"]["securitySchemes"]["basic"] == {"type": "http", "scheme": "basic"}


def test_headers_and_tokens_do_not_make_anybody_somebody(world: World) -> None:
    forged = {"X-Auth-Token": "ann:admin", "X-User-Id": "root", "X-Roles": "admin", "X-Identity-Status": "Confirmed"}
    assert world.http.simulate_get("/v2/devices", headers=forged).status_code == 401
    device = world.add_device()
    mine = {**forged, "Authorization": basic(*ANN)}
    assert world.http.simulate_post(f"/v2/devices/{device.uuid}/disable", headers=mine).status_code == 200
    *_, said = ask(world, basic(*ANN), path=f"/autoclave/v1/devices/{device.uuid}/history").json["events"]
    assert said["actor"] == "operator ann"


def test_a_fault_of_the_service_is_not_taken_for_a_wrong_password(world: World) -> None:
    device = world.add_device()
    with world.db.write() as tx:
        tx.exec_driver_sql("DROP TABLE device_events")
    assert ask(world, basic(*ANN), "POST", f"/v2/devices/{device.uuid}/disable").status_code >= 500


def test_there_is_no_service_token_without_keystone(world: World) -> None:
    groups = [{"name": "p", "groups": [{"resources:CUSTOM_NVME_144D_A808": "1"}]}]
    assert ask(world, basic(*ANN), "POST", "/v2/device_profiles", groups).status_code == 201
    [arq] = ask(world, basic(*ANN), "POST", ARQS, {"device_profile_name": "p"}).json["arqs"]
    body = {arq["uuid"]: world.add_ops(world.add_device(), new_uuid())}
    assert ask(world, basic(*BOB), "PATCH", ARQS, body).status_code == 202
    assert ask(world, basic(*BOB), "PATCH", ARQS, {arq["uuid"]: REMOVE_OPS}).status_code == 202
    assert ask(world, basic(*ANN), "DELETE", f"{ARQS}?arqs={arq['uuid']}").status_code == 204


# The file


def test_a_change_of_the_file_counts_from_the_next_request_on(world: World, users: Path) -> None:
    assert ask(world, basic(*ANN)).status_code == 200
    users.write_text(line("ann", "battery staple") + line("eve", "x"))
    assert ask(world, basic(*ANN)).status_code == 401
    assert ask(world, basic(*BOB)).status_code == 401
    assert ask(world, basic("ann", "battery staple")).status_code == 200
    assert ask(world, basic("eve", "x")).status_code == 200


BAD = {
    "no colon": ("ann\n", "line 1 of .*htpasswd is not name:hash"),
    "no name": (line("", "x"), "line 1 of .*htpasswd is not name:hash"),
    "a long name": (line("x" * 65, "x"), "line 1 of .* at most 64 characters"),
    "a password in the clear": (f"# mine\n\nann:{ANN[1]}\n", "line 3 of .*htpasswd has no bcrypt hash for ann"),
    "another hash": ("ann:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=\n", "line 1 .* has no bcrypt hash for ann; make one with"),
    "half a hash": (line(*ANN)[:-5] + "\n", "line 1 .* has no bcrypt hash"),
    "an impossible price": ("ann:$2y$03$" + "x" * 53, "line 1 .* has no bcrypt hash"),
    "a name twice": (line(*ANN) + line(*BOB) + line(*ANN), "line 3 of .* repeats ann of line 1"),
    "nobody": ("# nobody\n", "names no user"),
}


@pytest.mark.parametrize("wrong", BAD)
def test_a_file_that_cannot_be_used_keeps_the_service_from_starting_and_the_line_is_named(
    tmp_path: Path, wrong: str
) -> None:
    text, message = BAD[wrong]
    with pytest.raises(InvalidConfiguration, match=rf"\[api\] http_basic_auth_user_file: .*{message}") as refused:
        strict(tmp_path, text)
    assert ANN[1] not in str(refused.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_is_not_there_or_is_no_text_keeps_the_service_from_starting(
    tmp_path: Path, users: Path, content: bytes | None
) -> None:
    if content is not None:
        users.write_bytes(content)
    with pytest.raises(InvalidConfiguration, match="htpasswd cannot be read"):
        strict(tmp_path, None)


@pytest.mark.parametrize("wrong", [*BAD, None])
def test_a_file_that_becomes_unusable_lets_nobody_in_until_it_is_mended(
    world: World, users: Path, wrong: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    good = users.read_text()
    users.unlink()
    if wrong is not None:
        users.write_text(BAD[wrong][0])
    for said in (basic(*ANN), basic("ann", "x")):
        answer = ask(world, said)
        assert answer.status_code == 503
        assert "htpasswd" not in fault(answer)
    assert len([told for told in caplog.messages if "htpasswd" in told]) == 1
    assert ask(world, None, path="/healthcheck").status_code == 200
    users.write_text(good)
    assert ask(world, basic(*ANN)).status_code == 200


# Clients


def cloud(url: str, name: str, password: str) -> Any:
    return openstack.connection.Connection(
        auth_type="http_basic",
        auth={"endpoint": f"{url}/accelerator/v2", "username": name, "password": password},
        accelerator_endpoint_override=f"{url}/accelerator/v2",
    ).accelerator


def test_openstacksdk_comes_in_with_its_own_basic_authentication(world: World) -> None:
    device = world.add_device()
    with world.served() as url:
        accelerator = cloud(url, *ANN)
        assert [found.uuid for found in accelerator.devices()] == [device.uuid]
        accelerator.disable_device(device.uuid)
        assert world.device(device.uuid).status is DeviceStatus.MAINTAINING
        with pytest.raises(exceptions.HttpException) as refused:
            list(cloud(url, "ann", "wrong").devices())
    assert refused.value.response.status_code == 401


def test_openstackclient_comes_in_with_its_own_basic_authentication(world: World, tmp_path: Path) -> None:
    device = world.add_device()
    with world.served() as url:

        def command(name: str, password: str) -> OpenStack:
            auth = {"endpoint": url, "username": name, "password": password}
            return OpenStack(url, tmp_path, "openstackclient", {"auth_type": "http_basic", "auth": auth})

        with closing(command(*ANN)) as run:
            [listed] = run.read("device", "list")
            assert listed["uuid"] == device.uuid
            run("device", "disable", device.uuid)
            assert world.device(device.uuid).status is DeviceStatus.MAINTAINING
        with closing(command("ann", "wrong")) as run:
            code, _, errors = run.try_("device", "list")
    assert code != 0
    assert "401" in errors


def test_our_own_command_comes_in_with_the_user_in_its_url_and_shows_no_password(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    device = world.add_device()
    with world.served() as url:
        monkeypatch.setenv("AUTOCLAVE_URL", url.replace("//", "//ann:correct%20horse@"))
        assert main.main(["device", "list", "-f", "json"]) == 0
        [listed] = json.loads(capsys.readouterr().out)
        assert device.pci_address in json.dumps(listed)
        monkeypatch.setenv("AUTOCLAVE_URL", url)
        assert main.main(["device", "list"]) != 0
        assert "put user name and password into AUTOCLAVE_URL" in capsys.readouterr().err
        monkeypatch.setenv("AUTOCLAVE_URL", url.replace("//", "//ann:correct%20horse@"))
    assert main.main(["device", "list"]) != 0
    told = capsys.readouterr()
    assert "does not answer" in told.err
    assert "horse" not in told.err + told.out
