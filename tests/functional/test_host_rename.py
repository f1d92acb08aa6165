"""A host gets another name, and everything that is known of its devices goes with it, wherever the command dies."""

import json
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import hostworld
import instanceworld
import pytest
import requests
import sqlalchemy as sa
from hostworld import GPU, HOST, NIC
from instanceworld import InstanceWorld
from strikes import Death, Strike, death
from test_up import running

from autoclave.agent.manager import HostLock
from autoclave.cli.main import main
from autoclave.db import agents, history, hosts, pci
from autoclave.db import devices as device_rows
from autoclave.db import instances as instance_rows
from autoclave.db.columns import metadata, utcnow
from autoclave.db.engine import Database, sqlite_url
from autoclave.exceptions import Conflict, InvalidConfiguration, NotFound
from autoclave.lifecycle.claims import burn
from autoclave.lifecycle.host_rename import Carried
from autoclave.lifecycle.transitions import Cause
from autoclave.rules.device_lifecycle import Actor
from autoclave.services.host_rename import HostSite, rename_host
from autoclave.services.service import Resources
from dbfixtures import make_device

pytestmark = pytest.mark.matrix

NEW = "rack-7.example.org"
OPERATOR = Cause(Actor.OPERATOR, "ann")


class Rename:
    """A host with a burned GPU, and the command that renames it."""

    def __init__(self, world: InstanceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self._monkeypatch = monkeypatch
        agent = world.start()
        world.delete(world.create(GPU))
        agent.period()
        assert (world.row().device.burn_confirmed, world.offered()) == (True, 0)
        world.end(agent)

    def call_it(self, name: str) -> None:
        """Everything in the world is about the host of that name from now on."""
        for module in (hostworld, instanceworld):
            self._monkeypatch.setattr(module, "HOST", name)

    def run(self, old: str = HOST, new: str = NEW, *, strike: Strike | None = None, **other: Any) -> Carried:
        world = self.world
        ports = strike.ports(cast(Any, world)) if strike else world.ports
        conf = world.configuration()
        directory, sysfs = Path(conf.agent.data_dir), Path(conf.agent.sysfs_root)
        site = HostSite(ports.db, ports.placement, directory, sysfs, None, timedelta(minutes=3), owns_root=True)
        resources = Resources()
        try:
            return rename_host(replace(site, **other), old, new, OPERATOR, resources)
        finally:
            resources.close()

    def start(self, name: str) -> None:
        """Let the agent start under that name, if it does, and look at the host twice."""
        self.call_it(name)
        try:
            self.world.start().period()
        finally:
            self.world.end_all()

    def anything_offered(self) -> bool:
        return any(self.offered(name) for name in (HOST, NEW))

    def offered(self, name: str) -> int:
        self.call_it(name)
        return self.world.offered(GPU)


@pytest.fixture
def rename(instance_world: InstanceWorld, monkeypatch: pytest.MonkeyPatch) -> Rename:
    return Rename(instance_world, monkeypatch)


def names_in(db: Database) -> set[str]:
    """Every host name in every table."""
    columns = [
        column
        for table in metadata.sorted_tables
        for column in table.c
        if column.name in ("hostname", "host", "new_hostname")
    ]
    with db.read() as tx:
        return {name for column in columns for name in tx.scalars(sa.select(column)) if name is not None}


def test_a_renamed_host_keeps_its_burned_device(rename: Rename) -> None:
    world = rename.world
    before = world.row()
    assert rename.run() == Carried(devices=0, pci_providers=3, instances=0)
    assert names_in(world.db) == {NEW}
    assert world.onlooker.find_provider(HOST) is None
    rename.start(NEW)
    after = world.row()
    assert (after.uuid, after.burned, after.device.burn_confirmed, after.device.burned_for) == (
        before.uuid,
        True,
        True,
        before.device.burned_for,
    )
    assert (world.offered(GPU), world.offered(NIC)) == (0, 1)
    assert world.provider().uuid == before.uuid
    with world.db.read() as tx:
        assert [each.event for each in history.history(tx, before.uuid)][-1] == "host_renamed"


def test_a_renamed_host_keeps_devices_instances_and_maintenance(rename: Rename) -> None:
    world = rename.world
    agent = world.start()
    instance = world.create(NIC)
    world.end(agent)
    with world.db.write() as tx:
        hosts.insert_maintenance(tx, HOST, "new cables", "ann")
        hosts.insert_maintenance(tx, NEW, "being installed", "ann")
        device = make_device(tx, hostname=HOST)
    assert rename.run() == Carried(devices=1, pci_providers=3, instances=1)
    with world.db.read() as tx:
        moved = device_rows.get(tx, device.uuid)
        assert moved is not None
        assert replace(moved, hostname=HOST, updated_at=device.updated_at) == device
        maintenance = hosts.get_maintenance(tx, NEW)
        assert maintenance is not None
        assert maintenance.reason == "new cables"
        found = instance_rows.get(tx, instance)
        assert found is not None
        assert found.host == NEW
        assert {each.hostname for each in pci.functions_of_instances(tx, [instance])} == {NEW}


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
def test_a_rename_that_dies_anywhere_offers_nothing_burned(rename: Rename, applied: bool) -> None:
    """At each write; after each death an agent of either name is tried, then the command is run again."""
    counted = death()
    rename.run(strike=counted)
    rename.run(NEW, HOST)
    for at in range(1, counted.calls + 1):
        with pytest.raises(Death):
            rename.run(strike=death(at, applied=applied))
        assert not rename.anything_offered()
        for name in (NEW, HOST):
            with suppress(InvalidConfiguration):
                rename.start(name)
            assert not rename.anything_offered(), f"offered after a death at write {at}"
        try:
            rename.run()
        except (NotFound, InvalidConfiguration):
            assert (at, applied) == (counted.calls, True), "it was complete"
        assert names_in(rename.world.db) == {NEW}
        rename.start(NEW)
        assert (rename.world.row().burned, rename.anything_offered()) == (True, False)
        rename.run(NEW, HOST)


def test_a_file_that_fails_is_named_and_the_command_completes(rename: Rename) -> None:
    tools = rename.world.tmp_path / "data/tools"
    (tools / HOST).mkdir(parents=True)
    (tools / HOST / "device.json").write_text("[]")
    (tools / NEW).write_text("in the way")
    with pytest.raises(Exception, match="journal of running tools"):
        rename.run()
    with pytest.raises(InvalidConfiguration, match=f"autoclave host rename {HOST} {NEW}"):
        rename.start(NEW)
    (tools / NEW).unlink()
    rename.run()
    assert (tools / NEW / "device.json").exists()
    rename.start(NEW)
    assert rename.world.offered(GPU) == 0


def test_a_living_agent_refuses_the_rename(rename: Rename) -> None:
    world = rename.world
    agent = world.start()
    with pytest.raises(InvalidConfiguration, match=f"another agent serves host {HOST}"):
        rename.run()
    world.end(agent)
    for name in (HOST, NEW):  # as they run on another machine
        with world.db.write() as tx:
            present = agents.AgentRecord(name, "elsewhere", "1.2", utcnow(), utcnow())
            agents.register(tx, present)
        with pytest.raises(Conflict, match=f"agent of host {name} was last seen"):
            rename.run()
        with world.db.write() as tx:
            agents.register(tx, replace(present, last_seen=utcnow() - timedelta(minutes=4)))
    rename.run()


def test_a_name_that_has_devices_is_refused(rename: Rename) -> None:
    with rename.world.db.write() as tx:
        make_device(tx, hostname=NEW)
    with pytest.raises(Conflict, match=f"{NEW} has devices"):
        rename.run()
    assert HOST in names_in(rename.world.db)


def test_a_root_with_providers_of_its_own_is_refused(rename: Rename) -> None:
    placement = rename.world.onlooker
    root = placement.create_provider("11111111-1111-4111-8111-111111111111", NEW)
    child = placement.create_provider("22222222-2222-4222-8222-222222222222", f"{NEW}_0000:01:00.0", root.uuid)
    with pytest.raises(Conflict, match="with providers or allocations of its own"):
        rename.run()
    placement.delete_provider(child.uuid)
    rename.run()
    rename.start(NEW)
    assert rename.world.offered(GPU) == 0


def test_a_root_of_nova_is_not_renamed(rename: Rename) -> None:
    with pytest.raises(Conflict, match="belongs to nova-compute"):
        rename.run(owns_root=False)
    root = rename.world.onlooker.find_provider(HOST)
    assert root is not None
    rename.world.onlooker.rename_provider(root.uuid, NEW)
    rename.run(owns_root=False)


def test_the_data_directory_of_another_host_is_refused(rename: Rename, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=f"is not the data directory of host {HOST}"):
        rename.run(directory=tmp_path / "controller")
    assert not (tmp_path / "controller").exists()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (HOST, "no host!", "not a host name"),
        (HOST, HOST, "current name of the host"),
        ("host-9", NEW, "not the data directory of"),
    ],
)
def test_names_that_cannot_be_are_refused(rename: Rename, old: str, new: str, words: str) -> None:
    with pytest.raises(InvalidConfiguration, match=words):
        rename.run(old, new)


