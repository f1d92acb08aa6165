"""The stand-in for util-linux blkdiscard, as far as ``--zeroout`` goes."""

import errno
import getopt
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from autoclave.simulator.host import SimulatedHost
from autoclave.simulator.zeroing import Zeroing

_REPORT_EVERY = 1.0


def main(root: str, argv: Sequence[str]) -> int:
    """Run blkdiscard on the simulated host in *root*, and return its exit code."""
    try:
        options, arguments = getopt.gnu_getopt(list(argv), "zfvp:", ["zeroout", "force", "verbose", "step="])
    except getopt.GetoptError as error:
        sys.stderr.write(f"blkdiscard: {error}\n")
        return 1
    given = {name.lstrip("-"): value for name, value in options}
    if len(arguments) != 1 or not {"z", "zeroout"} & given.keys():
        sys.stderr.write("blkdiscard: only --zeroout of one device is simulated\n")
        return 1
    path = arguments[0]
    try:
        zeroing = Zeroing(SimulatedHost.open(Path(root)), path)
    except OSError as error:
        what = f"{path}: not a block device" if error.errno == errno.ENOTBLK else _cannot_open(path, error)
        sys.stderr.write(f"blkdiscard: {what}\n")
        return 1
    step = int(given.get("step") or given.get("p") or 0) or zeroing.size
    # It prints through stdio: to a pipe, nothing comes before the end unless stdbuf asks for lines.
    if os.environ.get("_STDBUF_O") == "L":
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return _Report(path, step, verbose=bool({"v", "verbose"} & given.keys())).follow(zeroing)


def _cannot_open(path: str, error: OSError) -> str:
    return f"cannot open {path}: {os.strerror(error.errno or errno.EIO)}"


class _Report:
    """Prints what was zeroed since the last line, at most once a second, and only between two steps."""

    def __init__(self, path: str, step: int, *, verbose: bool) -> None:
        self._path = path
        self._step = step
        self._verbose = verbose
        self._from = self._bytes = 0
        self._last = time.monotonic()

    def follow(self, zeroing: Zeroing) -> int:
        done = 0
        try:
            for offset, length in zeroing.run():
                done = offset + length
                if done % self._step < length or done == zeroing.size:
                    self._bytes = done - self._from
                    if time.monotonic() - self._last >= _REPORT_EVERY:
                        self._print()
        except OSError as error:
            sys.stderr.write(f"blkdiscard: {self._path}: BLKZEROOUT ioctl failed: {os.strerror(error.errno or 5)}\n")
            return 1
        if self._bytes:
            self._print()
        return 0

    def _print(self) -> None:
        if self._verbose:
            sys.stdout.write(f"{self._path}: Zero-filled {self._bytes} bytes from the offset {self._from}\n")
        self._from, self._bytes, self._last = self._from + self._bytes, 0, time.monotonic()
