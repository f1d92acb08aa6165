"""The page "Use it" of the documentation: every command works as it is printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

from machine import SANITIZING, ZEROING, Machine

PAGE = Path(__file__).parents[2] / "docs" / "source" / "use.rst"
BIN = str(Path(sys.executable).parent)
ELSEWHERE = ("autoclave up ", "openstack flavor ")
"""What the fixture does, and what only a cloud with Nova can do."""
WAIT = "while autoclave device list -f value -c device_state | grep -q cleaning; do sleep 0.2; done"
"""A reader's patience, after every command."""


def commands() -> list[str]:
    """Every command of the page, in its order; a long one goes on in lines without a prompt."""
    found: list[str] = []
    for block in re.findall(r"\.\. code-block:: console\n\n((?: {3}.*\n|\n)+)", PAGE.read_text()):
        for line in block.splitlines():
            if line.startswith("   $ "):
                found.append(line.removeprefix("   $ "))
            elif line.strip():
                found[-1] += f"\n{line}"
    return [command for command in found if not command.startswith(ELSEWHERE)]


def test_the_story_of_a_drive_can_be_told_by_the_commands_of_the_page(machine: Machine, tmp_path: Path) -> None:
    told = commands()
    assert len(told) > 20
    script = "\n".join(["set -euo pipefail", *(f"{command}\n{WAIT}" for command in told)])
    # A reader's shell, not ours: other tests may have left something in our environment.
    environment = {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "LANG": "C.UTF-8",
        "AUTOCLAVE_URL": machine.url,
    }
    done = subprocess.run(
        ["bash", "-c", script.replace("/tmp/autoclave", str(machine.data_dir))],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    lines = done.stdout.splitlines()
    assert lines.index("there") < lines.index("gone")
    assert any(line.startswith("| device_state") and "error" in line for line in lines)
    for address in (SANITIZING, ZEROING):
        machine.wait_until_offered(address)  # a clean that was asked for begins when the agent hears of it
