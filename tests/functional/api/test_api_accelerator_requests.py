"""/v2/accelerator_requests."""

from typing import Any

import pytest
import sqlalchemy as sa
from api_world import REMOVE_OPS, World, fault, new_uuid

from autoclave.db import arqs as arq_rows
from autoclave.db.tables import AttachType, arqs, attach_handles
from autoclave.rules.device_lifecycle import ARQState, DeviceState

pytestmark = pytest.mark.matrix

PATH = "/v2/accelerator_requests"
READER, MEMBER, OTHER = "u:blue:reader", "u:blue:member", "v:red:member"


@pytest.fixture
def arq(world: World) -> str:
    world.add_profile()
    return world.add_arq()


def state(world: World, arq: str) -> str:
    return str(world.call("GET", f"{PATH}/{arq}").json["state"])


def force(world: World, arq: str, target: ARQState) -> None:
    with world.db.write() as tx:
        assert arq_rows.swap(tx, arq, list(ARQState), target)


# POST


def test_one_request_is_made_for_each_device_of_each_group(world: World) -> None:
    world.add_profile("many", [{"resources:FPGA": "2", "resources:CUSTOM_NIC": "1"}, {"resources:FPGA": "1"}])
    made = world.call("POST", PATH, {"device_profile_name": "many"})
    assert made.status_code == 201
    assert [arq["device_profile_group_id"] for arq in made.json["arqs"]] == [0, 0, 0, 1]
    assert len({arq["uuid"] for arq in made.json["arqs"]}) == 4
    assert world.call("GET", PATH).json == made.json


def test_a_xilinx_card_takes_two_requests_one_for_each_of_its_functions(world: World) -> None:
    xilinx = {"resources:FPGA": "2", "trait:CUSTOM_FPGA_XILINX": "required"}
    world.add_profile("cards", [xilinx, {"resources:FPGA": "1", "trait:CUSTOM_FPGA_XILINX": "forbidden"}])
    made = world.call("POST", PATH, {"device_profile_name": "cards"}).json["arqs"]
    assert [arq["device_profile_group_id"] for arq in made] == [0, 0, 0, 0, 1]


def test_a_new_request_has_nothing_and_belongs_to_the_caller(world: World, arq: str) -> None:
    mine = world.add_arq(token=MEMBER)
    shown = world.call("GET", f"{PATH}/{mine}").json
    assert (shown["state"], shown["device_profile_name"], shown["project_id"]) == ("Initial", "one-drive", "blue")
    assert (shown["attach_handle_type"], shown["attach_handle_uuid"], shown["attach_handle_info"]) == ("", None, {})
    assert (shown["hostname"], shown["device_rp_uuid"], shown["instance_uuid"]) == (None, None, None)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, 400),
        ([], 400),
        ({"device_profile_name": None}, 400),
        ({"device_profile_name": "one-drive", "count": 2}, 400),
        ({"device_profile_name": "one-drive", "device_profile_group_id": "x"}, 400),
        ({"device_profile_name": "one-drive", "device_profile_group_id": -1}, 400),
        ({"device_profile_name": "one-drive", "image_uuid": "0"}, 400),
        ({"device_profile_name": ""}, 404),
        ({"device_profile_name": "nobody"}, 404),
    ],
)
def test_what_cannot_be_asked_for_makes_nothing(world: World, body: Any, code: int) -> None:
    world.add_profile()
    answer = world.call("POST", PATH, body)
    assert answer.status_code == code
    fault(answer)
    assert world.call("GET", PATH).json == {"arqs": []}


def test_openstackclients_nulls_are_nothing(world: World) -> None:
    world.add_profile()
    body = {"device_profile_name": "one-drive", "device_profile_group_id": None, "image_uuid": None}
    assert world.call("POST", PATH, body).status_code == 201


@pytest.mark.parametrize("group", ["0", 0, 1])
def test_a_group_id_is_ignored(world: World, group: str | int) -> None:
    """`openstack accelerator arq create --group-id 0` works with Cyborg, which ignores the field."""
    world.add_profile()
    made = world.call("POST", PATH, {"device_profile_name": "one-drive", "device_profile_group_id": group})
    assert made.status_code == 201
    assert [arq["device_profile_group_id"] for arq in made.json["arqs"]] == [0]


