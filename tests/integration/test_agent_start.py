"""An agent that cannot serve its host says why, and ends: its service manager and its operator are waiting for that."""

import subprocess
from pathlib import Path

import pytest
from processes import COMMAND, PATIENCE

from autoclave.simulator.drive_spec import default_drives
from autoclave.simulator.host import SimulatedHost
from dbfixtures import sqlite_database

pytestmark = pytest.mark.integration


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return SimulatedHost.create(tmp_path / "host", "host-that-cannot-be-served", default_drives(1))


def run_agent(host: SimulatedHost, directory: Path, broker: str, **agent: str) -> subprocess.CompletedProcess[str]:
    """Run the agent until it ends by itself; fails if it does not. *agent*: options that are not the host's own."""
    sqlite_database(directory).dispose()
    device_spec = agent.pop("device_spec", "")
    options = {name: value for (group, name), value in host.conf_overrides().items() if group == "agent"}
    options |= {"data_dir": str(directory / "agent"), **agent}
    config = directory / "autoclave.conf"
    lines = [
        "[DEFAULT]",
        f"transport_url = {broker}",
        "[database]",
        f"connection = sqlite:///{directory / 'autoclave.db'}",
        "[placement]",
        "auth_type = token",
        "endpoint = http://127.0.0.1:1",
        "[nvme]",
        f"device_spec = {device_spec}",
        "[agent]",
        *(f"{name} = {','.join(value) if isinstance(value, list) else value}" for name, value in options.items()),
    ]
    config.write_text("\n".join(lines))
    return subprocess.run(
        [COMMAND, "agent", "--config-file", str(config)],
        env={"PATH": str(directory / "nothing-is-here")},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def test_an_agent_with_a_misspelled_key_names_option_entry_and_key_and_ends(
    host: SimulatedHost, tmp_path: Path, rabbitmq_vhost_url: str
) -> None:
    ended = run_agent(host, tmp_path, rabbitmq_vhost_url, device_spec='{"adress": "0000:41:00.0"}')

    assert ended.returncode != 0
    for said in ("[nvme] device_spec", "entry 1", "adress"):
        assert said in ended.stderr


def test_an_agent_without_its_tools_names_what_is_missing_and_ends(
    host: SimulatedHost, tmp_path: Path, rabbitmq_vhost_url: str
) -> None:
    # The system's directories may have nvme-cli; what the operator's directory has is what is meant.
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nvme").touch(mode=0o644)
    ended = run_agent(host, tmp_path, rabbitmq_vhost_url, tools_path=str(tools), device_spec='{"address": "*"}')

    assert ended.returncode != 0
    assert f"{tools}/nvme is not executable" in ended.stderr
