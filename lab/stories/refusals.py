"""What is not erased, and so not offered, although it was asked for."""

import os
from pathlib import Path

from stories.drives import PATTERN, ZEROS
from stories.facts import wait_for
from stories.host import Host, pci


def tell(host: Host) -> None:
    """One drive after another that must not, or cannot, be erased."""
    not_known_at_all(host)
    held_open(host)
    two_namespaces(host)
    sanitize_goes_wrong(host)
    vanishing(host)


def not_known_at_all(host: Host) -> None:
    """What the host uses is no device; a drive with two ways to it is one, and is not offered."""
    host.facts.say("not offered")
    devices = host.cloud.devices()
    for serial in ("LABHOST", "LABSWAP", "LABLVM", "LABMD"):
        known = host.drives[serial].address in devices
        host.facts.check(f"{serial} is no device", not known, [*devices])
    for serial in ("LABPATHS", "LABPF"):
        row = devices[host.drives[serial].address]
        host.facts.check(f"{serial} is in error", row["device_state"] == "error", row["state_reason"])
        reserved = host.reserved(row["uuid"])
        host.facts.check(f"{serial} is not offered", reserved == 1, f"total 1, reserved {reserved}")


def held_open(host: Host) -> None:
    """Somebody on the host holds the drive exclusively; when they let go, the operator has it cleaned."""
    host.facts.say("held open exclusively")
    drive = host.drives["LAB0002"]
    device = host.cloud.devices()[drive.address]["uuid"]
    holder = os.open(drive.node, os.O_RDONLY | os.O_EXCL)
    host.clean_again(device)
    host.check_out_of_reach("a drive that is held open", device, drive.node.name)
    untouched = drive.differs_from(PATTERN)
    host.facts.check("it was not touched", untouched is None, "unchanged" if untouched is None else untouched)
    os.close(holder)
    host.clean_again(device)
    host.check_offered("a drive that is free again", device)


def two_namespaces(host: Host) -> None:
    """The controller claims that it manages namespaces, and refuses to create one: both are zeroed as they are."""
    host.facts.say("two namespaces, and a controller that cannot make one of them")
    drive = host.drives["LABTWO"]
    visit = host.bind(drive)
    drive.write(PATTERN, at=0)
    host.give_back(visit)
    host.check_offered("a drive that refuses to manage its namespaces", visit.device)
    left = drive.differs_from(ZEROS)
    host.facts.check("and it is zeroes", left is None, "all zeroes" if left is None else left)


def sanitize_goes_wrong(host: Host) -> None:
    """A sanitize fails; the next one stands still, and is said to, until it goes on."""
    host.facts.say("a sanitize that fails, and one that stands still")
    drive = host.drives["LABBLOCK"]
    mode = Path("/mnt/sanitize", drive.serial, "mode")
    visit = host.bind(drive)
    mode.write_text("fail")
    host.give_back(visit)
    host.check_out_of_reach("a failed sanitize", visit.device, "sanitize")
    mode.write_text("stall")
    host.cloud.clean(visit.device)
    seen = host.watch(visit.device, lambda seen: bool(seen["progress"]["stalled"]), seconds=30)
    host.facts.check("a sanitize that stands still is said to", bool(seen["progress"]["stalled"]), seen["progress"])
    reserved = host.reserved(visit.device)
    host.facts.check("it is not offered meanwhile", reserved == 1, f"total 1, reserved {reserved}")
    mode.write_text("ok")
    host.check_offered("when it goes on", visit.device)


def vanishing(host: Host) -> None:
    """The controller is pulled while it is being erased, and comes back."""
    host.facts.say("a drive that vanishes in the middle")
    drive = host.drives["LABSLOW"]
    visit = host.bind(drive)
    host.give_back(visit)
    seen = host.watch(visit.device, lambda seen: (seen["progress"]["percent"] or 0) > 5, seconds=30)
    host.facts.demand("it is being zeroed", seen["device_state"] == "cleaning", seen["progress"])
    pci(drive.address, "remove", "1")
    host.check_out_of_reach("a drive that was pulled", visit.device)
    Path("/sys/bus/pci/rescan").write_text("1", encoding="ascii")
    host.wait_until_usable(drive)
    missing = wait_for(lambda: host.cloud.device(visit.device)["missing"], lambda missing: not missing,
                       seconds=60, pause=0.5)  # fmt: skip
    host.facts.check("the service has seen that it is back", not missing, f"missing: {missing}")
    host.clean_again(visit.device)
    host.check_offered("a drive that is back", visit.device)
