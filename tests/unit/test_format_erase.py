"""A format with secure erase counts only with a proof: what was written before is not there afterwards."""

import json

import pytest
from erase_doubles import Watcher, eraser

from autoclave.exceptions import (
    DeviceInUse,
    DeviceVanished,
    EraseFailed,
    EraseTimeout,
    EraseUnsupported,
    VerifyFailed,
)
from autoclave.hardware.block import open_block
from autoclave.hardware.nvme import controller_at
from autoclave.rules.cleanup_policy import CleanupAction
from autoclave.rules.pci_address import PCIAddress
from autoclave.simulator.drive_spec import MIB, DriveSpec
from autoclave.simulator.faults import Fault, FaultKind
from autoclave.simulator.host import STYLES, SimulatedHost

SLOT = "0000:42:00.0"
CRYPTO, BLOCK = CleanupAction.FORMAT_CRYPTO, CleanupAction.FORMAT_BLOCK
SIZE = 4 * MIB
SECRET = b"what the tenant left"
both = pytest.mark.parametrize("action", [CRYPTO, BLOCK])


@pytest.fixture
def make(tmp_path):
    """Makes a host with one drive that has Format NVM and no Sanitize, and holds a tenant's data."""

    def make(style="2.13", **spec):
        spec = {"serial": "SIM1", "size_bytes": SIZE, "format_crypto": True} | spec
        host = SimulatedHost.create(tmp_path / "host", "h1", [DriveSpec(address=SLOT, **spec)], style=style)
        host.fill(SLOT, SECRET)
        return host

    return make


def erase(host, action=CRYPTO, watcher=None, **changes):
    controller = controller_at(host.paths, PCIAddress.parse(SLOT))
    return eraser(host.paths, **changes).erase(controller, action, watcher or Watcher())


def formats(watcher):
    """The options of each format that was sent."""
    return [argv[3:] for argv in watcher.argvs if argv[1] == "format"]


@both
@pytest.mark.parametrize("style", STYLES)
def test_format_leaves_nothing_of_the_tenant(make, action, style):
    """Every version of nvme-cli is understood, and the evidence names the markers."""
    host = make(style)
    evidence = erase(host, action)
    assert not host.find(SLOT, SECRET[:8])
    assert evidence["method"] == "format"
    assert evidence["bytes"] == SIZE
    [namespace] = evidence["namespaces"]
    assert (namespace["nsid"], namespace["bytes"]) == (1, SIZE)
    assert namespace["markers"] > 10
    assert "read as something else" in evidence["verified"]
    assert json.loads(json.dumps(evidence)) == evidence


@both
def test_format_that_erased_nothing_is_not_believed(make, action):
    """The drive reports success and has erased nothing: the markers are still there."""
    host = make()
    host.set_fault(SLOT, Fault(FaultKind.FORMAT_LEAVES_DATA))
    with pytest.raises(VerifyFailed, match=r"reported success, but .*nvme0n1 still has at byte 0"):
        erase(host, action)


def test_format_of_one_of_two_namespaces_is_not_enough(make):
    """Without FNA bits 0 and 1 a format reaches one namespace, so each gets its own."""
    host = make(namespaces=2)
    watcher = Watcher()
    evidence = erase(host, CRYPTO, watcher)
    assert [options[1] for options in formats(watcher)] == ["1", "2"]
    assert [namespace["nsid"] for namespace in evidence["namespaces"]] == [1, 2]
    assert not host.find(SLOT, SECRET[:8])


def test_format_that_reaches_all_is_sent_once(make):
    """FNA bits 0 and 1: one command is enough for all namespaces."""
    host = make(namespaces=2, format_all=True)
    watcher = Watcher()
    evidence = erase(host, BLOCK, watcher)
    assert [options[1] for options in formats(watcher)] == [str(0xFFFFFFFF)]
    assert len(evidence["namespaces"]) == 2
    assert not host.find(SLOT, SECRET[:8])


