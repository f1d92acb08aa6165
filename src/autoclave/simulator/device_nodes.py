"""From the path of a simulated device node to the drive behind it."""

import re
from dataclasses import dataclass
from pathlib import Path

from autoclave.simulator.inventory import Slot
from autoclave.simulator.slots import DriveSlots

_CONTROLLER = re.compile(r"nvme(\d+)")
_NAMESPACE = re.compile(r"(?:nvme|ng)(\d+)n\d+")


@dataclass(frozen=True)
class DeviceNode:
    """What a node stands for.

    :param name: the node's name.
    :param slot: a slot through which it is reached.
    :param nsid: the namespace, or None for a controller.
    """

    name: str
    slot: Slot
    nsid: int | None


def find_node(host: DriveSlots, path: str) -> DeviceNode | None:
    """The node at *path*, or None. Only nodes of *host* count, never those of the real ``/dev``."""
    node = Path(path)
    try:
        if not node.exists() or not node.parent.samefile(host.dev):
            return None
        inventory = host.inventory
        if match := _CONTROLLER.fullmatch(node.name):
            slot = inventory.by_controller(int(match[1]))
            return DeviceNode(node.name, slot, None) if slot else None
        if match := _NAMESPACE.fullmatch(node.name):
            slot = inventory.by_head(int(match[1]))
            disk = host.sysfs / "class/block" / node.name.replace("ng", "nvme")
            return DeviceNode(node.name, slot, int((disk / "nsid").read_text())) if slot else None
    except FileNotFoundError:  # it vanished while we looked
        return None
    return None
