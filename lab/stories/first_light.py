"""First light: the whole life of a drive, told with the real ``openstack`` command."""

import json
import uuid

from stories.drives import CHUNK, PATTERN
from stories.facts import wait_for
from stories.host import HOST_NAME, Host

RESOURCE_CLASS = "CUSTOM_NVME_1B36_0010"
ZEROS = bytes(CHUNK)
STATES = ["available", "allocated", "pending_cleaning", "cleaning", "available"]


def tell(host: Host) -> None:
    """Discovered, offered, bound, written to, given back, erased, offered again."""
    facts, cloud = host.facts, host.cloud
    mine, neighbour, host_disk = (host.drives[serial] for serial in ("LAB0001", "LAB0002", "LABHOST"))
    facts.say("discovered and offered")
    rows = cloud.openstack("accelerator", "device", "list")
    by_address = {json.loads(row["std_board_info"])["pci_address"]: row for row in rows}
    facts.check("both plain drives are devices", {mine.address, neighbour.address} <= by_address.keys(), [*by_address])
    facts.check("the host's own drive is not", host_disk.address not in by_address, [*by_address])
    device = by_address[mine.address]["uuid"]
    for drive in (mine, neighbour):
        state = cloud.device(by_address[drive.address]["uuid"])["device_state"]
        facts.check(f"{drive.serial} is offered", state == "available", state)
    providers = {row["name"].lower(): row["uuid"] for row in cloud.openstack("resource", "provider", "list")}
    facts.check(
        "the host's own drive has no provider", not any(host_disk.address in n for n in providers), [*providers]
    )
    provider = providers[f"{HOST_NAME}_{mine.address}"]

    facts.say("bound")
    groups = json.dumps([{f"resources:{RESOURCE_CLASS}": "1", "trait:HW_NVME_WZS": "required"}])
    profile = cloud.openstack("accelerator", "device", "profile", "create", "scratch", groups)
    facts.check("a device profile is made", profile["name"] == "scratch", profile["uuid"])
    request = cloud.openstack("accelerator", "arq", "create", "scratch")["uuid"]
    cloud.bind(request, hostname=HOST_NAME, instance_uuid=str(uuid.uuid4()), device_rp_uuid=provider)
    bound = wait_for(lambda: cloud.request(request), lambda arq: arq["state"] != "BindStarted", seconds=60, pause=0.5)
    facts.demand("the request is bound", bound["state"] == "Bound", f"{bound['state']} {bound['attach_handle_info']}")
    state = cloud.device(device)["device_state"]
    facts.check("the drive is allocated", state == "allocated", state)

    facts.say("written to by its tenant")
    written = mine.fill()
    facts.demand("the drive is full of the tenant's data", mine.differs_from(PATTERN) is None, f"{written} bytes")

    facts.say("given back and erased")
    cloud.openstack("accelerator", "arq", "unbind", request)
    state = host.end_of_cleaning(device)["device_state"]
    facts.check("the drive is offered again", state == "available", state)
    history = cloud.history(device)
    states = [event["to_state"] for event in history if event["to_state"] != event["from_state"]]
    facts.check("its history is whole", states == STATES, " → ".join(states))
    proof = next((event["evidence"] for event in history if event["from_state"] == "cleaning"), None)
    facts.check("its history has the proof", bool(proof) and proof["serial"] == mine.serial, proof)
    rest = mine.differs_from(ZEROS)
    facts.check(
        "nothing of the tenant's data is left",
        rest is None,
        f"{mine.size} bytes read, " + ("all zero" if rest is None else f"data at byte {rest}"),
    )
    (inventory,) = cloud.openstack("resource", "provider", "inventory", "list", provider)
    facts.check(
        "Placement offers it",
        (inventory["resource_class"], inventory["total"], inventory["reserved"]) == (RESOURCE_CLASS, 1, 0),
        {key: inventory[key] for key in ("resource_class", "total", "reserved", "used") if key in inventory},
    )
