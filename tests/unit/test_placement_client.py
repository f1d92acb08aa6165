"""What the client makes of answers that are not the ones it hoped for."""

import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from wsgiref.validate import validator

import certifi
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from autoclave.conf import new_config
from autoclave.conf.clouds import is_external
from autoclave.exceptions import (
    InvalidConfiguration,
    PlacementConflict,
    PlacementNotFound,
    PlacementRefused,
    PlacementUnavailable,
)
from autoclave.placement.client import PlacementClient
from autoclave.placement.records import ConsumerAllocations, Inventory
from autoclave.placement.transport import WsgiAdapter, http_adapter, wsgi_adapter
from autoclave.service_adapter import UnusableAnswer, make_adapter
from autoclave.testing.placement import FakePlacement
from autoclave.testing.placement import faults as effects
from autoclave.testing.placement.faults import Call, Faults

UUID = "5b5b0d1e-8c9b-4b8c-9a52-6a2c7b5b0d1e"
ONE = Inventory(total=1, reserved=0, min_unit=1, max_unit=1, step_size=1, allocation_ratio=1.0)
CLAIM = ConsumerAllocations(UUID, {UUID: {"VCPU": 1}}, None, "project", "user")
JSON = "application/json"

REQUESTS: dict[str, Callable[[PlacementClient], Any]] = {
    "get_provider": lambda client: client.get_provider(UUID),
    "find_provider": lambda client: client.find_provider("h_0000:0A:00.0"),
    "providers_in_tree": lambda client: client.providers_in_tree(UUID),
    "providers_with_trait": lambda client: client.providers_with_trait("CUSTOM_A"),
    "providers_offering": lambda client: client.providers_offering("VCPU"),
    "create_provider": lambda client: client.create_provider(UUID, "h"),
    "rename_provider": lambda client: client.rename_provider(UUID, "h"),
    "delete_provider": lambda client: client.delete_provider(UUID),
    "get_inventories": lambda client: client.get_inventories(UUID),
    "put_inventories": lambda client: client.put_inventories(UUID, 0, {"VCPU": ONE}),
    "get_traits": lambda client: client.get_traits(UUID),
    "put_traits": lambda client: client.put_traits(UUID, 0, []),
    "ensure_traits": lambda client: client.ensure_traits(["CUSTOM_A"]),
    "unknown_traits": lambda client: client.unknown_traits(["CUSTOM_A"]),
    "unknown_resource_classes": lambda client: client.unknown_resource_classes(["CUSTOM_A"]),
    "ensure_resource_class": lambda client: client.ensure_resource_class("CUSTOM_A"),
    "ensure_standard_class": lambda client: client.ensure_resource_class("VCPU"),
    "get_usages": lambda client: client.get_usages(UUID),
    "get_allocations_for_provider": lambda client: client.get_allocations_for_provider(UUID),
    "get_allocations": lambda client: client.get_allocations(UUID),
    "put_allocations": lambda client: client.put_allocations(CLAIM),
    "post_allocations": lambda client: client.post_allocations([CLAIM]),
    "delete_allocations": lambda client: client.delete_allocations(UUID),
    "allocation_candidates": lambda client: client.allocation_candidates([("resources", "VCPU:1")]),
}
every_request = pytest.mark.parametrize("ask", REQUESTS.values(), ids=REQUESTS.keys())


def answering(status: int, body: bytes, content_type: str = "text/html") -> Faults:
    faults = Faults(FakePlacement())
    faults.add(effects.answer_raw(status, body, content_type))
    return faults


def only_request(faults: Faults) -> str:
    """Return the method and the path of the one request, as messages name it."""
    (call,) = faults.calls
    return f"{call.method} {call.path}"


@every_request
@pytest.mark.parametrize(
    "body", [b"<html>Log in first</html>", b"\xff\xfe\x00", b"[]", b'"yes"', b"null", b'{"errors": 7}', b"{"]
)
def test_a_success_that_is_not_placements_is_not_believed(ask: Callable[[PlacementClient], Any], body: bytes) -> None:
    faults = answering(200, body, JSON)
    with pytest.raises(PlacementRefused, match=r"not as Placement answers.*\[placement\] endpoint") as refused:
        ask(faults.client())
    assert refused.value.status == 200
    assert str(refused.value).startswith(only_request(faults))


