"""Instances by services that are processes: RabbitMQ between them, PostgreSQL or MariaDB and Placement behind them.

However a build is cut short: it ends, what a guest may have touched is offered to nobody, and nothing is left behind.
"""

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
from instance_site import AGENTS, CONDUCTORS, DRIVE, DRIVE_CLASS, GPU_CLASS, GPUS, Site, site_of
from processes import COMMAND, PATIENCE

from dbfixtures import SERVERS, server_database

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module", params=SERVERS)
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, rabbitmq_vhost_url: str
) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp(request.param)
    with server_database(request.param) as database, site_of(directory, database, rabbitmq_vhost_url) as made:
        yield made


@pytest.fixture
def site(opened: Site) -> Iterator[Site]:
    yield opened
    opened.nothing_is_left()


def events_of(site: Site, server: str, last: str) -> list[str]:
    """What is told of a server, until *last*."""
    told = []
    while not told or told[-1] != last:
        _, event, payload = site.listener.heard.get(timeout=PATIENCE)
        assert payload["nova_object.name"] == "InstanceActionPayload"
        if payload["nova_object.data"]["uuid"] == server:
            told.append(event)
    return told


def run(site: Site, *words: str) -> str:
    done = subprocess.run([COMMAND, *words, "--url", site.url], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_server_gets_a_drive_and_a_card_is_rebuilt_and_gives_back_what_is_clean(site: Site) -> None:
    cloud = site.openstack()
    server = cloud.compute.create_server(
        name="vm 😀", flavor_id=site.flavors["both"], image_id=site.images["first"], networks="none"
    )
    server = cloud.compute.wait_for_server(server, wait=60)
    assert [(one.id, one.name, one.status) for one in cloud.compute.servers(all_projects=True)] == [
        (server.id, "vm 😀", "ACTIVE")
    ]
    has = site.server(server.id)["autoclave:hostdevs"]
    assert [one["address"] for one in has] == [DRIVE, has[1]["address"]]
    assert has[1]["address"] in GPUS
    assert site.guests() == {server.id}
    assert (site.offered(GPU_CLASS), site.offered(DRIVE_CLASS)) == (3, 1)

    server = cloud.compute.rebuild_server(server, image=site.images["second"])
    cloud.compute.wait_for_server(server, wait=60)
    rebuilt = site.server(server.id)
    assert (rebuilt["image"]["id"], rebuilt["autoclave:hostdevs"]) == (site.images["second"], has)

    cloud.compute.delete_server(server, ignore_missing=False)
    cloud.compute.wait_for_delete(server, wait=60)
    assert site.holders() == set()
    assert site.offered(GPU_CLASS) == 3, "the card is burned"
    [burned] = json.loads(run(site, "burned", "list", "--long", "-f", "json"))
    assert (burned["burned_for"], burned["in_use"]) == (server.id, False)
    assert "offered again" in run(site, "burned", "release", burned["rp_uuid"], "--burned-for", server.id)
    assert site.offered(GPU_CLASS) == 4
    acts = ("create", "rebuild", "delete")
    told = events_of(site, server.id, "instance.delete.end")
    assert told == [f"instance.{act}.{moment}" for act in acts for moment in ("start", "end")]


def test_of_eight_who_want_one_of_four_cards_at_once_four_get_one(site: Site) -> None:
    with ThreadPoolExecutor(8) as pool:
        servers = list(pool.map(lambda number: site.create(f"vm{number}", "gpu"), range(8)))
    ended = [site.wait_until_decided(each) for each in servers]
    served = {one["id"] for one in ended if one["status"] == "ACTIVE"}
    refused = [one for one in ended if one["status"] == "ERROR"]
    assert (len(served), len(refused)) == (4, 4), site.log
    assert all(one["fault"]["message"].startswith("No valid host was found") for one in refused)
    assert site.holders() == served == site.guests()
    assert {each["burned_for"] for each in site.burned()} == served
    cards = [(one["OS-EXT-SRV-ATTR:host"], each["address"]) for one in ended for each in one["autoclave:hostdevs"]]
    assert len(set(cards)) == len(cards) == 4


@pytest.mark.parametrize("resource_class", [None, DRIVE_CLASS], ids=["claim", "bind"])
def test_what_a_killed_conductor_has_claimed_and_bound_is_given_back_by_another(
    site: Site, resource_class: str | None
) -> None:
    written = "/allocations/" if resource_class is None else site.inventories_of(resource_class)
    with site.gate.holding("PUT", written) as held:
        server = site.create("vm", "both")
        held.wait()
        site.kill(*CONDUCTORS)
    assert site.holders() == {server}
    site.start(*CONDUCTORS)
    ended = site.wait_until_decided(server)
    assert (ended["status"], ended["OS-EXT-SRV-ATTR:host"]) == ("ERROR", None)
    assert "Its build was abandoned" in ended["fault"]["message"]
    site.wait_until("its claim is given back", lambda: site.holders() == set())
    assert site.burned() == [], "no guest has touched a card"


def test_a_card_that_was_claimed_when_its_agent_was_killed_is_offered_to_nobody(site: Site) -> None:
    with site.gate.holding("PUT", site.inventories_of(GPU_CLASS)) as burn:
        server = site.create("vm", "both")
        burn.wait()
        site.kill(*AGENTS)
    assert site.guests() == set(), "this was before its guest"
    [card] = site.burned()
    assert (card["instance_uuid"], site.offered(GPU_CLASS)) == (server, 3)
    site.start(*AGENTS)
    ended = site.wait_until_decided(server)
    assert ended["status"] == "ERROR"
    assert ended["fault"]["message"].startswith("The build of the instance was cut short on its host.")
    assert {one["address"] for one in ended["autoclave:hostdevs"]} == {DRIVE, card["pci_address"]}
    assert (site.offered(GPU_CLASS), site.offered(DRIVE_CLASS)) == (3, 1)
    site.delete(server)
    assert site.offered(GPU_CLASS) == 3
    [burned] = site.burned()
    assert (burned["burned_for"], burned["in_use"]) == (server, False)


@pytest.mark.parametrize(
    "moment",
    ["claim", "burn"],
    ids=["in-the-conductor", "in-the-agent"],
)
def test_a_build_survives_that_all_connections_to_the_broker_are_cut(
    site: Site, rabbitmq_vhost_url: str, moment: str
) -> None:
    written = {"claim": "/allocations/", "burn": site.inventories_of(GPU_CLASS)}[moment]
    with site.gate.holding("PUT", written) as held:
        server = site.create("vm", "both")
        held.wait()
        cut_all_connections(rabbitmq_vhost_url)
    ended = site.wait_until_decided(server)
    assert ended["status"] == "ACTIVE", site.log
    assert site.guests() == site.holders() == {server}
    site.delete(server)
    assert site.offered(GPU_CLASS) == 3


def cut_all_connections(broker: str) -> None:
    """The broker ends every connection of its virtual host."""
    vhost = urlsplit(broker).path.lstrip("/")
    if not vhost:
        pytest.skip("this account may not manage the broker")
    command = ["rabbitmqctl", "-q", "close_all_connections", "--vhost", vhost, "as arranged"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
