"""What listeners hear of instances, so that whoever cleans devices learns which, by events alone where he can."""

from typing import Any

from hostworld import GPU, HOST, NIC
from instanceworld import OTHER, InstanceWorld

from autoclave.rules.instance_states import TaskState
from autoclave.simulator.faults import Fault, FaultKind


def last(world: InstanceWorld) -> dict[str, Any]:
    """The payload of the last notification."""
    return dict(world.notifications.kept[-1].payload["nova_object.data"])


def devices(world: InstanceWorld) -> list[tuple[str, bool]]:
    """The devices that the last notification names, and whether each is burned."""
    data = [each["nova_object.data"] for each in last(world)["pci_devices"]]
    return [(each["address"], each["burned"]) for each in data]


def test_a_build_that_failed_names_the_device_that_stays_burned(instance_world: InstanceWorld) -> None:
    world = instance_world
    world.start()
    world.sim.set_fault("*", Fault(FaultKind.SPAWN_FAILS))
    world.create(GPU)
    told = world.notifications.kept[-1]
    assert (told.event_type, told.error, told.publisher) == ("instance.create.error", True, f"autoclave-agent:{HOST}")
    assert devices(world) == [(GPU, True)]
    assert (last(world)["host"], last(world)["state"]) == (HOST, "error")
    assert last(world)["fault"]["nova_object.data"]["exception_message"]


def test_a_build_that_failed_names_no_device_that_was_given_back(instance_world: InstanceWorld) -> None:
    world = instance_world
    world.start()
    world.sim.set_fault("*", Fault(FaultKind.SPAWN_FAILS))
    world.create(NIC)
    assert (world.told()[-1], devices(world)) == ("instance.create.error", [])


def test_a_build_cut_short_names_the_device_that_its_guest_may_have_touched(instance_world: InstanceWorld) -> None:
    world = instance_world
    agent = world.start()
    instance = world.create(GPU)
    world.mark(instance, TaskState.SPAWNING)
    agent.period()
    assert (world.told()[-1], devices(world)) == ("instance.create.error", [(GPU, True)])


def test_a_flavor_is_told_in_the_words_of_novas_notifications(instance_world: InstanceWorld) -> None:
    world = instance_world
    world.start()
    world.create(GPU)
    sizes = {"vcpus": 2, "memory_mb": 512, "root_gb": 1, "ephemeral_gb": 0, "swap": 0}
    told = last(world)["flavor"]["nova_object.data"]
    assert told == {"flavorid": "1", "name": "m1", **sizes, "extra_specs": {}}


def test_power_and_rebuild_are_told_when_they_begin_and_end(instance_world: InstanceWorld) -> None:
    world = instance_world
    world.start()
    instance = world.create(GPU)
    world.power("stop_instance", TaskState.POWERING_OFF, instance)
    world.power("start_instance", TaskState.POWERING_ON, instance)
    world.rebuild(instance)
    assert [event.removeprefix("instance.") for event in world.told()[2:]] == [
        "power_off.start",
        "power_off.end",
        "power_on.start",
        "power_on.end",
        "rebuild.start",
        "rebuild.end",
    ]
    assert (devices(world), last(world)["image_uuid"]) == ([(GPU, True)], OTHER["image_uuid"])


def test_a_deleted_instance_is_told_as_one_with_the_device_that_it_had(instance_world: InstanceWorld) -> None:
    world = instance_world
    world.start()
    world.delete(world.create(GPU))
    before, after = (each.payload["nova_object.data"] for each in world.notifications.kept[-2:])
    assert (before["state"], before["task_state"], before["deleted_at"]) == ("active", "deleting", None)
    assert (after["state"], after["task_state"]) == ("deleted", None)
    assert after["deleted_at"].endswith("Z")
    assert devices(world) == [(GPU, True)]
