"""A drive that serves one instance: burned before the guest starts, and not offered until the operator releases it."""

import json
import subprocess

from stories.clients import BIN
from stories.drives import CHUNK, SECRET, SECRET_AT, Drive
from stories.host import HOST_NAME, Host
from stories.instances import IMAGE, create

SERIAL = "LABONCE"
ALIAS = "once"
FLAVOR = "with-drive-once"
RESOURCE_CLASS = "CUSTOM_PCI_8086_5845"


def tell(host: Host) -> None:
    """Given to an instance, used up, refused, wiped, released, offered."""
    facts, cloud = host.facts, host.cloud
    facts.say("a drive of one time use")
    drive = host.drives[SERIAL]
    provider = cloud.provider(f"{HOST_NAME}_{drive.address.upper()}")
    offers = cloud.offers(RESOURCE_CLASS)
    facts.check("it is offered", offers == [provider], offers)
    cloud.make_flavor(FLAVOR, **{"pci_passthrough:alias": f"{ALIAS}:1"})
    host.hypervisor.ask_before_guests(cloud.inventory_url(provider))
    first = create(host, FLAVOR, "once-1")
    (record,) = host.hypervisor.answer_before(first["id"])["inventories"].values()
    facts.check("when libvirt began to start the guest, it was burned", record["reserved"] == 1, record)
    given = [hostdev["address"] for hostdev in first["autoclave:hostdevs"]]
    facts.check("the instance has it", given == [drive.address], given)

    cloud.delete_server(first["id"], seconds=120)
    host.wait_until_usable(drive)
    block = drive.read(SECRET_AT, len(SECRET))
    facts.demand("the drive comes back as the guest left it", block == SECRET, block[:15])
    out_of_reach(host, provider, first["id"])

    wipe(drive)
    said = autoclave("release", f"{HOST_NAME}/{drive.address}", "--burned-for", first["id"])
    facts.check("the operator releases it", "offered again" in said, said)
    offers = cloud.offers(RESOURCE_CLASS)
    facts.check("it is offered again", offers == [provider], offers)
    burned = json.loads(autoclave("list", "-f", "json"))
    facts.check("nothing is burned any more", burned == [], burned)


def out_of_reach(host: Host, provider: str, burned_for: str) -> None:
    """No instance gets it, and everybody who asks is told."""
    facts, cloud = host.facts, host.cloud
    record = cloud.inventory(provider)
    facts.check("it stays reserved", (record["total"], record["reserved"]) == (1, 1), record)
    offers = cloud.offers(RESOURCE_CLASS)
    facts.check("Placement refuses to offer it", offers == [], offers)
    second = cloud.create_server(FLAVOR, IMAGE, "once-2")
    fault = second.get("fault", {}).get("message", "")
    refused = second["status"] == "ERROR" and "No valid host" in fault
    facts.check("a second server does not get it, and is told why", refused, f"{second['status']}: {fault}")
    cloud.delete_server(second["id"], seconds=60)
    (row,) = json.loads(autoclave("list", "-f", "json"))
    facts.check("autoclave burned list names it", row["burned_for"] == burned_for, row)


def wipe(drive: Drive) -> None:
    """Clean it as this operator does: zeros all over it."""
    for offset in range(0, drive.size, CHUNK):
        drive.write(bytes(CHUNK), at=offset)


def autoclave(*arguments: str) -> str:
    """What ``autoclave burned`` says.

    :raises subprocess.CalledProcessError: it failed.
    """
    print("$ autoclave burned", *arguments, flush=True)
    command = [BIN / "autoclave", "burned", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
