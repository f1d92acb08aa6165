"""The page "Devices of one time use" of the documentation: what it says to rehearse works as it is printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from processes import COMMAND, Process, free_port

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "source" / "one-time-use.rst").read_text()
CONFIGURATION = re.search(r"\.\. code-block:: ini\n\n((?: {3}.*\n)+)", PAGE)
REHEARSAL = PAGE[PAGE.index("Rehearse it\n---") :]


def test_a_device_of_one_time_use_can_be_rehearsed_by_the_commands_of_the_page(tmp_path: Path) -> None:
    told = re.findall(r"^ {3}\$ (.*)$", REHEARSAL, re.MULTILINE)
    assert len(told) > 15
    started, *commands = told
    assert started.startswith("autoclave up --simulate 1 --data-dir /tmp/autoclave --config-file gpu.conf")
    assert CONFIGURATION is not None
    (tmp_path / "gpu.conf").write_text(CONFIGURATION[1].replace("   ", ""))
    bind = f"127.0.0.1:{free_port()}"
    data_dir = str(tmp_path / "data")
    arguments = started.replace("/tmp/autoclave", data_dir).replace("gpu.conf", f"{tmp_path}/gpu.conf").split()[1:]
    service = Process([COMMAND, *arguments, "--bind", bind], tmp_path / "log")
    try:
        service.wait_for_http(f"http://{bind}/healthcheck")
        script = "\n".join(["set -euo pipefail", *commands]).replace("/tmp/autoclave", data_dir)
        # A reader's shell, not ours: other tests may have left something in our environment.
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "HOME": str(tmp_path),
            "LANG": "C.UTF-8",
            "AUTOCLAVE_URL": f"http://{bind}",
        }
        done = subprocess.run(
            ["bash", "-c", script], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300
        )
    finally:
        service.kill()
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    lines = [line.strip() for line in done.stdout.splitlines()]
    [burned] = [at for at, line in enumerate(lines) if line.startswith("| sim-1") and "0000:81:00.0" in line]
    refused = next(at for at, line in enumerate(lines) if "No valid host was found" in line)
    cleaned = next(at for at, line in enumerate(lines) if line.startswith("cleaned 0000:81:00.0 "))
    assert burned < refused < cleaned < lines.index("ACTIVE")
    assert lines[-1] != "0000:81:00.0"  # released by hand, and taken note of