@pytest.mark.parametrize(
    ("name", "document", "named"),
    [
        ("get_provider", {"uuid": UUID, "name": "h", "root_provider_uuid": UUID}, "generation is missing"),
        ("get_provider", {"uuid": UUID, "name": "h", "generation": "3", "root_provider_uuid": UUID}, "generation is"),
        ("get_provider", {"uuid": UUID, "name": None, "generation": 3, "root_provider_uuid": UUID}, "name is None"),
        ("providers_in_tree", {"resource_providers": [None]}, "uuid is missing"),
        ("get_inventories", {"inventories": {}}, "resource_provider_generation"),
        ("get_inventories", {"inventories": {"VCPU": {}}, "resource_provider_generation": 1}, "VCPU"),
        ("put_inventories", {"resource_provider_generation": True}, "resource_provider_generation is True"),
        ("get_traits", {"resource_provider_generation": 1, "traits": [1]}, "traits"),
        ("get_usages", {"usages": {"VCPU": None}}, "VCPU is None"),
        ("get_allocations", {"allocations": {UUID: {"resources": {"VCPU": 1}}}}, "consumer_generation"),
        ("get_allocations_for_provider", {"allocations": {UUID: {}}}, "resources is missing"),
        ("allocation_candidates", {"allocation_requests": [], "provider_summaries": []}, "provider_summaries"),
        (
            "allocation_candidates",
            {"allocation_requests": [{"allocations": {}, "mappings": {}}], "provider_summaries": {}},
            "allocations is empty",
        ),
        (
            "allocation_candidates",
            {
                "allocation_requests": [{"allocations": {UUID: {"resources": {"VCPU": 1}}}, "mappings": {}}],
                "provider_summaries": {},
            },
            f"{UUID} is missing in provider_summaries",
        ),
    ],
)
def test_a_document_with_a_hole_in_it_is_refused_by_the_name_of_the_hole(name: str, document: Any, named: str) -> None:
    with pytest.raises(PlacementRefused, match=named):
        REQUESTS[name](answering(200, json.dumps(document).encode(), JSON).client())


@every_request
@pytest.mark.parametrize("effect", [effects.refuse, effects.lose_answer], ids=["refused", "answer lost"])
def test_no_answer_is_unavailable_and_asked_once(ask: Callable[[PlacementClient], Any], effect: Any) -> None:
    faults = Faults(FakePlacement())
    faults.add(effect)
    with pytest.raises(PlacementUnavailable) as unavailable:
        ask(faults.client())
    assert str(unavailable.value).startswith(f"Placement did not answer {only_request(faults)}")
    assert "as arranged" in str(unavailable.value), "the reason"


@every_request
@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_proxys_answer_is_no_answer(ask: Callable[[PlacementClient], Any], status: int) -> None:
    faults = answering(status, b"<html>Bad gateway</html>")
    with pytest.raises(PlacementUnavailable, match=str(status)):
        ask(faults.client())
    assert len(faults.calls) == 1, "nothing is repeated"


@every_request
def test_an_error_of_placements_is_told_with_its_detail(ask: Callable[[PlacementClient], Any]) -> None:
    faults = Faults(FakePlacement())
    faults.add(effects.answer(500, detail="the disk is full"))
    with pytest.raises(PlacementRefused) as refused:
        ask(faults.client())
    assert refused.value.status == 500
    assert str(refused.value).startswith(only_request(faults))
    assert str(refused.value).endswith(" was answered 500: the disk is full")


@every_request
def test_a_conflict_keeps_placements_code(ask: Callable[[PlacementClient], Any]) -> None:
    faults = Faults(FakePlacement())
    faults.add(effects.answer(409, code="placement.concurrent_update"))
    with pytest.raises(PlacementConflict) as conflict:
        ask(faults.client())
    assert conflict.value.code == "placement.concurrent_update"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"<p>" + b"x" * 200, f"418: <p>{'x' * 117}"),
        ("Kein Tee für Gäste.".encode(), "418: Kein Tee für Gäste"),
        (b"", "418: Arranged"),
        (b'{"errors": []}', '418: {"errors": []}'),
    ],
    ids=["a long page", "a sentence", "nothing", "no error in the document"],
)
def test_an_error_of_another_server_is_told_with_its_start(body: bytes, told: str) -> None:
    with pytest.raises(PlacementRefused) as refused:
        answering(418, body).client().get_provider(UUID)
    assert str(refused.value) == f"GET /resource_providers/{UUID} was answered {told}"


def test_a_conflict_of_another_server_has_no_code() -> None:
    with pytest.raises(PlacementConflict, match=r"was answered 409: busy$") as conflict:
        answering(409, b"busy").client().delete_provider(UUID)
    assert conflict.value.code == ""


def test_a_300_without_a_body_is_no_success() -> None:
    with pytest.raises(PlacementRefused) as refused:
        answering(300, b"").client().delete_provider(UUID)
    assert refused.value.status == 300


def test_a_success_of_another_server_is_told_with_its_start() -> None:
    with pytest.raises(PlacementRefused) as refused:
        answering(200, b"<p>" + b"x" * 200).client().delete_provider(UUID)
    assert str(refused.value) == (
        f"DELETE /resource_providers/{UUID} was answered 200, but not as Placement answers "
        f"(an unexpected body): '<p>{'x' * 117}'. Is [placement] endpoint_override, or else the "
        "placement endpoint in the catalog, the URL of Placement?"
    )


