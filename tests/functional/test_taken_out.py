"""A host that was taken out of the cloud is not offered, and nothing is forgotten of what its devices went through."""

from datetime import timedelta

from hostworld import GPU, HOST, NIC
from instanceworld import InstanceWorld

from autoclave.audit.records import read
from autoclave.db import agents as agent_rows
from autoclave.db import hosts as host_rows
from autoclave.db.columns import utcnow
from autoclave.lifecycle.reclaim import take_out
from autoclave.lifecycle.transitions import Cause
from autoclave.rules.device_lifecycle import Actor

OPERATOR = Cause(Actor.OPERATOR, "ann")


def take_host_out(world: InstanceWorld) -> None:
    with world.db.read() as tx:
        host = host_rows.find(tx, HOST)
    assert host is not None
    take_out(world.ports, host.uuid, OPERATOR, timedelta(0))


def reserved_of_root(world: InstanceWorld) -> set[bool]:
    root = world.onlooker.find_provider(HOST)
    assert root is not None
    return {each.reserved == each.total for each in world.onlooker.get_inventories(root.uuid).records.values()}


def test_what_is_burned_stays_burned_and_the_host_comes_back_with_its_agent(instance_world: InstanceWorld) -> None:
    world = instance_world
    agent = world.start()
    world.delete(world.create(GPU))
    world.end(agent)
    take_host_out(world)
    assert reserved_of_root(world) == {True}
    assert world.row(GPU).burned
    assert read(world.db, utcnow()).agents == (), "nobody is told to start an agent that is gone for good"
    world.start()
    assert reserved_of_root(world) == {False}
    with world.db.read() as tx:
        assert host_rows.find(tx, HOST) is not None
    assert (world.offered(GPU), world.offered(NIC)) == (0, 1)


def test_an_agent_that_was_cut_off_and_not_dead_ends_and_touches_nothing_more(instance_world: InstanceWorld) -> None:
    world = instance_world
    agent = world.start()
    take_host_out(world)
    agent.period()
    with world.db.read() as tx:
        assert (host_rows.find(tx, HOST), agent_rows.get(tx, HOST)) == (None, None)
