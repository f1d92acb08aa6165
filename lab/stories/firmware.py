"""A server whose image asks for UEFI: libvirt finds a firmware for it that starts what nobody has signed."""

from xml.etree import ElementTree

from autoclave.virt.guest import domain_name
from stories.clients import DATA_DIR
from stories.facts import wait_for
from stories.host import Host
from stories.libvirt import DISK, said_by

IMAGE = "tenant-uefi"
FLAVOR = "plain"
SERVER = "uefi-1"
FIRMWARE_SAYS = "BdsDxe"
"""The part of OVMF that looks for something to start."""


def tell(host: Host) -> None:
    """Created, looked at, deleted. The firmware finds no system: the tenant's disk has one for a BIOS."""
    facts, cloud = host.facts, host.cloud
    facts.say("openstack server create, with UEFI by image property")
    cloud.openstack("image", "create", IMAGE, "--file", str(DISK), "--disk-format", "raw",
                    "--property", "hw_firmware_type=uefi")  # fmt: skip
    cloud.make_flavor(FLAVOR, ram=128)
    server = cloud.create_server(FLAVOR, IMAGE, SERVER)
    facts.demand(f"{SERVER} is active", server["status"] == "ACTIVE", f"{server['status']} {server.get('fault', '')}")

    domain = ElementTree.fromstring(host.hypervisor.virsh("dumpxml", domain_name(server["id"])))
    loader = domain.find("os/loader")
    facts.demand("libvirt has found a firmware", loader is not None, "no loader" if loader is None else loader.text)
    assert loader is not None
    facts.check("it asks for no signatures", loader.get("secure", "no") == "no", loader.attrib)
    variables = DATA_DIR / "instances" / server["id"] / "nvram.fd"
    facts.check("its variables are with the instance", variables.exists(), variables)
    console = DATA_DIR / "instances" / server["id"] / "console.log"
    said = wait_for(lambda: said_by(console), lambda said: FIRMWARE_SAYS in said, seconds=300, pause=1)
    facts.check("it looks for a system to start", FIRMWARE_SAYS in said, said[-200:])

    cloud.delete_server(server["id"], seconds=120)
    facts.check("nothing is left of it", not variables.parent.exists(), variables.parent)