def test_a_404_of_any_web_server_does_not_say_that_a_provider_is_absent() -> None:
    with pytest.raises(PlacementRefused, match=r"Is .* the URL of Placement") as refused:
        answering(404, b"<h1>Not Found</h1>").client().get_provider(UUID)
    assert refused.value.status == 404
    with pytest.raises(PlacementNotFound):
        FakePlacement().client().get_provider(UUID)


@every_request
def test_a_404_of_placement_to_a_path_that_it_does_not_have_asks_for_the_url(
    ask: Callable[[PlacementClient], Any],
) -> None:
    detail = "The resource could not be found.\n\n\n   "
    faults = Faults(FakePlacement())
    faults.add(effects.answer(404, detail=detail))
    with pytest.raises(PlacementRefused, match=r"Is .* the URL of Placement") as refused:
        ask(faults.client())
    assert refused.value.status == 404


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_identity_points_at_the_options(status: int) -> None:
    with pytest.raises(PlacementRefused, match=r"\[placement\] auth_type"):
        answering(status, b"").client().get_provider(UUID)


def test_a_redirect_is_not_followed_since_a_write_would_be_sent_twice() -> None:
    seen = []

    def elsewhere(environ: Any, start_response: Any) -> list[bytes]:
        seen.append(environ["REQUEST_METHOD"])
        start_response("301 Moved", [("Location", "http://placement.embedded/placement/resource_providers")])
        return [b""]

    with pytest.raises(PlacementRefused) as refused:
        PlacementClient(wsgi_adapter(elsewhere)).create_provider(UUID, "h")
    assert (refused.value.status, seen) == (301, ["POST"])


def test_an_application_that_raises_is_what_a_server_makes_of_it() -> None:
    def broken(_environ: Any, _start_response: Any) -> list[bytes]:
        raise RuntimeError("a bug in there")

    with pytest.raises(PlacementRefused) as refused:
        PlacementClient(wsgi_adapter(broken)).get_provider(UUID)
    assert refused.value.status == 500
    assert str(refused.value).endswith(" was answered 500: Internal Server Error")


