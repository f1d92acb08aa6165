"""A tenant formats its drive with the real nvme-cli; the next one gets the drive as it was offered first."""

import json
from pathlib import Path

from stories.drives import PATTERN, ZEROS, Drive
from stories.host import Host, run

SERIAL = "LAB0001"


def tell(host: Host) -> None:
    """To blocks of 4096 bytes, and with metadata that Linux cannot use; both are zeroed in the recorded format."""
    facts, drive = host.facts, host.drives[SERIAL]
    facts.say("a tenant that formats its drive")
    recorded = host.cloud.device(host.cloud.devices()[drive.address]["uuid"])["layout"]
    facts.check("the layout is on record", recorded is not None and "(512+0)" in recorded, recorded)
    size = drive.size
    formats = _formats(drive)
    for what, block, metadata, extended in (("blocks of 4096 bytes", 4096, 0, 0), ("metadata", 512, 8, 1)):
        if (block, metadata) not in formats:
            facts.check(f"this QEMU has {what}", holds=False, seen=formats)
            continue
        visit = host.bind(drive)
        drive.fill()
        index = formats.index((block, metadata))
        run("nvme", "format", drive.character_device, "-n", 1, f"--lbaf={index}", f"--ms={extended}", "--force")
        changed = (drive.size, _block_size(drive))
        facts.demand(f"the host sees a drive with {what}", changed in ((0, block), (size, 4096)), changed)
        host.give_back(visit)
        host.check_offered(f"{SERIAL} with {what}, after its tenant", visit.device)
        seen = (drive.size, _block_size(drive))
        facts.check("it has its size and its blocks again", seen == (size, 512), seen)
        rest = drive.differs_from(ZEROS)
        facts.check("nothing of the tenant is left", rest is None and not drive.holds(PATTERN), rest)
        now = host.cloud.device(visit.device)["layout"]
        facts.check("the layout on record is as it was", now == recorded, now)


def _formats(drive: Drive) -> list[tuple[int, int]]:
    """Data and metadata bytes of a block in each LBA format of a drive."""
    identity = json.loads(run("nvme", "id-ns", drive.character_device, "-n", 1, "-o", "json"))
    return [(1 << each["ds"], each["ms"]) for each in identity["lbafs"]]


def _block_size(drive: Drive) -> int:
    queue = Path("/sys/class/block", drive.node.name, "queue")
    return int((queue / "logical_block_size").read_text(encoding="ascii"))
