"""The layout of a drive is a part of clean: what a tenant made of it is undone before the proof of the erase."""

from dataclasses import replace

import pytest
from erase_doubles import Watcher, by_programs, eraser, hangs

from autoclave.exceptions import DeviceInUse, DeviceVanished, EraseFailed, EraseTimeout, HardwareError
from autoclave.hardware.block import open_block
from autoclave.hardware.command import Commands
from autoclave.hardware.erase import namespaces
from autoclave.hardware.erase.found_layout import read_layout
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


def change_tool(host, script):
    """Run *script* in place of ``nvme``; ``{real}`` in it is the real one."""
    nvme, real = host.root / "bin/nvme", host.root / "bin/real-nvme"
    nvme.rename(real)
    nvme.write_text(f"#!/bin/sh\n{script.format(real=real)}\n")
    nvme.chmod(0o755)


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
    watcher = Watcher()
    evidence = erase(host, action, recorded, watcher)
    assert [each.percent for each in watcher.seen if each.step == "restoring the layout"][-1] == 100.0
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
    with pytest.raises(
        EraseFailed,
        match=r"has LBA format 4 \(4096\+0\), recorded is 0 .*\. "
        r"It was not restored: it has no Format NVM \(OACS bit 1\); it has no Namespace Management \(OACS bit 3\)\. "
        "Restore it with nvme-cli",
    ):
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


@pytest.mark.parametrize("by", ["format", "create-ns"])
def test_restoring_opens_no_namespace_for_writing(make, by):
    """udev probes a disk after a writable close, and a write-protected namespace could not be opened."""
    host = make(namespace_management=True)
    recorded = layout_of(host)
    host.format(SLOT, 4) if by == "format" else split(host, 1, 3)
    held = []

    def hold(paths, path, *, writable):
        held.append(writable)
        return host.paths.hold_disk(paths, path, writable=writable)

    paths = replace(host.paths, hold_disk=hold)
    eraser(paths).erase(controller_of(host), SANITIZE, Watcher(), recorded)
    assert held
    assert not any(held)


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


@pytest.mark.parametrize("refused", [False, True], ids=["by format", "by create-ns"])
def test_recorded_protection_is_restored(make, refused):
    """Where the metadata is, and the protection information in it, belong to the format."""
    host = make(namespace_management=True)
    with host.drive(SLOT) as drive:
        namespace = drive.state.namespaces[1]
        namespace.flbas, namespace.dps, namespace.blocks = 5 | 1 << 4, 1, SIZE // 4096
        host.sync_namespaces(drive)
    recorded = layout_of(host)
    host.format(SLOT, 0)
    if refused:
        host.set_fault(SLOT, Fault(FaultKind.FORMAT_REFUSED))
    erase(host, SANITIZE, recorded)
    [shape] = layout_of(host).namespaces
    assert (shape, shape.extended, shape.dps) == (recorded.namespaces[0], True, 1)


def test_deleted_namespaces_are_created_again(make):
    """The tenant left no namespace at all."""
    host = make(namespace_management=True)
    host.format(SLOT, 4)
    recorded = layout_of(host)
    split(host)
    erase(host, SANITIZE, recorded)
    assert layout_of(host) == recorded


def test_drive_without_a_total_capacity_has_its_namespaces_again(make):
    """Controllers such as QEMU's report no TNVMCAP, which says nothing of what fits."""
    host = make(namespaces=2, namespace_management=True)
    recorded = layout_of(host)
    split(host, 4)
    change_tool(host, """{real} "$@" | sed 's/"tnvmcap": *[0-9]*/"tnvmcap":0/'""")
    erase(host, SANITIZE, recorded)
    assert layout_of(host) == recorded


def test_smaller_namespace_is_replaced_on_a_drive_without_capacities(make):
    """Nothing but the record tells that the one namespace is not all that the drive has."""
    host = make(namespace_management=True)
    recorded = layout_of(host)
    split(host, 3)
    change_tool(host, """{real} "$@" | sed 's/"unvmcap": *[0-9]*/"unvmcap":0/'""")
    assert erase(host, ZEROES, recorded)["namespaces_made_anew"]
    assert layout_of(host) == recorded