def test_an_application_is_called_as_wsgi_asks() -> None:
    seen: dict[str, Any] = {}

    def app(environ: Any, start_response: Any) -> list[bytes]:
        seen.update(environ)
        start_response("200 OK", [("Content-Type", JSON)])
        return [b'{"resource_providers": []}']

    assert PlacementClient(wsgi_adapter(validator(app))).providers_in_tree("h") == []
    assert {name: value for name, value in seen.items() if not name.startswith(("HTTP_", "wsgi.input"))} == {
        "REQUEST_METHOD": "GET",
        "SCRIPT_NAME": "/placement",
        "PATH_INFO": "/resource_providers",
        "QUERY_STRING": "in_tree=h",
        "SERVER_NAME": "placement.embedded",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "127.0.0.1",
        "CONTENT_LENGTH": "0",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.errors": seen["wsgi.errors"],
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    assert (seen["HTTP_X_AUTH_TOKEN"], seen["HTTP_X_ROLES"]) == ("autoclave", "admin,service,member,reader")


def test_a_netrc_names_no_user_to_the_embedded_placement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("default login other password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    seen: dict[str, Any] = {}

    def app(environ: Any, start_response: Any) -> list[bytes]:
        seen.update(environ)
        start_response("200 OK", [("Content-Type", JSON)])
        return [b'{"resource_providers": []}']

    assert PlacementClient(wsgi_adapter(app)).providers_in_tree("h") == []
    assert "HTTP_AUTHORIZATION" not in seen


def test_a_body_is_closed_and_a_path_decoded_as_wsgi_asks() -> None:
    seen: dict[str, Any] = {}

    class Body(list[bytes]):
        def close(self) -> None:
            seen["closed"] = True

    def app(environ: Any, start_response: Any) -> list[bytes]:
        seen.update(environ)
        start_response("200 OK", [("Content-Type", JSON)])
        return Body([b'{"name"', b': "ok"}'])

    headers = {"Content-Length": "0", "X-After": "1"}
    response = wsgi_adapter(app).request("/things/a%20b%2Fc?x=1%202", "PUT", json={"k": "ü"}, headers=headers)
    assert response.json() == {"name": "ok"}
    assert response.headers["content-type"] == JSON
    assert response.url == "http://placement.embedded/placement/things/a%20b%2Fc?x=1%202"
    assert response.request.method == "PUT"
    assert seen["closed"]
    assert (seen["SCRIPT_NAME"], seen["PATH_INFO"], seen["QUERY_STRING"]) == ("/placement", "/things/a b/c", "x=1%202")
    assert seen["CONTENT_TYPE"] == JSON
    assert not {"HTTP_CONTENT_TYPE", "HTTP_CONTENT_LENGTH"} & seen.keys()
    assert seen["HTTP_X_AFTER"] == "1"
    assert json.loads(seen["wsgi.input"].read(int(seen["CONTENT_LENGTH"]))) == {"k": "ü"}


def test_a_tree_a_found_name_and_known_traits_cost_one_request_each() -> None:
    faults = Faults(FakePlacement())
    client = faults.client()
    root = client.create_provider(UUID, "h")
    client.ensure_traits(["CUSTOM_A"])
    for ask in (
        lambda: client.providers_in_tree(root.uuid),
        lambda: client.find_provider("h"),
        lambda: client.ensure_traits(["CUSTOM_A", "HW_CPU_X86_AVX"]),
    ):
        faults.clear()
        ask()
        assert len(faults.calls) == 1


@pytest.mark.parametrize("write", ["put_traits", "put_inventories"])
def test_names_are_ensured_again_after_a_refused_write(write: str) -> None:
    """An operator may have deleted a trait or a class that this client has seen."""
    faults = Faults(FakePlacement())
    client = faults.client()
    made = client.create_provider(UUID, "h")
    client.ensure_traits(["CUSTOM_A"])
    client.ensure_resource_class("CUSTOM_B")
    faults.clear()
    client.ensure_traits(["CUSTOM_A"])
    client.ensure_resource_class("CUSTOM_B")
    assert faults.calls == []
    faults.add(effects.answer(400, detail="No such trait or class."))
    with pytest.raises(PlacementRefused):
        getattr(client, write)(UUID, made.generation, {})
    faults.clear()
    client.ensure_traits(["CUSTOM_A"])
    client.ensure_resource_class("CUSTOM_B")
    assert len(faults.calls) == 2


# Over HTTP


UNUSABLE = {
    "headless": b'{"token": {"expires_at": "2100-01-01T00:00:00.000000Z", "methods": ["password"]}}',
    "null": b"null",
    "empty": b'{"token": null}',
    "undated": b'{"token": {"methods": ["password"]}}',
    "never": b'{"token": {"expires_at": "never", "methods": ["password"]}}',
}
"""Answers to the request for a token that keystoneauth1 takes for Keystone's; the first has no token."""


class _Recorder(BaseHTTPRequestHandler):
    seen: list[dict[str, str]] = []  # noqa: RUF012 - one per server, set by the fixture
    answer = b'{"resource_providers": [], "traits": []}'

    def do_GET(self) -> None:
        self.seen.append({**dict(self.headers), "path": self.path})
        if self.path.endswith("/resource_providers?name=lost"):
            self.close_connection = True  # without an answer
            return
        answer = self.answer
        if self.path.endswith("/v3"):
            at = f"http://{self.headers['Host']}{self.path}"
            version = {"id": "v3.14", "status": "stable", "links": [{"rel": "self", "href": at}]}
            answer = json.dumps({"version": version}).encode()
        moved = self.path.endswith("/resource_providers?name=moved")
        self.send_response(302 if moved else 200)
        if moved:
            self.send_header("Location", "/placement/resource_providers?name=there")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_PUT = do_GET

    def do_DELETE(self) -> None:
        """Take the request, and lose the connection."""
        self.seen.append({"path": self.path})
        self.close_connection = True

    def do_POST(self) -> None:
        """What Keystone answers to who wants a token."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append({"path": self.path, "body": body.decode()})
        answer = json.dumps({"token": {"expires_at": "2100-01-01T00:00:00.000000Z", "methods": ["password"]}}).encode()
        _, status, _ = self.path.split("/", 2)
        if status != "v3":
            answer = UNUSABLE.get(status, b"no token")
        self.send_response(int(status) if status.isdigit() else 201)
        if status != "headless":
            self.send_header("X-Subject-Token", "issued")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_args: Any) -> None:
        """Quiet."""


@pytest.fixture
def recorder() -> Iterator[tuple[str, list[dict[str, str]]]]:
    seen: list[dict[str, str]] = []
    server = HTTPServer(("127.0.0.1", 0), type("Recorder", (_Recorder,), {"seen": seen}))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/placement", seen
    server.shutdown()
    thread.join()
    server.server_close()


def external(**options: Any) -> PlacementClient:
    return PlacementClient(http_adapter(new_config(overrides={("placement", k): v for k, v in options.items()})))


def test_an_external_placement_gets_the_token_and_the_pinned_microversion(recorder: Any) -> None:
    url, seen = recorder
    assert external(endpoint=url, token="secret").find_provider("h") is None
    assert seen[0]["X-Auth-Token"] == "secret"
    assert seen[0]["OpenStack-API-Version"] == "placement 1.39"
    assert seen[0]["path"] == "/placement/resource_providers?name=h"
    assert "X-Roles" not in seen[0], "that header is for the embedded one"


def test_the_password_is_never_sent_to_placement(recorder: Any) -> None:
    url, seen = recorder
    nowhere = "http://127.0.0.1:1/v3"
    client = external(endpoint=url, auth_type="password", auth_url=nowhere, username="u", password="p")
    for ask in (lambda: client.find_provider("h"), lambda: client.get_provider(UUID)):
        with pytest.raises(
            PlacementUnavailable, match=r"^no token for GET .*check that Keystone answers at \[placement\] auth_url$"
        ):
            ask()
    assert seen == []


def test_a_token_is_asked_of_keystone_with_all_that_names_the_user(recorder: Any) -> None:
    url, seen = recorder
    identity = {"username": "autoclave", "password": "p", "project_name": "service"}
    domains = {"user_domain_name": "users", "project_domain_name": "projects"}
    keystone = f"{url.removesuffix('/placement')}/v3"
    external(endpoint=url, auth_type="password", auth_url=keystone, **identity, **domains).find_provider("h")
    seen = [each for each in seen if each["path"] != "/v3"]  # which is what Keystone supports
    assert seen[0]["path"] == "/v3/auth/tokens"
    user = {"name": "autoclave", "password": "p", "domain": {"name": "users"}}
    assert json.loads(seen[0]["body"])["auth"] == {
        "identity": {"methods": ["password"], "password": {"user": user}},
        "scope": {"project": {"name": "service", "domain": {"name": "projects"}}},
    }
    assert seen[1]["X-Auth-Token"] == "issued"


def tokens_answered(url: str, status: int | str) -> PlacementClient:
    """Return a client of a Keystone that answers *status*, and no token."""
    keystone = f"{url.removesuffix('/placement')}/{status}/v3"
    return external(endpoint=url, auth_type="password", auth_url=keystone, username="u", password="p")


@pytest.mark.parametrize("status", [500, 503])
def test_a_failure_of_keystone_is_unavailable(recorder: Any, status: int) -> None:
    url, seen = recorder
    with pytest.raises(
        PlacementUnavailable, match=rf"^no token for GET /resource_providers\?name=h: Keystone answered {status}: "
    ):
        tokens_answered(url, status).find_provider("h")
    assert len([each for each in seen if "body" in each]) == 1


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_of_keystone_points_at_the_options(recorder: Any, status: int) -> None:
    url, _seen = recorder
    with pytest.raises(
        PlacementRefused,
        match=rf"^no token for GET /resource_providers\?name=h: Keystone answered {status}: "
        r".*; check \[placement\] auth_type and its credentials$",
    ) as refused:
        tokens_answered(url, status).find_provider("h")
    assert refused.value.status == status


def test_a_success_that_is_not_keystones_is_unavailable(recorder: Any) -> None:
    url, _seen = recorder
    with pytest.raises(PlacementUnavailable, match=r"^no token for GET /resource_providers\?name=h: "):
        tokens_answered(url, 200).find_provider("h")


@pytest.mark.parametrize("kind", UNUSABLE)
def test_an_unusable_answer_of_keystone_is_unavailable(recorder: Any, kind: str) -> None:
    url, _seen = recorder
    with pytest.raises(
        PlacementUnavailable,
        match=r"^GET /resource_providers\?name=[hH] was not sent, .*; see that auth_url is the URL of",
    ):
        tokens_answered(url, kind).find_provider("h")


def test_an_unusable_answer_of_keystone_is_no_project(recorder: Any) -> None:
    url, _seen = recorder
    options = {"auth_type": "password", "auth_url": f"{url.removesuffix('/placement')}/null/v3"}
    options |= {"endpoint_override": url, "username": "u", "password": "p"}
    adapter = make_adapter(
        new_config(overrides={("nova", name): value for name, value in options.items()}), "nova", microversion="2.82"
    )
    with pytest.raises(UnusableAnswer, match="TypeError"):
        adapter.get_project_id()


def test_a_ca_file_that_disappears_is_unavailable(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    shutil.copy(certifi.where(), file)
    client = external(endpoint="https://127.0.0.1:1", cafile=str(file))
    file.unlink()
    with pytest.raises(PlacementUnavailable, match=rf"^GET .* was not sent, .*{file}"):
        client.find_provider("h")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cafile": "{missing}"}, "cafile: {missing} cannot be read: No such file or directory"),
        ({"cafile": "{junk}"}, "cafile: {junk} does not hold what it should, in PEM: NO_CERTIFICATE"),
        ({"cafile": "{missing}", "insecure": True}, "cafile: {missing} cannot be read: No such file or directory"),
        ({"certfile": "{missing}"}, "certfile: {missing} cannot be read: No such file or directory"),
        ({"certfile": "{junk}"}, "certfile, keyfile: {junk} does not hold what it should, in PEM: "),
        ({"certfile": "{pair}", "keyfile": "{missing}"}, "keyfile: {missing} cannot be read: No such file"),
        ({"certfile": "{pair}", "keyfile": "{encrypted}"}, "certfile, keyfile: {encrypted} does not hold what it"),
        ({"keyfile": "{pair}"}, "certfile: is needed for keyfile"),
        ({"version": "abc"}, "version: is 'abc', not a version such as 2.1"),
        ({"min_version": "2.latest", "max_version": "1"}, "min_version: is higher than max_version"),
        ({"service_type": ""}, "service_type: must not be empty"),
        ({"auth_type": "password", "system_scope": "some", "auth_url": "http://k"}, "system_scope: can only be all"),
        (
            {"auth_type": "password", "system_scope": "all", "project_id": "p", "auth_url": "http://k"},
            "project_id, system_scope: a token has one scope",
        ),
    ],
)
def test_an_option_that_fails_at_the_first_request_is_refused(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    names = {name: str(tmp_path / f"{name}.pem") for name in ("missing", "junk", "pair", "encrypted")}
    Path(names["junk"]).write_text("junk")
    _write_pair(Path(names["pair"]), Path(names["encrypted"]))
    external(endpoint="https://p", certfile=names["pair"], cafile=names["pair"])
    given = {name: value.format(**names) if isinstance(value, str) else value for name, value in options.items()}
    with pytest.raises(InvalidConfiguration) as refused:
        external(endpoint="https://p", **given)
    assert str(refused.value).startswith(f"[placement] {said.format(**names)}")


def _write_pair(pair: Path, encrypted: Path) -> None:
    """Write a certificate with its key, and the key once more with a passphrase."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "client")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1)).sign(
        key, hashes.SHA256()
    )
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    plain = key.private_bytes(*form, serialization.NoEncryption())
    pair.write_bytes(plain + made.public_bytes(serialization.Encoding.PEM))
    encrypted.write_bytes(key.private_bytes(*form, serialization.BestAvailableEncryption(b"secret")))


def test_an_auth_url_of_another_section_must_be_a_url(tmp_path: Path) -> None:
    text = "[placement]\nauth_section = keystone_authtoken\n[keystone_authtoken]\nauth_type = password\n"
    with pytest.raises(InvalidConfiguration, match=r"^\[keystone_authtoken\] auth_url: 'keystone:5000' is not a URL"):
        external_by_file(tmp_path, f"{text}auth_url = keystone:5000\n")


def external_by_file(directory: Path, text: str) -> PlacementClient:
    file = directory / "autoclave.conf"
    file.write_text(text)
    return PlacementClient(http_adapter(new_config([str(file)])))


@pytest.mark.parametrize(
    ("old", "token", "present"),
    [
        ("", "admin", ", auth_type = admin_token, token = admin"),
        ("auth_type = token", "admin", ", auth_type = admin_token, token = admin"),
        ("auth_type = token\ntoken = secret", "secret", ", auth_type = admin_token"),
        ("token = secret\nauth_url = http://127.0.0.1:1/v3", "secret", ", auth_type = admin_token"),
        ("auth_type = none\ntoken = secret", "notused", ""),
        ("auth_type = admin_token\ntoken = secret", "secret", ""),
    ],
)
def test_a_file_with_an_endpoint_means_what_it_meant_and_the_log_says_how_to_write_it(
    tmp_path: Path, recorder: Any, caplog: pytest.LogCaptureFixture, old: str, token: str, present: str
) -> None:
    url, seen = recorder
    external_by_file(tmp_path, f"[placement]\nendpoint = {url}\n{old}\n").find_provider("h")
    assert [seen[0]["X-Auth-Token"], seen[0]["path"]] == [token, "/placement/resource_providers?name=h"]
    assert f"[placement] endpoint is deprecated. Replace it in the same section by: endpoint_override = {url}" in (
        caplog.text
    )
    [told] = [each for each in caplog.messages if each.startswith("[placement] endpoint is deprecated")]
    assert told.endswith(f"endpoint_override = {url}{present}")


def test_an_endpoint_with_a_password_is_of_the_project_service_and_the_domain_default(
    tmp_path: Path, recorder: Any, caplog: pytest.LogCaptureFixture
) -> None:
    url, seen = recorder
    keystone = f"{url.removesuffix('/placement')}/v3"
    text = f"[placement]\nendpoint = {url}\nauth_type = password\nauth_url = {keystone}\nusername = u\npassword = p\n"
    external_by_file(tmp_path, text).find_provider("h")
    [asked] = [json.loads(each["body"])["auth"] for each in seen if "body" in each]
    assert asked["identity"]["password"]["user"]["domain"] == {"name": "Default"}
    assert asked["scope"] == {"project": {"name": "service", "domain": {"name": "Default"}}}
    assert "project_name = service, user_domain_name = Default, project_domain_name = Default" in caplog.text
    caplog.clear()
    external_by_file(tmp_path, f"{text}project_id = a\nuser_domain_id = b\n")
    assert "Default" not in caplog.text
    assert "service" not in caplog.text


def test_a_section_of_another_service_can_hold_the_authentication(tmp_path: Path, recorder: Any) -> None:
    url, seen = recorder
    for section in ("nova", "keystone_authtoken"):
        text = f"[placement]\nauth_section = {section}\nendpoint_override = {url}\n"
        external_by_file(tmp_path, f"{text}[{section}]\nauth_type = admin_token\ntoken = shared\n").find_provider("h")
        assert seen.pop()["X-Auth-Token"] == "shared"
        with pytest.raises(InvalidConfiguration, match=rf"^\[{section}\] auth_type: is not set"):
            external_by_file(tmp_path, text)
        with pytest.raises(InvalidConfiguration, match=r"auth_type.*kerberos"):
            external_by_file(tmp_path, f"{text}[{section}]\nauth_type = kerberos\n")


def test_a_catalog_without_placement_is_described_with_the_options_to_set(recorder: Any) -> None:
    url, seen = recorder
    keystone = f"{url.removesuffix('/placement')}/v3"
    client = external(auth_type="password", auth_url=keystone, username="u", password="p", region_name="two")
    said = "endpoint of service type placement and interface internal or public in region two: create it, or set"
    with pytest.raises(PlacementUnavailable, match=rf"{said} \[placement\] region_name, .* or endpoint_override$"):
        client.find_provider("h")
    assert {each["path"] for each in seen} == {"/v3", "/v3/auth/tokens"}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("auth_type", "password"),
        ("auth_section", "nova"),
        ("endpoint_override", "http://p"),
        ("endpoint", "http://p"),
    ],
)
def test_an_option_that_reaches_a_placement_makes_it_external(option: str, value: str) -> None:
    assert is_external(new_config(overrides={("placement", option): value}))
    assert not is_external(new_config(overrides={("placement", "create_root_provider"): True}))


