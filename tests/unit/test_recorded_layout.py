"""The layout of a drive is a part of clean: what a tenant made of it is undone before the proof of the erase."""

import pytest
from erase_doubles import Watcher, by_programs, eraser, hangs

from autoclave.exceptions import DeviceInUse, EraseFailed, EraseTimeout
from autoclave.hardware.block import open_block
from autoclave.hardware.command import Commands
from autoclave.hardware.found_layout import read_layout
from autoclave.hardware.nvme import controller_at
from autoclave.hardware.nvme_cli import NvmeCli
from autoclave.rules.cleanup_policy import CleanupAction
from autoclave.rules.drive_layout import DriveLayout
from autoclave.rules.pci_address import PCIAddress
from autoclave.simulator.drive_spec import MIB, DriveSpec
from autoclave.simulator.faults import Fault, FaultKind
from autoclave.simulator.host import STYLES, SimulatedHost

pytestmark = pytest.mark.matrix

SLOT = "0000:42:00.0"
SIZE = 4 * MIB
SECRET = b"what the tenant left"
BLOCKS = SIZE // 512
SANITIZE, ZEROES, FORMAT = CleanupAction.SANITIZE_BLOCK, CleanupAction.WRITE_ZEROES, CleanupAction.FORMAT_BLOCK
every_action = pytest.mark.parametrize("action", [SANITIZE, ZEROES, CleanupAction.SHRED, FORMAT])


@pytest.fixture
def make(tmp_path):
    """Makes a host with one drive that holds a tenant's data."""

    def make(style="2.13", **spec):
        spec = {
            "serial": "SIM1",
            "size_bytes": SIZE,
            "sanitize_seconds": 0.1,
            "block": True,
            "write_zeroes": True,
            "format_nvm": True,
        } | spec
        host = SimulatedHost.create(tmp_path / "host", "h1", [DriveSpec(address=SLOT, **spec)], style=style)
        host.fill(SLOT, SECRET)
        return host

    return make


def controller_of(host):
    return controller_at(host.paths, PCIAddress.parse(SLOT))


def layout_of(host):
    nvme, node = NvmeCli(Commands(host.paths), command_timeout=30), controller_of(host).path
    return read_layout(nvme, node, nvme.identify(node)).layout


def shown_sizes(host):
    return [namespace.size_bytes for namespace in controller_of(host).namespaces]


def erase(host, action, recorded, watcher=None, **changes):
    return eraser(host.paths, **changes).erase(controller_of(host), action, watcher or Watcher(), recorded)


