"""``autoclave up`` is killed, or told to stop, at the worst moments; both promises hold and nothing is lost."""

import uuid

import pytest
from machine import SANITIZING, SECRET, ZEROING, Machine
from processes import processes_of, wait_until


def assert_held_until_the_operator_cleans(machine: Machine, address: str) -> None:
    assert machine.cloud.state(address) == "error"
    assert machine.cloud.reserved(address) == 1
    machine.host.clear_faults(address)
    machine.cloud.clean(address)
    machine.wait_until_offered(address)
    assert machine.cloud.reserved(address) == 0
    assert not machine.host.find(address, SECRET)


@pytest.mark.parametrize("address", [SANITIZING, ZEROING], ids=["sanitize", "zero"])
def test_a_kill_in_the_middle_of_an_erase_leaves_the_drive_held_until_it_is_cleaned(
    machine: Machine, address: str
) -> None:
    machine.begin_erase(address)
    machine.process.kill()
    wait_until("the end of every tool", lambda: not processes_of(machine.data_dir))
    machine.up()
    assert_held_until_the_operator_cleans(machine, address)


@pytest.mark.parametrize("address", [SANITIZING, ZEROING], ids=["sanitize", "zero"])
def test_a_stop_does_not_wait_for_an_erase_and_leaves_the_drive_held_until_it_is_cleaned(
    machine: Machine, address: str
) -> None:
    machine.begin_erase(address)
    assert machine.process.terminate(patience=30) == 0
    wait_until("the end of every tool", lambda: not processes_of(machine.data_dir))
    machine.up()
    assert_held_until_the_operator_cleans(machine, address)


def test_a_kill_in_the_middle_of_a_bind_ends_in_a_whole_bind_or_in_none(machine: Machine) -> None:
    instance = str(uuid.uuid4())
    patch = machine.cloud.request(SANITIZING, instance)
    [arq] = patch
    machine.kill_once_taken(SANITIZING, patch)
    machine.up()
    ended = wait_until(
        "an end of the bind",
        lambda: (now := machine.cloud.arq_state(arq)) in ("Bound", "BindFailed") and now,
        lambda: machine.process.log,
    )
    assert machine.cloud.state(SANITIZING) == ("allocated" if ended == "Bound" else "available")
    machine.cloud.unbind(instance)
    machine.wait_until_offered(SANITIZING)


def test_a_kill_right_after_a_bind_leaves_the_drive_to_its_instance(machine: Machine) -> None:
    instance = str(uuid.uuid4())
    machine.cloud.bind(SANITIZING, instance)
    machine.process.kill()
    machine.host.write(SANITIZING, 4096, SECRET)
    machine.up()
    assert machine.cloud.state(SANITIZING) == "allocated"
    assert machine.cloud.reserved(SANITIZING) == 1
    machine.cloud.unbind(instance)
    machine.wait_until_offered(SANITIZING)
    assert not machine.host.find(SANITIZING, SECRET)


def test_a_kill_right_after_an_unbind_converges(machine: Machine) -> None:
    machine.use(SANITIZING)
    machine.process.kill()
    machine.up()
    # What the kill interrupted decides: waiting for its erase, the drive is cleaned now; in it, it is held.
    state = wait_until(
        "an end of the recovery",
        lambda: (now := machine.cloud.state(SANITIZING)) in ("available", "error") and now,
        lambda: machine.process.log,
    )
    if state == "error":
        machine.cloud.clean(SANITIZING)
    machine.wait_until_offered(SANITIZING)
    assert not machine.host.find(SANITIZING, SECRET)
