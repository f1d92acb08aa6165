"""The hosts that run servers: their agents and hypervisors."""

from datetime import datetime

import pytest
import sqlalchemy as sa
from api_world import HOST, World, new_uuid, said

from autoclave.rules.device_lifecycle import DeviceState
from autoclave.testing.placement import faults as effects


def test_a_host_whose_agent_is_silent_is_down_and_its_servers_say_that_it_is_unknown(ready: World) -> None:
    uuid = ready.add_server()
    with ready.db.write() as tx:
        tx.exec_driver_sql("UPDATE agents SET last_seen = '2020-01-01 00:00:00.000000'")
    [service] = ready.compute("GET", "/os-services").json["services"]
    assert (service["state"], service["status"]) == ("down", "enabled")
    assert ready.compute("GET", f"/servers/{uuid}").json["server"]["host_status"] == "UNKNOWN"
    assert ready.compute("GET", "/os-hypervisors").json["hypervisors"][0]["state"] == "down"
    ready.compute("PUT", f"/os-services/{service['id']}", {"forced_down": True})
    assert ready.compute("GET", f"/servers/{uuid}").json["server"]["host_status"] == "DOWN"


def test_hypervisors_are_filtered_paged_and_tell_of_their_servers(ready: World) -> None:
    uuid = ready.add_server()
    made = [ready.add_host(name) for name in ("h2", "h3")]
    found = ready.compute("GET", "/os-hypervisors?with_servers=true&hypervisor_hostname_pattern=compute").json
    assert [one["servers"] for one in found["hypervisors"]] == [[{"uuid": uuid, "name": "vm1"}]]
    found = ready.compute("GET", f"/os-hypervisors/detail?marker={made[0].uuid}").json["hypervisors"]
    assert [one["id"] for one in found] == [made[1].uuid]
    page = ready.compute("GET", "/os-hypervisors?limit=1").json
    assert page["hypervisors"][0]["hypervisor_hostname"] == HOST
    [link] = page["hypervisors_links"]
    following = ready.compute("GET", link["href"].partition("/compute/v2.1")[2]).json["hypervisors"]
    assert [one["hypervisor_hostname"] for one in following] == ["h2"]
    assert set(ready.compute("GET", "/os-hypervisors?limit=0").json) == {"hypervisors"}
    assert len(ready.compute("GET", "/os-hypervisors?limit=0").json["hypervisors"]) == 3
    assert ready.compute("GET", "/os-hypervisors?marker=nobody").status_code == 400
    assert ready.compute("GET", f"/os-hypervisors/{HOST}").status_code == 404


def test_moments_have_no_zone_where_clients_of_nova_take_none(ready: World) -> None:
    uuid = ready.add_server()
    launched = ready.compute("GET", f"/servers/{uuid}").json["server"]["OS-SRV-USG:launched_at"]
    [service] = ready.compute("GET", "/os-services").json["services"]
    [zone] = ready.compute("GET", "/os-availability-zone/detail").json["availabilityZoneInfo"]
    for moment in (launched, service["updated_at"], zone["hosts"][HOST]["nova-compute"]["updated_at"]):
        assert datetime.strptime(moment, "%Y-%m-%dT%H:%M:%S.%f")


def test_a_reason_without_disabling_is_400(ready: World) -> None:
    [service] = ready.compute("GET", "/os-services?binary=nova-compute").json["services"]
    assert ready.compute("GET", "/os-services?binary=nova-conductor").json["services"] == []
    answer = ready.compute("PUT", f"/os-services/{service['id']}", {"disabled_reason": "r"})
    assert answer.status_code == 400
    assert ready.compute("PUT", f"/os-services/{new_uuid()}", {"status": "enabled"}).status_code == 404


def silence(world: World) -> str:
    """Let the agent of every host be dead; the id of the service of HOST."""
    with world.db.write() as tx:
        tx.exec_driver_sql("UPDATE agents SET last_seen = '2020-01-01 00:00:00.000000'")
    [service] = world.compute("GET", f"/os-services?host={HOST}").json["services"]
    return str(service["id"])


