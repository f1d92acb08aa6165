"""The port to a process that does what needs root, for an agent that is an ordinary user."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from autoclave.hardware.deadline import Deadline
from autoclave.hardware.disk import Disk
from autoclave.hardware.open_file import OpenFile
from autoclave.hardware.process import Line
from autoclave.hardware.tool import Completed, ToolSink
from autoclave.rules.pci_address import PCIAddress


class Helper(Protocol):
    """What root does for this host.

    Each method does what its namesake in this package does and raises the same; and it raises
    :class:`HardwareError` where the helper refuses to do it, or has ended.
    """

    def find(self, name: str, directories: Sequence[Path]) -> str:
        """:meth:`Commands.find`; *directories* come before the system's."""
        ...

    def run(
        self,
        argv: Sequence[str],
        directories: Sequence[Path],
        *,
        deadline: Deadline,
        tools: ToolSink | None,
        on_line: Line | None,
    ) -> Completed:
        """:meth:`Commands.run`. The tool is ended in time, and when the agent dies, by the helper itself."""
        ...

    def open_block(self, path: Path, *, writable: bool) -> Disk:
        """:func:`block.hold`."""
        ...

    def programs_with_open(self, nodes: Sequence[Path]) -> list[OpenFile]:
        """:func:`open_files.programs_with_open`."""
        ...

    def has_zfs_label(self, node: Path) -> bool:
        """:func:`zfs_label.is_on`."""
        ...

    def card_serial(self, address: PCIAddress, *, vital_product_data: bool) -> str | None:
        """:func:`card_serial.card_serial`."""
        ...

    def product_uuid(self) -> str | None:
        """:func:`host_hints.product_uuid`."""
        ...
