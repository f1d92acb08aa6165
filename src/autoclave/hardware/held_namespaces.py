"""The namespaces of a drive, held exclusively while it is erased and proved."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from autoclave.exceptions import DeviceVanished
from autoclave.hardware.block import open_soon
from autoclave.hardware.disk import Disk
from autoclave.hardware.erase.work import EraseWork
from autoclave.hardware.nvme import Namespace


@dataclass(frozen=True)
class _Held:
    """:param node: what tells the node of this block device from a later one of the same name."""

    disk: Disk
    node: tuple[int, int, int]


class HeldNamespaces:
    """Holds namespaces until its context ends: no mount, volume or other program that asks for them gets them.

    A block device that is created, formatted or comes back after a reset is another one, also under its old name: it
    has to be taken again. O_EXCL does not keep out a program that writes without asking; Global Data Erased and
    read-back are for that.

    :param writable: also make sure that they can be written; see :func:`~autoclave.hardware.block.open_block`.
    """

    def __init__(self, work: EraseWork, *, writable: bool) -> None:
        self._work = work
        self._writable = writable
        self._held: dict[str, _Held] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as stack:
            for held in self._held.values():
                stack.callback(held.disk.close)

    def take(self, namespaces: Sequence[Namespace]) -> list[Disk]:
        """Hold each of *namespaces*, anew where its block device was replaced, and let go of those that are gone.

        :returns: their disks, in the order of *namespaces*.
        :raises DeviceVanished: one has no node.
        :raises DeviceInUse: something else on this host has one open exclusively.
        :raises HardwareError: one cannot be opened, or is read-only.
        """
        nodes = {namespace.block_name: _node(namespace) for namespace in namespaces}
        for name in [name for name, held in self._held.items() if nodes.get(name) != held.node]:
            self._held.pop(name).disk.close()
        for namespace in namespaces:
            if namespace.block_name not in self._held:
                disk = open_soon(self._work.paths, namespace.path, writable=self._writable)
                self._held[namespace.block_name] = _Held(disk, nodes[namespace.block_name])
        return [self._held[namespace.block_name].disk for namespace in namespaces]


def _node(namespace: Namespace) -> tuple[int, int, int]:
    try:
        found = namespace.path.stat()
    except OSError as e:
        raise DeviceVanished(f"there is no disk at {namespace.path}: {e.strerror}") from e
    return found.st_dev, found.st_ino, found.st_rdev