def test_a_host_that_is_gone_is_taken_out_and_its_drives_stay_on_record_and_are_not_offered(ready: World) -> None:
    offered = ready.add_device("0000:01:00.0")
    cleaning = ready.add_device("0000:02:00.0", device_state=DeviceState.CLEANING)
    service = silence(ready)
    assert ready.compute("DELETE", f"/os-services/{service}").status_code == 204
    for path, key in (("/os-services", "services"), ("/os-hypervisors", "hypervisors")):
        assert ready.compute("GET", path).json[key] == []
    assert 'last_seen_seconds{host="compute-1"}' not in ready.http.simulate_get("/metrics").text
    assert (ready.device(offered.uuid).missing, ready.reserved(offered)) == (True, 1)
    assert (ready.device(cleaning.uuid).device_state, ready.reserved(cleaning)) == (DeviceState.ERROR, 1)
    root = ready.ports.placement.find_provider(HOST)
    assert root is not None
    records = ready.ports.placement.get_inventories(root.uuid).records.values()
    assert all(record.reserved == record.total for record in records)
    assert ready.call("POST", f"/autoclave/v1/devices/{offered.uuid}/forget", {}).status_code == 200
    assert ready.compute("DELETE", f"/os-services/{service}").status_code == 404


def test_of_a_host_that_had_nothing_but_itself_nothing_stays(ready: World) -> None:
    assert ready.compute("DELETE", f"/os-services/{silence(ready)}").status_code == 204
    assert ready.ports.placement.find_provider(HOST) is None


def test_a_host_whose_agent_lives_is_not_taken_out(ready: World) -> None:
    [service] = ready.compute("GET", "/os-services").json["services"]
    ready.compute("PUT", f"/os-services/{service['id']}", {"forced_down": True})
    answer = ready.compute("DELETE", f"/os-services/{service['id']}")
    assert (answer.status_code, "stop it" in said(answer)) == (409, True)


def test_a_host_with_servers_or_with_a_device_in_use_is_not_taken_out(ready: World) -> None:
    uuid = ready.add_server()
    service = silence(ready)
    answer = ready.compute("DELETE", f"/os-services/{service}")
    assert (answer.status_code, uuid in said(answer)) == (409, True)
    with ready.db.write() as tx:
        tx.exec_driver_sql("UPDATE instances SET host = NULL")
    ready.add_profile()
    arq = ready.add_arq()
    assert ready.bind(arq, ready.add_device(), new_uuid()).status_code == 202
    answer = ready.compute("DELETE", f"/os-services/{service}")
    assert (answer.status_code, arq in said(answer)) == (409, True)
    assert len(ready.compute("GET", "/os-services").json["services"]) == 1


def test_a_host_of_which_placement_cannot_be_told_is_not_taken_out(ready: World) -> None:
    service = silence(ready)
    ready.placement.add(effects.refuse, times=1)
    answer = ready.compute("DELETE", f"/os-services/{service}")
    assert answer.status_code == 503
    assert "Retry later" in said(answer), "only the client that asked finishes it"
    assert len(ready.compute("GET", "/os-services").json["services"]) == 1
    assert ready.compute("DELETE", f"/os-services/{service}").status_code == 204


@pytest.mark.parametrize(
    "path", ["/os-hypervisors/{}?with_servers=true", "/os-hypervisors/detail?with_servers=true&limit=1"]
)
def test_whoever_wants_the_names_of_a_hosts_servers_has_nothing_else_of_them_read(ready: World, path: str) -> None:
    ready.add_server()
    [host] = ready.compute("GET", "/os-hypervisors").json["hypervisors"]
    read: list[str] = []
    sa.event.listen(ready.db._reader, "before_cursor_execute", lambda *arguments: read.append(str(arguments[2])))
    answer = ready.compute("GET", path.format(host["id"]))
    assert (answer.status_code, len(read) > 0) == (200, True)
    assert not [statement for statement in read if "flavor" in statement or "metadata" in statement]
