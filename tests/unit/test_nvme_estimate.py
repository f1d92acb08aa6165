"""How long an erase takes is the drive's own word, or what was measured; never a guess."""

import json
from pathlib import Path

import pytest
from scripted_nvme import ScriptedNvme

from autoclave.drivers.base import Estimate
from autoclave.hardware.command import Commands
from autoclave.hardware.erase.methods import METHODS
from autoclave.hardware.erase.work import EraseRates
from autoclave.hardware.host import HostPaths
from autoclave.hardware.nvme import Controller, Namespace
from autoclave.hardware.nvme_cli import NvmeCli
from autoclave.rules.cleanup_policy import CleanupAction
from autoclave.rules.pci_address import PCIAddress

CONTROLLER = Controller(
    address=PCIAddress.parse("0000:41:00.0"),
    name="nvme7",
    path=Path("/dev/nvme7"),
    serial="S1",
    model="Fine Drive",
    state="live",
    subsystem=None,
    namespaces=(
        Namespace(1, "nvme7n1", Path("/dev/nvme7n1"), 3_000_000),
        Namespace(2, "nvme7n2", Path("/dev/nvme7n2"), 1_000_000),
    ),
    other_paths=(),
)
NOT_REPORTED = 0xFFFFFFFF


class Host:
    """A host whose nvme-cli is scripted, and what it remembers of earlier erases."""

    def __init__(self, directory: Path) -> None:
        (directory / "tools").mkdir()
        self.tool = ScriptedNvme(directory / "tools")
        self.rates = EraseRates(directory)
        self._nvme = NvmeCli(Commands(HostPaths(tools=(self.tool.root,))), command_timeout=30)

    def reports(self, block: int, crypto: int) -> None:
        sstat = {"global_erased": 0, "no_cmplted_passes": 0, "status": "(0) NVM Subsystem has never been sanitized."}
        times = {"time_block_erase": block, "time_crypto_erase": crypto, "time_over_write": NOT_REPORTED}
        self.tool.says("sanitize-log", json.dumps({"nvme7": {"sprog": 65535, "sstat": sstat, **times}}))

    def estimate(self, action: CleanupAction) -> Estimate:
        return METHODS[action].estimate(self._nvme, self.rates, CONTROLLER)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_sanitize_takes_what_the_log_page_says_of_its_own_kind(host: Host) -> None:
    host.reports(block=7200, crypto=4)
    assert host.estimate(CleanupAction.SANITIZE_BLOCK) == Estimate(7200, "the drive reports it")
    assert host.estimate(CleanupAction.SANITIZE_CRYPTO) == Estimate(4, "the drive reports it")
    assert {call.split()[1] for call in host.tool.calls if call.startswith("sanitize-log")} == {"/dev/nvme7"}


def test_a_time_that_the_drive_does_not_report_is_not_136_years(host: Host) -> None:
    host.reports(block=NOT_REPORTED, crypto=4)
    assert host.estimate(CleanupAction.SANITIZE_BLOCK) == Estimate(None, "the drive does not report it")


def test_a_log_that_cannot_be_read_is_said_to(host: Host) -> None:
    host.tool.says("sanitize-log", stderr="NVMe status: Invalid Field in Command(0x2)\n", rc=1)
    told = host.estimate(CleanupAction.SANITIZE_BLOCK)
    assert told.seconds is None
    assert "Invalid Field" in told.basis


@pytest.mark.parametrize("action", [CleanupAction.WRITE_ZEROES, CleanupAction.SHRED])
def test_zeroing_takes_all_namespaces_at_the_pace_that_was_measured(host: Host, action: CleanupAction) -> None:
    assert host.estimate(action) == Estimate(None, "no drive of this model has been overwritten on this host yet")
    host.rates.remember("Fine Drive", str(action), 10_000_000, 5.0)
    assert host.estimate(action) == Estimate(2.0, "2 MB/s, as the last drive of this model")


def test_format_takes_as_long_as_the_last_of_its_model(host: Host) -> None:
    """No drive says how long its format takes, and its rate is no pace of bytes."""
    assert host.estimate(CleanupAction.FORMAT_CRYPTO) == Estimate(
        None, "no drive of this model has been formatted on this host yet; most take seconds to minutes"
    )
    host.rates.remember("Fine Drive", "format_crypto", 10_000_000, 5.0)
    assert host.estimate(CleanupAction.FORMAT_CRYPTO) == Estimate(2.0, "as the last drive of this model")