@pytest.fixture
def burned(tmp_path: Path) -> Path:
    """The data directory of an ``autoclave up`` whose simulated host has a burned GPU; and its configuration."""
    config = tmp_path / "autoclave.conf"
    config.write_text('[pci]\ndevice_spec = {"vendor_id": "10de", "product_id": "25b6", "one_time_use": true}\n')
    with running(tmp_path / "data", 1, config):
        pass
    database = Database(sqlite_url(tmp_path / "data/autoclave.db"))
    with database.write() as tx:
        [row] = pci.providers(tx, "sim-1")
        burn(tx, row.device, None, Cause(Actor.AGENT, "sim-1"), utcnow())
    database.dispose()
    with running(tmp_path / "data", 1, config):
        pass
    return tmp_path / "data"


def test_a_simulated_host_is_renamed_by_the_command(burned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = burned.parent / "autoclave.conf"
    command = ["host", "rename", "sim-1", "gpu-rack", "--data-dir", str(burned)]
    with running(burned, 1, config):
        assert main(command) != 0
        assert "stop it, then rename the host" in capsys.readouterr().err
    assert main(["host", "rename", "sim-9", "gpu-rack", "--data-dir", str(burned)]) != 0
    assert "it has sim-1" in capsys.readouterr().err
    assert main(command) == 0
    assert "renamed to gpu-rack" in capsys.readouterr().out
    assert list(json.loads((burned / "hosts.json").read_bytes()).values()) == ["gpu-rack"]
    with running(burned, 1, config) as everything:
        main(["burned", "list", "--long", "-f", "json", "--url", everything.url])
        [row] = json.loads(capsys.readouterr().out)
        assert (row["hostname"], row["offered"]) == ("gpu-rack", False)
        main(["device", "list", "-f", "json", "--url", everything.url])
        drives = json.loads(capsys.readouterr().out)
        assert {each["hostname"] for each in drives} == {"gpu-rack"}
        listed = requests.get(f"{everything.url}/placement/resource_providers", timeout=30).json()
        expected = {"gpu-rack", *(f"gpu-rack_{each['pci_address'].upper()}" for each in [row, *drives])}
        assert {each["name"] for each in listed["resource_providers"]} == expected
    assert main(command) != 0
    assert "Traceback" not in capsys.readouterr().err


def test_the_lock_of_the_former_name_is_released(rename: Rename) -> None:
    rename.run()
    lock = HostLock(rename.world.tmp_path / "data", HOST)
    lock.take()
    lock.release()
