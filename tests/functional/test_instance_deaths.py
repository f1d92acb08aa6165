"""The agent dies, or a call fails, at each moment of a build and of a deletion: nothing dirty is offered."""

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hostworld import FUNCTIONS, GPU, GPU_SPEC, HOST
from instanceworld import OTHER, InstanceWorld
from moments import Death, Moments, fail, hypervisor_of, ports_of

from autoclave.agent.compute.functions import PCIBus
from autoclave.agent.compute.pci_tree import PCITree
from autoclave.exceptions import AutoclaveError
from autoclave.rules.instance_states import TaskState, VMState
from autoclave.services.hosts import host_paths
from autoclave.virt.driver import load_compute_driver
from burnedrows import OPERATOR, ask_release

pytestmark = pytest.mark.thorough


class Life:
    """One instance on one host, whose agent meets a mishap at one moment."""

    def __init__(self, tmp_path: Path) -> None:
        self.world = InstanceWorld(tmp_path, functions=FUNCTIONS[:1])
        self.world.specs = [GPU_SPEC]
        self.moments = Moments()
        self.touched = False
        self.start()
        self.instance = self.world.ask(GPU)

    def start(self) -> None:
        self.moments.live_again()
        self.world.end_all()
        driver = hypervisor_of(load_compute_driver(self.world.configuration()), self.moments)
        self.agent = self.world.start(ports_of(self.world, self.moments), driver)

    def meet(self, at: int, deed: Callable[[str], None], work: Callable[[], None]) -> bool:
        """Whether there was such a moment in *work*; who is dead, is started again."""
        self.moments.arm(at, deed)
        try:
            work()
        except Death:
            self.look()
            self.start()
        self.moments.disarm()
        self.look()
        return self.moments.happened

    def build(self) -> None:
        self.world.build(self.instance, GPU)

    def delete(self) -> None:
        self.world.delete(self.instance)

    def stop(self) -> None:
        self.world.power("stop_instance", TaskState.POWERING_OFF, self.instance)

    def rebuild(self) -> None:
        self.world.rebuild(self.instance)

    def look(self) -> None:
        self.touched = self.touched or self.world.guest(self.instance) is not None
        if self.touched:
            assert self.world.offered() == 0, "a device that a guest has had is offered"

    def converges(self, *, rebuilt: bool = False) -> None:
        """Two periods later the instance is what it says, and once it is deleted and released, all is as before."""
        for _ in range(2):
            self.agent.period()
            self.look()
        found = self.world.find(self.instance)
        if found is not None:
            assert found.task_state in (None, TaskState.SCHEDULING)
            if not rebuilt:
                runs = self.world.guest(self.instance) is not None
                assert runs == (found.vm_state is VMState.ACTIVE), found
            self.delete()
            self.look()
            assert self.world.find(self.instance) is None
        assert self.world.onlooker.get_allocations(self.instance).allocations == {}
        assert self.world.function().instance_uuid is None
        self.agent.period()
        row = self.world.row()
        assert row.burned or not self.touched
        if row.burned:
            assert row.device.burn_confirmed
            assert self.world.reserved() == 1
            ask_release(self.world.db, self.world.placement, row.uuid, OPERATOR)
        assert self.world.offered() == 1


def lives(tmp_path: Path) -> Iterator[tuple[int, Life]]:
    """A new life for each moment, until there are no more."""
    for at in itertools.count():
        directory = tmp_path / str(at)
        directory.mkdir()
        life = Life(directory)
        try:
            yield at, life
        finally:
            life.moments.live_again()
            life.world.close()
            shutil.rmtree(directory)


def killed(life: Life) -> Callable[[str], None]:
    return life.moments.die


def refused(_life: Life) -> Callable[[str], None]:
    return fail


MISHAPS = pytest.mark.parametrize("mishap", [killed, refused])


@MISHAPS
def test_a_build_with_a_mishap_at_any_moment(tmp_path: Path, mishap: Callable[[Life], Callable[[str], None]]) -> None:
    for at, life in lives(tmp_path):
        happened = life.meet(at, mishap(life), life.build)
        life.converges()
        if not happened:
            break
    assert at > 15, "a build has more moments than that"


