"""``autoclave plan`` on a simulated host."""

import json
from pathlib import Path
from typing import Any

import pytest

from autoclave.cli.main import main
from autoclave.simulator.drive_spec import DriveSpec
from autoclave.simulator.host import SimulatedHost

ERASABLE, OWN_DISK, UNMATCHED = "0000:41:00.0", "0000:42:00.0", "0000:43:00.0"


def plan(directory: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    drives = [
        DriveSpec(ERASABLE, "S1", crypto=True, iommu_group=7),
        DriveSpec(OWN_DISK, "S2", crypto=True, mounted=True),
        DriveSpec(UNMATCHED, "S3", product="0011", iommu_group=7),
    ]
    host = SimulatedHost.create(directory / "host", "compute-1", drives)
    before = {address: host.read(address, 0, 4096) for address in (ERASABLE, OWN_DISK, UNMATCHED)}
    config = directory / "autoclave.conf"
    config.write_text(
        f"[agent]\nresource_provider_name = compute-1\nsysfs_root = {host.paths.sysfs}\ndev_root = {host.paths.dev}\n"
        f"proc_root = {host.paths.proc}\ntools_path = {','.join(map(str, host.paths.tools))}\n"
        '[nvme]\ndevice_spec = {"vendor_id": "1b36", "product_id": "0010"}\n'
    )
    assert main(["plan", "--config-file", str(config), "-f", "json"]) == 0
    assert {address: host.read(address, 0, 4096) for address in before} == before
    return {row["address"]: row for row in json.loads(capsys.readouterr().out)}


def test_a_drive_shows_its_erase_why_not_another_and_what_placement_would_get(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = plan(tmp_path, capsys)[ERASABLE]
    assert (row["action"], row["refused"]) == ("sanitize_crypto", "")
    assert "clear_action=auto" in row["why"]
    assert "sanitize_block: the controller does not support Block Erase" in row["rejected"]
    assert "HW_NVME_CES" in row["capabilities"]
    assert "CUSTOM_NVME_1B36_0010 total=1" in row["placement"]
    assert "HW_NVME_CES" in row["placement"]


def test_the_other_functions_that_a_guest_would_get_as_well_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(tmp_path, capsys)[ERASABLE]["iommu_group"] == UNMATCHED


def test_the_hosts_own_disk_is_refused_and_says_who_uses_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = plan(tmp_path, capsys)[OWN_DISK]
    assert "this host itself uses it" in row["refused"]
    assert f"allow_host_device = {OWN_DISK}" in row["refused"]
    assert (row["action"], row["placement"]) == ("", "nothing is written")


def test_a_drive_that_no_entry_matches_is_shown_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = plan(tmp_path, capsys)[UNMATCHED]
    assert "no device_spec entry matches" in row["refused"]
    assert row["placement"] == "nothing is written"
