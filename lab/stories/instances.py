"""An instance with a drive by device profile: made with the real ``openstack`` command, run by libvirt, deleted."""

from typing import Any

from stories.clients import DATA_DIR
from stories.drives import SECRET, SECRET_AT, ZEROS
from stories.facts import wait_for
from stories.host import MARK, MARKED, RESOURCE_CLASS, Host
from stories.libvirt import DISK, END, said_by

IMAGE = "tenant"
FLAVOR = "with-drive"
PROFILE = "own-drive"
SERVER = "web-1"


def tell(host: Host) -> None:
    """Created, written to, stopped, deleted; then the drive is erased and offered again."""
    facts, cloud = host.facts, host.cloud
    facts.say("openstack server create, with a drive by device profile")
    drive = host.drives[MARKED]
    cloud.openstack("image", "create", IMAGE, "--file", str(DISK), "--disk-format", "raw")
    cloud.make_profile(PROFILE, RESOURCE_CLASS, MARK)
    cloud.openstack("flavor", "create", FLAVOR, "--ram", "64", "--vcpus", "1", "--disk", "0",
                    "--property", f"accel:device_profile={PROFILE}")  # fmt: skip
    server = create(host, FLAVOR, SERVER)
    device = cloud.devices()[drive.address]["uuid"]
    given = [hostdev["address"] for hostdev in server["autoclave:hostdevs"]]
    facts.check("it has the drive that the provider configuration marks", given == [drive.address], given)
    facts.check("vfio-pci has the drive", drive.driver == "vfio-pci", drive.driver)
    held = host.reserved(device)
    facts.check("Placement does not offer it meanwhile", held == 1, f"total 1, reserved {held}")

    cloud.tell("server", "stop", SERVER)
    stopped = wait_for(
        lambda: cloud.server(server["id"]), lambda seen: seen["status"] == "SHUTOFF", seconds=60, pause=0.5
    )
    facts.check("it is stopped", stopped["status"] == "SHUTOFF", stopped["status"])
    host.wait_until_usable(drive)
    block = drive.read(SECRET_AT, len(SECRET))
    facts.demand("the drive has the guest's secret", block == SECRET, block[:15])
    state = cloud.device(device)["device_state"]
    facts.check("the drive is still its own", state == "allocated", state)

    cloud.tell("server", "delete", "--wait", SERVER)
    domains = host.hypervisor.virsh("list", "--all", "--name").split()
    facts.check("libvirt has no guest left", not domains, domains or "no domain")
    host.check_offered(f"{MARKED} after its instance", device)
    rest = drive.differs_from(ZEROS)
    seen = f"{drive.size} bytes read, " + ("all zero" if rest is None else f"data at byte {rest}")
    facts.check("nothing of the instance is left", rest is None, seen)
    proof = [event["evidence"] for event in cloud.history(device) if event["evidence"]][-1]
    facts.check("its history has the proof", proof["serial"] == MARKED, proof)


def create(host: Host, flavor: str, name: str) -> dict[str, Any]:
    """Have a server that becomes active, and whose guest writes to its drive; return what an administrator sees.

    :raises SystemExit: it does not.
    """
    facts = host.facts
    server = host.cloud.create_server(flavor, IMAGE, name)
    facts.demand(f"{name} is active", server["status"] == "ACTIVE", f"{server['status']} {server.get('fault', '')}")
    console = DATA_DIR / "instances" / server["id"] / "console.log"
    said = wait_for(lambda: said_by(console), lambda said: END in said, seconds=120, pause=0.3)
    facts.demand(f"{name} has written to its drive", "tenant: written" in said, said)
    return server