@MISHAPS
def test_a_deletion_with_a_mishap_at_any_moment(
    tmp_path: Path, mishap: Callable[[Life], Callable[[str], None]]
) -> None:
    for at, life in lives(tmp_path):
        life.build()
        life.look()
        assert life.touched
        happened = life.meet(at, mishap(life), life.delete)
        life.converges()
        if not happened:
            break
    assert at > 15, "a deletion has more moments than that"


@MISHAPS
@pytest.mark.parametrize("stopped", [False, True], ids=["runs", "stopped"])
def test_a_rebuild_with_a_mishap_at_any_moment(
    tmp_path: Path, mishap: Callable[[Life], Callable[[str], None]], stopped: bool
) -> None:
    """The instance is in error, or it is what it was, from the one image or the other."""
    outcomes = set()
    for at, life in lives(tmp_path):
        life.build()
        if stopped:
            life.stop()
        before = life.world.instance(life.instance)
        happened = life.meet(at, mishap(life), life.rebuild)
        life.world.hand_over_rebuild(life.instance)  # as a sweep does where no agent's run came on the row
        for _ in range(2):
            life.agent.period()
            life.look()
        found, guest = life.world.instance(life.instance), life.world.guest(life.instance)
        assert (found.task_state, found.rebuild) == (None, None)
        assert life.world.function().instance_uuid == life.instance
        assert guest is not None
        if found.vm_state is not VMState.ERROR:
            assert guest.running == (found.vm_state is VMState.ACTIVE)
            assert found.vm_state is before.vm_state or found.fault_message, "it is on again, and nobody says why"
        outcomes.add((found.vm_state, found.image_uuid))
        life.converges(rebuilt=True)
        if not happened:
            break
    assert at > 8, "a rebuild has more moments than that"
    assert (found.vm_state, found.image_uuid) == (before.vm_state, OTHER["image_uuid"])
    assert (VMState.ERROR, before.image_uuid) in outcomes
    assert (VMState.ERROR, OTHER["image_uuid"]) not in outcomes
    if stopped and mishap is refused:
        assert (VMState.ACTIVE, OTHER["image_uuid"]) in outcomes, "it could not be shut down again"


@MISHAPS
def test_a_period_with_a_mishap_at_any_moment(tmp_path: Path, mishap: Callable[[Life], Callable[[str], None]]) -> None:
    """After an operator has deleted the provider of what is burned, and before it is made again."""
    for at, life in lives(tmp_path):
        life.build()
        life.look()
        life.delete()
        life.world.onlooker.delete_provider(life.world.row().uuid)

        def period(life: Life = life) -> None:
            try:
                life.agent.period()
            except AutoclaveError as error:
                raise AssertionError("a period raises nothing of the world's faults") from error

        happened = life.meet(at, mishap(life), period)
        life.agent.period()
        life.converges()
        if not happened:
            break
    assert at > 15, "a period has more moments than that"


def test_mark_that_comes_during_a_deletion_leaves_nothing_offered(tmp_path: Path) -> None:
    """An agent with the new ``one_time_use`` burns what the instance has, and dies before Placement knows of it."""
    burned_at = []
    for at, life in lives(tmp_path):
        life.world.specs = [{"vendor_id": "10de", "product_id": "25b6"}]
        life.start()
        life.build()
        life.world.specs = [GPU_SPEC]
        conf = life.world.configuration()
        marked = PCITree(life.world.ports, PCIBus(conf, host_paths(conf)), HOST, unreadable_patience=600)
        happened = life.meet(at, lambda _whom, tree=marked: tree.observe([]), life.delete)
        row = life.world.row()
        if row.device.burned_for == life.instance:
            burned_at.append(at)
            assert life.world.offered() == 0, f"moment {at}: burned, and offered"
        if not happened:
            break
    assert len(burned_at) > 5, "the instance has the device for more moments than that"