def split(host, *sizes, lba_format=0):
    """Replace all namespaces as a tenant does; *sizes* in MiB."""
    with host.drive(SLOT) as drive:
        for nsid in list(drive.state.namespaces):
            drive.delete_namespace(nsid)
        for size in sizes:
            block_size = 4096 if lba_format > 3 else 512
            nsid = drive.create_namespace(size * MIB // block_size, lba_format, shared=False)
            drive.attach(nsid, [0])
        host.sync_namespaces(drive)


@every_action
def test_tenants_namespace_without_storage_for_each_block_is_replaced(make, action):
    """It looks as large as the one on record, and the next tenant could not write all of it."""
    host = make(namespace_management=True)
    recorded = layout_of(host)
    with host.drive(SLOT) as drive:
        drive.state.namespaces[1].without_storage = BLOCKS // 2
    assert layout_of(host) != recorded
    erase(host, action, recorded)
    assert layout_of(host) == recorded


def test_namespace_without_storage_for_each_block_is_not_offered(make):
    host = make()
    recorded = layout_of(host)
    with host.drive(SLOT) as drive:
        drive.state.namespaces[1].without_storage = 8
    with pytest.raises(EraseFailed, match="namespace 1 has 8 blocks without storage, recorded is 0"):
        erase(host, SANITIZE, recorded)


@every_action
def test_tenants_metadata_format_is_undone(make, action):
    """The host shows no byte of such a namespace, so the recorded format comes before the erase and its proof."""
    host = make()
    recorded = layout_of(host)
    host.format(SLOT, 7)
    assert shown_sizes(host) == [0]
    evidence = erase(host, action, recorded)
    assert layout_of(host) == recorded
    assert shown_sizes(host) == [SIZE]
    assert not host.find(SLOT, SECRET[:8])
    assert evidence["bytes"] == SIZE
    assert DriveLayout.from_fields(evidence["layout"]) == recorded


@pytest.mark.parametrize("style", STYLES)
def test_tenants_block_size_is_undone_by_each_nvme_cli(make, style):
    host = make(style)
    recorded = layout_of(host)
    host.format(SLOT, 4)
    erase(host, SANITIZE, recorded)
    assert layout_of(host) == recorded


def test_recorded_format_need_not_be_the_factorys(make):
    """The operator has 4 KiB blocks on record, and the tenant went back to 512 bytes."""
    host = make()
    host.format(SLOT, 4)
    recorded = layout_of(host)
    host.format(SLOT, 0)
    erase(host, ZEROES, recorded)
    assert layout_of(host).namespaces[0].block_bytes == 4096


@every_action
def test_layout_without_a_record_is_kept_and_reported(make, action):
    host = make()
    host.format(SLOT, 4)
    evidence = erase(host, action, None)
    assert evidence["layout"] == {"namespaces": [{"blocks": SIZE // 4096, "block_bytes": 4096, "lba_format": 4}]}


def test_recorded_layout_costs_no_format(make):
    """A drive that has its layout gets no command that changes it."""
    host = make(namespace_management=True)
    watcher = Watcher()
    eraser(by_programs(host.paths)).erase(controller_of(host), SANITIZE, watcher, layout_of(host))
    commands = {argv[1] for argv in watcher.argvs}
    assert "sanitize" in commands
    assert not commands & {"format", "delete-ns", "create-ns"}


@every_action
def test_format_that_cannot_be_restored_is_an_error(make, action):
    """The drive claims Format NVM, and refuses the recorded format."""
    host = make()
    recorded = layout_of(host)
    host.format(SLOT, 7)
    host.set_fault(SLOT, Fault(FaultKind.FORMAT_REFUSED))
    with pytest.raises(
        EraseFailed, match=r"namespace 1 has LBA format 7 \(4096\+64\), recorded is 0 \(512\+0\)\..*Invalid Format"
    ):
        erase(host, action, recorded)


@every_action
def test_format_that_changes_nothing_is_an_error(make, action):
    """The drive reports success and has another format afterwards than it was given."""
    host = make()
    recorded = layout_of(host)
    host.format(SLOT, 7)
    host.set_fault(SLOT, Fault(FaultKind.FORMAT_LEAVES_LAYOUT))
    with pytest.raises(EraseFailed, match=r"namespace 1 has LBA format 7 \(4096\+64\), recorded is 0 \(512\+0\)"):
        erase(host, action, recorded)


def test_drive_without_format_and_management_is_an_error(make):
    """Another layout was made all the same, such as by a vendor's tool."""
    host = make(format_nvm=False)
    recorded = layout_of(host)
    with host.drive(SLOT) as drive:
        drive.state.namespaces[1].flbas, drive.state.namespaces[1].blocks = 4, SIZE // 4096
        host.sync_namespaces(drive)
    with pytest.raises(EraseFailed, match=r"has LBA format 4 \(4096\+0\), recorded is 0 .*no Format NVM.*no Namespace"):
        erase(host, SANITIZE, recorded)


def test_hanging_format_ends_at_the_deadline(make):
    host = make()
    recorded = layout_of(host)
    host.format(SLOT, 7)
    host.set_fault(SLOT, Fault(FaultKind.FORMAT_HANGS))
    with pytest.raises(EraseTimeout, match="may be half restored"):
        erase(host, SANITIZE, recorded, Watcher(seconds=3))


def test_disk_in_use_is_not_formatted(make):
    host = make()
    recorded = layout_of(host)
    host.format(SLOT, 4)
    watcher = Watcher()
    with open_block(host.paths, host.paths.dev / "nvme0n1"), pytest.raises(DeviceInUse):
        erase(host, SANITIZE, recorded, watcher)
    assert not [argv for argv in watcher.argvs if argv[1] == "format"]


@every_action
def test_tenants_namespaces_are_replaced(make, action):
    """The tenant made two of one, with metadata; the record has one that spans the drive."""
    host = make(namespace_management=True)
    recorded = layout_of(host)
    split(host, 1, 3, lba_format=7)
    host.fill(SLOT, SECRET)
    erase(host, action, recorded)
    assert layout_of(host) == recorded
    assert not host.find(SLOT, SECRET[:8])


def test_format_is_restored_by_create_where_format_is_refused(make):
    """Namespace Management is the second way to the recorded format."""
    host = make(namespace_management=True)
    recorded = layout_of(host)
    host.format(SLOT, 7)
    host.set_fault(SLOT, Fault(FaultKind.FORMAT_REFUSED))
    for action in (SANITIZE, ZEROES):
        split(host, 4, lba_format=7)
        erase(host, action, recorded)
        assert layout_of(host) == recorded


def test_new_namespace_has_the_recorded_format(make):
    """Zeroing replaces the tenant's namespaces, and the drive refuses to format any."""
    host = make(namespace_management=True)
    host.format(SLOT, 4)
    recorded = layout_of(host)
    split(host, 1, 3)
    host.set_fault(SLOT, Fault(FaultKind.FORMAT_REFUSED))
    erase(host, ZEROES, recorded)
    assert layout_of(host) == recorded


def test_sanitized_drive_has_its_several_namespaces_again(make):
    host = make(namespaces=2, namespace_management=True)
    recorded = layout_of(host)
    split(host, 4)
    erase(host, SANITIZE, recorded)
    assert layout_of(host) == recorded
    assert len(recorded.namespaces) == 2


@pytest.mark.parametrize("action", [ZEROES, FORMAT])
def test_zeroed_drive_keeps_the_one_namespace_of_its_erase(make, action):
    """The specification makes one namespace of several; that is the record from then on, and no error for ever."""
    host = make(namespaces=2, namespace_management=True)
    evidence = erase(host, action, layout_of(host))
    now = DriveLayout.from_fields(evidence["layout"])
    assert [shape.blocks for shape in now.namespaces] == [BLOCKS]
    assert erase(host, action, now)["namespaces_made_anew"] is False


@pytest.mark.parametrize("action", [ZEROES, FORMAT])
def test_namespace_that_the_tenant_deleted_is_missed(make, action):
    """The firmware deletes namespaces and creates none: what is left of the drive is not offered as all of it."""
    host = make(namespaces=2, namespace_management=True)
    recorded = layout_of(host)
    with host.drive(SLOT) as drive:
        drive.delete_namespace(2)
        host.sync_namespaces(drive)
    host.set_fault(SLOT, Fault(FaultKind.CREATE_NS_REFUSED))
    with pytest.raises(EraseFailed, match="it has 1 namespace, recorded is 2 namespaces"):
        erase(host, action, recorded)


def test_nothing_is_deleted_that_cannot_be_created(make):
    """The record has two namespaces, and the drive does not create any by now: the only one stays."""
    host = make(namespaces=2, namespace_management=True)
    recorded = layout_of(host)
    split(host, 4)
    host.set_fault(SLOT, Fault(FaultKind.CREATE_NS_REFUSED))
    with pytest.raises(EraseFailed, match=r"it has 1 namespace, recorded is 2 namespaces.*does not create namespaces"):
        erase(host, SANITIZE, recorded)
    assert len(layout_of(host).namespaces) == 1


def test_refused_namespace_brings_the_former_ones_back(make):
    """A size on record is not granted by now: the drive gets what it had, and its difference is shown."""
    host = make(namespace_management=True)
    split(host, 3, 1)
    recorded = layout_of(host)
    split(host, 4)
    host.set_fault(SLOT, Fault(FaultKind.CREATE_NS_INVALID, 3))
    with pytest.raises(EraseFailed, match=r"it has 1 namespace, recorded is 2 namespaces.*[Ii]nvalid [Ff]ield"):
        erase(host, SANITIZE, recorded)
    assert [shape.blocks for shape in layout_of(host).namespaces] == [BLOCKS]


@pytest.mark.parametrize("command", ["delete-ns", "create-ns", "attach-ns"])
def test_restoring_that_was_interrupted_is_finished(make, command):
    """A service that dies after any command of it leaves what the next clean restores."""
    host = make(namespaces=2, namespace_management=True)
    recorded = layout_of(host)
    split(host, 1, 1, 2)

    class Killed(BaseException):
        pass

    watcher = Watcher()
    ended = watcher.ended

    def killed_after(pid):
        argv = watcher.running[pid]
        ended(pid)
        if argv[1] == command:
            raise Killed

    watcher.ended = killed_after
    with pytest.raises(Killed):
        eraser(by_programs(host.paths)).erase(controller_of(host), SANITIZE, watcher, recorded)
    erase(host, SANITIZE, recorded)
    assert layout_of(host) == recorded


def test_layout_is_restored_after_a_failed_sanitize(make):
    """A drive in failure mode takes no format: it is sanitized first, and again when it has its layout."""
    host = make()
    recorded = layout_of(host)
    host.set_fault(SLOT, Fault(FaultKind.SANITIZE_FAILS))
    with pytest.raises(EraseFailed):
        erase(host, SANITIZE, recorded)
    host.clear_faults()
    with host.drive(SLOT) as drive:
        drive.state.namespaces[1].flbas, drive.state.namespaces[1].blocks = 4, SIZE // 4096
        host.sync_namespaces(drive)
    erase(host, SANITIZE, recorded)
    assert layout_of(host) == recorded
    assert not host.find(SLOT, SECRET[:8])


def test_drive_that_takes_a_format_is_sanitized_once(make):
    """Only a drive that has failed, or is sanitizing, needs a sanitize before its layout can be restored."""
    host = make()
    recorded = layout_of(host)
    host.format(SLOT, 4)
    watcher = Watcher()
    erase(host, SANITIZE, recorded, watcher)
    assert [progress.step for progress in watcher.seen if progress.percent == 100.0] == [
        "restoring the layout",
        "sanitize, block erase",
    ]


def test_tool_that_hangs_before_the_layout_is_restored_starts_nothing(make):
    host = make()
    recorded = layout_of(host)
    host.format(SLOT, 4)
    watcher = Watcher()
    paths = hangs(host.paths, watcher, lambda argv: argv[1] == "sanitize-log")
    with pytest.raises(EraseTimeout, match=r"cleanup_timeout; nothing was started$"):
        eraser(paths).erase(controller_of(host), SANITIZE, watcher, recorded)
    assert layout_of(host) != recorded


@pytest.mark.parametrize("fault", [None, FaultKind.LIST_NS_REFUSED])
def test_layout_that_cannot_be_recorded_is_not_in_the_evidence(make, fault):
    """A drive without a namespace has no layout, and without list-ns it shows none; it is clean without."""
    host = make(namespace_management=True)
    if fault is None:
        split(host)
    else:
        host.set_fault(SLOT, Fault(fault))
    evidence = erase(host, SANITIZE, None)
    assert evidence["method"] == "sanitize"
    assert "layout" not in evidence


def test_namespaces_of_other_formats_are_formatted_alone(make):
    """The record has two formats: each namespace gets its own."""
    host = make(namespaces=2)
    host.format(SLOT, 4, nsid=2)
    recorded = layout_of(host)
    host.format(SLOT, 7)
    erase(host, ZEROES, recorded)
    assert layout_of(host) == recorded


def test_layout_that_changes_during_the_erase_is_an_error(make):
    """What a program of the host formats in the meantime is found after the proof, and not offered."""
    host = make()
    recorded = layout_of(host)
    watcher = Watcher()
    watcher.on_progress = lambda progress: progress.percent == 100.0 and host.format(SLOT, 4)
    with pytest.raises(EraseFailed, match=r"has LBA format 4 \(4096\+0\), recorded is 0"):
        erase(host, SANITIZE, recorded, watcher)