# PATCH


def test_a_bind_and_an_unbind_go_round(world: World, arq: str) -> None:
    device, instance = world.add_device(), new_uuid()
    answer = world.bind(arq, device, instance)
    assert (answer.status_code, answer.content) == (202, b"")
    bound = world.call("GET", f"{PATH}/{arq}").json
    assert (bound["state"], bound["hostname"], bound["instance_uuid"]) == ("Bound", device.hostname, instance)
    assert bound["attach_handle_type"] == "PCI"
    assert world.device(device.uuid).device_state is DeviceState.ALLOCATED
    assert world.reserved(device) == 1
    assert world.call("PATCH", PATH, {arq: REMOVE_OPS}).status_code == 202
    unbound = world.call("GET", f"{PATH}/{arq}").json
    assert (unbound["state"], unbound["instance_uuid"], unbound["attach_handle_info"]) == ("Unbound", None, {})
    assert [asked.uuid for asked in world.agent.asked] == [device.uuid]


def test_an_unbound_request_may_be_bound_again(world: World, arq: str) -> None:
    world.bind(arq, world.add_device("0000:01:00.0"), new_uuid())
    world.call("PATCH", PATH, {arq: REMOVE_OPS})
    assert state(world, arq) == "Unbound"
    assert world.bind(arq, world.add_device("0000:02:00.0"), new_uuid()).status_code == 202
    assert state(world, arq) == "Bound"


def test_openstacksdk_may_name_the_request_in_the_path(world: World, arq: str) -> None:
    device = world.add_device()
    body = {arq: world.add_ops(device, new_uuid())}
    assert world.call("PATCH", f"{PATH}/{arq}", body).status_code == 202
    assert state(world, arq) == "Bound"
    assert world.call("PATCH", f"{PATH}/{new_uuid()}", {arq: REMOVE_OPS}).status_code == 400
    assert state(world, arq) == "Bound"


@pytest.mark.parametrize("version", ["2.0", "2.3"])
def test_below_2_4_managed_is_not_shown(world: World, arq: str, version: str) -> None:
    world.bind(arq, world.add_device(), new_uuid())
    shown = world.call("GET", f"{PATH}/{arq}", version=version).json["attach_handle_info"]
    assert shown == {"domain": "0000", "bus": "01", "device": "00", "function": "0"}


@pytest.mark.parametrize(
    ("stored", "shown"),
    [({}, True), ({"managed": True}, True), ({"managed": False}, False), ({"managed": "false"}, False)],
)
def test_from_2_4_a_pci_handle_says_whether_it_is_managed(
    world: World, arq: str, stored: dict[str, Any], shown: bool
) -> None:
    world.bind(arq, world.add_device(attach_info=stored), new_uuid())
    for version in ("2.4", "2.5"):
        info = world.call("GET", f"{PATH}/{arq}", version=version).json["attach_handle_info"]
        assert info["managed"] is shown
    assert "managed" not in world.call("GET", f"{PATH}/{arq}", version="2.3").json["attach_handle_info"]


@pytest.mark.parametrize(
    ("stored", "shown"),
    [('{"bus": "01", "managed": "perhaps"}', {"bus": "01"}), ("{", {}), ("[]", {})],
    ids=["managed", "no JSON", "no object"],
)
def test_a_handle_that_cannot_be_read_hides_no_other(
    world: World, arq: str, stored: str, shown: dict[str, str]
) -> None:
    world.add_host()
    server, readable = world.add_server(), world.add_arq()
    drives = {arq: world.add_device(), readable: world.add_device("0000:02:00.0")}
    body = {uuid: world.add_ops(drive, server) for uuid, drive in drives.items()}
    assert world.call("PATCH", PATH, body).status_code == 202
    with world.db.write() as tx:
        first = sa.select(arqs.c.attach_handle_id).where(arqs.c.uuid == arq).scalar_subquery()
        tx.execute(attach_handles.update().where(attach_handles.c.id == first).values(attach_info=stored))
    found = {one["uuid"]: one["attach_handle_info"] for one in world.call("GET", PATH).json["arqs"]}
    assert (found[arq], found[readable]["managed"]) == (shown, True)
    [seen] = world.compute("GET", "/servers/detail").json["servers"]
    managed = {one["arq_uuid"]: one["managed"] for one in seen["autoclave:hostdevs"]}
    assert managed == {arq: None, readable: True}


