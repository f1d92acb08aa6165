"""``qemu-img``, which makes a qcow2 disk larger."""

from pathlib import Path

from autoclave.exceptions import GuestError, HardwareError
from autoclave.hardware.command import Commands
from autoclave.hardware.host import Deadline
from autoclave.rules.flavor_image import DiskFormat
from autoclave.rules.plain_text import excerpt

_PATIENCE = 60.0
"""Seconds: only the image's tables are written."""
_LIMITS = ("prlimit", f"--as={1 << 30}", "--cpu=30", "--")
"""Bytes of memory and seconds of a processor. A tenant wrote the tables that are read here."""


def grow(commands: Commands, disk: Path, size: int) -> None:
    """Let the guest see a disk of *size* bytes, a multiple of 512; its file grows when it is written to.

    :param disk: a qcow2 image that :func:`autoclave.virt.image_file.virtual_size` has judged.
    :raises GuestError: it stays as it is, or is broken.
    """
    arguments = ("resize", "-q", "-f", DiskFormat.QCOW2.value, str(disk.absolute()), str(size))
    try:
        done = commands.run((*_LIMITS, commands.find("qemu-img"), *arguments), deadline=Deadline.after(_PATIENCE))
    except HardwareError as error:
        raise GuestError(f"cannot make {disk} as large as its flavor says: {error}") from error
    if done.returncode != 0:
        said = excerpt(done.stderr) or excerpt(done.stdout) or f"qemu-img ended with {done.returncode}"
        raise GuestError(f"cannot make {disk} as large as its flavor says: {said}")
