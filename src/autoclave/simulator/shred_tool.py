"""The stand-in for coreutils shred, as far as one pass of zeros goes."""

import errno
import getopt
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from autoclave.simulator.slots import DriveSlots
from autoclave.simulator.zeroing import Zeroing

REPORT_EVERY = 5.0
"""Seconds between two lines of progress."""

_UNITS = ("", "KiB", "MiB", "GiB", "TiB")


def main(root: str, argv: Sequence[str]) -> int:
    """Run shred on the simulated host in *root*, and return its exit code."""
    long_options = ["iterations=", "zero", "verbose", "force", "exact"]
    try:
        options, arguments = getopt.gnu_getopt(list(argv), "n:zvfx", long_options)
    except getopt.GetoptError as error:
        sys.stderr.write(f"shred: {error}\n")
        return 1
    given = {name.lstrip("-"): value for name, value in options}
    if len(arguments) != 1 or "0" not in (given.get("iterations"), given.get("n")) or not {"z", "zero"} & given.keys():
        sys.stderr.write("shred: only --iterations=0 --zero of one device is simulated\n")
        return 1
    path = arguments[0]
    try:
        zeroing = Zeroing(DriveSlots.open(Path(root)), path)
    except OSError as error:
        reason = "invalid file type" if error.errno == errno.ENOTBLK else None
        sys.stderr.write(f"shred: {path}: {reason or 'failed to open for writing: ' + os.strerror(errno.ENOENT)}\n")
        return 1
    return _overwrite(path, zeroing, verbose=bool({"v", "verbose"} & given.keys()))


def _overwrite(path: str, zeroing: Zeroing, *, verbose: bool) -> int:
    heading = f"shred: {path}: pass 1/1 (000000)..."
    if verbose:
        sys.stderr.write(f"{heading}\n")
    done, reported, due = 0, False, time.monotonic() + REPORT_EVERY
    try:
        for offset, length in zeroing.run():
            done = offset + length
            if verbose and (time.monotonic() >= due or (reported and done == zeroing.size)):
                percent = done * 100 // zeroing.size
                sys.stderr.write(f"{heading}{_human(done)}/{_human(zeroing.size)} {percent}%\n")
                reported, due = True, time.monotonic() + REPORT_EVERY
    except OSError as error:
        reason = os.strerror(error.errno or errno.EIO)
        sys.stderr.write(f"shred: {path}: error writing at offset {done}: {reason}\n")
        return 1
    return 0


def _human(size: int) -> str:
    """A size as shred prints it: one decimal below ten, none above."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    text = f"{value:.1f}" if unit and value < 10 else f"{value:.0f}"
    return f"{text}{_UNITS[unit]}"
