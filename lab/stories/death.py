"""The service is killed, and the machine loses its power, while drives are being erased."""

import time
from pathlib import Path

from stories.drives import CHUNK, SECRET, Drive
from stories.facts import wait_for
from stories.host import SHARE, Host, Visit

ZEROS = bytes(CHUNK)
SERIALS = {"LABSLOW": "zeroed", "LABCRYPT": "sanitized"}
USER = "daemon"
ERASERS = ("shred", "nvme")
ONE_STEP = 10
"""Seconds that are more than a step of zeroing takes."""


def killed(host: Host) -> None:
    """SIGKILL in the middle of a zero and of a sanitize."""
    host.facts.say("killed while erasing")
    Path("/mnt/sanitize/LABCRYPT/seconds").write_text("15")
    visits = [begin(host, serial) for serial in SERIALS]
    host.service.kill()
    alive = wait_for(tools, lambda found: not found, seconds=5, pause=0.1)
    host.facts.check("no tool outlives the service", not alive, alive or "none is left")
    zeroing_has_ended(host, host.drives["LABSLOW"])
    host.start()
    cleaned_again(host, "killed", {visit.drive.serial: visit.device for visit in visits})


def zeroing_has_ended(host: Host, slow: Drive) -> None:
    """The kernel finishes the step at work; then the drive is let go, nothing is written, and the rest is as it was."""
    holder = wait_for(lambda: slow.holder, lambda found: not found, seconds=ONE_STEP, pause=0.1)
    host.facts.check(f"nobody holds {slow.serial} after the step", not holder, holder or "it can be opened exclusively")
    before = slow.sectors_written
    time.sleep(3)
    more = slow.sectors_written - before
    host.facts.check(f"zeroing {slow.serial} does not go on", more == 0, f"{more} sectors written in 3 s")
    left = SECRET in slow.read(slow.size - CHUNK, CHUNK)
    host.facts.check("its end was not reached", left, f"{before} sectors written in all; the tenant's block is there")


def power_cut(host: Host) -> None:
    """The machine loses its power at the same point; told on by :func:`after_power_cut`."""
    host.facts.say("a power cut while erasing")
    for serial in SERIALS:
        begin(host, serial)
    (SHARE / "failed").write_text(str(host.facts.failed))
    (SHARE / "again").touch()
    print("the power is cut", flush=True)
    Path("/proc/sysrq-trigger").write_text("o", encoding="ascii")
    wait_for(lambda: False, bool, seconds=60, pause=1)


def after_power_cut(host: Host) -> None:
    """The machine is up again. The service finds what it was at, and another drive in a slot.

    It runs as an ordinary user now, and does all of it through its privileged helper.
    """
    host.let_run(USER)
    host.start(USER)
    host.facts.check("the service is not root", host.service.uid != 0, f"uid {host.service.uid}")
    devices = host.wait_for_devices()
    cleaned_again(host, "power cut", {serial: devices[host.drives[serial].address]["uuid"] for serial in SERIALS})
    host.facts.say("another drive in the slot")
    other = host.drives["LABSLOT2"]
    other.fill()
    device = devices[other.address]["uuid"]
    host.check_out_of_reach("another drive in a known slot", device, "LABSLOT1", "LABSLOT2")
    refusal = host.cloud.refusal_to_clean(device)
    named = "LABSLOT2" in refusal and "autoclave device accept" in refusal
    host.facts.check("a clean is refused until it is accepted", named, refusal or "it was not refused")
    host.check_out_of_reach("and it is not cleaned either", device, "LABSLOT2")
    untouched = other.differs_from(ZEROS)
    host.facts.check("it was not touched", untouched == 0, "its data are there" if untouched == 0 else untouched)


def begin(host: Host, serial: str) -> Visit:
    """An instance comes and goes; its drive is in the middle of its cleaning then."""
    drive = host.drives[serial]
    visit = host.bind(drive)
    drive.write(SECRET, at=drive.size - CHUNK)
    host.give_back(visit)
    seen = host.watch(visit.device, lambda seen: (seen["progress"]["percent"] or 0) > 2, seconds=30)
    host.facts.demand(f"{serial} is being {SERIALS[serial]}", seen["device_state"] == "cleaning", seen["progress"])
    return visit


def cleaned_again(host: Host, what: str, devices: dict[str, str]) -> None:
    """The drives are in error; the operator has them cleaned, and they are offered."""
    for serial, device in devices.items():
        host.check_out_of_reach(f"{serial}, {what} while it was {SERIALS[serial]}", device)
    for device in devices.values():
        host.clean_again(device)
    for serial, device in devices.items():
        host.check_offered(f"{serial}, cleaned again", device)
        drive = host.drives[serial]
        left = SECRET in drive.read(drive.size - CHUNK, CHUNK)
        host.facts.check(f"nothing of the tenant is left on {serial}", not left, f"{CHUNK} bytes read where it wrote")


def tools() -> list[str]:
    """Processes of the tools that erase."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/comm"):
        try:
            name = entry.read_text(encoding="ascii").strip()
        except OSError:  # it has ended
            continue
        if name in ERASERS:
            found.append(f"{name} ({entry.parent.name})")
    return found