def test_size_that_the_host_does_not_show_is_an_error(make, monkeypatch):
    """The kernel keeps the size of before the format: nothing is erased by that."""
    monkeypatch.setattr(namespaces, "NODE_TIMEOUT", 0.05)
    host = make()
    recorded = layout_of(host)
    host.format(SLOT, 7)
    change_tool(host, f"""{{real}} "$@"; code=$?; echo 8 >{host.paths.sysfs}/block/nvme0n1/size; exit $code""")
    with pytest.raises(HardwareError, match=f"this host shows 4096 bytes of namespace 1, which has {SIZE};"):
        erase(host, SANITIZE, recorded)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"write_protected": True}, "a write-protected namespace is on record"),
        ({"without_storage": 8}, "a namespace with less capacity than its size is on record"),
        (
            {"block_bytes": 1024},
            r"it has no LBA format of 1024\+0 bytes now; it no longer has every recorded LBA format",
        ),
        ({"blocks": BLOCKS + 1}, rf"it has {SIZE} bytes \(TNVMCAP\), and {SIZE + 512} are on record"),
    ],
)
def test_record_that_create_ns_cannot_restore_is_an_error(make, changes, reason):
    """Nothing is deleted for it."""
    host = make(namespace_management=True)
    before = layout_of(host)
    recorded = DriveLayout((replace(before.namespaces[0], **changes),))
    with pytest.raises(EraseFailed, match=rf"It was not restored: {reason}\. Restore it with nvme-cli"):
        erase(host, SANITIZE, recorded)
    assert layout_of(host) == before


def test_record_of_detached_namespaces_is_not_restored(make):
    host = make(namespaces=2, namespace_management=True)
    recorded = replace(layout_of(host), unattached=1)
    with pytest.raises(
        EraseFailed,
        match=r"It was not restored: unattached namespaces are on record without their sizes\. "
        "Restore",
    ):
        erase(host, SANITIZE, recorded)
    assert len(layout_of(host).namespaces) == 2


@pytest.mark.parametrize(("no_broadcast", "nsid"), [(0, 0xFFFFFFFF), (1 << 3, 1)])
def test_format_of_all_namespaces_is_sent_once(make, no_broadcast, nsid):
    """FNA bit 0: a format of one namespace is one of all. Bit 3: the drive does not take FFFFFFFFh for them."""
    host = make(namespaces=2, format_all=True)
    with host.drive(SLOT) as drive:
        drive.state.fna |= no_broadcast
    recorded = layout_of(host)
    host.format(SLOT, 4)
    watcher = Watcher()
    eraser(by_programs(host.paths)).erase(controller_of(host), SANITIZE, watcher, recorded)
    [argv] = [argv for argv in watcher.argvs if argv[1] == "format"]
    assert argv[argv.index("-n") + 1] == str(nsid)
    assert layout_of(host) == recorded


