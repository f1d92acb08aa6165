"""A host that gets another name: its data directory remembers the one that its devices are on record under."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import agentworld
import pytest
from agentworld import HOST, AgentWorld

from autoclave.agent.manager import AgentManager
from autoclave.db import agents
from autoclave.db.columns import utcnow
from autoclave.exceptions import InvalidConfiguration
from autoclave.services.up import AllInOne
from autoclave.services.workers import AgentService
from freeport import free_port

OTHER = "host-1.example.org"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[AgentWorld]:
    """A host without devices."""
    made = AgentWorld(tmp_path, [])
    yield made
    made.close()


@pytest.fixture
def data(world: AgentWorld) -> Path:
    return world.tmp_path / "data"


def under(world: AgentWorld, name: str, monkeypatch: pytest.MonkeyPatch) -> AgentManager:
    """An agent of the same machine and data directory, whose name is *name*."""
    world.end_all()
    monkeypatch.setattr(agentworld, "HOST", name)
    return world.build()


def test_another_name_on_the_data_directory_is_refused(world: AgentWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.start()
    for _ in range(2):  # a refusal changes nothing
        with pytest.raises(InvalidConfiguration) as refused:
            under(world, OTHER, monkeypatch).init_host()
        for words in (f"for host {HOST},", f"as host {OTHER}", "[agent] data_dir", "[agent] resource_provider_name"):
            assert words in str(refused.value)
    under(world, HOST, monkeypatch).init_host()


def test_the_service_refuses_before_it_looks_at_a_device(world: AgentWorld) -> None:
    world.end(world.start())
    world.overrides["agent", "resource_provider_name"] = OTHER
    service = AgentService(world.configuration(), world.ports, world.transport)
    with pytest.raises(InvalidConfiguration, match=OTHER):
        service.start()
    service.stop()
    assert world.onlooker.find_provider(OTHER) is None


def test_an_earlier_data_directory_is_recorded_at_its_start(
    world: AgentWorld, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.start()
    (data / "hosts.json").unlink()
    with pytest.raises(InvalidConfiguration, match=f"for host {HOST},"):
        under(world, OTHER, monkeypatch).init_host()
    under(world, HOST, monkeypatch).init_host()
    assert list(json.loads((data / "hosts.json").read_bytes()).values()) == [HOST]


def test_a_start_that_is_refused_leaves_no_name(world: AgentWorld, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world.start()
    world.overrides["agent", "data_dir"] = str(data.with_name("other"))
    with pytest.raises(InvalidConfiguration, match="another agent serves"):
        world.build().init_host()
    under(world, OTHER, monkeypatch).init_host()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"/sys": 1}'])
def test_a_damaged_record_is_named(world: AgentWorld, data: Path, text: str) -> None:
    world.end(world.start())
    (data / "hosts.json").write_text(text)
    with pytest.raises(InvalidConfiguration, match=r"hosts\.json.*cannot be used"):
        world.start()


# A data directory that is lost


@pytest.fixture
def known_machine(world: AgentWorld) -> AgentWorld:
    """A machine that says which it is, whose agent has run, and whose data directory is another from now on."""
    world.overrides["agent", "periodic_interval"] = 0.1
    identify(world, "0f" * 16, "4C4C4544-0031-4810-8051-B4C04F564433")
    world.end(world.start())
    world.overrides["agent", "data_dir"] = str(world.tmp_path / "other")
    return world


def identify(world: AgentWorld, machine_id: str, product_uuid: str) -> None:
    for path, text in ((world.sim.paths.etc / "machine-id", machine_id), (dmi(world), product_uuid)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def dmi(world: AgentWorld) -> Path:
    return world.sim.paths.sysfs / "class/dmi/id/product_uuid"


def test_a_machine_of_another_name_is_recognized(known_machine: AgentWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its former agent was seen a moment ago: the start waits until that counts as dead."""
    for _ in range(2):
        with pytest.raises(InvalidConfiguration, match=f"autoclave host rename {HOST} {OTHER}"):
            under(known_machine, OTHER, monkeypatch).init_host()
    under(known_machine, HOST, monkeypatch).init_host()


def test_a_clone_of_a_living_machine_starts(
    known_machine: AgentWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = known_machine

    def living() -> datetime:
        """The agent of the other machine says that it is alive at the first looks at the clock."""
        now = began + timedelta(milliseconds=len(seen))
        seen.append(now)
        if len(seen) <= 4:
            with world.db.write() as tx:
                present = agents.get(tx, HOST)
                assert present is not None
                assert agents.touch(tx, HOST, present.run_id, now)
        return now

    began = utcnow()
    seen: list[datetime] = []
    world.end_all()
    monkeypatch.setattr(agentworld, "HOST", OTHER)
    world.build(replace(world.ports, clock=living)).init_host()
    assert "Waiting until it is seen again" in caplog.text
    with world.db.read() as tx:
        found = agents.get(tx, OTHER)
    assert found is not None
    assert (found.machine_id, found.product_uuid) == ("0f" * 16, "4c4c4544003148108051b4c04f564433")


@pytest.mark.parametrize("text", ["", "00000000-0000-0000-0000-000000000000", "4c4c4544-0031-4810-8051-b4c04f564499"])
def test_one_hint_alone_stops_no_agent(known_machine: AgentWorld, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    identify(known_machine, "0f" * 16, text)
    under(known_machine, OTHER, monkeypatch).init_host()


def test_a_hint_that_is_no_longer_read_is_kept(known_machine: AgentWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    dmi(known_machine).unlink()
    known_machine.overrides["agent", "data_dir"] = str(known_machine.tmp_path / "data")
    under(known_machine, HOST, monkeypatch).init_host()
    with known_machine.db.read() as tx:
        found = agents.get(tx, HOST)
    assert found is not None
    assert found.product_uuid == "4c4c4544003148108051b4c04f564433"


def test_simulated_hosts_share_a_data_directory(tmp_path: Path) -> None:
    """Each is a machine of its own; a further one is new, and not another name of the first."""
    for number in (1, 2):
        everything = AllInOne([], tmp_path / "data", ("127.0.0.1", free_port()), number)
        try:
            everything.start()
        finally:
            everything.stop()
    names = json.loads((tmp_path / "data/hosts.json").read_bytes())
    assert sorted(names.values()) == ["sim-1", "sim-2"]