def test_a_write_is_sent_once_where_reads_are_repeated(recorder: Any) -> None:
    url, seen = recorder
    client = external(
        auth_type="none", endpoint_override=url, connect_retries=2, connect_retry_delay=0.001, status_code_retries=2
    )
    with pytest.raises(PlacementUnavailable):
        client.find_provider("lost")
    assert len(seen) == 3
    seen.clear()
    with pytest.raises(PlacementUnavailable):
        client.delete_allocations(UUID)
    assert len(seen) == 1


def test_without_authentication_the_token_is_not_sent(recorder: Any) -> None:
    url, seen = recorder
    assert external(endpoint=url, auth_type="none", token="secret").find_provider("h") is None
    assert seen[0].get("X-Auth-Token") != "secret"


@pytest.mark.parametrize(
    ("ask", "path"),
    [
        (lambda client: client.get_provider("a/b"), "resource_providers/a%2Fb"),
        (lambda client: client.get_allocations("a/b"), "allocations/a%2Fb"),
        (lambda client: client.ensure_resource_class("CUSTOM_A/B"), "resource_classes/CUSTOM_A%2FB"),
        (lambda client: client.ensure_traits(["CUSTOM_A/B"]), "traits/CUSTOM_A%2FB"),
    ],
)
def test_a_slash_in_a_name_leads_to_no_other_path(
    recorder: Any, ask: Callable[[PlacementClient], Any], path: str
) -> None:
    url, seen = recorder
    with pytest.raises(PlacementRefused, match=rf"^(GET|PUT) /{path} was answered 200, "):
        ask(external(endpoint=url))
    assert seen[-1]["path"] == f"/placement/{path}"


