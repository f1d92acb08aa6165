"""``GET /autoclave/v1/explain`` and ``autoclave explain``, with a conductor, over a real socket."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from cheroot import wsgi
from computeworld import ComputeWorld
from documented import Documented

from autoclave.api.app import create_app
from autoclave.cli.main import main
from autoclave.conductor.manager import ConductorManager
from autoclave.conf import new_config
from autoclave.rpc import conductor_api
from autoclave.rpc.port import CONDUCTOR_TOPIC
from autoclave.testing.placement import FakePlacement
from autoclave.testing.placement.faults import refuse
from computerows import make_flavor, make_image, make_instance


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ComputeWorld]:
    """Two hosts, one of them trusted; a flavor with a GPU, and an image for trusted hosts."""
    made = ComputeWorld(tmp_path, FakePlacement())
    made.add_host("host-1", gpus=1)
    made.add_host("host-2", gpus=1, traits=["CUSTOM_TRUSTED"])
    with made.db.write() as tx:
        make_flavor(tx, name="gpu-large", extra_specs={"pci_passthrough:alias": "gpu"})
        make_image(tx, name="debian", properties={"trait:CUSTOM_TRUSTED": "required", "trait:CUSTOM_X": "yes"})
    made.server = made.transport.serve(CONDUCTOR_TOPIC, "any", made.conductor(), conductor_api.VERSION)
    made.server.start()
    yield made
    made.close()


@pytest.fixture
def url(world: ComputeWorld) -> Iterator[str]:
    conf = new_config([], {("api", "auth_strategy"): "noauth"})
    app = Documented(create_app(conf, world.ports, world.transport), conf)
    server = wsgi.Server(("127.0.0.1", 0), app, numthreads=2)
    server.prepare()
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield f"http://127.0.0.1:{server.bind_addr[1]}"
    server.stop()
    thread.join()
    assert app.faults == []


def ask(url: str, **query: str) -> requests.Response:
    return requests.get(f"{url}/autoclave/v1/explain", params=query, headers={"X-Auth-Token": "admin"}, timeout=30)


def said(answer: requests.Response) -> str:
    return str(json.loads(answer.json()["error_message"])["faultstring"])


def test_the_explanation_is_what_its_document_says(url: str) -> None:
    answer = ask(url, flavor="gpu-large", image="debian")
    assert answer.status_code == 200
    found = answer.json()
    assert [(host["name"], host["candidates"]) for host in found["hosts"]] == [("host-1", 0), ("host-2", 1)]
    assert "CUSTOM_TRUSTED" in found["hosts"][0]["why_not"][0]
    assert list(found["ignored_properties"]) == ["trait:CUSTOM_X"]


@pytest.mark.parametrize(
    ("query", "status", "about"),
    [
        ({"flavor": "gpu-large"}, 400, '"image" is missing'),
        ({"image": "debian"}, 400, '"flavor" is missing'),
        ({"flavor": "none", "image": "debian"}, 404, "flavor 'none'"),
        ({"flavor": "gpu-large", "image": "none"}, 404, "image 'none'"),
        ({"flavor": "gpu-large", "image": "debian", "host": "x"}, 404, "host 'x'"),
        ({"flavor": "gpu-large", "image": "debian", "zone": "x"}, 400, '"zone"'),
        ({"flavor": "\0", "image": "debian"}, 400, "flavor"),
    ],
)
def test_what_cannot_be_explained_is_told(url: str, query: dict[str, str], status: int, about: str) -> None:
    answer = ask(url, **query)
    assert answer.status_code == status
    assert about in said(answer)


def test_a_contradiction_is_the_explanation(world: ComputeWorld, url: str) -> None:
    with world.db.write() as tx:
        make_flavor(tx, name="open", extra_specs={"trait:CUSTOM_TRUSTED": "forbidden"})
    answer = ask(url, flavor="open", image="debian")
    assert answer.status_code == 400
    assert "forbids what the image requires: CUSTOM_TRUSTED" in said(answer)


def test_a_placement_that_is_away_is_not_taken_for_a_cloud_without_hosts(world: ComputeWorld, url: str) -> None:
    world.faults.add(refuse)
    assert ask(url, flavor="gpu-large", image="debian").status_code == 503


def test_conductors_that_have_nothing_to_do_with_instances_say_so(world: ComputeWorld, url: str) -> None:
    world.server.stop()
    other = ConductorManager(world.ports, "conductor-2", 240)
    world.transport.serve(CONDUCTOR_TOPIC, "any", other, conductor_api.VERSION).start()
    answer = ask(url, flavor="gpu-large", image="debian")
    assert answer.status_code == 409
    assert "[compute] is not enabled" in said(answer)


def explain(url: str, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["explain", *words, "--url", url]) == 0
    return capsys.readouterr().out


def test_the_command_tells_programs_everything(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, Any] = json.loads(explain(url, capsys, "gpu-large", "debian", "-f", "json"))
    assert found == ask(url, flavor="gpu-large", image="debian").json()


def test_the_command_can_be_asked_about_one_host(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(explain(url, capsys, "gpu-large", "debian", "--host", "host-1", "-f", "json"))
    assert [host["name"] for host in found["hosts"]] == ["host-1"]
    assert found["candidates"] == []


def test_the_command_tells_people_of_each_host_why_not(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = explain(url, capsys, "gpu-large", "debian")
    assert "the host itself: 1 VCPU, 512 MEMORY_MB, 1 DISK_GB with CUSTOM_TRUSTED" in told
    assert "pci0 (PCI alias gpu): 1 CUSTOM_GPU with COMPUTE_MANAGED_PCI_DEVICE, OWNER_NOVA" in told
    assert "host-1: no " in told
    assert "  The host itself: no provider with free" in told
    assert "host-2: yes, in 1 way" in told
    assert "trait:CUSTOM_X: it is 'yes'" in told


@pytest.mark.parametrize(
    ("flavor", "image"),
    [("small", "debian 12"), ("it's $HOME; small", "`12`"), ("-small", "--debian"), ("other-id", "twice"), ("new", "")],
)
def test_the_fault_of_a_server_without_a_host_says_the_command_that_explains_it(
    world: ComputeWorld, url: str, flavor: str, image: str
) -> None:
    specs = {"resources:VCPU": "1000"}
    with world.db.write() as tx:
        make_flavor(tx, flavorid="other-id", name="other")
        make_image(tx, name="twice")
        asked = make_flavor(tx, flavorid="asked", name=flavor, extra_specs=specs)
        picture = make_image(tx, name=image or None)
        instance = make_instance(
            tx,
            flavor=asked.snapshot,
            image_uuid=picture.uuid,
            image=picture.snapshot,
            requested_host="host-2",
        )
    told = world.build(instance)
    assert told.fault_message == "No valid host was found. Host host-2 does not satisfy flavor and image."
    command = (told.fault_details or "").partition(" lacks, run: ")[2]
    done = subprocess.run(
        ["bash", "-c", f"autoclave explain -f json {command.removeprefix('autoclave explain ')}"],
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "AUTOCLAVE_URL": url},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    explained = json.loads(done.stdout)
    assert (explained["flavor"], explained["image"]) == (flavor, image or picture.uuid)
    [host] = explained["hosts"]
    assert host["name"] == "host-2"
    assert "1000 of VCPU" in host["why_not"][0]
    assert (flavor in command, bool(image) and image in command) == (
        flavor in ("small", "-small", "new"),
        image in ("debian 12", "`12`", "--debian"),
    )
