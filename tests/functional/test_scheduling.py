"""An instance gets a host that has what flavor and image ask for; or its user is told what stands against it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from computeworld import DRIVE_CLASS, GPU_CLASS, LEASE, PATIENCE, ComputeWorld

from autoclave.conductor.compute_hosts import ComputeHosts
from autoclave.db import hosts
from autoclave.db.columns import utcnow
from autoclave.exceptions import BadRequest
from autoclave.placement.embedded import EmbeddedPlacement
from autoclave.placement.records import ConsumerAllocations
from autoclave.rpc.agent_api import AgentAPI
from autoclave.rpc.inprocess import InProcessTransport
from autoclave.rpc.port import AGENT_TOPIC
from autoclave.rules.instance_states import TaskState, VMState
from autoclave.rules.resource_names import FLAVOR_TRAITS as ALWAYS
from autoclave.services.service import remote_versions
from autoclave.testing.placement.faults import answer, before, lose_answer, refuse, time_out

pytestmark = pytest.mark.thorough

ANOTHER = "00000000-0000-4000-8000-000000000001"


@pytest.fixture
def world(tmp_path: Path, real_placement: EmbeddedPlacement) -> Iterator[ComputeWorld]:
    """No hosts yet; the real Placement."""
    made = ComputeWorld(tmp_path, real_placement)
    yield made
    made.close()


def take(world: ComputeWorld, provider: str, amounts: dict[str, int]) -> None:
    """Somebody else claims it."""
    world.onlooker.put_allocations(ConsumerAllocations(ANOTHER, {provider: amounts}, None, project_id="p", user_id="u"))


def refused(world: ComputeWorld, **asked: object) -> tuple[str, str]:
    """What the user of an instance is told that is not built, and what the administrator is told besides."""
    instance = world.build(world.ask(**asked))
    assert (instance.vm_state, instance.task_state, instance.host) == (VMState.ERROR, None, None)
    assert world.held(instance) == {}
    assert world.builder_of(instance) is None
    assert instance.fault_at is not None
    return instance.fault_message or "", instance.fault_details or ""


# The host


def test_an_instance_is_claimed_and_handed_to_the_agent_of_its_host(world: ComputeWorld) -> None:
    root = world.add_host()
    instance = world.build(world.ask())
    assert (instance.vm_state, instance.task_state, instance.host) == (VMState.BUILDING, TaskState.SCHEDULING, "host-1")
    assert world.held(instance) == {root: {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1}}
    allocation = world.onlooker.get_allocations(instance.uuid)
    assert (allocation.project_id, allocation.user_id, allocation.consumer_type) == ("project", "user", "INSTANCE")
    assert world.agents["host-1"].built == [(instance.uuid, {"": [root]})]


def test_the_trait_of_an_image_leads_to_the_host_that_has_it(world: ComputeWorld) -> None:
    world.add_host("plain", memory_mb=65536)
    world.add_host("trusted", traits=["CUSTOM_TRUSTED_HOST"])
    assert world.build(world.ask(image={"trait:CUSTOM_TRUSTED_HOST": "required"})).host == "trusted"
    assert world.build(world.ask(image={"trait:CUSTOM_TRUSTED_HOST": "forbidden"})).host == "plain"


def test_the_host_with_the_most_free_memory_is_first(world: ComputeWorld) -> None:
    world.add_host("host-1", memory_mb=2048)
    world.add_host("host-2", memory_mb=2816)
    hosts = [world.build(world.ask()).host for _ in range(4)]
    assert hosts == ["host-2", "host-2", "host-1", "host-2"]


def test_a_requested_host_is_the_only_one_that_will_do(world: ComputeWorld) -> None:
    world.add_host("host-1", memory_mb=1024)
    world.add_host("host-2", memory_mb=65536)
    assert world.build(world.ask(requested_host="host-1")).host == "host-1"
    message, _ = refused(world, requested_host="nowhere")
    assert message == "No valid host was found. There is no host 'nowhere' that runs instances."


def test_a_requested_host_that_is_full_is_not_replaced_by_another(world: ComputeWorld) -> None:
    world.add_host("host-1", memory_mb=256)
    world.add_host("host-2")
    message = "No valid host was found. Host host-1 does not satisfy flavor and image."
    assert refused(world, requested_host="host-1")[0] == message
    world.change_host("host-1", disabled=True)
    message = "No valid host was found. Host host-1 currently accepts no instances."
    assert refused(world, requested_host="host-1") == (message, "host-1 is disabled")


def test_the_zone_nova_has_all_hosts_and_there_is_no_other(world: ComputeWorld) -> None:
    world.add_host()
    assert world.build(world.ask(availability_zone="nova")).host == "host-1"
    assert "no availability zone 'mars'" in refused(world, availability_zone="mars")[0]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"disabled": True, "disabled_reason": "a fan is broken"}, "host-1 is disabled: a fan is broken"),
        ({"forced_down": True}, "host-1 is forced down"),
    ],
)
def test_a_host_that_the_operator_has_taken_out_gets_nothing(
    world: ComputeWorld, values: dict[str, object], why: str
) -> None:
    world.add_host("host-1", memory_mb=65536)
    world.add_host("host-2")
    world.change_host("host-1", **values)
    assert world.build(world.ask()).host == "host-2"
    assert why in refused(world, specs={"resources:MEMORY_MB": "30000"})[1]


def test_a_host_whose_agent_is_silent_gets_nothing(world: ComputeWorld, caplog: pytest.LogCaptureFixture) -> None:
    world.add_host()
    world.silence("host-1")
    message, details = refused(world)
    assert message == "No valid host was found. No host currently accepts instances."
    assert "host-1 has an agent that was last seen" in details
    assert f"failed: {message} {details}" in caplog.text, "the log tells administrators as much as the fault"


def test_of_a_cloud_whose_hosts_are_all_disabled_the_administrator_is_told_of_as_many_as_a_row_can_hold(
    world: ComputeWorld,
) -> None:
    values = {"hypervisor_type": "null", "hypervisor_version": 1, "vcpus": 1, "memory_mb": 1, "local_gb": 1}
    with world.db.write() as tx:
        for number in range(60):
            made = hosts.report(tx, f"{number:03}-{'h' * 170}", {"rp_uuid": ANOTHER, **values})
            hosts.update(tx, made, {"disabled": True, "disabled_reason": "😀" * 255})
    _, details = refused(world)
    assert details.count(" is disabled: ") == 50
    assert details.endswith("; and 10 more")
    assert len(details.encode()) < 65_535, "what MariaDB has room for in a TEXT"


def test_a_host_whose_agent_is_too_old_for_instances_gets_nothing(world: ComputeWorld) -> None:
    world.add_host(rpc="1.1")
    assert "cannot run instances" in refused(world)[1]


def test_while_agents_are_upgraded_no_host_gets_what_the_cap_forbids_to_send(world: ComputeWorld) -> None:
    world.add_host()
    capped = InProcessTransport(version_caps={AGENT_TOPIC: "1.1"})
    [host] = ComputeHosts(world.ports, AgentAPI(capped), PATIENCE).all()
    capped.close()
    assert "the version cap of autoclave-agent is 1.1" in (host.why_not or "")


def test_to_know_which_hosts_may_get_instances_costs_the_same_for_one_and_for_many(world: ComputeWorld) -> None:
    """As a conductor does it in a process of its own, which knows of agents what the database says of them."""
    apart = InProcessTransport(remote_version=remote_versions(world.db))
    hosts = ComputeHosts(world.ports, AgentAPI(apart), PATIENCE)
    statements: list[str] = []
    sa.event.listen(world.db._reader, "before_cursor_execute", lambda *arguments: statements.append(str(arguments[2])))
    costs = []
    for number in range(5):
        world.add_host(f"host-{number}")
        statements.clear()
        assert [host.why_not for host in hosts.all()] == [None] * (number + 1)
        costs.append(len(statements))
    apart.close()
    assert 0 < costs[0] == costs[-1]


def test_a_tree_that_is_no_compute_host_gets_nothing(world: ComputeWorld) -> None:
    world.add_provider("storage", {"VCPU": 64, "MEMORY_MB": 65536, "DISK_GB": 1000}, [])
    world.add_host(memory_mb=256)
    assert "No host satisfies flavor and image" in refused(world)[0]


# What does not exist


def test_a_trait_that_placement_does_not_know_is_told_as_such(world: ComputeWorld) -> None:
    world.add_host()
    message, _ = refused(world, image={"trait:CUSTOM_NO_SUCH": "required"})
    assert "knows no trait CUSTOM_NO_SUCH (extra spec or image property 'trait:CUSTOM_NO_SUCH')" in message
    assert "No valid host" not in message


def test_a_class_that_placement_does_not_know_is_told_as_such(world: ComputeWorld) -> None:
    world.add_host()
    assert (
        "knows no resource class CUSTOM_NO_SUCH (extra spec 'resources:CUSTOM_NO_SUCH')"
        in refused(world, specs={"resources:CUSTOM_NO_SUCH": "1"})[0]
    )


@pytest.mark.parametrize(
    ("specs", "image", "said"),
    [
        ({"trait:HW_CPU_X86_AVX2": "forbidden"}, {"trait:HW_CPU_X86_AVX2": "required"}, "forbids what the image"),
        ({"trait:CUSTOM_NO_SUCH": "required"}, {}, "CUSTOM_NO_SUCH"),
        ({}, {"trait:CUSTOM_NO_SUCH": "required"}, "CUSTOM_NO_SUCH"),
        ({"resources:CUSTOM_NO_SUCH": "1"}, {}, "CUSTOM_NO_SUCH"),
        ({"pci_passthrough:alias": "tpu"}, {}, "no PCI alias 'tpu'"),
        ({"accel:device_profile": "nothing"}, {}, "device profile 'nothing' does not exist"),
        ({"resources:VCPU": "lots"}, {}, "'resources:VCPU'"),
    ],
)
def test_what_no_host_could_ever_give_is_refused_before_anything_is_made(
    world: ComputeWorld, specs: dict[str, str], image: dict[str, str], said: str
) -> None:
    instance = world.ask(specs=specs, image=image)
    with pytest.raises(BadRequest, match=said):
        world.conductor().check_request(world.context, instance.flavor, instance.image)


def test_a_request_that_some_host_might_satisfy_passes_though_none_can_now(world: ComputeWorld) -> None:
    instance = world.ask(specs={"trait:HW_CPU_X86_AVX2": "required"})
    world.conductor().check_request(world.context, instance.flavor, instance.image)


# Devices


def test_each_device_of_an_alias_is_a_provider_of_its_own(world: ComputeWorld) -> None:
    world.add_host(gpus=2)
    instance = world.build(world.ask(specs={"pci_passthrough:alias": "gpu:2"}))
    [(_, groups)] = world.agents["host-1"].built
    assert set(groups) == {"", "pci0", "pci1"}
    assert groups["pci0"] != groups["pci1"]
    assert len(world.held(instance)) == 3
    assert refused(world, specs={"pci_passthrough:alias": "gpu"})[0].startswith("No valid host was found.")


def test_an_instance_that_takes_nothing_of_the_host_itself_goes_to_the_host_of_its_devices(world: ComputeWorld) -> None:
    world.add_host("host-1")
    world.add_host("host-2", gpus=1)
    nothing = {"resources:VCPU": "0", "resources:MEMORY_MB": "0", "resources:DISK_GB": "0"}
    instance = world.build(world.ask(specs={**nothing, "pci_passthrough:alias": "gpu"}))
    assert instance.host == "host-2"
    assert list(world.held(instance).values()) == [{"CUSTOM_GPU": 1}]


def test_what_a_device_profile_asks_for_and_what_an_alias_asks_for_are_never_taken_for_each_other(
    world: ComputeWorld,
) -> None:
    """A drive for flavors, of one-time use, and a drive that is erased may have one class."""
    lends = world.add_host("lends", memory_mb=65536)
    world.add_provider("lends_0000:81:00.0", {DRIVE_CLASS: 1}, ALWAYS, parent=lends)
    world.add_host("erases", memory_mb=32768, drives=1)
    world.add_profile("one-drive", 1)
    by_profile = world.ask(specs={"accel:device_profile": "one-drive"})
    assert world.build(by_profile).host == "erases", world.instance(by_profile).fault_message
    assert world.build(world.ask(specs={"pci_passthrough:alias": "drive"})).host == "lends"
    assert refused(world, specs={"pci_passthrough:alias": "drive"})[0].startswith("No valid host was found.")


def test_instances_that_are_built_at_once_never_share_a_device(world: ComputeWorld) -> None:
    for number in range(2):
        world.add_host(f"host-{number}", gpus=4)
    asked = [world.ask(specs={"pci_passthrough:alias": "gpu:2"}) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda each: world.conductor().build_instance(world.context, each.uuid), asked))
    built = [each for each in map(world.instance, asked) if each.vm_state is VMState.BUILDING]
    failed = [each for each in map(world.instance, asked) if each.vm_state is VMState.ERROR]
    assert (len(built), len(failed)) == (4, 2)
    given = [uuid for each in built for uuid, held in world.held(each).items() if "CUSTOM_GPU" in held]
    assert len(given) == len(set(given)) == 8
    assert all(world.held(each) == {} for each in failed)


def test_eight_identical_devices_are_found_on_hosts_with_eight(world: ComputeWorld) -> None:
    """Without the embedded Placement's options for wide trees, this takes longer than anybody waits."""
    for number in range(4):
        world.add_host(f"host-{number}", gpus=8)
    hosts = {world.build(world.ask(specs={"pci_passthrough:alias": "gpu:8"})).host for _ in range(4)}
    assert hosts == {f"host-{number}" for number in range(4)}