def test_an_external_redirect_is_not_followed(recorder: Any) -> None:
    url, seen = recorder
    with pytest.raises(PlacementRefused) as refused:
        external(endpoint=url).find_provider("moved")
    assert (refused.value.status, len(seen)) == (302, 1)


def test_a_request_whose_answer_is_lost_is_not_sent_again(recorder: Any) -> None:
    url, seen = recorder
    with pytest.raises(PlacementUnavailable):
        external(endpoint=url).find_provider("lost")
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("options", "verify"),
    [
        ({}, True),
        ({"insecure": True}, False),
        ({"cafile": certifi.where()}, certifi.where()),
        ({"cafile": certifi.where(), "insecure": True}, certifi.where()),
        ({"cafile": str(Path(certifi.where()).parent)}, str(Path(certifi.where()).parent)),
    ],
)
def test_certificates_are_checked_unless_that_is_waived(options: dict[str, Any], verify: bool | str) -> None:
    conf = new_config(
        overrides={("placement", key): value for key, value in {"endpoint": "https://p", **options}.items()}
    )
    assert http_adapter(conf).session.verify == verify


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_nobody_at_the_endpoint_is_unavailable(scheme: str) -> None:
    client = external(endpoint=f"{scheme}://127.0.0.1:1", timeout=60.0)
    with pytest.raises(
        PlacementUnavailable,
        match=r"did not answer GET .*check that it runs, and that \[placement\] endpoint_override.*",
    ):
        client.get_provider(UUID)


