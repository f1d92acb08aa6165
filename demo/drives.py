"""A drive is offered, bound, given back, erased and offered again; and held back when its erase fails."""

import json

from stage import Demo, wait_for

HOST = "sim-1"
SLOT = "0000:41:00.0"
SECRET = "the secret of a tenant"


def tell(demo: Demo) -> None:
    """The story."""
    device, provider = discovered(demo)
    group = "resources:CUSTOM_NVME_144D_A808=1,trait:HW_NVME_CES=required"
    demo.openstack("accelerator", "device", "profile", "create", "scratch", "--group", group)
    one_life(demo, device, provider)
    failed_erase(demo, device, provider)


def discovered(demo: Demo) -> tuple[str, str]:
    """Drives are found and offered, and the host's own is not. Returns the UUIDs of a drive and its provider."""
    demo.say("Two hosts with three drives each; one drive of each host is its own")
    rows = demo.openstack("accelerator", "device", "list")
    where = {(row["hostname"], json.loads(row["std_board_info"])["pci_address"]): row["uuid"] for row in rows}
    demo.check("four drives are devices", len(where) == 4, ", ".join(f"{host} {slot}" for host, slot in where))
    demo.check("no host's own drive is", all(slot != "0000:01:00.0" for _, slot in where), "0000:01:00.0 is missing")
    device = where[HOST, SLOT]
    seen = demo.get(f"/autoclave/v1/devices/{device}")
    demo.check("the drive is available", seen["device_state"] == "available", seen["state_reason"])
    reserved = demo.reserved(seen["rp_uuid"])
    demo.check("Placement offers it", reserved == 0, f"reserved = {reserved}")
    return device, seen["rp_uuid"]


def one_life(demo: Demo, device: str, provider: str) -> None:
    """Bound, written to, given back, erased, offered again."""
    demo.say("A tenant gets the drive and writes to it")
    request = allocate(demo, "scratch")
    state = demo.autoclave("device", "show", f"{HOST}/{SLOT}")["device_state"]
    demo.check("the drive is allocated", state == "allocated", state)
    demo.sim("write", HOST, SLOT, SECRET)
    demo.check("the tenant's bytes are on it", demo.sim("find", HOST, SLOT, SECRET) == 0, repr(SECRET))

    demo.say("The tenant gives it back: it is erased before anybody else can have it")
    demo.sim("fault", HOST, SLOT, "sanitize-seconds", "4")
    demo.openstack("accelerator", "arq", "delete", request, answers=False)
    seen = demo.watch(device)
    demo.check("the drive is available again", seen["device_state"] == "available", seen["state_reason"])
    demo.check("the bytes are gone", demo.sim("find", HOST, SLOT, SECRET, expected=1) == 1, "not found")
    reserved = demo.reserved(provider)
    demo.check("Placement offers it again", reserved == 0, f"reserved = {reserved}")
    events = demo.get(f"/autoclave/v1/devices/{device}/history")["events"]
    proof = next((event["evidence"] for event in events if event["event"] == "cleaned"), None)
    demo.check("the history has the proof", bool(proof), json.dumps(proof))


def failed_erase(demo: Demo, device: str, provider: str) -> None:
    """An erase that fails leaves the drive out of reach, until it is cleaned again."""
    demo.say("The next tenant's drive fails to erase")
    request = allocate(demo, "scratch")
    demo.sim("write", HOST, SLOT, SECRET)
    demo.sim("clear", HOST, SLOT)
    demo.sim("fault", HOST, SLOT, "sanitize-fails")
    demo.openstack("accelerator", "arq", "delete", request, answers=False)
    demo.watch(device)
    seen = demo.autoclave("device", "show", f"{HOST}/{SLOT}")
    demo.check("the drive is in error, and says why", seen["device_state"] == "error", seen["state_reason"])
    demo.check("the bytes are still there", demo.sim("find", HOST, SLOT, SECRET) == 0, "found")
    reserved = demo.reserved(provider)
    demo.check("Placement does not offer it", reserved == 1, f"reserved = {reserved}")

    demo.say("The operator has it repaired and cleaned again")
    demo.sim("clear", HOST, SLOT)
    demo.openstack("accelerator", "device", "clean", device, answers=False)
    wait_for(lambda: demo.get(f"/autoclave/v1/devices/{device}"), lambda seen: seen["device_state"] != "error", 30)
    seen = demo.watch(device)
    demo.check("the drive is available again", seen["device_state"] == "available", seen["state_reason"])
    demo.check("the bytes are gone", demo.sim("find", HOST, SLOT, SECRET, expected=1) == 1, "not found")
    reserved = demo.reserved(provider)
    demo.check("Placement offers it again", reserved == 0, f"reserved = {reserved}")


def allocate(demo: Demo, profile: str) -> str:
    """Ask for an accelerator and bind it, and return the request's UUID."""
    request = str(demo.openstack("accelerator", "arq", "create", profile)["uuid"])
    # By hand, so that the drive is that one; an instance gets whichever the scheduler finds.
    demo.sim("bind", HOST, SLOT, request)
    state = demo.openstack("accelerator", "arq", "show", request)["state"]
    demo.check("the request is bound", state == "Bound", state)
    return request
