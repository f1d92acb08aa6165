"""``autoclave plan`` on a simulated host."""

import json
from pathlib import Path
from typing import Any

import pytest

from autoclave.cli.main import main
from autoclave.hardware.erase_rates import EraseRates
from autoclave.simulator.drive_spec import DriveSpec
from autoclave.simulator.functions import FunctionSpec
from autoclave.simulator.host import SimulatedHost

ERASABLE, OWN_DISK, UNMATCHED, ZEROED = "0000:41:00.0", "0000:42:00.0", "0000:43:00.0", "0000:44:00.0"


class Planner:
    """``autoclave plan`` on a host of three drives, which it must not change."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        drives = [
            DriveSpec(ERASABLE, "S1", crypto=True, iommu_group=7),
            DriveSpec(OWN_DISK, "S2", crypto=True, mounted=True),
            DriveSpec(UNMATCHED, "S3", product="0011", iommu_group=7),
            DriveSpec(ZEROED, "S4"),
        ]
        self.host = host = SimulatedHost.create(directory / "host", "compute-1", drives)
        self._capsys = capsys
        self._config = directory / "autoclave.conf"
        self._config.write_text(
            f"[agent]\nresource_provider_name = compute-1\ndata_dir = {directory}\nsysfs_root = {host.paths.sysfs}\n"
            f"dev_root = {host.paths.dev}\nproc_root = {host.paths.proc}\n"
            f"tools_path = {','.join(map(str, host.paths.tools))}\n"
            '[nvme]\ndevice_spec = {"vendor_id": "1b36", "product_id": "0010"}\n'
        )

    def add(self, text: str) -> None:
        """Let the configuration say more."""
        self._config.write_text(self._config.read_text() + text)

    def ask(self, *arguments: str, code: int = 0) -> str:
        """What is said: on stdout, or of an error on stderr."""
        before = self._media()
        assert main(["plan", *arguments, "--config-file", str(self._config)]) == code
        assert self._media() == before
        said = self._capsys.readouterr()
        return said.err if code else said.out

    def rows(self) -> dict[str, dict[str, Any]]:
        """What programs are told, by address."""
        return {row["address"]: row for row in json.loads(self.ask("--long", "-f", "json"))}

    def remember(self, model: str, size: int, seconds: float) -> None:
        """A drive of the model was overwritten at that pace."""
        EraseRates(self._config.parent).remember(model, "write_zeroes", size, seconds)

    def _media(self) -> list[bytes]:
        return [self.host.read(address, 0, 4096) for address in (ERASABLE, OWN_DISK, UNMATCHED)]


@pytest.fixture
def planner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Planner:
    return Planner(tmp_path, capsys)


def test_a_drive_shows_its_erase_why_not_another_and_what_placement_would_get(planner: Planner) -> None:
    row = planner.rows()[ERASABLE]
    assert (row["action"], row["refused"]) == ("sanitize_crypto", [])
    assert "clear_action=auto" in row["why"]
    assert row["action"] is None
    [why] = row["refused"]
    assert "this host itself uses it" in why
    assert row["holders"]


def test_what_keeps_the_agent_from_starting_is_said_of_the_function(flavors: Planner) -> None:
    flavors.add(
        f'[pci]\ndevice_spec = {{"address": "{ERASABLE}", "one_time_use": true}}\n'
        'device_spec = {"product_id": "154c", "one_time_use": true}\n'
    )
    rows = flavors.rows()
    assert rows[ERASABLE]["refused"][0] == (
        "nvme_driver and [pci] device_spec claim it, so the agent does not start: let only one match it"
    )
    [wrong] = rows[CARD]["refused"]
    assert "Only whole devices (type-PCI, type-PF) can be of one time use" in wrong
    assert wrong.endswith("The agent does not start")


def test_an_entry_that_cannot_be_read_is_named(flavors: Planner) -> None:
    flavors.add('[pci]\ndevice_spec = {"vendor_id": "10de", "one_time_us": true}\n')
    said = flavors.ask(code=1)
    assert "[pci] device_spec, entry 1, key 'one_time_us': unknown key; did you mean 'one_time_use'?" in said