def test_formats_that_differ_are_not_restored_by_one_of_all(make):
    host = make(namespaces=2, format_all=True)
    first, second = layout_of(host).namespaces
    recorded = DriveLayout((first, replace(second, blocks=second.blocks // 8, block_bytes=4096)))
    with pytest.raises(
        EraseFailed,
        match=r"It was not restored: formatting one namespace formats all \(FNA bit 0\), and the recorded formats "
        "differ; it has no Namespace Management",
    ):
        erase(host, SANITIZE, recorded)
    assert layout_of(host).namespaces == (first, second)


def test_refused_attachment_says_what_is_left(make):
    """The drive creates the recorded namespace, and refuses to attach it."""
    host = make(namespace_management=True)
    recorded = layout_of(host)
    split(host, 1, 3)
    change_tool(host, """case "$1" in attach-ns) set -- attach-ns "$2" -n 99 -c 0;; esac\nexec {real} "$@\"""")
    with pytest.raises(
        EraseFailed,
        match=r"it has 2 namespaces, recorded is 1 namespace, .*\. It refused a step of restoring it: .*attach-ns.*; "
        r"it has the namespaces \[1\] now",
    ):
        erase(host, SANITIZE, recorded)


@pytest.mark.parametrize("command", ["format", "create-ns", "delete-ns", "attach-ns"])
def test_drive_that_is_pulled_while_it_is_restored_has_vanished(make, command):
    host = make(namespace_management=True)
    recorded = layout_of(host)
    split(host, 4, lba_format=7) if command == "format" else split(host, 1, 3)
    watcher = Watcher()
    started = watcher.started

    def pulled_at(pid, argv):
        started(pid, argv)
        if argv[1] == command:
            host.set_fault(SLOT, Fault(FaultKind.VANISHES))

    watcher.started = pulled_at
    with pytest.raises(DeviceVanished, match=f"went away while it was being erased: .*{command}"):
        eraser(by_programs(host.paths)).erase(controller_of(host), SANITIZE, watcher, recorded)


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


def test_namespace_without_the_recorded_metadata_is_kept(make):
    """A host cannot overwrite metadata: what one erase has made without is good enough for the next."""
    host = make(namespace_management=True)
    [shape] = layout_of(host).namespaces
    host.set_fault(SLOT, Fault(FaultKind.FORMAT_REFUSED))
    evidence = erase(host, ZEROES, DriveLayout((replace(shape, metadata_bytes=8, lba_format=1),)))
    assert evidence["namespaces_made_anew"] is False


@pytest.mark.parametrize("action", [ZEROES, FORMAT])
def test_zeroed_drive_that_grants_less_than_before_has_what_it_grants(make, action):
    """Newer firmware keeps more to itself: no later user of the drive reaches that."""
    host = make(namespace_management=True)
    [shape] = layout_of(host).namespaces
    evidence = erase(host, action, DriveLayout((replace(shape, blocks=BLOCKS + 8),)))
    assert evidence["namespaces_made_anew"]
    assert [each.blocks for each in layout_of(host).namespaces] == [BLOCKS]


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
    with pytest.raises(
        EraseFailed, match=r"it has 1 namespace, recorded is 2 namespaces.*does not create namespaces \(nvme "
    ):
        erase(host, SANITIZE, recorded)
    assert len(layout_of(host).namespaces) == 1


def test_refused_namespace_brings_the_former_ones_back(make):
    """A size on record is not granted by now: the drive gets what it had, and its difference is shown."""
    host = make(namespace_management=True)
    split(host, 3, 1)
    recorded = layout_of(host)
    split(host, 4)
    host.set_fault(SLOT, Fault(FaultKind.CREATE_NS_INVALID, 3))
    refusal = "nvme create-ns .*failed"
    with pytest.raises(
        EraseFailed,
        match=rf"it has 1 namespace, recorded is 2 namespaces.* restored: {refusal}.*; {refusal}.*[Ii]nvalid [Ff]ield",
    ):
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


@pytest.mark.parametrize(
    ("action", "command", "number", "left_behind"),
    [
        pytest.param(ZEROES, "id-ctrl", 2, "nothing was started", id="at the first look"),
        pytest.param(SANITIZE, "format", 1, "its layout may be half restored, and nothing was erased", id="sanitize"),
        pytest.param(ZEROES, "format", 1, "its layout may be half restored, and nothing was erased", id="zero"),
        pytest.param(ZEROES, "id-ctrl", 5, "its namespaces may be half rebuilt", id="as all is exposed"),
        pytest.param(ZEROES, "id-ctrl", 6, "nothing was overwritten", id="as the layout is compared"),
        pytest.param(ZEROES, "id-ns", 5, "it is partly overwritten", id="before it is zeroed"),
        pytest.param(ZEROES, "id-ctrl", 7, "it is erased, but its layout was not read", id="after the proof"),
    ],
)
def test_hanging_tool_ends_the_erase_with_the_state(make, action, command, number, left_behind):
    """The deadline passes while nvme-cli hangs: the error says in which state the drive was left."""
    host = make()
    recorded = layout_of(host)
    host.format(SLOT, 4)
    watcher = Watcher()
    times = iter(range(1, 100))
    paths = hangs(host.paths, watcher, lambda argv: argv[1] == command and next(times) == number)
    with pytest.raises(EraseTimeout, match=f"cleanup_timeout; {left_behind}$"):
        eraser(paths).erase(controller_of(host), action, watcher, recorded)


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
    with pytest.raises(EraseFailed, match=r"has LBA format 4 \(4096\+0\), recorded is 0 \(512\+0\)\. Restore it"):
        erase(host, SANITIZE, recorded, watcher)


def test_layout_that_cannot_be_read_after_the_erase(make):
    """It is an error only where there is a record to compare it with."""
    host = make()
    recorded = layout_of(host)
    watcher = Watcher()

    def on_progress(progress):
        if progress.step.startswith("reading back") and progress.percent == 100.0:
            host.set_fault(SLOT, Fault(FaultKind.LIST_NS_REFUSED))

    watcher.on_progress = on_progress
    assert erase(host, ZEROES, None, watcher).get("layout") is None
    host.clear_faults()
    with pytest.raises(HardwareError, match="list-ns"):
        erase(host, ZEROES, recorded, watcher)
