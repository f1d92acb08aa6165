"""Who does what needs root on a host is decided when the agent starts, and said where nobody can."""

import subprocess
import sys
from pathlib import Path

import pytest

from autoclave.conf import new_config
from autoclave.services.hosts import host_paths
from autoclave.simulator.host import SimulatedHost

AS_NOBODY = """\
import os
from autoclave.conf import new_config
from autoclave.exceptions import InvalidConfiguration
from autoclave.services.hosts import host_paths

conf = new_config()
if os.geteuid() == 0:
    os.setuid(65534)
try:
    host_paths(conf)
except InvalidConfiguration as error:
    print(error.option, error)
"""


def test_a_simulated_host_needs_no_helper_even_if_one_is_configured(tmp_path: Path) -> None:
    conf = new_config(
        overrides={("agent", "dev_root"): str(tmp_path), ("autoclave_privileged", "helper_command"): "/bin/false"}
    )
    assert host_paths(conf).helper is None


def test_the_disks_of_a_simulated_host_are_its_own_and_those_of_any_other_are_the_kernels(tmp_path: Path) -> None:
    host = SimulatedHost.create(tmp_path / "host", "h1", [])
    found = host_paths(new_config((), host.conf_overrides()))
    assert found == host.paths
    assert host_paths(new_config(overrides={("agent", "dev_root"): str(tmp_path / "dev")})).hold_disk is None


def test_an_ordinary_user_without_a_helper_is_told_which_option_is_missing() -> None:
    done = subprocess.run([sys.executable, "-c", AS_NOBODY], check=True, capture_output=True, text=True)

    assert done.stdout.startswith("[autoclave_privileged] helper_command [autoclave_privileged] helper_command: ")
    assert "sudo -n /opt/autoclave/bin/autoclave-privileged" in done.stdout


@pytest.mark.parametrize("option", ["dev_root", "sysfs_root"])
def test_the_roots_are_those_of_the_configuration(tmp_path: Path, option: str) -> None:
    conf = new_config(overrides={("agent", "dev_root"): str(tmp_path / "dev"), ("agent", option): str(tmp_path)})
    assert getattr(host_paths(conf), option.removesuffix("_root")) == tmp_path