def test_devices_of_two_kinds_of_one_class_are_found_on_a_host_with_just_enough(world: ComputeWorld) -> None:
    """With those first that any device will do for, this takes longer than anybody waits."""
    root = world.add_host(gpus=8)
    for number in range(8):
        world.add_provider(f"host-1_0000:91:{number:02X}.0", {GPU_CLASS: 1}, {*ALWAYS, "CUSTOM_BIG"}, parent=root)
    instance = world.build(world.ask(specs={"pci_passthrough:alias": "gpu:7,big gpu:8"}))
    assert instance.host == "host-1", instance.fault_message
    assert len(world.held(instance)) == 16


def test_a_host_with_one_device_too_few_of_a_kind_is_passed_over(world: ComputeWorld) -> None:
    """Placement would try every order of the eleven, which takes longer than anybody waits."""
    for host, count, memory_mb in (("host-1", 11, 65536), ("host-2", 12, 32768)):
        root = world.add_host(host, gpus=2, memory_mb=memory_mb)
        for number in range(count):
            name = f"{host}_0000:91:{number:02X}.0"
            world.add_provider(name, {GPU_CLASS: 1}, {*ALWAYS, "CUSTOM_BIG"}, parent=root)
    assert world.build(world.ask(specs={"pci_passthrough:alias": "big gpu:12"})).host == "host-2"
    told = refused(world, specs={"pci_passthrough:alias": "big gpu:12"})
    assert told[0] == "No valid host was found. No host satisfies flavor and image."


