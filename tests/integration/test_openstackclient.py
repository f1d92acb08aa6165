"""``openstack accelerator device clean``: the real client, our extension beside python-cyborgclient's, a service."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from machine import SANITIZING, SECRET, Machine

from autoclave.simulator.faults import Fault, FaultKind

OPENSTACK = str(Path(sys.executable).parent / "openstack")


def openstack(machine: Machine, *words: str) -> subprocess.CompletedProcess[str]:
    """The command in a shell that has sourced nothing but the clouds.yaml of ``autoclave up``."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(machine.data_dir),
        "OS_CLIENT_CONFIG_FILE": str(machine.data_dir / "clouds.yaml"),
        "OS_CLOUD": "autoclave",
    }
    command = [OPENSTACK, "accelerator", "device", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def read(machine: Machine, *words: str) -> Any:
    done = openstack(machine, *words, "-f", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_operator_cleans_a_drive_again_whose_erase_failed(machine: Machine) -> None:
    machine.wait_until_offered(SANITIZING)
    machine.host.set_fault(SANITIZING, Fault(FaultKind.SANITIZE_FAILS))
    machine.use(SANITIZING)
    machine.wait_for(SANITIZING, "error")
    device = machine.cloud.device(SANITIZING)["uuid"]
    assert device in [row["uuid"] for row in read(machine, "list")]

    machine.host.clear_faults(SANITIZING)
    asked = openstack(machine, "clean", device)

    assert (asked.returncode, asked.stderr) == (0, "")
    machine.wait_until_offered(SANITIZING)
    assert not machine.host.find(SANITIZING, SECRET)

    refused = openstack(machine, "clean", device)
    assert refused.returncode != 0
    assert "available" in refused.stderr
    assert machine.cloud.state(SANITIZING) == "available"


def test_a_place_is_not_taken_for_a_uuid_and_the_refusal_names_the_command_that_takes_it(machine: Machine) -> None:
    refused = openstack(machine, "clean", f"sim-1/{SANITIZING}")
    assert refused.returncode != 0
    assert "autoclave device clean" in refused.stderr
