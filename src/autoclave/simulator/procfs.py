"""What the simulated ``/proc`` says of disks."""

from pathlib import Path

from autoclave.simulator import files
from autoclave.simulator.inventory import Inventory


def write_proc(root: Path, inventory: Inventory) -> None:
    """Say which disks the host in *root* has mounted: that of a drive which is its own."""
    mounts = [
        "21 26 0:20 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw",
        "22 26 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw",
    ]
    for slot in inventory.bound():
        if slot.spec.mounted:
            disk = f"nvme{inventory.heads[slot.spec.drive_id]}n1p1"
            device = (root / "sys/class/block" / disk / "dev").read_text().strip()
            mounts.insert(0, f"26 1 {device} / / rw,relatime shared:1 - ext4 /dev/{disk} rw,errors=remount-ro")
    files.write_text(root / "proc/self/mountinfo", "\n".join(mounts) + "\n")
    files.write_text(root / "proc/swaps", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n")
