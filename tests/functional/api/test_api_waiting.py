"""While Placement is slow, the API is read: what waits for Placement or a conductor has bounded places."""

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from api_world import World, new_uuid

from autoclave.services.api import APIService, Listener
from autoclave.testing.placement.faults import before

PLACES = 2
DEVICES = "/v2/devices"
ARQS = "/v2/accelerator_requests"


class Gate:
    """Stops every request at Placement until it is opened."""

    def __init__(self) -> None:
        self.arrived: queue.Queue[None] = queue.Queue()
        self.opened = threading.Event()

    def pass_through(self) -> None:
        self.arrived.put(None)
        self.opened.wait()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    options = {("api", "max_waiting_requests"): PLACES, ("api", "threads"): 1, ("api", "port"): 0}
    made = World(tmp_path, {**options, ("api", "host_ip"): "127.0.0.1"})
    yield made
    made.close()


@pytest.fixture
def url(world: World) -> Iterator[str]:
    """The service as it is run, with one thread of its own."""
    listener = Listener(world.conf)
    listener.open()
    service = APIService(listener, world.app)
    service.start()
    yield listener.url
    service.stop()


@pytest.fixture
def gate(world: World) -> Iterator[Gate]:
    made = Gate()
    yield made
    made.opened.set()


@pytest.fixture
def callers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


def test_reads_are_answered_while_binds_wait_for_placement(
    world: World, url: str, gate: Gate, callers: ThreadPoolExecutor
) -> None:
    world.add_profile()
    drives = [world.add_device(f"0000:0{number}:00.0") for number in range(1, PLACES + 2)]
    bodies = [{world.add_arq(): world.add_ops(drive, new_uuid())} for drive in drives]
    world.placement.add(before(gate.pass_through))
    binds = [callers.submit(requests.patch, url + ARQS, json=body) for body in bodies[:PLACES]]
    for _ in binds:
        gate.arrived.get()
    try:
        refused = requests.patch(url + ARQS, json=bodies[PLACES])
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
        assert "Too many requests wait" in refused.text
        listed = requests.get(url + DEVICES, params={"hostname": drives[0].hostname})
        assert (listed.status_code, len(listed.json()["devices"])) == (200, len(drives))
        assert requests.get(url + "/healthcheck").status_code == 200
        assert requests.post(url + ARQS, json={"device_profile_name": "one-drive"}).status_code == 201
    finally:
        gate.opened.set()
    assert [bind.result().status_code for bind in binds] == [202] * PLACES
    assert requests.patch(url + ARQS, json=bodies[PLACES]).status_code == 202


WAITING = [
    ("POST", "/v2/devices/{uuid}/disable", {}),
    ("POST", "/v2/devices/{uuid}/clean", {}),
    ("POST", "/autoclave/v1/devices/{uuid}/hold", {"reason": "r"}),
    ("POST", "/autoclave/v1/hosts/compute-1/maintenance", {"reason": "r"}),
    ("GET", "/autoclave/v1/burned", None),
    ("GET", "/autoclave/v1/explain?flavor=f&image=i", None),
    ("DELETE", "/v2/accelerator_requests?arqs={uuid}", None),
    ("POST", "/compute/v2.1/servers/{uuid}/action", {"os-stop": None}),
    ("GET", "/placement/resource_providers", None),
]


@pytest.mark.parametrize(("method", "path", "body"), WAITING, ids=[path for _, path, _ in WAITING])
def test_every_wait_needs_a_place(tmp_path: Path, method: str, path: str, body: object) -> None:
    """The mount stands for the embedded Placement, whose requests are served one after the other."""
    gate = Gate()

    def slow(_environ: object, start: object) -> list[bytes]:
        gate.pass_through()
        assert callable(start)
        start("200 OK", [("Content-Type", "text/plain")])
        return [b"done"]

    overrides = {("api", "max_waiting_requests"): 1}
    world = World(tmp_path, overrides, mounts={"/placement": slow})
    device = world.add_device()
    with ThreadPoolExecutor(1) as caller:
        waiting = caller.submit(world.http.simulate_get, "/placement/slow")
        gate.arrived.get()
        try:
            headers = {"OpenStack-API-Version": "accelerator latest, compute latest"}
            target, _, query = path.replace("{uuid}", device.uuid).partition("?")
            refused = world.http.simulate_request(method, target, query_string=query, json=body, headers=headers)
        finally:
            gate.opened.set()
        assert waiting.result().status_code == 200
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
    world.close()
