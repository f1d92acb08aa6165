"""Guests with disks: an image that cannot be used burns nothing, and ends no guest that runs."""

import contextlib
import itertools
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hostworld import GPU
from instanceworld import InstanceWorld
from moments import Death, Moments, fail, ports_of

from autoclave.agent.manager import AgentManager
from autoclave.db import images, instances
from autoclave.exceptions import DatabaseUnavailable
from autoclave.rules.instance_states import PowerState, TaskState, VMState
from autoclave.simulator.faults import Fault, FaultKind
from autoclave.virt.disks import InstanceFiles
from autoclave.virt.driver import load_compute_driver
from computerows import make_image
from dbfixtures import make_arq

pytestmark = pytest.mark.thorough

OLD, NEW = str(uuid.UUID(int=7)), str(uuid.UUID(int=8))
"""Images; the first is what :meth:`InstanceWorld.ask` asks for."""


class DiskWorld(InstanceWorld):
    """Its guests only exist on paper, and have disks like those of a hypervisor that runs them."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path)
        self.images = tmp_path / "data" / "images"
        self.images.mkdir(parents=True)
        self.files = InstanceFiles(tmp_path / "data")
        self.virt_driver = "null"

    def configuration(self) -> Any:
        conf = super().configuration()
        conf.set_override("virt_driver", self.virt_driver, "compute")
        return conf

    def start(self, **how: Any) -> AgentManager:
        driver = load_compute_driver(self.configuration())
        self.virt_driver = "libvirt"
        return super().start(driver=driver, **how)

    def add_image(self, image_uuid: str, data: bytes | None) -> None:
        """An image; None: its file is not on the host."""
        with self.db.write() as tx:
            make_image(tx, uuid=image_uuid)
        if data is not None:
            (self.images / image_uuid).write_bytes(data)

    def create_with_images(self) -> str:
        """An instance of the old image, on a host that has the new one as well."""
        self.add_image(OLD, b"old")
        self.add_image(NEW, b"new")
        self.start()
        return self.create(GPU)

    def rebuild_from(self, instance: str, image_uuid: str = NEW, **properties: str) -> None:
        """As a conductor hands it over; *properties* are the image's."""
        wanted = {"image_uuid": image_uuid, "image": {"name": "new", "properties": properties}, "checked": True}
        self.rebuild(instance, wanted)

    def first_bytes(self, instance: str) -> bytes:
        """Of its disk."""
        with self.files.disk(instance).open("rb") as disk:
            return disk.read(3)


@pytest.fixture
def disk_world(tmp_path: Path) -> Iterator[DiskWorld]:
    made = DiskWorld(tmp_path)
    yield made
    made.close()


def test_an_image_that_cannot_be_used_burns_no_device(disk_world: DiskWorld) -> None:
    world = disk_world
    world.add_image(OLD, None)
    world.start()
    instance = world.create(GPU)
    row = world.instance(instance)
    assert row.vm_state is VMState.ERROR
    assert "is not on this host" in (row.fault_details or "")
    assert "burned" not in (row.fault_message or "")
    assert (world.row().burned, world.reserved(), world.offered()) == (False, 0, 1)


def test_a_rebuild_gives_the_guest_the_disk_of_the_new_image(disk_world: DiskWorld) -> None:
    world = disk_world
    instance = world.create_with_images()
    assert world.first_bytes(instance) == b"old"
    world.rebuild_from(instance)
    row = world.instance(instance)
    assert (row.vm_state, row.image_uuid, row.fault_message) == (VMState.ACTIVE, NEW, None)
    assert world.first_bytes(instance) == b"new"


def test_a_guest_has_the_firmware_of_its_image_and_none_that_no_guest_has(disk_world: DiskWorld) -> None:
    world = disk_world
    instance = world.create_with_images()

    def firmware() -> str | None:
        guest = world.guest(instance)
        assert guest is not None
        system = ElementTree.fromstring(guest.xml).find("os")
        assert system is not None
        return system.get("firmware")

    assert firmware() is None
    world.rebuild_from(instance, hw_firmware_type="uefi")
    assert firmware() == "efi"
    world.rebuild_from(instance, OLD, hw_firmware_type="coreboot")
    row = world.instance(instance)
    assert (row.vm_state, row.image_uuid) == (VMState.ACTIVE, NEW)
    assert "'hw_firmware_type' is 'coreboot'" in (row.fault_details or "")
    assert (firmware(), world.first_bytes(instance)) == ("efi", b"new")