def test_format_reaches_what_no_namespace_has(make):
    """A tenant may have deleted a namespace: what lay in it belongs to none, and no format reaches that."""
    host = make(namespaces=2, namespace_management=True)
    with host.drive(SLOT) as drive:
        drive.delete_namespace(2)
        host.sync_namespaces(drive)
    evidence = erase(host)
    assert evidence["namespaces_made_anew"]
    assert evidence["bytes"] == SIZE
    assert not host.find(SLOT, SECRET[:8])


def test_format_keeps_the_lba_format(make):
    """An erase is no occasion to change what the drive looks like."""
    host = make()
    host.format(SLOT, 4)
    erase(host)
    with host.drive(SLOT) as drive:
        assert drive.state.namespaces[1].block_size == 4096


@both
def test_format_that_fails_is_quoted(make, action):
    host = make()
    host.set_fault(SLOT, Fault(FaultKind.FORMAT_FAILS))
    with pytest.raises(EraseFailed, match=f"failed {action}: .*[Ii]nternal error"):
        erase(host, action)


def test_refused_format_is_an_error(make):
    host = make()
    host.set_fault(SLOT, Fault(FaultKind.FORMAT_REFUSED))
    with pytest.raises(EraseFailed, match="Invalid Format"):
        erase(host)
    assert host.find(SLOT, SECRET)


def test_hanging_format_ends_at_the_deadline(make):
    """The kernel is told to give the command up at the deadline, so no tool is left."""
    host = make()
    host.set_fault(SLOT, Fault(FaultKind.FORMAT_HANGS))
    watcher = Watcher(seconds=2)
    with pytest.raises(EraseTimeout, match="it may still be formatting"):
        erase(host, watcher=watcher)
    assert not watcher.running
    assert "format, crypto erase" in watcher.steps


@pytest.mark.parametrize(
    ("spec", "action"), [({"format_crypto": False}, BLOCK), ({"format_crypto": False, "format_nvm": True}, CRYPTO)]
)
def test_format_that_is_not_claimed_is_not_sent(make, spec, action):
    """OACS bit 1 and FNA bit 2 are believed: a drive without them is not touched."""
    host = make(**spec)
    watcher = Watcher()
    with pytest.raises(EraseUnsupported, match=f"does not support {action}"):
        erase(host, action, watcher)
    assert not formats(watcher)


def test_format_of_a_disk_in_use_is_not_sent(make):
    """Another program has the namespace open exclusively."""
    host = make()
    watcher = Watcher()
    with open_block(host.paths, host.paths.dev / "nvme0n1"), pytest.raises(DeviceInUse):
        erase(host, watcher=watcher)
    assert not formats(watcher)
    assert host.find(SLOT, SECRET)


def test_disk_is_held_while_it_is_formatted(make):
    """Nothing can mount the namespace between the markers and the end of the format."""
    host = make()
    watcher = Watcher()
    seen = []

    def try_to_open(progress):
        if progress.step.startswith("format"):
            try:
                with open_block(host.paths, host.paths.dev / "nvme0n1"):
                    seen.append("opened")
            except DeviceInUse:
                seen.append("held")

    watcher.on_progress = try_to_open
    erase(host, watcher=watcher)
    assert set(seen) == {"held"}


def test_drive_pulled_before_its_format_is_reported(make):
    host = make()
    watcher = Watcher()
    watcher.on_progress = lambda progress: progress.step.startswith("format") and host.pull(SLOT)
    with pytest.raises(DeviceVanished):
        erase(host, watcher=watcher)


def test_namespace_that_the_host_cannot_see_is_not_formatted(make):
    """Linux shows no bytes of some formats: a marker cannot be written there, so nothing could be proved."""
    host = make()
    host.format(SLOT, 7)
    with pytest.raises(EraseFailed, match="too few for a marker"):
        erase(host)
    assert host.find(SLOT, SECRET)
