"""A virtual function that its operator has bound to vfio-pci, and that libvirt is told to leave there (managed=no)."""

import subprocess
from pathlib import Path

from stories.drives import SECRET, SECRET_AT, driver_of
from stories.facts import wait_for
from stories.host import Host, give_to, pci, run

CARD = "LABVF"
PROFILE = "function"
RESOURCE_CLASS = "CUSTOM_PCI"
PERIODS = 60
"""Seconds in which the agent has certainly looked again, also on a busy machine."""


def prepare(host: Host) -> None:
    """What the operator does before the service starts: two virtual functions, of which the first is given what it
    needs to work and bound to vfio-pci, and the second has no driver."""
    card = host.drives[CARD]
    first = card.virtual_function(1)
    pci(card.address, "sriov_drivers_autoprobe", "0")
    pci(card.address, "sriov_numvfs", "2")
    controller = card.character_device
    for resource, number in (("0", "2"), ("1", "1")):  # queues, interrupts
        run("nvme", "virt-mgmt", controller, "-c", "1", "-r", resource, "-n", number, "-a", "8")
    pci(first, "reset", "1")
    run("nvme", "virt-mgmt", controller, "-c", "1", "-a", "9")
    give_to("vfio-pci", first)


def tell(host: Host) -> None:
    """Offered, given to a guest as it is, written to, given back, and with vfio-pci all the time."""
    facts, cloud = host.facts, host.cloud
    facts.say("a virtual function with managed = false")
    card = host.drives[CARD]
    first, second = card.virtual_function(1), card.virtual_function(2)
    device = cloud.devices()[card.address]["uuid"]
    provider = cloud.device(device)["rp_uuid"]
    offered = units(host, provider)
    seen = (
        f"{first} has {driver_of(first)}, {second} has {driver_of(second)}; total {offered[0]}, reserved {offered[1]}"
    )
    facts.check("the function with vfio-pci is offered, the other is not", offered == (1, 0), seen)

    cloud.make_profile(PROFILE, RESOURCE_CLASS)
    visit = host.bind(card, PROFILE)
    given = "{domain}:{bus}:{device}.{function}".format(**visit.info)
    facts.check("the request has it, not managed", (given, visit.info["managed"]) == (first, False), visit.info)
    domain = host.hypervisor.domain(visit.instance, visit.info)
    said = host.hypervisor.run_tenant(visit.instance, domain)
    mode = host.hypervisor.told(visit.instance).find("devices/hostdev").get("managed")
    facts.check("libvirt was told managed='no'", mode == "no", f"managed='{mode}'")
    facts.check("the guest has written", "tenant: written" in said, said)
    block = card.read(SECRET_AT, len(SECRET))
    facts.check("the card has the guest's secret", block == SECRET, block[:15])
    facts.check("libvirt has left the function with vfio-pci", driver_of(first) == "vfio-pci", driver_of(first))

    give_to("nvme", first)
    facts.check("the operator has given it to the host's driver", driver_of(first) == "nvme", driver_of(first))
    refused = refusal(host, domain)
    facts.check("libvirt does not take it from there", refused is not None, refused or "the guest was started")
    facts.check("the host's driver has it as before", driver_of(first) == "nvme", driver_of(first))
    host.give_back(visit)
    withheld = wait_for(lambda: cloud.device(device)["excluded_reason"] or "", bool, seconds=PERIODS, pause=0.5)
    facts.check("it is not offered, and why", "it is bound to nvme" in withheld, withheld)
    seen = wait_for(lambda: units(host, provider), lambda seen: seen[0] == seen[1], seconds=PERIODS, pause=0.5)
    facts.check("Placement offers none", seen[0] == seen[1], "total {}, reserved {}".format(*seen))
    give_to("vfio-pci", first)
    seen = wait_for(lambda: units(host, provider), lambda seen: seen == (1, 0), seconds=PERIODS, pause=0.5)
    facts.check("back with vfio-pci it is offered", seen == (1, 0), "total {}, reserved {}".format(*seen))


def units(host: Host, provider: str) -> tuple[int, int]:
    """Total and reserved of a resource provider."""
    record = host.cloud.inventory(provider)
    return record["total"], record["reserved"]


def refusal(host: Host, domain: Path) -> str | None:
    """What libvirt says to the domain; None: it has started the guest."""
    try:
        host.hypervisor.virsh("create", str(domain))
    except subprocess.CalledProcessError as error:
        return str(error.stderr)
    return None
