"""Devices of profiles and of flavors in one inventory: each API shows, binds and cleans only its own."""

from typing import Any

import pytest
import sqlalchemy as sa
from api_world import HOST, World, fault, new_uuid, said

from autoclave.db import pci
from autoclave.db.devices import DeviceRecord
from autoclave.db.tables import attributes
from autoclave.rules.device_lifecycle import DeviceState
from autoclave.rules.reclaim import Reclaim
from burnedrows import CLASS, OneTimeUse

pytestmark = pytest.mark.matrix

GPU = "0000:81:00.0"
OURS = "/autoclave/v1/devices"


@pytest.fixture
def gpus(world: World) -> OneTimeUse:
    """The devices of flavors of the world's host."""
    return OneTimeUse(world.db, world.ports.placement, HOST)


@pytest.fixture
def drive(world: World) -> DeviceRecord:
    return world.add_device()


@pytest.fixture
def gpu(world: World, gpus: OneTimeUse) -> DeviceRecord:
    return world.device(gpus.add(GPU))


def listed(world: World, path: str) -> list[str]:
    answer = world.call("GET", path)
    assert answer.status_code == 200, answer.text
    return [each["uuid"] for each in next(iter(answer.json.values()))]


def attributes_of(world: World, device: DeviceRecord) -> list[str]:
    own = sa.select(attributes.c.uuid).where(attributes.c.deployable_id == world.provider(device).id)
    with world.db.read() as tx:
        return list(tx.execute(own.order_by(attributes.c.id)).scalars())


def test_v2_lists_the_devices_of_profiles_only(world: World, drive: DeviceRecord, gpu: DeviceRecord) -> None:
    theirs, ours = world.provider(gpu), world.provider(drive)
    of_gpu, of_drive = attributes_of(world, gpu), attributes_of(world, drive)
    assert of_gpu
    assert listed(world, "/v2/devices") == [drive.uuid]
    assert listed(world, f"/v2/devices?hostname={HOST}") == [drive.uuid]
    assert listed(world, "/v2/devices?filters.field=availability&filters.value=available") == [drive.uuid]
    assert listed(world, "/v2/deployables") == [ours.uuid]
    assert listed(world, "/v2/attributes") == of_drive
    assert listed(world, f"/v2/attributes?deployable_id={theirs.id}") == []
    for path in (f"devices/{gpu.uuid}", f"deployables/{theirs.uuid}", f"attributes/{of_gpu[0]}"):
        assert world.call("GET", f"/v2/{path}").status_code == 404, path


def test_v2_adds_no_attribute_to_a_flavors_device(world: World, gpu: DeviceRecord) -> None:
    before, deployable = attributes_of(world, gpu), world.provider(gpu)
    for named in (deployable.id, deployable.uuid):
        body = {"deployable_id": named, "key": "k", "value": "v"}
        refused = world.call("POST", "/v2/attributes", body)
        assert (refused.status_code, "Deployable not found" in fault(refused)) == (404, True)
    assert world.call("DELETE", f"/v2/attributes/{before[0]}").status_code == 404
    assert attributes_of(world, gpu) == before


@pytest.mark.parametrize("action", ["clean", "disable", "enable"])
def test_v2_has_no_action_for_a_flavors_device(world: World, gpu: DeviceRecord, action: str) -> None:
    answer = world.call("POST", f"/v2/devices/{gpu.uuid}/{action}", {})
    assert (answer.status_code, gpu.uuid in fault(answer)) == (404, True)
    assert world.device(gpu.uuid) == gpu


def test_a_request_binds_the_devices_of_profiles_only(world: World, drive: DeviceRecord, gpu: DeviceRecord) -> None:
    world.add_profile(groups=[{f"resources:{CLASS}": "1"}])
    refused = world.bind(world.add_arq(), gpu, new_uuid())
    assert refused.status_code == 404
    assert gpu.uuid in fault(refused)
    assert world.device(gpu.uuid) == gpu
    world.add_profile("drives")
    assert world.bind(world.add_arq("drives"), drive, new_uuid()).status_code == 202
    assert world.device(drive.uuid).device_state is DeviceState.ALLOCATED


def test_a_flavor_claims_the_devices_of_flavors_only(world: World, drive: DeviceRecord, gpu: DeviceRecord) -> None:
    """The agent looks for what an instance has been given among these."""
    with world.db.read() as tx:
        assert [each.uuid for each in pci.providers(tx)] == [gpu.uuid]
        assert [each.address for each in pci.functions(tx)] == [GPU]
        assert pci.get(tx, world.provider(drive).rp_uuid) is None


@pytest.mark.parametrize(
    ("query", "addresses"),
    [
        ("", ["0000:01:00.0", GPU]),
        ("?requested_by=profile", ["0000:01:00.0"]),
        ("?requested_by=flavor", [GPU]),
        ("?reclaim=erase", ["0000:01:00.0"]),
        ("?reclaim=hold", [GPU]),
        ("?reclaim=none", []),
        ("?requested_by=flavor&reclaim=erase", []),
    ],
)
@pytest.mark.usefixtures("drive", "gpu")
def test_operators_list_both_and_filter_them(world: World, query: str, addresses: list[str]) -> None:
    found = world.call("GET", f"{OURS}{query}").json["devices"]
    assert [each["pci_address"] for each in found] == addresses


