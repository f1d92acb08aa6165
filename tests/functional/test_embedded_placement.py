"""The real Placement in our process, and what stands before it."""

import io
import json
import logging
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoclave.exceptions import InvalidConfiguration, PlacementUnavailable
from autoclave.placement.embedded import EmbeddedPlacement, Front, Identity
from autoclave.placement.records import ConsumerAllocations, Inventory
from autoclave.testing.placement import faults as effects
from autoclave.testing.placement.faults import Faults
from realplacement import running_placement

ONE = Inventory(total=1, reserved=0, min_unit=1, max_unit=1, step_size=1, allocation_ratio=1.0)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[EmbeddedPlacement]:
    with running_placement(tmp_path) as embedded:
        yield embedded


def new_uuid() -> str:
    return str(uuid.uuid4())


def test_what_was_written_is_there_after_a_restart(tmp_path: Path) -> None:
    path, made = tmp_path / "placement.sqlite", new_uuid()
    for _ in range(2):
        embedded = EmbeddedPlacement.start(path)
        try:
            if embedded.client().find_provider("h") is None:
                embedded.client().create_provider(made, "h")
            found = embedded.client().find_provider("h")
            assert found is not None
            assert found.uuid == made
        finally:
            embedded.stop()


def test_each_start_serves_its_own_database_and_no_earlier_one(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        embedded = EmbeddedPlacement.start(f"sqlite:///{tmp_path / name}")
        client = embedded.client()
        assert client.find_provider("h") is None
        client.ensure_traits(["HW_CPU_X86_AVX"])
        client.create_provider(new_uuid(), "h")
        embedded.stop()


def test_a_second_one_in_the_process_is_refused_and_harms_the_first_not(
    service: EmbeddedPlacement, tmp_path: Path
) -> None:
    service.client().create_provider(new_uuid(), "h")
    with pytest.raises(InvalidConfiguration, match="already runs an embedded Placement"):
        EmbeddedPlacement.start(tmp_path / "other.sqlite")
    assert service.client().find_provider("h") is not None
    assert not (tmp_path / "other.sqlite").exists()


def test_a_start_that_fails_leaves_the_way_free(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="unable to open database file"):
        EmbeddedPlacement.start(tmp_path / "no" / "such" / "directory")
    EmbeddedPlacement.start(tmp_path / "placement.sqlite").stop()


def test_a_stopped_one_does_not_stop_its_successor(tmp_path: Path) -> None:
    first = EmbeddedPlacement.start(tmp_path / "one")
    first.stop()
    second = EmbeddedPlacement.start(tmp_path / "two")
    first.stop()
    assert second.client().find_provider("h") is None
    second.stop()


def test_a_power_cut_takes_nothing_back(tmp_path: Path) -> None:
    embedded = EmbeddedPlacement.start(tmp_path / "placement.sqlite")
    with embedded.engine().connect() as connection:
        pragmas = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")]
    embedded.stop()
    assert pragmas == ["delete", 2]


def test_another_placements_environment_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OS_PLACEMENT__MAX_ALLOCATION_CANDIDATES", "1")
    monkeypatch.setenv("OS_PLACEMENT_DATABASE__MAX_RETRIES", "not a number")
    EmbeddedPlacement.start(tmp_path / "placement.sqlite").stop()


@pytest.mark.parametrize("place", ["policy.yaml", "policy.d/strict.yaml"])
def test_another_placements_policy_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    theirs = tmp_path / ".placement" / place
    theirs.parent.mkdir(parents=True)
    theirs.write_text('"placement:resource_providers:list": "!"\n')
    (tmp_path / ".placement" / "policy.yaml").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    embedded = EmbeddedPlacement.start(tmp_path / "placement.sqlite")
    try:
        assert embedded.client().find_provider("h") is None
    finally:
        embedded.stop()


def test_threads_writing_at_once_all_succeed_and_one_device_has_one_winner(service: EmbeddedPlacement) -> None:
    client = service.client()
    client.ensure_resource_class("CUSTOM_X")
    contended = client.create_provider(new_uuid(), "contended")
    client.put_inventories(contended.uuid, 0, {"CUSTOM_X": ONE})
    outcomes: list[str] = []

    def worker(number: int) -> None:
        mine = client.create_provider(new_uuid(), f"h{number}")
        client.put_inventories(mine.uuid, 0, {"CUSTOM_X": ONE})
        client.put_allocations(ConsumerAllocations(new_uuid(), {mine.uuid: {"CUSTOM_X": 1}}, None, "p", "u"))
        try:
            claim = ConsumerAllocations(new_uuid(), {contended.uuid: {"CUSTOM_X": 1}}, None, "p", "u")
            client.put_allocations(claim)
            outcomes.append("won")
        except Exception as exc:
            outcomes.append(type(exc).__name__)

    threads = [threading.Thread(target=worker, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["PlacementConflict"] * 7 + ["won"]


def test_many_devices_asked_of_wide_hosts_are_found(service: EmbeddedPlacement) -> None:
    """Six of eight identical devices on each of two hosts: without its three options Placement computes for minutes."""
    client = service.client()
    client.ensure_resource_class("CUSTOM_X")
    for name in ("h1", "h2"):
        root = client.create_provider(new_uuid(), name)
        for number in range(8):
            child = client.create_provider(new_uuid(), f"{name}_{number}", root.uuid)
            client.put_inventories(child.uuid, 0, {"CUSTOM_X": ONE})
    groups = [(f"resources{number}", "CUSTOM_X:1") for number in range(6)]
    found = client.allocation_candidates([*groups, ("group_policy", "isolate")])
    assert len(found.candidates) == 100
    roots = {found.summaries[uuid].root for candidate in found.candidates for uuid in candidate.allocations}
    assert len(roots) == 2


def test_it_runs_in_threads_and_not_in_eventlet(service: EmbeddedPlacement) -> None:
    service.client().find_provider("h")
    assert sys.modules["eventlet"] is None


def test_it_is_quiet(service: EmbeddedPlacement, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    client = service.client()
    client.ensure_resource_class("CUSTOM_X")
    root = client.create_provider(new_uuid(), "h")
    generation = client.put_inventories(root.uuid, 0, {"CUSTOM_X": ONE})
    claim = ConsumerAllocations(new_uuid(), {root.uuid: {"CUSTOM_X": 1}}, None, "p", "u")
    client.put_allocations(claim)
    client.put_inventories(root.uuid, generation + 1, {"CUSTOM_X": Inventory(1, 1, 1, 1, 1, 1.0)})
    client.put_allocations(ConsumerAllocations(claim.consumer, claim.allocations, 1, "p", "u"))
    assert [record for record in caplog.records if record.levelno >= logging.INFO] == []


def test_faults_strike_the_real_one_too(service: EmbeddedPlacement) -> None:
    faults = Faults(service.app)
    faults.add(effects.lose_answer, method="POST", times=1)
    with pytest.raises(PlacementUnavailable):
        faults.client().create_provider(new_uuid(), "h")
    assert service.client().find_provider("h") is not None


# The front

ADMIN = Identity("alice", "ops", ("admin", "member", "reader"))
READER = Identity("bob", "tenant", ("reader",))


def authenticate(environ: Any) -> Identity | None:
    return {"Basic alice": ADMIN, "Basic bob": READER, "Basic eve": Identity("admin", "x", ())}.get(
        environ.get("HTTP_AUTHORIZATION", "")
    )


def call(app: Any, path: str = "/resource_providers", method: str = "GET", body: Any = None, **headers: str) -> Any:
    raw = b"" if body is None else json.dumps(body).encode()
    environ = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "/placement",
        "PATH_INFO": path,
        "QUERY_STRING": "",
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "CONTENT_TYPE": "application/json" if raw else "",
        "CONTENT_LENGTH": str(len(raw)),
        "wsgi.input": io.BytesIO(raw),
        "wsgi.errors": sys.stderr,
        "wsgi.url_scheme": "http",
        "HTTP_OPENSTACK_API_VERSION": "placement 1.39",
        **headers,
    }
    answered: list[Any] = []
    chunks = app(environ, lambda status, headers, exc_info=None: answered.extend((status, dict(headers))))
    text = b"".join(chunks)
    return int(answered[0].split()[0]), answered[1], json.loads(text) if text else None


NEW = {"method": "POST", "body": {"name": "h"}}
FORGED = {
    "HTTP_X_AUTH_TOKEN": "admin",
    "HTTP_X_ROLES": "admin,service",
    "HTTP_X_ROLE": "admin",
    "HTTP_X_USER_ID": "alice",
    "HTTP_X_USER": "alice",
    "HTTP_X_TENANT_ID": "ops",
    "HTTP_X_PROJECT_ID": "ops",
    "HTTP_X_IS_ADMIN_PROJECT": "True",
    "HTTP_X_IDENTITY_STATUS": "Confirmed",
    "HTTP_X_SERVICE_ROLES": "service",
    "HTTP_X_DOMAIN_ID": "default",
    "HTTP_OPENSTACK_SYSTEM_SCOPE": "all",
    "REMOTE_USER": "alice",
    "keystone.token_info": "{}",
}


def test_bare_the_embedded_placement_believes_anybody(service: EmbeddedPlacement) -> None:
    """Why there is a front."""
    status, _, _ = call(service.app, **NEW, HTTP_X_AUTH_TOKEN="mallory", HTTP_X_ROLES="admin")
    assert status == 200


def test_a_caller_that_proves_nothing_is_told_so_as_placement_would(service: EmbeddedPlacement) -> None:
    front = Front(service.app, authenticate)
    status, headers, document = call(front, **FORGED)
    assert (status, headers["WWW-Authenticate"]) == (401, 'Basic realm="Placement"')
    assert document["errors"][0]["status"] == 401
    assert "credentials" in document["errors"][0]["detail"]


def test_a_caller_has_the_roles_that_were_found_and_not_those_that_it_claims(service: EmbeddedPlacement) -> None:
    front = Front(service.app, authenticate)
    assert call(front, **NEW, **FORGED, HTTP_AUTHORIZATION="Basic bob")[0] == 403
    assert call(front, **NEW, HTTP_AUTHORIZATION="Basic alice")[0] == 200


def test_a_user_called_admin_is_not_an_administrator(service: EmbeddedPlacement) -> None:
    assert call(Front(service.app, authenticate), **NEW, HTTP_AUTHORIZATION="Basic eve")[0] == 403


def test_nothing_of_the_callers_identity_passes_the_front() -> None:
    seen: dict[str, Any] = {}

    def app(environ: Any, start_response: Any) -> list[bytes]:
        seen.update(environ)
        start_response("204 No Content", [])
        return []

    call(Front(app, authenticate), **FORGED, HTTP_AUTHORIZATION="Basic bob", HTTP_X_OPENSTACK_REQUEST_ID="req-1")
    assert seen["HTTP_X_AUTH_TOKEN"] == "bob:tenant"
    assert seen["HTTP_X_ROLES"] == "reader"
    assert not {"HTTP_AUTHORIZATION", *FORGED} - {"HTTP_X_AUTH_TOKEN", "HTTP_X_ROLES"} & seen.keys()
    assert seen["HTTP_OPENSTACK_API_VERSION"] == "placement 1.39"
    assert seen["HTTP_X_OPENSTACK_REQUEST_ID"] == "req-1"
    assert "wsgi.input" in seen


@pytest.mark.parametrize("path", ["", "/"])
def test_the_version_document_is_public(service: EmbeddedPlacement, path: str) -> None:
    status, _, document = call(Front(service.app, authenticate), path, **FORGED)
    assert status == 200
    assert document["versions"][0]["max_version"]


def test_a_user_id_that_noauth2_would_cut_in_two_is_an_error(service: EmbeddedPlacement) -> None:
    front = Front(service.app, lambda environ: Identity("alice:ops", "x", ("admin",)))
    with pytest.raises(ValueError, match="alice:ops"):
        call(front)


def test_links_lead_back_through_the_mount_point(service: EmbeddedPlacement) -> None:
    _, _, document = call(Front(service.app, authenticate), **NEW, HTTP_AUTHORIZATION="Basic alice")
    assert document["links"][0]["href"].startswith("/placement/resource_providers/")


CHUNKED: dict[str, Any] = {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True}


class _Broken(io.BytesIO):
    """A body whose chunks are none."""

    def read(self, size: int | None = -1, /) -> bytes:
        raise ValueError("b'zz' is no size of a chunk.")


ALICE = {"HTTP_AUTHORIZATION": "Basic alice"}


@pytest.mark.parametrize(
    ("headers", "status", "why"),
    [
        (CHUNKED | {"wsgi.input": _Broken()}, 400, "did not arrive as a whole"),
        ({"HTTP_TRANSFER_ENCODING": "chunked"}, 400, "takes no chunked bodies"),
        ({"CONTENT_LENGTH": "15"}, 400, "ended after 13 of 15 bytes"),
        ({"CONTENT_LENGTH": "-5"}, 400, "Content-Length"),
        ({"CONTENT_LENGTH": str((1 << 24) + 1)}, 413, "16777216 bytes"),
        (CHUNKED | {"wsgi.input": io.BytesIO(bytes((1 << 24) + 1))}, 413, "16777216 bytes"),
    ],
    ids=["broken chunk", "chunks not passed on", "cut off", "negative", "too long", "too long in chunks"],
)
def test_a_body_that_is_not_whole_is_its_senders_fault_and_none_is_kept_in_memory_without_end(
    service: EmbeddedPlacement, headers: dict[str, Any], status: int, why: str
) -> None:
    answer, _, document = call(Front(service.app, authenticate), **NEW, **ALICE, **headers)
    assert (answer, document["errors"][0]["status"]) == (status, status)
    assert why in document["errors"][0]["detail"]


@pytest.mark.parametrize("depth", [33, 300, 960, 100_000])
def test_deep_nesting_is_400_and_logs_nothing(
    service: EmbeddedPlacement, depth: int, caplog: pytest.LogCaptureFixture
) -> None:
    raw = b'{"a":' * depth + b"1" + b"}" * depth
    sent = {"wsgi.input": io.BytesIO(raw), "CONTENT_LENGTH": str(len(raw))}
    answer, _, document = call(Front(service.app, authenticate), **NEW, **ALICE | sent)
    assert answer == 400
    assert "nested more than 32 levels" in document["errors"][0]["detail"]
    assert caplog.records == []


def test_a_body_in_chunks_is_a_body(service: EmbeddedPlacement) -> None:
    chunked = CHUNKED | {"CONTENT_LENGTH": ""}
    status, _, document = call(Front(service.app, authenticate), **NEW, **ALICE, **chunked)
    assert (status, document["name"]) == (200, "h")
