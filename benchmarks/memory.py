#!/usr/bin/env python
"""The memory of a process that serves the API and nothing else: ``memory.py DATABASE``, run by ``api.py``."""

import sys
from pathlib import Path

from population import Service

from autoclave.db.engine import Database
from autoclave.testing.placement import FakePlacement


def peak() -> float:
    """MiB of this program so far; ``getrusage`` would count what started it, too."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024


def main(path: str) -> None:
    service = Service(Database(f"sqlite:///{path}"), FakePlacement().client())
    before = peak()
    for name in ("devices", "deployables", "accelerator_requests"):
        service.raw("GET", f"/v2/{name}")
    print(f"{'peak memory of an API process':40} {peak():8.0f} MiB, of which {before:.0f} before the first request")


if __name__ == "__main__":
    main(sys.argv[1])