@pytest.mark.parametrize("version", ["2.0", "2.3", "2.4", "2.5"])
def test_a_handle_of_another_type_is_the_same_in_every_version(world: World, arq: str, version: str) -> None:
    device = world.add_device(kind="FPGA")
    with world.db.write() as tx:
        tx.execute(attach_handles.update().values(attach_type=AttachType.TEST_PCI))
    world.bind(arq, device, new_uuid())
    shown = world.call("GET", f"{PATH}/{arq}", version=version).json
    assert shown["attach_handle_type"] == "TEST_PCI"
    assert shown["attach_handle_info"] == {"domain": "0000", "bus": "01", "device": "00", "function": "0"}


def test_what_a_bind_is_still_working_on_is_nobodys_to_use(world: World, arq: str) -> None:
    world.bind(arq, world.add_device(), new_uuid())
    force(world, arq, ARQState.BIND_STARTED)
    assert world.call("GET", f"{PATH}/{arq}").json["attach_handle_info"] == {}


def ops(**changes: Any) -> list[dict[str, Any]]:
    values = {"/hostname": "h", "/device_rp_uuid": new_uuid(), "/instance_uuid": new_uuid()}
    values |= {f"/{name}": value for name, value in changes.items()}
    return [{"path": path, "op": "add", "value": value} for path, value in values.items()]


@pytest.mark.parametrize(
    "operations",
    [
        [],
        "x",
        ops()[:2],
        [*ops(), ops()[0]],
        [*ops()[:2], REMOVE_OPS[2]],
        REMOVE_OPS[:1],
        [*ops()[:2], {"path": "/instance_uuid", "op": "replace", "value": new_uuid()}],
        [*ops(), {"path": "/state", "op": "add", "value": "Bound"}],
        [{"path": "/hostname"}],
        ops(instance_uuid="x"),
        ops(device_rp_uuid=""),
        ops(hostname=None),
        ops(hostname="h" * 256),
        [{**operation, "more": 1} for operation in ops()],
    ],
)
@pytest.mark.parametrize("position", ["alone", "second"])
def test_every_entry_of_a_patch_is_checked_and_none_is_done(
    world: World, arq: str, operations: Any, position: str
) -> None:
    device = world.add_device()
    other = world.add_arq()
    good = {other: world.add_ops(device, new_uuid())} if position == "second" else {}
    answer = world.call("PATCH", PATH, {**good, arq: operations})
    assert answer.status_code == 400, answer.text
    fault(answer)
    assert (state(world, arq), state(world, other)) == ("Initial", "Initial")


@pytest.mark.parametrize("body", [{}, [], None, {"not-a-uuid": REMOVE_OPS}])
def test_a_patch_of_nothing_is_400(world: World, body: Any) -> None:
    assert world.call("PATCH", PATH, body).status_code == 400


def test_one_patch_binds_or_unbinds_but_not_both(world: World, arq: str) -> None:
    device, other = world.add_device(), world.add_arq()
    world.bind(arq, device, new_uuid())
    answer = world.call("PATCH", PATH, {arq: REMOVE_OPS, other: ops()})
    assert answer.status_code == 400
    assert (state(world, arq), state(world, other)) == ("Bound", "Initial")


def test_a_request_named_in_two_spellings_is_refused(world: World, arq: str) -> None:
    assert world.call("PATCH", PATH, {arq: ops(), arq.upper(): ops()}).status_code == 400