# Others


def test_a_candidate_that_somebody_else_takes_is_replaced_by_the_next(world: ComputeWorld) -> None:
    first = world.add_host("host-1", memory_mb=65536)
    world.add_host("host-2")
    world.faults.add(before(lambda: take(world, first, {"VCPU": 64})), "PUT", "^/allocations", times=1)
    assert world.build(world.ask()).host == "host-2"


def test_devices_that_are_left_are_found_though_all_candidates_had_one_that_was_taken(world: ComputeWorld) -> None:
    """Of many ways to deal out eight devices Placement names the first hundred, and the first device is in all."""
    world.add_host(gpus=8)
    specs = {"pci_passthrough:alias": "gpu:4"}
    faster = world.ask(specs=specs)
    world.faults.add(before(lambda: world.build(faster)), "PUT", "^/allocations", times=1)
    slower = world.build(world.ask(specs=specs))
    assert (world.instance(faster).host, slower.host) == ("host-1", "host-1"), slower.fault_details
    assert not world.held(slower).keys() & {uuid for uuid, held in world.held(faster).items() if "VCPU" not in held}


def test_a_candidate_whose_device_is_gone_is_replaced_by_the_next(world: ComputeWorld) -> None:
    """Placement answers such a claim with 400, and expects the consumer's generation to be 0 from then on."""
    root = world.add_host("host-1", memory_mb=65536, gpus=1)
    world.add_host("host-2", gpus=1)
    [gone] = [each.uuid for each in world.onlooker.providers_in_tree(root) if each.parent is not None]
    fault = world.faults.add(before(lambda: world.onlooker.delete_provider(gone)), "PUT", "^/allocations", times=1)
    instance = world.build(world.ask(specs={"pci_passthrough:alias": "gpu"}))
    assert fault.struck
    assert instance.host == "host-2", instance.fault_details
    assert sum(call.method == "PUT" for call in world.faults.calls) == 3


