"""A host with a graphics card, which may have a card with virtual functions too."""

from pathlib import Path

from sysfs_tree import SysfsTree

GPU, NIC, VF0, VF1 = "0000:25:00.0", "0000:82:00.0", "0000:82:02.0", "0000:82:02.1"
DRIVE, BRIDGE = "0000:41:00.0", "0000:00:01.0"


def with_gpu(root: Path) -> SysfsTree:
    tree = SysfsTree(root)
    tree.function(GPU, vendor="0x10de", device="0x25b6", class_="0x030200", driver="nouveau")
    return tree


def add_virtual_functions(host: SysfsTree, driver: str) -> None:
    """The card with two of them, which *driver* has."""
    host.function(NIC, vendor="0x8086", device="0x1572", class_="0x020000", driver="i40e", sriov_totalvfs="4")
    for address in (VF0, VF1):
        host.virtual_function(address, NIC, vendor="0x8086", device="0x154c", class_="0x020000", driver=driver)