def test_several_requests_are_bound_together_or_not_at_all(world: World, arq: str) -> None:
    first, second, other = world.add_device("0000:01:00.0"), world.add_device("0000:02:00.0"), world.add_arq()
    world.change(second.uuid, held=True)
    instance = new_uuid()
    body = {arq: world.add_ops(first, instance), other: world.add_ops(second, instance)}
    answer = world.call("PATCH", PATH, body)
    assert answer.status_code == 409
    assert "held" in fault(answer)
    assert (state(world, arq), state(world, other)) == ("BindFailed", "BindFailed")
    assert world.device(first.uuid).device_state is DeviceState.AVAILABLE


def test_an_unknown_request_or_provider_is_404(world: World, arq: str) -> None:
    device = world.add_device()
    assert world.call("PATCH", PATH, {new_uuid(): world.add_ops(device, new_uuid())}).status_code == 404
    assert world.call("PATCH", PATH, {arq: ops()}).status_code == 404
    assert world.call("PATCH", PATH, {new_uuid(): REMOVE_OPS}).status_code == 404


@pytest.mark.parametrize("unfit", [each for each in DeviceState if each is not DeviceState.AVAILABLE])
def test_a_device_that_is_not_available_is_409_with_the_reason(world: World, arq: str, unfit: DeviceState) -> None:
    device = world.add_device(device_state=unfit)
    answer = world.bind(arq, device, new_uuid())
    assert answer.status_code == 409
    assert f"it is {unfit}" in fault(answer)
    assert world.device(device.uuid).device_state is unfit


def test_a_request_is_bound_once_and_an_instance_asked_for_once(world: World, arq: str) -> None:
    first, second, other = world.add_device("0000:01:00.0"), world.add_device("0000:02:00.0"), world.add_arq()
    instance = new_uuid()
    assert world.bind(arq, first, instance).status_code == 202
    again = world.bind(arq, second, new_uuid())
    assert again.status_code == 409
    assert "is Bound" in fault(again)
    more = world.bind(other, second, instance)
    assert more.status_code == 400
    assert arq in fault(more)
    assert (state(world, arq), state(world, other)) == ("Bound", "Initial")
    assert world.device(second.uuid).device_state is DeviceState.AVAILABLE


def test_a_provider_of_another_host_is_refused(world: World, arq: str) -> None:
    operations = world.add_ops(world.add_device(), new_uuid())
    operations[0]["value"] = "compute-2"
    answer = world.call("PATCH", PATH, {arq: operations})
    assert answer.status_code == 400
    assert "belongs to host compute-1" in fault(answer)
    assert state(world, arq) == "Initial"


def test_the_project_is_an_administrators_to_set_from_2_1_on(world: World, arq: str) -> None:
    device = world.add_device()
    body = {arq: [*world.add_ops(device, new_uuid()), {"path": "/project_id", "op": "add", "value": "green"}]}
    assert world.call("PATCH", PATH, body, version="2.0").status_code == 406
    assert world.call("PATCH", PATH, body, token=MEMBER).status_code == 403
    assert state(world, arq) == "Initial"
    assert world.call("PATCH", PATH, body, version="2.1").status_code == 202
    assert world.call("GET", f"{PATH}/{arq}").json["project_id"] == "green"


# GET


def test_nova_is_told_to_wait_until_every_request_of_the_instance_is_resolved(world: World, arq: str) -> None:
    device, instance = world.add_device(), new_uuid()
    world.bind(arq, device, instance)
    question = f"{PATH}?instance={instance}&bind_state=resolved"
    assert [one["uuid"] for one in world.call("GET", question).json["arqs"]] == [arq]
    force(world, arq, ARQState.BIND_STARTED)
    answer = world.call("GET", question)
    assert (answer.status_code, answer.content) == (423, b"")
    assert len(world.call("GET", f"{PATH}?instance={instance}").json["arqs"]) == 1
    for resolved in (ARQState.BIND_FAILED, ARQState.DELETING):
        force(world, arq, resolved)
        assert world.call("GET", question).status_code == 200


