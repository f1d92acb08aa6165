"""A host that gets another name: its data directory remembers the one that its devices are on record under."""

import json
from collections.abc import Iterator
from pathlib import Path

import agentworld
import pytest
from agentworld import HOST, AgentWorld

from autoclave.agent.manager import AgentManager
from autoclave.exceptions import InvalidConfiguration
from autoclave.services.agent import AgentService
from autoclave.services.up import AllInOne
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