def test_the_same_devices_in_another_order_are_not_tried_again(world: ComputeWorld) -> None:
    world.add_host(gpus=3)
    taken = answer(409, detail="taken")
    world.faults.add(taken, "PUT", "^/allocations")
    refused(world, specs={"pci_passthrough:alias": "gpu:3"})
    assert [call.method for call in world.faults.calls if call.path.startswith("/allocations")].count("PUT") == 1


def test_a_build_that_takes_long_begins_nothing_new_and_says_what_it_has_tried(world: ComputeWorld) -> None:
    """Or it would go on when somebody has already taken it for dead."""
    first = world.add_host("host-1", memory_mb=65536)
    world.add_host("host-2")
    passed = [timedelta(0)]

    def be_slow_and_too_late() -> None:
        take(world, first, {"VCPU": 64})
        passed[0] = timedelta(seconds=LEASE / 2)

    world.faults.add(before(be_slow_and_too_late), "PUT", "^/allocations", times=1)
    instance = world.build(world.ask(), replace(world.ports, clock=lambda: utcnow() + passed[0]))
    assert (instance.vm_state, instance.host) == (VMState.ERROR, None)
    assert instance.fault_message == "No valid host was found. No candidate could be claimed in time."
    assert "tried: 1, the last on host-1" in (instance.fault_details or "")


