"""Zeroing by ``shred`` of coreutils, which writes the zeroes itself."""

import re
from pathlib import Path

from autoclave.exceptions import DeviceVanished, EraseFailed, WrongDrive
from autoclave.hardware.disk import Disk
from autoclave.hardware.erase.work import EraseWork
from autoclave.hardware.nvme import DISK_NODE
from autoclave.hardware.progress_meter import ProgressMeter
from autoclave.rules.plain_text import excerpt

NAME = "shred"
COMMANDS = {NAME: rf"--iterations=0 --zero --verbose {DISK_NODE}"}
"""Its arguments, as a regular expression."""
_PROGRESS = re.compile(r"pass \d+/\d+ .* (?P<percent>\d+)%\s*$")


def shred(work: EraseWork, disk: Disk, meter: ProgressMeter) -> None:
    """Overwrite all of the disk.

    :raises EraseFailed: the tool failed.
    :raises WrongDrive: the disk's node became another's meanwhile.
    :raises DeviceVanished: the drive went away.
    :raises ToolError: the tool could not be run, or not in time.
    """

    def on_line(line: str) -> None:
        if said := _PROGRESS.search(line):
            meter.update(float(said["percent"]))

    node = _identity(disk.path)
    done = work.commands.run(
        [NAME, "--iterations=0", "--zero", "--verbose", str(disk.path)],
        deadline=work.control.deadline,
        tools=work.control.tools,
        on_line=on_line,
    )
    if done.returncode != 0:
        error = EraseFailed(
            f"{work.drive}: {NAME} failed on {disk.path} with exit status {done.returncode}: "
            f"{_last_words(done.stderr) or excerpt(done.stdout) or 'it printed nothing'}"
        )
        work.must_be_there(error)
        raise error
    if _identity(disk.path) != node:
        raise WrongDrive(
            f"{disk.path} is no longer the device that it was before {NAME} ran; which one was overwritten is not known"
        )


def _identity(node: Path) -> tuple[int, int, int]:
    try:
        found = node.stat()
    except OSError as e:
        raise DeviceVanished(f"{node} went away while it was being zeroed: {e}") from e
    return found.st_dev, found.st_ino, found.st_rdev


def _last_words(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return excerpt(" ".join(lines[-3:]))
