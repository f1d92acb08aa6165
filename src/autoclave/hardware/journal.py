"""Which external tools run on which device, kept on disk so that a restarted agent can wait them out."""

from pathlib import Path

from autoclave.hardware.command import ToolSink
from autoclave.hardware.deadline import Deadline


class ToolJournal:
    """A directory with one file per device on which a tool runs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def for_device(self, device_uuid: str) -> ToolSink:
        """What the command port tells of the tools it runs for this device."""
        raise NotImplementedError

    def survivors(self) -> list[tuple[str, int, tuple[str, ...]]]:
        """Device, pid and command of every journalled tool that still runs."""
        raise NotImplementedError

    def wait_out(self, device_uuid: str, deadline: Deadline) -> bool:
        """Wait until no journalled tool runs on the device; False if one still does at the deadline."""
        raise NotImplementedError