def test_a_claim_that_meets_another_write_is_tried_again(world: ComputeWorld) -> None:
    world.add_host()
    world.faults.add(answer(409, "placement.concurrent_update"), "PUT", "^/allocations", times=2)
    assert world.build(world.ask()).host == "host-1"


@pytest.mark.parametrize("effect", [lose_answer, time_out, refuse, answer(503)], ids=["lost", "time", "refused", "503"])
def test_a_claim_without_an_answer_is_looked_up(world: ComputeWorld, effect: object) -> None:
    world.add_host()
    world.faults.add(effect, "PUT", "^/allocations", times=1)
    instance = world.build(world.ask())
    assert instance.host == "host-1"
    assert len(world.held(instance)) == 1


def test_a_claim_that_is_carried_out_late_is_still_the_instances(world: ComputeWorld) -> None:
    """The first claim times out, nothing is there, another host is tried; then the first one arrives."""
    late, other = world.add_host("host-1", memory_mb=65536), world.add_host("host-2")
    instance = world.ask()
    amounts = {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1}
    claim = ConsumerAllocations(instance.uuid, {late: amounts}, None, project_id="project", user_id="user")
    world.faults.add(time_out, "PUT", "^/allocations", times=4)
    world.faults.add(before(lambda: world.onlooker.put_allocations(claim)), "PUT", "^/allocations", times=1)
    assert world.build(instance).host == "host-1"
    assert other not in world.held(instance)


def test_an_instance_that_holds_something_else_is_not_built_over_it(world: ComputeWorld) -> None:
    world.add_host()
    strange = world.add_provider("strange", {"VCPU": 8}, [])
    instance = world.ask()
    world.onlooker.put_allocations(
        ConsumerAllocations(instance.uuid, {strange: {"VCPU": 2}}, None, project_id="p", user_id="u")
    )
    found = world.build(instance)
    assert found.vm_state is VMState.ERROR
    assert "already holds other resources" in (found.fault_message or "")


def test_a_placement_that_answers_nothing_is_not_taken_for_a_cloud_without_hosts(world: ComputeWorld) -> None:
    world.add_host()
    fault = world.faults.add(answer(500), "GET", "allocation_candidates")
    message, details = refused(world)
    assert fault.struck
    assert "No valid host" not in message
    assert "500" in details
