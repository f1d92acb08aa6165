#!/usr/bin/env python
"""How long erasing takes, against the quickest tools that do the same to the same drives.

    benchmarks/erase.py --destroy 0000:41:00.0 [0000:42:00.0 …]

Destroys what is on the drives. Prints a table of seconds and the ratios that the project promises, of the best of
several runs that take turns (whatever else a machine does only ever makes a run slower), and how far the worst was off:

* overwriting ≤ 1.25 × ``blkdiscard --zeroout``; reading back a sample adds ≤ 10 %
* a full read-back ≥ 0.5 × the pace of ``dd`` with direct I/O
* all the drives at once ≤ 1.3 × as many ``blkdiscard --zeroout`` at once

and, where the kernel can be traced, the NVMe commands that it really sent for each way of zeroing. What a cleaning
costs however small the drive (looking at it, before and after) is shown by itself: on a drive of 1 GiB it weighs more
than the erasing.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from autoclave.conf import new_config
from autoclave.drivers.nvme import NVMeDriver
from autoclave.hardware.erase import zero
from autoclave.hardware.host import HostPaths, Progress
from autoclave.hardware.nvme import controller_at
from autoclave.rules.pci_address import PCIAddress

BLOCKS_OF_A_COMMAND = 65536
"""The most that one Write Zeroes command covers: its count has 16 bits."""
TRACE = Path("/sys/kernel/tracing")

BLKDISCARD, DD, TOGETHER = "blkdiscard --zeroout", "dd, direct", "blkdiscard --zeroout of all at once"
WHOLE, ZERO, SAMPLE, FULL, OURS = (
    "Autoclave, verify = none, all of a cleaning",
    "Autoclave, the overwriting",
    "Autoclave, reading back a sample",
    "Autoclave, reading back everything",
    "Autoclave, the overwriting of all at once",
)


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
    parser.add_argument("--repeat", type=int, default=7, metavar="N", help="runs of each; the best counts")
    parser.add_argument("--slow", action="store_true", help="also the ways that nobody should take")
    parser.add_argument("address", nargs="+", help="PCI address of an NVMe controller with one namespace")
    arguments = parser.parse_args()
    drives = [find(address) for address in arguments.address]
    first = drives[0]
    print(f"{len(drives)} × {first.size >> 20} MiB ({first.drive_model}), best of {arguments.repeat}")
    spent: dict[str, list[float]] = defaultdict(list)
    for _ in range(arguments.repeat):
        spent[BLKDISCARD].append(blkdiscard(first))
        without, sample = clean(first, "none"), clean(first, "sample")
        spent[WHOLE].append(without.whole)
        spent[ZERO] += without.overwriting, sample.overwriting
        spent[SAMPLE].append(sample.reading_back)
        spent[DD].append(dd(first))
        spent[FULL].append(clean(first, "full").reading_back)
        spent[TOGETHER].append(max(at_once(blkdiscard, drives)))
        spent[OURS].append(max(clean_at_once(drives)))
    if arguments.slow:
        for name, way in SLOW.items():
            spent[name].append(timed(lambda way=way: way(first)))
    for name, seconds in spent.items():
        best = min(seconds)
        pace = f"{first.size / best / 2**20:8.0f} MiB/s" if name not in (WHOLE, SAMPLE) else ""
        print(f"  {name:48} {best:7.3f} s  (worst {max(seconds):7.3f})  {pace}")
    print("commands that the kernel sent:")
    traced = {BLKDISCARD: blkdiscard, ZERO: lambda drive: clean(drive, "none"), **(SLOW if arguments.slow else {})}
    for name, way in traced.items():
        with commands_sent() as counts:
            way(first)
        sent = ", ".join(f"{number} × {command}" for command, number in counts.most_common(3))
        print(f"  {name:48} {sent or 'not known here'}", flush=True)

    best_of = {name: min(seconds) for name, seconds in spent.items()}
    print("ratios:")
    for what, ratio, limit in (
        ("overwriting / blkdiscard --zeroout", best_of[ZERO] / best_of[BLKDISCARD], "≤ 1.25"),
        ("overwriting and a sample / overwriting", (best_of[ZERO] + best_of[SAMPLE]) / best_of[ZERO], "≤ 1.10"),
        ("pace of a full read-back / dd", best_of[DD] / best_of[FULL], "≥ 0.50"),
        (f"{len(drives)} at once / {len(drives)} blkdiscard at once", best_of[OURS] / best_of[TOGETHER], "≤ 1.30"),
    ):
        print(f"  {what:48} {ratio:7.2f}    ({limit})")
    print(f"what a cleaning costs besides, however large the drive: {best_of[WHOLE] - best_of[ZERO]:.2f} s")
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


def clean(drive: Drive, verify: str, ready: Callable[[], object] = lambda: None) -> Cleaning:
    """What the agent does: the checks before it, *ready*, overwriting, reading back."""
    directory = Path(tempfile.gettempdir(), drive.controller.replace("/", "_"))
    directory.mkdir(exist_ok=True)
    options = {("nvme", "verify"): verify, ("agent", "data_dir"): str(directory)}
    driver = NVMeDriver(new_config((), options), HostPaths())

    def progress(news: Progress) -> None:
        if news.percent is None and news.step.startswith(zero.ZERO_OUT):
            ready()

    began = time.monotonic()
    evidence = driver.cleanup(drive, replace(driver.own_control(), progress=progress))
    whole = time.monotonic() - began
    [namespace] = evidence["namespaces"]
    assert namespace["bytes"] == drive.size, evidence
    return Cleaning(whole, namespace["seconds"], namespace["read_back_seconds"])


def clean_at_once(drives: Sequence[Drive]) -> list[float]:
    """The overwriting of each, begun at one moment."""
    all_ready = threading.Barrier(len(drives))
    return at_once(lambda drive: clean(drive, "none", all_ready.wait).overwriting, drives)


def timed(work: Callable[[], None]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def blkdiscard(drive: Drive) -> float:
    return timed(lambda: run("blkdiscard", "--zeroout", "--force", drive.node))


def dd(drive: Drive) -> float:
    return timed(lambda: run("dd", f"if={drive.node}", "of=/dev/null", "bs=4M", "iflag=direct", "status=none"))


def write_zeroes(drive: Drive) -> None:
    blocks = drive.size // 512
    for start in range(0, blocks, BLOCKS_OF_A_COMMAND):
        count = min(BLOCKS_OF_A_COMMAND, blocks - start)
        run("nvme", "write-zeroes", drive.node, f"--start-block={start}", f"--block-count={count - 1}")


SLOW: Mapping[str, Callable[[Drive], None]] = {
    "nvme write-zeroes, a process per 65,536 blocks": write_zeroes,
    "shred --iterations=0 --zero": lambda drive: run("shred", "-n0", "-z", drive.node),
    "blkdiscard (reads as zero on some drives only)": lambda drive: run("blkdiscard", "-f", drive.node),
}
"""The ways that nobody should take."""


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
