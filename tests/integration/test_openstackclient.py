"""``openstack accelerator device …``: the real client, our commands, python-cyborgclient's, a service."""

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from machine import SANITIZING, SECRET, Machine

from autoclave.simulator.faults import Fault, FaultKind

OPENSTACK = str(Path(sys.executable).parent / "openstack")


def openstack(machine: Machine, *words: str, config: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command in a shell that has sourced nothing but the clouds.yaml of ``autoclave up``, or *config*."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(machine.data_dir),
        "OS_CLIENT_CONFIG_FILE": str(config or machine.data_dir / "clouds.yaml"),
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


def test_device_state_is_a_column_of_list_and_show(machine: Machine) -> None:
    """The client's own commands have no such column, at any microversion."""
    machine.wait_until_offered(SANITIZING)
    device = machine.cloud.device(SANITIZING)["uuid"]
    assert {row["uuid"]: row["device_state"] for row in read(machine, "list")}[device] == "available"
    assert {row["uuid"]: row["device_state"] for row in read(machine, "list", "--long")}[device] == "available"
    assert read(machine, "show", device)["device_state"] == "available"


def test_an_older_microversion_leaves_device_state_empty(machine: Machine) -> None:
    """The microversion is the caller's choice, also where the service speaks 2.5."""
    machine.wait_until_offered(SANITIZING)
    file = machine.data_dir / "clouds.yaml"
    cloud = yaml.safe_load(file.read_text())
    cloud["clouds"]["autoclave"]["accelerator_default_microversion"] = "2.3"
    older = machine.data_dir / "older.yaml"
    older.write_text(yaml.safe_dump(cloud))
    rows = json.loads(openstack(machine, "list", "-f", "json", config=older).stdout)
    assert [row["device_state"] for row in rows] == [None] * len(rows)
    assert all(row["status"] for row in rows)


@pytest.mark.parametrize("action", ["disable", "enable"])
def test_a_refused_action_fails(machine: Machine, action: str) -> None:
    """openstacksdk ignores the answer, so the client's own commands end with 0 and say nothing."""
    refused = openstack(machine, action, "00000000-0000-4000-8000-000000000000")
    assert refused.returncode != 0
    assert "404" in refused.stderr


def test_disable_and_enable_are_seen_in_status(machine: Machine) -> None:
    """The actions reach the service as the client's own did."""
    machine.wait_until_offered(SANITIZING)
    device = machine.cloud.device(SANITIZING)["uuid"]
    for action, status in (("disable", "maintaining"), ("enable", "enabled")):
        done = openstack(machine, action, device)
        assert (done.returncode, done.stderr) == (0, "")
        assert read(machine, "show", device)["status"] == status


@pytest.mark.parametrize(
    "first", [["autoclave"], ["python-openstackclient", "python-cyborgclient"]], ids=["ours first", "theirs first"]
)
def test_our_commands_win_in_any_order(first: list[str], tmp_path: Path) -> None:
    """Which of two commands of one name wins must not depend on the order in which packages are found.

    Packages whose metadata stands in PYTHONPATH are found before those of the environment.
    """
    for name in first:
        metadata = Path(str(distribution(name)._path))  # type: ignore[attr-defined]
        shutil.copytree(metadata, tmp_path / metadata.name)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    for action in ("show", "clean", "disable", "enable"):
        words = [OPENSTACK, "--os-auth-type", "none", "accelerator", "device", action, "no-uuid"]
        ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=60)
        assert ended.returncode == 2
        assert "'no-uuid' is not a UUID" in ended.stderr