def test_an_endpoint_that_never_answers_is_unavailable_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = external(endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.1)
        with pytest.raises(PlacementUnavailable):
            client.get_provider(UUID)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, r"^\[placement\] auth_type: is not set; set it to password, v3applicationcredential, admin_token, none, "),
        ({"endpoint_override": "http://p"}, r"^\[placement\] auth_type: is not set; "),
        ({"auth_type": "none"}, r"^\[placement\] endpoint_override: is needed for auth_type = none$"),
        ({"auth_type": "none", "endpoint_override": "http://p", "version": "1", "min_version": "1"}, r"\] version, "),
        ({"auth_type": "admin_token", "endpoint_override": "http://p"}, r"\[placement\] token: is needed"),
        ({"auth_type": "token", "endpoint_override": "http://p", "token": "x"}, r"\[placement\] auth_url: is needed"),
        ({"endpoint": "http://p", "auth_type": "password"}, r"\[placement\] auth_url"),
        ({"endpoint": "http://p", "auth_type": "password", "auth_url": "http://k"}, r"\[placement\] username"),
        (
            {"endpoint": "http://p", "auth_type": "password", "auth_url": "http://k", "username": "u"},
            r"\[placement\] password",
        ),
    ],
)
def test_an_option_that_is_needed_and_missing_is_named(options: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidConfiguration, match=named):
        external(**options)