@pytest.mark.parametrize("stopped", [False, True], ids=["runs", "stopped"])
@pytest.mark.parametrize("broken", ["file", "row", "request"])
def test_a_rebuild_that_fails_before_the_hypervisor_is_asked_leaves_the_instance_as_it_was(
    disk_world: DiskWorld, broken: str, stopped: bool
) -> None:
    world = disk_world
    world.add_image(OLD, b"old")
    world.add_image(NEW, None if broken == "file" else b"new")
    agent = world.start()
    instance = world.create(GPU)
    if stopped:
        world.power("stop_instance", TaskState.POWERING_OFF, instance)
    before = world.instance(instance)
    with world.db.write() as tx:
        if broken == "row":
            images.delete(tx, NEW)
        elif broken == "request":
            make_arq(tx, instance_uuid=instance, project_id="project")
    world.rebuild_from(instance)
    for _ in range(2):  # and stays so
        row = world.instance(instance)
        assert (row.vm_state, row.power, row.task_state) == (before.vm_state, before.power, None)
        assert (row.image_uuid, row.image, row.rebuild) == (before.image_uuid, before.image, None)
        assert row.fault_message == (
            "The instance could not be rebuilt on its host, and stays as it was; the administrator sees why."
        )
        guest = world.guest(instance)
        assert guest is not None
        assert guest.running is not stopped
        assert world.first_bytes(instance) == b"old"
        assert world.function().instance_uuid == instance
        agent.period()
    assert world.told()[-1] == "instance.rebuild.error"


@pytest.mark.parametrize("stopped", [False, True], ids=["runs", "stopped"])
def test_a_rebuild_that_a_death_cuts_short_before_the_disk_is_touched_leaves_the_instance_as_it_was(
    disk_world: DiskWorld, stopped: bool
) -> None:
    world, moments = disk_world, Moments()
    world.add_image(OLD, b"old")
    world.add_image(NEW, b"new")
    world.start(ports=ports_of(world, moments))
    instance = world.create(GPU)
    if stopped:
        world.power("stop_instance", TaskState.POWERING_OFF, instance)
    before = world.instance(instance)
    kept = 0
    for at in itertools.count():
        moments.arm(at, moments.die)
        with pytest.raises(Death):
            world.rebuild_from(instance)
        begun = world.instance(instance).agent_run_id is not None
        (world.files.disk(instance).parent / "disk.new").write_bytes(b"half")
        moments.live_again()
        world.end_all()
        world.virt_driver = "null"
        world.start(ports=ports_of(world, moments))
        row, guest = world.instance(instance), world.guest(instance)
        if row.vm_state is VMState.ERROR:
            break
        assert world.first_bytes(instance) == b"old"
        assert guest is not None
        assert guest.running is not stopped
        if begun:
            kept += 1
            assert (row.vm_state, row.task_state, row.rebuild) == (before.vm_state, None, None)
            assert (row.image_uuid, row.image) == (before.image_uuid, before.image)
            assert "stays as it was" in (row.fault_message or "")
            assert not (world.files.disk(instance).parent / "disk.new").exists()
    assert kept > 3, "there are more moments than that"
    assert world.function().instance_uuid == instance


def test_a_doubled_rebuild_does_not_forget_that_the_disk_was_touched(disk_world: DiskWorld) -> None:
    world, moments = disk_world, Moments()
    world.add_image(OLD, b"old")
    world.add_image(NEW, b"new")
    world.start(ports=ports_of(world, moments))
    instance = world.create(GPU)
    for at in itertools.count():
        moments.arm(at, fail)
        with contextlib.suppress(DatabaseUnavailable):
            world.rebuild_from(instance)
        if world.first_bytes(instance) == b"new":
            break
    assert world.instance(instance).task_state is TaskState.REBUILDING, "it could not write its end"
    moments.arm(2, moments.die)  # when the second message has just been taken
    with pytest.raises(Death):
        world.hand_over_rebuild(instance)
    moments.live_again()
    world.end_all()
    world.virt_driver = "null"
    world.start()
    assert world.instance(instance).vm_state is VMState.ERROR


def test_a_rebuild_that_an_older_agent_began_and_did_not_end_is_in_error(disk_world: DiskWorld) -> None:
    world = disk_world
    instance = world.create_with_images()
    wanted = {"image_uuid": NEW, "image": {"name": "new", "properties": {}}, "checked": True}
    with world.db.write() as tx:
        row = instances.get(tx, instance)
        assert row is not None
        instances.swap(tx, row, expect_task=None, task_state=TaskState.REBUILDING, rebuild=wanted)
    world.end_all()
    world.virt_driver = "null"
    world.start()
    assert world.instance(instance).vm_state is VMState.ERROR, "nobody knows whether it had touched the disk"


def test_a_rebuild_that_the_hypervisor_fails_ends_in_error(disk_world: DiskWorld) -> None:
    world = disk_world
    instance = world.create_with_images()
    world.sim.set_fault("*", Fault(FaultKind.SPAWN_FAILS))
    world.rebuild_from(instance)
    row = world.instance(instance)
    assert (row.vm_state, row.task_state, row.image_uuid) == (VMState.ERROR, None, OLD)
    assert world.function().instance_uuid == instance
    world.sim.clear_faults()
    world.rebuild_from(instance)
    row = world.instance(instance)
    assert (row.vm_state, row.power, row.image_uuid) == (VMState.ACTIVE, PowerState.RUNNING, NEW)
