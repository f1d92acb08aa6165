"""A tenant's whole visit: libvirt gives it the drive, it writes, it goes, and nothing of it is left."""

import subprocess

from stories.drives import PATTERN, SECRET, SECRET_AT, ZEROS
from stories.host import REBIND_TIMEOUT, Host, Visit, give_to, run

METHODS = {"LAB0001": "zeros", "LABCRYPT": "sanitize, crypto erase", "LABBLOCK": "sanitize, block erase"}


def tell(host: Host) -> None:
    """By each way of erasing; and with a drive that does not come back."""
    for serial, method in METHODS.items():
        host.facts.say(f"a tenant on {serial}, erased by {method}")
        visit = stay(host, serial)
        host.give_back(visit)
        host.check_offered(f"{serial} after its tenant", visit.device)
        nothing_left(host, visit)
    volume_group(host)
    never_given_back(host)


def stay(host: Host, serial: str) -> Visit:
    """A guest gets the drive by libvirt, writes to it, and ends; the drive has the secret then."""
    facts, drive = host.facts, host.drives[serial]
    visit = host.bind(drive)
    drive.fill()
    domain = host.hypervisor.domain(visit.instance, visit.info)
    verdict = subprocess.run(["virt-xml-validate", domain, "domain"], check=False, capture_output=True, text=True)
    said = (verdict.stdout + verdict.stderr).strip()
    facts.check("libvirt's schema accepts the domain", verdict.returncode == 0, said)
    said = host.hypervisor.run_tenant(visit.instance, domain)
    facts.demand("the guest has written to the drive", "tenant: written" in said, said)
    host.wait_until_usable(drive)
    block = drive.read(SECRET_AT, len(SECRET))
    facts.demand("the drive has the guest's secret", block == SECRET, block[:15])
    return visit


def nothing_left(host: Host, visit: Visit) -> None:
    """Neither the guest's block nor anything that was on the drive before is there."""
    drive = visit.drive
    if METHODS[drive.serial] == "sanitize, crypto erase":
        # The media hold noise: what there was, without the key to it.
        left = SECRET[:15] in drive.read(SECRET_AT, len(SECRET)) or drive.holds(PATTERN)
        host.facts.check(
            f"nothing of the tenant is left on {drive.serial}", not left, drive.read(SECRET_AT, len(SECRET))[:15]
        )
        return
    rest = drive.differs_from(ZEROS)
    seen = f"{drive.size} bytes read, " + ("all zero" if rest is None else f"data at byte {rest}")
    host.facts.check(f"nothing of the tenant is left on {drive.serial}", rest is None, seen)
    proof = [event["evidence"] for event in host.cloud.history(visit.device) if event["evidence"]][-1]
    host.facts.check("its history has the proof", proof["serial"] == drive.serial, proof)


def volume_group(host: Host) -> None:
    """The host has activated the tenant's volume group: it is ended, and the host's own is not."""
    host.facts.say("a tenant's volume group that the host has activated")
    drive = host.drives["LAB0001"]
    visit = host.bind(drive)
    alone = f'activation{{udev_sync=0 udev_rules=0}} devices{{use_devicesfile=0 filter=["a|^{drive.node}$|","r|.*|"]}}'
    run("vgcreate", "-qq", "-y", "--config", alone, "tenant", drive.node)
    run("lvcreate", "-qq", "-y", "-Zn", "-Wn", "--config", alone, "-l", 4, "-n", "disk", "tenant")
    host.give_back(visit)
    host.check_offered("a drive with a volume group", visit.device)
    nothing_left(host, visit)
    mapped = run("dmsetup", "ls")
    only_own = "lab-own" in mapped and "tenant-disk" not in mapped
    host.facts.check("the host's own volume group is still active", only_own, mapped.strip())


def never_given_back(host: Host) -> None:
    """A drive that stays with vfio-pci is not cleaned, and not offered."""
    host.facts.say("a drive that is not given back")
    drive = host.drives["LAB0002"]
    visit = host.bind(drive)
    give_to("vfio-pci", drive.address)
    host.give_back(visit)
    host.check_out_of_reach(f"a drive with vfio-pci, after {REBIND_TIMEOUT} s", visit.device, "vfio-pci")
    give_to("nvme", drive.address)
    host.wait_until_usable(drive)
    untouched = drive.differs_from(PATTERN)
    host.facts.check("it was not touched", untouched is None, "unchanged" if untouched is None else untouched)
