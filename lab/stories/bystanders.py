"""What nobody asked to erase is as it was."""

import subprocess

from stories.drives import PATTERN
from stories.host import Host, run

MOUNT = "/srv/host-disk"
FILE = f"{MOUNT}/precious"


def prepare() -> None:
    """Put a file on the host's own disk."""
    with open(FILE, "wb") as file:
        file.write(PATTERN)


def tell(host: Host) -> None:
    """The host's file system is sound, its swap, volume and array are still there."""
    facts = host.facts
    facts.say("bystanders")
    disk = host.drives["LABHOST"].node
    run("umount", MOUNT)
    check = subprocess.run(["e2fsck", "-fn", disk], capture_output=True, text=True)
    facts.check("the host's file system is sound", check.returncode == 0, check.stdout.strip().splitlines()[-1])
    run("mount", disk, MOUNT)
    with open(FILE, "rb") as file:
        same = file.read() == PATTERN
    facts.check("the host's file is as it was", same, "unchanged" if same else "changed")
    for serial, kind in (("LABSWAP", "swap"), ("LABLVM", "LVM2_member"), ("LABMD", "linux_raid_member")):
        found = run("blkid", "-p", "-o", "value", "-s", "TYPE", host.drives[serial].node).strip()
        facts.check(f"{serial} is as it was", found == kind, found)
