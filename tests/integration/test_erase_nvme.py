"""The sample command that erases a drive, on a simulated host: it ends with 0 only for what the drive has proved."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autoclave.simulator.drive_spec import DriveSpec
from autoclave.simulator.faults import Fault, FaultKind
from autoclave.simulator.host import STYLES, SimulatedHost

SCRIPT = Path(__file__).parents[2] / "contrib" / "erase_nvme.py"
DRIVE = "0000:41:00.0"
SECRET = b"what the guest left"


class Erase:
    """The script, and a drive with something on it."""

    def __init__(self, directory: Path, style: str = "2.13", **drive: object) -> None:
        spec = DriveSpec(DRIVE, "S1", **{"block": True, "sanitize_seconds": 0.3, **drive})  # type: ignore[arg-type]
        self.host = SimulatedHost.create(directory / "host", "h", [spec], style=style)
        self.host.fill(DRIVE, SECRET)

    def run(self, address: str = DRIVE, path: str = os.environ["PATH"]) -> tuple[int, str]:
        """Exit code, and what it says."""
        root = self.host.root
        argv = [sys.executable, str(SCRIPT), "--sysfs", f"{root}/sys", "--dev", f"{root}/dev", "--poll", "0.05"]
        environment = {**os.environ, "PATH": f"{root}/bin:{path}"}
        ended = subprocess.run(
            [*argv, address, "a-provider"], env=environment, capture_output=True, text=True, timeout=60
        )
        return ended.returncode, ended.stderr

    @property
    def is_clean(self) -> bool:
        return not self.host.find(DRIVE, SECRET)


@pytest.mark.parametrize("style", STYLES)
def test_a_drive_is_erased_in_every_dialect(tmp_path: Path, style: str) -> None:
    erase = Erase(tmp_path, style)
    assert erase.run()[0] == 0
    assert erase.is_clean


def test_a_drive_that_can_only_crypto_erase_does_that(tmp_path: Path) -> None:
    erase = Erase(tmp_path, block=False, crypto=True)
    assert erase.run()[0] == 0
    assert erase.is_clean


def test_a_drive_that_cannot_sanitize_is_not_erased(tmp_path: Path) -> None:
    erase = Erase(tmp_path, block=False)
    code, said = erase.run()
    assert (code, erase.is_clean) == (1, False)
    assert said.endswith("/dev/nvme0 supports neither block erase nor crypto erase\n")


def test_an_erase_that_fails_is_one_that_failed_even_after_one_that_did_not(tmp_path: Path) -> None:
    erase = Erase(tmp_path)
    assert erase.run()[0] == 0
    erase.host.fill(DRIVE, SECRET)
    erase.host.set_fault(DRIVE, Fault(FaultKind.SANITIZE_FAILS))
    code, said = erase.run()
    assert (code, erase.is_clean) == (1, False)
    assert "the drive says of its last sanitize (action 2): (3)" in said


def test_an_erase_of_somebody_else_is_waited_for_and_does_not_count(tmp_path: Path) -> None:
    erase = Erase(tmp_path, crypto=True, sanitize_seconds=1.0)
    subprocess.run(
        [f"{erase.host.root}/bin/nvme", "sanitize", f"{erase.host.root}/dev/nvme0", "--sanact=4"], check=True
    )
    assert erase.run()[0] == 0
    with erase.host.drive(DRIVE) as drive:
        operation = drive.state.operation
        assert operation is not None
        assert operation.action == 2


def test_an_erase_of_former_times_does_not_count_when_the_tool_hides_that_it_started_none(tmp_path: Path) -> None:
    erase = Erase(tmp_path)
    assert erase.run()[0] == 0
    erase.host.fill(DRIVE, SECRET)
    tool, real = erase.host.root / "bin" / "nvme", erase.host.root / "bin" / "real"
    tool.rename(real)
    tool.write_text(
        f'#!/bin/sh\n[ $1 != sanitize ] || {{ echo "NVMe status: ..(0x1d)" >&2; exit 0; }}\nexec {real} "$@"\n'
    )
    tool.chmod(0o755)
    code, said = erase.run()
    assert (code, erase.is_clean) == (1, False)
    assert "no sanitize was seen running, and nvme said: NVMe status: ..(0x1d)" in said


@pytest.mark.parametrize("driver", ["vfio-pci", None])
def test_a_drive_that_is_not_with_the_hosts_driver_names_the_one_that_has_it(
    tmp_path: Path, driver: str | None
) -> None:
    erase = Erase(tmp_path, driver=driver)
    code, said = erase.run()
    assert (code, erase.is_clean) == (1, False)
    assert f"not with the nvme driver ({driver or 'no driver'} has it)" in said


def test_an_address_without_a_function_is_told(tmp_path: Path) -> None:
    assert Erase(tmp_path).run("0000:99:00.0") == (
        1,
        "erase_nvme: 0000:99:00.0 is not erased: 0000:99:00.0: this host has no such PCI function\n",
    )


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (FaultKind.NVME_GARBAGE, "nvme0 printed what is no JSON: "),
        (FaultKind.VANISHES, "nvme0 -o json ended with 1: "),
    ],
    ids=["garbage", "vanishes"],
)
def test_what_goes_wrong_is_told_in_one_line_and_is_no_erase(tmp_path: Path, kind: FaultKind, said: str) -> None:
    erase = Erase(tmp_path)
    erase.host.set_fault(DRIVE, Fault(kind))
    code, told = erase.run()
    assert code == 1
    [line] = told.splitlines()
    assert line.startswith(f"erase_nvme: {DRIVE} is not erased: ")
    assert said in line


def test_a_host_without_the_tool_is_told(tmp_path: Path) -> None:
    erase = Erase(tmp_path)
    (erase.host.root / "bin" / "nvme").unlink()
    code, told = erase.run(path="")
    assert (code, erase.is_clean) == (1, False)
    assert "No such file or directory: 'nvme'" in told