@pytest.mark.parametrize("name", ["requested_by", "reclaim"])
def test_an_unknown_value_of_a_filter_is_refused(world: World, name: str) -> None:
    refused = world.call("GET", f"{OURS}?{name}=host")
    assert refused.status_code == 400
    assert name in said(refused)


def shown(world: World, device: str) -> dict[str, Any]:
    names = ("requested_by", "reclaim", "guarantee", "device_state", "burned_for", "burn_confirmed", "functions")
    found = world.call("GET", f"{OURS}/{device}").json
    return {name: found[name] for name in names}


def test_an_operator_sees_the_whole_life_of_a_flavors_device(world: World, gpus: OneTimeUse, gpu: DeviceRecord) -> None:
    always = {"requested_by": "flavor", "reclaim": "hold", "guarantee": "held until released"}
    clean = {**always, "device_state": "available", "burned_for": None, "burn_confirmed": False, "functions": []}
    assert shown(world, gpu.uuid) == clean
    instance = gpus.use(gpu.uuid)
    burned = {**always, "burned_for": instance, "burn_confirmed": False}
    functions = [{"pci_address": GPU, "instance_uuid": instance}]
    assert shown(world, gpu.uuid) == {**burned, "device_state": "allocated", "functions": functions}
    gpus.delete(instance)
    assert shown(world, gpu.uuid) == {**burned, "device_state": "spent", "functions": []}
    gpus.settle(gpu.uuid)
    assert shown(world, gpu.uuid) == {**burned, "device_state": "spent", "functions": [], "burn_confirmed": True}
    answer = world.call("POST", f"{OURS}/{HOST}/{GPU}/release", {"reason": "reflashed"})
    assert (answer.status_code, answer.json) == (200, {"placement_settled": True})
    assert shown(world, gpu.uuid) == clean
    assert gpus.offered(gpu.uuid)


def test_a_device_in_use_is_not_released(world: World, gpus: OneTimeUse, gpu: DeviceRecord) -> None:
    gpus.use(gpu.uuid)
    refused = world.call("POST", f"{OURS}/{gpu.uuid}/release", {"reason": "reflashed"})
    assert refused.status_code == 409
    assert not gpus.offered(gpu.uuid)


def test_v2_shows_a_spent_device_in_error(world: World, drive: DeviceRecord) -> None:
    world.change(drive.uuid, reclaim=Reclaim.HOLD, device_state=DeviceState.SPENT)
    assert world.call("GET", f"/v2/devices/{drive.uuid}").json["device_state"] == "error"
    assert world.call("GET", "/v2/devices").json["devices"][0]["device_state"] == "error"
    by_state = "/v2/devices?filters.field=availability&filters.value="
    assert listed(world, f"{by_state}error") == [drive.uuid]
    assert world.call("GET", f"{OURS}/{drive.uuid}").json["device_state"] == "spent"
    assert listed(world, f"{OURS}?device_state=spent") == [drive.uuid]
    assert listed(world, f"{OURS}?device_state=error") == []


@pytest.mark.parametrize(
    "path", ["/v2/devices/{uuid}/clean", f"{OURS}/{{uuid}}/clean", f"{OURS}/{HOST}/{{slot}}/clean"]
)
def test_clean_of_a_spent_device_names_the_release(world: World, drive: DeviceRecord, path: str) -> None:
    world.change(drive.uuid, reclaim=Reclaim.HOLD, device_state=DeviceState.SPENT)
    refused = world.call("POST", path.format(uuid=drive.uuid, slot=drive.pci_address), {})
    assert refused.status_code == 409
    assert f"`autoclave device release {HOST}/{drive.pci_address}`" in said(refused)


@pytest.mark.parametrize("path", ["/{uuid}", f"/{HOST}/{GPU}"])
def test_operators_clean_a_flavors_device_again(world: World, gpu: DeviceRecord, path: str) -> None:
    where = f"{OURS}{path.format(uuid=gpu.uuid)}"
    refused = world.call("POST", f"{where}/clean", {})
    assert (refused.status_code, "its reclaim policy is hold" in said(refused)) == (400, True)
    world.change(gpu.uuid, reclaim=Reclaim.ERASE, device_state=DeviceState.ERROR)
    world.see_agent()
    assert world.call("POST", f"{where}/clean", {"reason": "again"}).status_code == 202
    asked = [each for each in world.call("GET", f"{where}/history").json["events"] if each["event"] == "ask_to_clean"]
    assert [each["reason"] for each in asked] == ["again"]


def test_metrics_count_both_by_their_policies(world: World, gpus: OneTimeUse, gpu: DeviceRecord) -> None:
    world.add_device()
    gpus.use_up(gpu.uuid)
    world.change(gpu.uuid, outdated=True)
    lines = world.call("GET", "/metrics").text.splitlines()
    for labels in (
        'reclaim="erase",requested_by="profile",state="available",type="NVME"',
        'reclaim="hold",requested_by="flavor",state="spent",type="PCI"',
    ):
        assert f'autoclave_devices{{host="{HOST}",{labels}}} 1.0' in lines
    assert f'autoclave_devices_condition{{condition="outdated",host="{HOST}"}} 1.0' in lines
    assert not [line for line in lines if "autoclave_functions_condition" in line]
