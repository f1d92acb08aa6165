#!/usr/bin/env python
"""How long erasing takes, against the quickest tools that do the same to the same drives.

    benchmarks/erase.py --destroy 0000:41:00.0 [0000:42:00.0 …]

Destroys what is on the drives. Prints a table of seconds and the ratios that the project promises:

* overwriting ≤ 1.25 × ``blkdiscard --zeroout``; reading back a sample adds ≤ 10 %
* a full read-back ≥ 0.5 × the pace of ``dd`` with direct I/O
* all the drives at once ≤ 1.3 × as many ``blkdiscard --zeroout`` at once

and, where the kernel can be traced, the NVMe commands that it really sent for each way of zeroing. What a cleaning
costs however small the drive (looking at it, before and after) is shown by itself: on a drive of 1 GiB it weighs more
than the erasing.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from autoclave.conf import new_config
from autoclave.drivers.nvme import NVMeDriver
from autoclave.hardware.host import HostPaths
from autoclave.hardware.nvme import controller_at
from autoclave.rules.pci_address import PCIAddress

BLOCKS_OF_A_COMMAND = 65536
"""The most that one Write Zeroes command covers: its count has 16 bits."""
TRACE = Path("/sys/kernel/tracing")


@dataclass(frozen=True)
class Drive:
    """A drive to be erased, as the driver knows devices."""

    uuid: str
    pci_address: str
    serial: str
    drive_model: str
    cleanup_action: str
    node: str
    controller: str
    size: int


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure erasing on real drives.")
    parser.add_argument("--destroy", action="store_true", required=True, help="yes, destroy what is on them")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs of each; the median counts")
    parser.add_argument("--slow", action="store_true", help="also the ways that nobody should take")
    parser.add_argument("address", nargs="+", help="PCI address of an NVMe controller with one namespace")
    arguments = parser.parse_args()
    drives = [find(address) for address in arguments.address]
    first = drives[0]
    print(f"{len(drives)} × {first.size >> 20} MiB ({first.drive_model}), median of {arguments.repeat}")

    def measure(name: str, work: Callable[[], float | None], *, trace: bool = False) -> float:
        """The median of the seconds that *work* says it took, or took."""
        spent = []
        for _ in range(arguments.repeat):
            began = time.monotonic()
            said = work()
            spent.append(time.monotonic() - began if said is None else said)
        seconds = statistics.median(spent)
        sent = ""
        if trace:
            with commands_sent() as counts:
                work()
            sent = ", ".join(f"{number} × {command}" for command, number in counts.most_common(3))
        print(f"  {name:48} {seconds:7.2f} s  {first.size / seconds / 2**20:8.0f} MiB/s  {sent}", flush=True)
        return seconds

    whole = measure("Autoclave, verify = none, all of a cleaning", lambda: clean(first, "none").whole)
    discard = measure("blkdiscard --zeroout", lambda: blkdiscard(first), trace=True)
    zero = measure("Autoclave, the overwriting", lambda: clean(first, "none").overwriting, trace=True)
    sample = measure("Autoclave, reading back a sample", lambda: clean(first, "sample").reading_back)
    read = measure("dd, direct", lambda: dd(first))
    full = measure("Autoclave, reading back everything", lambda: clean(first, "full").reading_back)
    if arguments.slow:
        measure("nvme write-zeroes, a process per 65,536 blocks", lambda: write_zeroes(first), trace=True)
        measure("shred --iterations=0 --zero", lambda: run("shred", "-n0", "-z", first.node), trace=True)
        measure("blkdiscard (reads as zero on some drives only)", lambda: run("blkdiscard", "-f", first.node))
    together = measure(f"{len(drives)} × blkdiscard --zeroout at once", lambda: max(at_once(blkdiscard, drives)))
    ours = measure(
        f"{len(drives)} × Autoclave at once, the overwriting",
        lambda: max(at_once(lambda drive: clean(drive, "none").overwriting, drives)),
    )

    print("ratios:")
    for what, ratio, limit in (
        ("overwriting / blkdiscard --zeroout", zero / discard, "≤ 1.25"),
        ("overwriting and a sample / overwriting", (zero + sample) / zero, "≤ 1.10"),
        ("pace of a full read-back / dd", read / full, "≥ 0.50"),
        (f"{len(drives)} at once / {len(drives)} blkdiscard at once", ours / together, "≤ 1.30"),
    ):
        print(f"  {what:48} {ratio:7.2f}    ({limit})")
    print(f"what a cleaning costs besides, however large the drive: {whole - zero:.2f} s")
    return 0


def find(address: str) -> Drive:
    """The drive in a slot."""
    controller = controller_at(HostPaths(), PCIAddress.parse(address))
    if len(controller.namespaces) != 1:
        sys.exit(f"{address} has {len(controller.namespaces)} namespaces: give a drive with one")
    [namespace] = controller.namespaces
    return Drive(
        "benchmark", address, controller.serial, controller.model, "write_zeroes", str(namespace.path),
        str(controller.path), namespace.size_bytes,
    )  # fmt: skip


@dataclass(frozen=True)
class Cleaning:
    """Seconds of one cleaning and its parts."""

    whole: float
    overwriting: float
    reading_back: float


def clean(drive: Drive, verify: str) -> Cleaning:
    """What the agent does: the checks before it, overwriting, reading back."""
    options = {("nvme", "verify"): verify, ("agent", "data_dir"): tempfile.gettempdir()}
    driver = NVMeDriver(new_config((), options), HostPaths())
    began = time.monotonic()
    evidence = driver.cleanup(drive)
    whole = time.monotonic() - began
    [namespace] = evidence["namespaces"]
    assert namespace["bytes"] == drive.size, evidence
    return Cleaning(whole, namespace["seconds"], namespace["read_back_seconds"])


def blkdiscard(drive: Drive) -> float:
    began = time.monotonic()
    run("blkdiscard", "--zeroout", "--force", drive.node)
    return time.monotonic() - began


def write_zeroes(drive: Drive) -> None:
    blocks = drive.size // 512
    for start in range(0, blocks, BLOCKS_OF_A_COMMAND):
        count = min(BLOCKS_OF_A_COMMAND, blocks - start)
        run("nvme", "write-zeroes", drive.node, f"--start-block={start}", f"--block-count={count - 1}")


def dd(drive: Drive) -> None:
    run("dd", f"if={drive.node}", "of=/dev/null", "bs=4M", "iflag=direct", "status=none")


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def at_once(work: Callable[[Drive], float], drives: Sequence[Drive]) -> list[float]:
    with ThreadPoolExecutor(len(drives)) as pool:
        return list(pool.map(work, drives))


@contextmanager
def commands_sent() -> Iterator[Counter[str]]:
    """Count the I/O commands that the kernel sends to NVMe drives meanwhile; empty where it cannot be traced."""
    counts: Counter[str] = Counter()
    event = TRACE / "events/nvme/nvme_setup_cmd"
    if not TRACE.joinpath("trace").exists():
        subprocess.run(["mount", "-t", "tracefs", "tracefs", TRACE], capture_output=True)
    if not event.exists() or os.geteuid() != 0:
        yield counts
        return
    (TRACE / "trace").write_text("")
    (TRACE / "buffer_size_kb").write_text("16384")
    (event / "enable").write_text("1")
    try:
        yield counts
    finally:
        (event / "enable").write_text("0")
    for line in (TRACE / "trace").read_text().splitlines():
        _, found, rest = line.partition("cmd=(")
        if found and "qid=0" not in line:
            counts[rest.split()[0].removeprefix("nvme_cmd_")] += 1


if __name__ == "__main__":
    sys.exit(main())
