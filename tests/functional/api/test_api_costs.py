"""What a request costs follows what it asks for, not what there is: SQL statements, counted."""

import subprocess
import sys

import pytest
from api_world import HOST, World, new_uuid

from autoclave.db.tables import instances
from sqlcount import counted

CREATE, BIND, DELETE = 3, 13, 18
"""Statements that these cost a request for one device of a type that is not erased, beside each transaction's BEGIN.

One of the last are the traits that Placement must have before the device is offered again.
"""

LISTS = ("devices", "deployables", "accelerator_requests", "device_profiles")


def populate(world: World, numbers: range) -> None:
    """A device each, with a request that is bound to it, and a profile that nobody uses."""
    for number in numbers:
        device = world.add_device(f"0000:{number:02x}:00.0")
        world.add_profile(f"profile-{number}")
        bound = world.bind(world.add_arq("profile-0"), device, new_uuid())
        assert bound.status_code == 202, bound.text


@pytest.mark.parametrize("noun", LISTS)
def test_a_list_of_twelve_costs_as_many_statements_as_a_list_of_two(world: World, noun: str) -> None:
    costs = []
    for numbers in (range(2), range(2, 12)):
        populate(world, numbers)
        with counted() as statements:
            answer = world.call("GET", f"/v2/{noun}")
        assert len(answer.json[noun if noun != "accelerator_requests" else "arqs"]) == numbers.stop
        costs.append(len(statements))

    assert 0 < costs[0] == costs[1] <= 3


@pytest.mark.parametrize("last", ["bind", "unbind"])
def test_a_bind_and_its_end_cost_the_same_beside_ten_others_as_alone(world: World, last: str) -> None:
    world.add_profile("profile-0")
    device = world.add_device("0000:f0:00.0", kind="GPU")
    costs = []
    for numbers in (range(0), range(1, 11)):
        populate(world, numbers)
        arq = world.add_arq("profile-0")
        world.placement.clear()
        with counted() as bind:
            assert world.bind(arq, device, new_uuid()).status_code == 202
        requests = len(world.placement.calls)
        with counted() as unbind:
            assert world.call("DELETE", f"/v2/accelerator_requests?arqs={arq}").status_code == 204
        costs.append((len(bind if last == "bind" else unbind), requests))

    assert costs[0] == costs[1]
    assert costs[0][0] > 0
    assert costs[0][1] == 2, "the generation is read, and reserved=total is written"


def test_the_trip_of_a_request_reads_nothing_twice(world: World) -> None:
    world.add_profile("profile-0")
    device = world.add_device("0000:f0:00.0", kind="GPU")
    with counted() as create:
        arq = world.add_arq("profile-0")
    operations = world.add_ops(device, new_uuid())
    with counted() as bind:
        assert world.call("PATCH", "/v2/accelerator_requests", {arq: operations}).status_code == 202
    with counted() as delete:
        assert world.call("DELETE", f"/v2/accelerator_requests?arqs={arq}").status_code == 204

    assert (len(create), len(bind), len(delete)) == (CREATE, BIND, DELETE)


@pytest.mark.parametrize("package", ["alembic", "keystonemiddleware"])
def test_the_api_needs_no_memory_for_what_only_upgrades_or_keystone_use(package: str) -> None:
    program = f"import sys, autoclave.api.app; sys.exit({package!r} in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


ONE = ("/compute/v2.1/servers/{server}", "/autoclave/v1/hosts/{host}", "/autoclave/v1/devices/{device}")


@pytest.mark.parametrize("path", ONE)
def test_showing_one_reads_the_state_of_its_own_host_only(world: World, path: str) -> None:
    """The row of another host, which cannot be read, shows that it is not read."""
    world.add_host()
    world.add_host("compute-2")
    server, device = world.add_server(), world.add_device()
    with world.db.write() as tx:
        tx.execute(instances.update().values(host=HOST))
        for table, column in (("agents", "last_seen"), ("compute_hosts", "updated_at")):
            tx.exec_driver_sql(f"UPDATE {table} SET {column} = 'never' WHERE hostname = 'compute-2'")
    with counted() as statements:
        answer = world.http.simulate_get(path.format(server=server, host=HOST, device=device.uuid))
    assert answer.status_code == 200, answer.text
    assert len(statements) <= 7