def test_the_wsgi_adapter_can_be_closed_and_used_again() -> None:
    adapter = WsgiAdapter(validator(FakePlacement()))
    adapter.close()
    import requests

    session = requests.Session()
    session.mount("http://p/", adapter)
    answered = session.get(
        "http://p/traits?name=in:HW_CPU_X86_AVX", headers={"OpenStack-API-Version": "placement 1.39"}
    )
    assert answered.json() == {"traits": ["HW_CPU_X86_AVX"]}


# The faults themselves


def test_a_lost_answer_was_applied_and_a_request_refused_or_not_answered_in_time_was_not() -> None:
    fake = FakePlacement()
    faults = Faults(fake)
    faults.add(effects.refuse, method="POST", times=1)
    faults.add(effects.time_out, method="POST", times=1)
    faults.add(effects.lose_answer, method="POST")
    for applied in (False, False, True):
        with pytest.raises(PlacementUnavailable):
            faults.client().create_provider(UUID, "h")
        assert bool(fake.ledger.entries) is applied


def test_a_fault_strikes_only_what_it_names_after_what_it_skips_as_often_as_it_may() -> None:
    faults = Faults(FakePlacement())
    client = faults.client()
    fault = faults.add(effects.answer(500), method="GET", path=r"^/resource_providers\?name=h", skip=1, times=2)
    outcomes = []
    for _ in range(5):
        client.providers_in_tree(UUID)
        try:
            client.find_provider("h")
        except PlacementRefused:
            outcomes.append("struck")
        else:
            outcomes.append("passed")
    assert outcomes == ["passed", "struck", "struck", "passed", "passed"]
    assert fault.struck == 2
    assert faults.calls[0] == Call("GET", "/resource_providers")
    faults.clear()
    assert faults.calls == []


def test_somebody_else_may_write_just_before_and_just_after() -> None:
    fake = FakePlacement()
    client = fake.client()
    client.create_provider(UUID, "h")
    faults = Faults(fake)
    faults.add(effects.before(lambda: client.put_inventories(UUID, 0, {"VCPU": ONE})), method="PUT", times=1)
    with pytest.raises(PlacementConflict):
        faults.client().put_traits(UUID, 0, ["HW_CPU_X86_AVX"])
    faults.add(effects.after(lambda: client.put_inventories(UUID, 1, {"VCPU": ONE})), method="GET", times=1)
    assert faults.client().get_provider(UUID).generation == 1
    assert client.get_provider(UUID).generation == 2


def test_a_delayed_request_is_applied() -> None:
    fake = FakePlacement()
    faults = Faults(fake)
    faults.add(effects.delay(0.001))
    faults.client().create_provider(UUID, "h")
    assert UUID in fake.ledger.entries
