"""First light: the whole life of a drive, on a real kernel, with the real nvme-cli and the real clients.

Runs in the guest (lab/guest-init). Every fact prints one line; the exit code is 0 if all of them held.
"""

import json
import subprocess
import sys
import uuid
from pathlib import Path

import yaml
from clients import BIN, Cloud, Service
from drives import CHUNK, PATTERN, Drive, drives
from facts import Facts, wait_for

SHARE = Path("/mnt")
HOST_FILE = Path("/srv/host-disk/precious")
HOST_NAME = "lab-host"
RESOURCE_CLASS = "CUSTOM_NVME_1B36_0010"
CONFIG = """\
[agent]
resource_provider_name = lab-host
periodic_interval = 5

[nvme]
device_spec = {"vendor_id": "1b36", "product_id": "0010"}
"""
ZEROS = bytes(CHUNK)
STATES = ["available", "allocated", "pending_cleaning", "cleaning", "available"]


def main() -> int:
    facts = Facts()
    config = Path("/run/autoclave.conf")
    config.write_text(CONFIG, encoding="ascii")
    log = SHARE / "autoclave.log"

    here = drives()
    mine, neighbour, host_disk = here["LAB0001"], here["LAB0002"], here["LABHOST"]
    HOST_FILE.write_bytes(PATTERN)
    neighbour.fill()

    plan(facts, config, mine, neighbour, host_disk)
    service = Service(config, log)
    try:
        start(facts, service)
        life_of_a_drive(facts, Cloud(), mine, neighbour, host_disk)
        bystanders(facts, neighbour, host_disk)
        facts.say("stop")
        facts.check("the service ends when it is told to", (code := service.stop(60)) == 0, f"exit code {code}")
    finally:
        if not service.ended:
            service.kill()
        if facts.failed or sys.exc_info()[0]:
            print(f"\n== the end of the service's log\n{tail(log)}", flush=True)
    facts.say("the end")
    print(f"{facts.failed} facts failed" if facts.failed else "every fact held")
    return min(facts.failed, 1)


def plan(facts: Facts, config: Path, mine: Drive, neighbour: Drive, host_disk: Drive) -> None:
    """What an operator asks before anything can be erased."""
    facts.say("autoclave plan")
    command = [BIN / "autoclave", "plan", "--config-file", config, "-f", "yaml"]
    done = subprocess.run(command, capture_output=True, text=True)
    print(done.stderr + done.stdout)
    facts.demand("plan ends well", done.returncode == 0, f"exit code {done.returncode}")
    rows = {row["address"]: row for row in yaml.safe_load(done.stdout)}
    for drive in (mine, neighbour):
        row = rows[drive.address]
        facts.check(f"plan would erase {drive.serial} by Write Zeroes", row["action"] == "write_zeroes", row["why"])
    refused = rows[host_disk.address]["refused"]
    facts.check("plan refuses the host's own drive, by its mount", str(HOST_FILE.parent) in refused, refused)


def start(facts: Facts, service: Service) -> None:
    """The service comes up."""
    facts.say("autoclave up")
    healthy = wait_for(lambda: service.healthy() or service.ended, bool, seconds=180, pause=1) and not service.ended
    facts.demand("the service is healthy", healthy, "/healthcheck answers 200" if healthy else "no answer")


def life_of_a_drive(facts: Facts, cloud: Cloud, mine: Drive, neighbour: Drive, host_disk: Drive) -> None:
    """Discovered, offered, bound, written to, given back, erased, offered again."""
    facts.say("discovered and offered")
    by_address = wait_for(lambda: devices_by_address(cloud), bool, seconds=60, pause=5)
    facts.check("both plain drives are devices", {mine.address, neighbour.address} <= by_address.keys(), [*by_address])
    facts.check("the host's own drive is not", host_disk.address not in by_address, [*by_address])
    device = by_address[mine.address]["uuid"]
    for drive in (mine, neighbour):
        state = cloud.state(by_address[drive.address]["uuid"])
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
    state = cloud.state(device)
    facts.check("the drive is allocated", state == "allocated", state)

    facts.say("written to by its tenant")
    written = mine.fill()
    facts.demand("the drive is full of the tenant's data", mine.differs_from(PATTERN) is None, f"{written} bytes")

    facts.say("given back and erased")
    cloud.openstack("accelerator", "arq", "unbind", request)
    progress: list[str] = []

    def look() -> str:
        seen = cloud.operator(f"devices/{device}")
        line = f"{seen['device_state']} {seen['progress']['percent']} {seen['progress']['step']}"
        if progress[-1:] != [line]:
            progress.append(line)
            print(f"     {line}", flush=True)
        return seen["device_state"]

    state = wait_for(look, lambda state: state in ("available", "error"), seconds=120, pause=0.1)
    facts.check("the drive is offered again", state == "available", state)
    history = cloud.operator(f"devices/{device}/history")["events"]
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


def bystanders(facts: Facts, neighbour: Drive, host_disk: Drive) -> None:
    """What nobody asked to erase is as it was."""
    facts.say("bystanders")
    changed = neighbour.differs_from(PATTERN)
    facts.check("the other drive is as it was", changed is None, "unchanged" if changed is None else f"byte {changed}")
    subprocess.run(["umount", HOST_FILE.parent], check=True)
    check = subprocess.run(["e2fsck", "-fn", host_disk.node], capture_output=True, text=True)
    facts.check("the host's file system is sound", check.returncode == 0, check.stdout.strip().splitlines()[-1])
    subprocess.run(["mount", "-o", "ro", host_disk.node, HOST_FILE.parent], check=True)
    same = HOST_FILE.read_bytes() == PATTERN
    facts.check("the host's file is as it was", same, "unchanged" if same else "changed")


def devices_by_address(cloud: Cloud) -> dict[str, dict[str, str]]:
    """What `openstack accelerator device list` shows, by PCI address."""
    rows = cloud.openstack("accelerator", "device", "list")
    return {json.loads(row["std_board_info"])["pci_address"]: row for row in rows}


def tail(log: Path, lines: int = 60) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


if __name__ == "__main__":
    sys.exit(main())