def test_a_limit_does_not_hide_what_is_unresolved(world: World, arq: str) -> None:
    instance, other = new_uuid(), world.add_arq()
    body = {
        arq: world.add_ops(world.add_device("0000:01:00.0"), instance),
        other: world.add_ops(world.add_device("0000:02:00.0"), instance),
    }
    assert world.call("PATCH", PATH, body).status_code == 202
    force(world, other, ARQState.BIND_STARTED)
    assert world.call("GET", f"{PATH}?instance={instance}&bind_state=resolved&limit=1").status_code == 423


def test_an_instance_without_requests_has_an_empty_list(world: World, arq: str) -> None:
    assert world.call("GET", f"{PATH}?instance={new_uuid()}&bind_state=resolved").json == {"arqs": []}


def test_bind_state_alone_is_a_filter(world: World, arq: str) -> None:
    bound = world.add_arq()
    world.bind(bound, world.add_device(), new_uuid())
    assert [one["uuid"] for one in world.call("GET", f"{PATH}?bind_state=resolved").json["arqs"]] == [bound]


# DELETE


def test_requests_are_deleted_by_uuid_in_both_spellings(world: World, arq: str) -> None:
    second, third = world.add_arq(), world.add_arq()
    assert world.call("DELETE", f"{PATH}/{arq}").status_code == 204
    assert world.call("DELETE", f"{PATH}?arqs={second},{third}").status_code == 204
    assert world.call("GET", PATH).json == {"arqs": []}


def test_deleting_an_instances_requests_gives_its_device_back_and_may_be_repeated(world: World, arq: str) -> None:
    device, instance = world.add_device(), new_uuid()
    world.bind(arq, device, instance)
    for _ in range(2):
        assert world.call("DELETE", f"{PATH}?instance={instance}").status_code == 204
    assert [asked.uuid for asked in world.agent.asked] == [device.uuid]
    assert world.call("GET", PATH).json == {"arqs": []}


def test_one_unknown_request_keeps_all_of_them(world: World, arq: str) -> None:
    assert world.call("DELETE", f"{PATH}?arqs={arq},{new_uuid()}").status_code == 404
    assert world.call("DELETE", f"{PATH}/{new_uuid()}").status_code == 404
    assert state(world, arq) == "Initial"


@pytest.mark.parametrize("arguments", ["", "?arqs=", "?arqs=x", "?instance=x", "?arq=x", "/not-a-uuid"])
def test_a_deletion_that_is_not_understood_deletes_nothing(world: World, arq: str, arguments: str) -> None:
    assert world.call("DELETE", f"{PATH}{arguments}").status_code == 400
    assert world.call("DELETE", f"{PATH}?arqs={arq}&instance={new_uuid()}").status_code == 400
    assert state(world, arq) == "Initial"


# Projects


def test_requests_of_another_project_do_not_exist(world: World, arq: str) -> None:
    mine = world.add_arq(token=MEMBER)
    device = world.add_device()
    assert world.call("GET", PATH, token=OTHER).json == {"arqs": []}
    assert world.call("GET", f"{PATH}/{mine}", token=OTHER).status_code == 404
    assert world.call("GET", f"{PATH}?marker={mine}", token=OTHER).status_code == 400
    assert world.call("DELETE", f"{PATH}/{mine}", token=OTHER).status_code == 404
    assert world.bind(mine, device, new_uuid(), token=OTHER).status_code == 404
    assert [one["uuid"] for one in world.call("GET", PATH, token=READER).json["arqs"]] == [mine]
    assert len(world.call("GET", PATH).json["arqs"]) == 2


def test_another_projects_instance_is_neither_seen_nor_deleted(world: World, arq: str) -> None:
    mine, device, instance = world.add_arq(token=MEMBER), world.add_device(), new_uuid()
    world.bind(mine, device, instance, token=MEMBER)
    question = f"{PATH}?instance={instance}&bind_state=resolved"
    assert world.call("GET", question, token=OTHER).json == {"arqs": []}
    assert world.call("DELETE", f"{PATH}?instance={instance}", token=OTHER).status_code == 204
    assert state(world, mine) == "Bound"
