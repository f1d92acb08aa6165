"""From the operator's files to Placement, by an agent: what counts when, and what keeps the agent from starting."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hostworld import GPU, GPU_CLASS, HOST
from instanceworld import InstanceWorld

from autoclave.exceptions import InvalidConfiguration
from autoclave.placement.records import Inventory
from autoclave.testing.placement.faults import refuse

HEAD = "meta: {schema_version: '1.0'}\nproviders:\n"
GOLD = "- identification: {uuid: $COMPUTE_NODE}\n  traits: {additional: [CUSTOM_GOLD]}\n"

Write = Callable[..., None]


def licence(name: str = "CUSTOM_LICENCE") -> str:
    """An entry that adds an inventory of the class *name* to the graphics card."""
    return f"- identification: {{name: {HOST}_{GPU}}}\n  inventories: {{additional: {{{name}: {{total: 8}}}}}}\n"


@pytest.fixture
def write(instance_world: InstanceWorld, tmp_path: Path) -> Write:
    """Makes the files of the directory that the next agent reads."""
    directory = tmp_path / "provider_config"
    directory.mkdir(mode=0o755)
    instance_world.provider_config_location = str(directory)

    def write(**files: str) -> None:
        for name, entries in files.items():
            (directory / f"{name}.yaml").write_text(HEAD + entries)
            (directory / f"{name}.yaml").chmod(0o644)

    return write


def added(world: InstanceWorld) -> tuple[bool, bool]:
    """Whether the host has the trait, and its graphics card the inventory."""
    root = world.onlooker.find_provider(HOST)
    assert root is not None
    return "CUSTOM_GOLD" in world.onlooker.get_traits(root.uuid).names, "CUSTOM_LICENCE" in world.records()


def test_what_the_files_say_is_in_placement_once_the_agent_has_started(
    instance_world: InstanceWorld, write: Write
) -> None:
    write(a=GOLD, b=licence())
    instance_world.start()
    assert added(instance_world) == (True, True)
    assert instance_world.records()["CUSTOM_LICENCE"].total == 8


def test_files_that_change_count_from_the_next_start(instance_world: InstanceWorld, write: Write) -> None:
    write(a=GOLD, b=licence("CUSTOM_OTHER"))
    agent = instance_world.start()
    write(a="- identification: {uuid: $COMPUTE_NODE}\n", b=licence())
    agent.period()
    assert added(instance_world) == (True, False)
    instance_world.end(agent)
    instance_world.start()
    assert added(instance_world) == (False, True)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"a": GOLD, "b": "- identification: {name: n}\n  traits: 7\n"}, r"b\.yaml:4: providers\[0\]\.traits"),
        ({"a": GOLD, "b": GOLD}, r"b\.yaml:3: .*has an entry already, at .*a\.yaml:3"),
        ({"a": GOLD, "b": licence("VCPU")}, r"b\.yaml:4: .*'VCPU' is no custom name"),
    ],
    ids=["schema", "twice", "standard class"],
)
def test_a_fault_in_any_file_keeps_the_agent_from_starting_and_nothing_is_added(
    instance_world: InstanceWorld, write: Write, files: dict[str, str], told: str
) -> None:
    write(**files)
    with pytest.raises(InvalidConfiguration, match=told):
        instance_world.start()
    assert instance_world.onlooker.find_provider(HOST) is None


def test_an_inventory_of_a_class_that_the_agent_writes_keeps_it_from_starting(
    instance_world: InstanceWorld, write: Write
) -> None:
    write(a=GOLD, b=licence(GPU_CLASS))
    with pytest.raises(InvalidConfiguration, match=rf"b\.yaml:4: .*{GPU_CLASS}"):
        instance_world.start()
    assert instance_world.records()[GPU_CLASS].total == 1
    assert added(instance_world) == (False, False)


@pytest.mark.parametrize("asked", ["in_tree", "/inventories$"], ids=["the tree", "an inventory"])
def test_a_start_conflict_after_a_placement_error_ends_the_agent(
    instance_world: InstanceWorld, write: Write, caplog: pytest.LogCaptureFixture, asked: str
) -> None:
    write(a=GOLD, b=licence(GPU_CLASS))
    instance_world.faults.add(refuse, "GET", asked)
    agent = instance_world.start()
    agent.period()
    assert not instance_world.ended.is_set()
    instance_world.faults.clear()
    agent.period()
    assert instance_world.ended.is_set()
    assert f"Agent {HOST} stops: its configuration cannot be followed: [compute]" in caplog.text
    assert added(instance_world) == (False, False)


def test_a_conflict_that_comes_after_the_start_ends_no_agent(
    instance_world: InstanceWorld, write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    write(a=licence())
    instance_world.specs = ()
    agent = instance_world.start()
    onlooker = instance_world.onlooker
    root = onlooker.find_provider(HOST)
    assert root is not None
    made = onlooker.create_provider("11111111-1111-4111-8111-111111111111", f"{HOST}_{GPU}", root.uuid)
    onlooker.ensure_resource_class("CUSTOM_LICENCE")
    onlooker.put_inventories(made.uuid, made.generation, {"CUSTOM_LICENCE": Inventory(2, 0, 1, 2, 1, 1.0)})
    agent.period()
    assert "the entry is not followed in that" in caplog.text
    assert not instance_world.ended.is_set()
