"""Zeroing reaches every byte of a drive, and what was not read back as zero does not count."""

import dataclasses
import fcntl
import json
import os
import threading
import time

import pytest
from erase_doubles import Watcher, by_programs, eraser

from autoclave.exceptions import (
    DeviceInUse,
    DeviceVanished,
    EraseFailed,
    EraseTimeout,
    EraseUnsupported,
    HardwareError,
    VerifyFailed,
    WrongDrive,
)
from autoclave.hardware.erase import namespaces as namespace_layout
from autoclave.hardware.erase.work import EraseWork
from autoclave.hardware.host import Deadline
from autoclave.hardware.nvme import controller_at
from autoclave.rules.cleanup_policy import CleanupAction
from autoclave.rules.drive_layout import DriveLayout, NamespaceShape
from autoclave.rules.pci_address import PCIAddress
from autoclave.simulator.disk import FileDisk, claim_file
from autoclave.simulator.drive_spec import MIB, DriveSpec
from autoclave.simulator.faults import Fault, FaultKind
from autoclave.simulator.host import STYLES, SimulatedHost

pytestmark = pytest.mark.matrix

SLOT = "0000:42:00.0"
ZEROES, SHRED = CleanupAction.WRITE_ZEROES, CleanupAction.SHRED
SIZE = 4 * MIB
WITHHELD = 1_791_488
"""Bytes that TNVMCAP counts, and that no namespace gets."""
SECRET = b"what the tenant left"
both_tools = pytest.mark.parametrize("action", [ZEROES, SHRED])


@pytest.fixture
def make(tmp_path):
    """Makes a host with one drive that holds a tenant's data."""

    def make(style="2.13", **spec):
        spec = {"serial": "SIM1", "size_bytes": SIZE} | spec
        host = SimulatedHost.create(tmp_path / "host", "h1", [DriveSpec(address=SLOT, **spec)], style=style)
        host.fill(SLOT, SECRET)
        return host

    return make


def namespaces(host):
    with host.drive(SLOT) as drive:
        return [namespace.size for namespace in drive.state.namespaces.values()]


def detach(host, nsid):
    with host.drive(SLOT) as drive:
        drive.detach(nsid, [0])
        host.sync_namespaces(drive)


def delete(host, nsid):
    with host.drive(SLOT) as drive:
        drive.delete_namespace(nsid)
        host.sync_namespaces(drive)


def lose(host, nsid):
    """Have a namespace gone, whatever the drive supports."""
    with host.drive(SLOT) as drive:
        drive.state.namespaces.pop(nsid, None)
        host.sync_namespaces(drive)


def commands_of(host, command):
    """Have the commands of that name recorded; the result lists those so far."""
    nvme, log = host.root / "bin/nvme", host.root / "commands"
    nvme.rename(host.root / "bin/real-nvme")
    nvme.write_text(f"""#!/bin/sh\necho "$@" >> {log}\nexec {host.root}/bin/real-nvme "$@"\n""")
    nvme.chmod(0o755)
    return lambda: [line for line in log.read_text().splitlines() if line.split()[0] == command]


def change_tool(host, script):
    """Run *script* in place of ``nvme``; ``{real}`` in it is the real one."""
    nvme, real = host.root / "bin/nvme", host.root / "bin/real-nvme"
    nvme.rename(real)
    nvme.write_text(f"#!/bin/sh\n{script.format(real=real)}\n")
    nvme.chmod(0o755)


def erase(host, action=ZEROES, watcher=None, paths=None, **changes):
    controller = controller_at(host.paths, PCIAddress.parse(SLOT))
    return eraser(paths or host.paths, **changes).erase(controller, action, watcher or Watcher())


def answered(host, command, edit):
    """Return the host on which *edit* changes the fields that *command* answers."""

    def answer(argv):
        said = host.paths.answer_tool(argv)
        if argv[1] != command:
            return said
        fields = json.loads(said.stdout)
        edit(fields)
        return dataclasses.replace(said, stdout=json.dumps(fields))

    return dataclasses.replace(host.paths, answer_tool=answer)


@both_tools
@pytest.mark.parametrize("style", STYLES)
def test_nothing_of_the_tenant_is_left_whatever_the_version_of_the_tool(make, action, style):
    host = make(style)
    began = time.monotonic()
    evidence = erase(host, action)
    took = time.monotonic() - began
    assert not host.find(SLOT, SECRET[:4])
    assert evidence["action"] == str(action)
    assert evidence["method"] == "zero"
    assert evidence["tool"] == {ZEROES: "BLKZEROOUT", SHRED: "shred"}[action]
    assert evidence["namespaces_made_anew"] is False
    assert "every byte of every namespace" in evidence["verified"]
    assert evidence["bytes"] == SIZE
    [namespace] = evidence["namespaces"]
    assert (namespace["nsid"], namespace["block_device"], namespace["bytes"]) == (1, "nvme0n1", SIZE)
    assert namespace["read_back"] == "full"
    assert namespace["seconds"] > 0 < namespace["read_back_seconds"]
    assert namespace["seconds"] + namespace["read_back_seconds"] < took + 0.001
    assert all(namespace[each] == round(namespace[each], 3) for each in ("seconds", "read_back_seconds"))
    assert json.loads(json.dumps(evidence)) == evidence


def test_the_evidence_says_when_nothing_was_read_back(make):
    evidence = erase(make(), verify="none")
    assert "nothing was read back" in evidence["verified"]
    assert evidence["namespaces"][0]["read_back"] == "none"


def test_samples_are_read_back_where_those_are_asked_for(make):
    watcher = Watcher()
    evidence = erase(make(), watcher=watcher, verify="sample")
    assert watcher.steps[-1] == "reading back nvme0n1 (sample)"
    assert "samples of every namespace" in evidence["verified"]


@both_tools
def test_a_drive_that_lies_about_zeroing_is_found_out(make, action):
    host = make()
    host.set_fault(SLOT, Fault(FaultKind.ZERO_LEAVES_DATA))
    with pytest.raises(VerifyFailed, match=r"nvme0n1 is not zero at byte 0"):
        erase(host, action, verify="sample")


@both_tools
def test_a_drive_that_fails_half_way_is_quoted(make, action):
    host = make()
    host.set_fault(SLOT, Fault(FaultKind.ZERO_FAILS))
    with pytest.raises(EraseFailed, match="Input/output error"):
        erase(host, action)


@both_tools
def test_another_drive_that_came_to_have_the_name_is_not_overwritten(make, action):
    host = make()
    controller = controller_at(host.paths, PCIAddress.parse(SLOT))

    def hold_after_the_exchange(paths, path, *, writable):
        host.insert(SLOT, DriveSpec(address=SLOT, serial="OTHER", size_bytes=SIZE))
        host.fill(SLOT, b"of somebody else")
        return host.paths.hold_disk(host.paths, path, writable=writable)

    exchanged = dataclasses.replace(host.paths, hold_disk=hold_after_the_exchange)
    with pytest.raises(WrongDrive, match="OTHER"):
        eraser(exchanged).erase(controller, action, Watcher())
    assert host.find(SLOT, b"of somebody else")


def test_write_zeroes_is_not_sent_to_a_drive_without_it(make):
    host = make(write_zeroes=False)
    with pytest.raises(EraseUnsupported, match="write_zeroes"):
        erase(host)
    assert host.find(SLOT, SECRET)


@both_tools
def test_without_namespace_management_every_namespace_is_zeroed(make, action):
    host = make(namespaces=3, size_bytes=12 * MIB)
    evidence = erase(host, action)
    assert [namespace["nsid"] for namespace in evidence["namespaces"]] == [1, 2, 3]
    assert evidence["bytes"] == 12 * MIB
    assert not evidence["namespaces_made_anew"]
    assert not host.find(SLOT, SECRET[:4])


@pytest.mark.parametrize("style", ["1.16", "2.16", "3.0"])
@pytest.mark.parametrize(
    "spec",
    [{"namespaces": 3}, {"unallocated_bytes": 4 * MIB}, {"namespaces": 2, "unallocated_bytes": 4 * MIB}],
    ids=["several namespaces", "unallocated capacity", "both"],
)
def test_with_namespace_management_one_namespace_of_full_size_is_made_first(make, style, spec):
    host = make(style, namespace_management=True, size_bytes=12 * MIB, **spec)
    evidence = erase(host)
    capacity = 12 * MIB + spec.get("unallocated_bytes", 0)
    assert evidence["namespaces_made_anew"]
    assert evidence["bytes"] == capacity
    with host.drive(SLOT) as drive:
        assert [namespace.size for namespace in drive.state.namespaces.values()] == [capacity]
        assert drive.state.unallocated == 0
    assert not host.find(SLOT, SECRET[:4])


def test_one_namespace_of_full_size_is_left_as_it_is(make):
    host = make(namespace_management=True)
    assert not erase(host)["namespaces_made_anew"]


def test_what_lies_in_a_namespace_that_is_not_attached_is_reached_too(make):
    host = make(namespace_management=True, namespaces=2)
    with host.drive(SLOT) as drive:
        drive.detach(2, [0])
        host.sync_namespaces(drive)
    assert erase(host)["namespaces_made_anew"]
    assert not host.find(SLOT, SECRET[:4])


@pytest.mark.parametrize("style", ["2.3", "3.0"])
def test_a_drive_whose_namespaces_were_all_deleted_is_made_whole_again(make, style):
    host = make(style, namespace_management=True)
    with host.drive(SLOT) as drive:
        drive.delete_namespace(1)
        host.sync_namespaces(drive)
    assert erase(host)["bytes"] == SIZE


def test_a_drive_without_any_namespace_that_cannot_make_one_is_not_clean(make):
    host = make()
    with host.drive(SLOT) as drive:
        drive.state.namespaces.clear()
        host.sync_namespaces(drive)
    with pytest.raises(EraseFailed, match="no namespace"):
        erase(host)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "spec", [{"namespaces": 2}, {"unallocated_bytes": MIB}, {"namespaces": 2, "unallocated_bytes": MIB}]
)
def test_without_create_ns_namespaces_are_zeroed_as_they_are(make, style, spec):
    """Firmware claims Namespace Management and answers Invalid Opcode: nothing is deleted that it could not remake."""
    host = make(style, namespace_management=True, **spec)
    host.set_fault(SLOT, Fault(FaultKind.CREATE_NS_REFUSED))
    evidence = erase(host)
    assert (evidence["bytes"], evidence["namespaces_made_anew"]) == (SIZE, False)
    assert namespaces(host) == [SIZE // spec.get("namespaces", 1)] * spec.get("namespaces", 1)
    assert not host.find(SLOT, SECRET[:4])


def test_another_refusal_of_one_size_is_not_that_of_the_command(make):
    host = make(namespace_management=True, namespaces=2)
    change_tool(
        host,
        f"""if [ "$1" = create-ns ] && [ ! -e {host.root}/refused ]; then
    touch {host.root}/refused; set -- attach-ns "$2" -n 99 -c 0
fi
exec {{real}} "$@\"""",
    )
    assert erase(host)["namespaces_made_anew"]
    assert namespaces(host) == [SIZE]


def test_drive_that_lists_only_what_is_attached_is_zeroed(make):
    """It claims Namespace Management, and refuses the list of all namespaces."""
    host = make(namespace_management=True)

    def answer(argv):
        if argv[1] == "list-ns" and "-a" in argv:
            host.set_fault(SLOT, Fault(FaultKind.LIST_NS_REFUSED))
        try:
            return host.paths.answer_tool(argv)
        finally:
            host.clear_faults()

    assert erase(host, paths=dataclasses.replace(host.paths, answer_tool=answer))["bytes"] == SIZE


def test_without_create_ns_a_detached_namespace_is_attached(make):
    host = make(namespace_management=True, namespaces=2)
    host.set_fault(SLOT, Fault(FaultKind.CREATE_NS_REFUSED))
    detach(host, 2)
    assert erase(host)["bytes"] == SIZE
    assert not host.find(SLOT, SECRET[:4])


def test_namespace_that_is_all_the_drive_grants_is_kept(make):
    """TNVMCAP counts more than any namespace gets, so there is always a rest. The namespace stays, as do its bytes."""
    host = make(namespace_management=True, withheld_bytes=WITHHELD)
    deleted = commands_of(host, "delete-ns")
    evidence = erase(host)
    assert (evidence["bytes"], evidence["namespaces_made_anew"]) == (SIZE, False)
    assert deleted() == []
    assert not host.find(SLOT, SECRET[:4])


@pytest.mark.parametrize("spec", [{"namespaces": 2}, {"unallocated_bytes": MIB}, {"max_namespaces": 1}])
def test_largest_granted_namespace_is_made_below_tnvmcap(make, spec):
    host = make(namespace_management=True, withheld_bytes=WITHHELD, **spec)
    evidence = erase(host)
    granted = SIZE + spec.get("unallocated_bytes", 0)
    assert evidence["namespaces_made_anew"]
    assert namespaces(host) == [granted]
    assert not host.find(SLOT, SECRET[:4])


@pytest.mark.parametrize(("style", "withheld"), [("1.16", WITHHELD), ("2.3", 512), ("3.0", WITHHELD)])
def test_largest_namespace_is_made_on_an_empty_drive(make, style, withheld):
    """To the last block: nothing else finds the largest size that the drive grants."""
    host = make(style, namespace_management=True, withheld_bytes=withheld, size_bytes=5 * MIB + 512)
    delete(host, 1)
    assert erase(host)["bytes"] == 5 * MIB + 512
    assert namespaces(host) == [5 * MIB + 512]


def limit_namespaces(host, size):
    """Have larger namespaces refused: of 0 blocks, the answer is Invalid Field."""
    change_tool(
        host,
        f"""case "$1" in create-ns)
    [ "${{{{3#--nsze=}}}}" -le {size // 512} ] || set -- create-ns "$2" --nsze=0 --ncap=0 --flbas=0;;
esac
exec {{real}} "$@\"""",
    )


def test_namespace_that_fits_beside_the_others_shows_that_the_drive_creates_some(make):
    host = make(namespace_management=True, size_bytes=2 * MIB, namespaces=2, unallocated_bytes=2 * MIB)
    limit_namespaces(host, 3 * MIB)
    assert erase(host)["namespaces_made_anew"]
    assert namespaces(host) == [3 * MIB, MIB]


@pytest.mark.parametrize("rest", [1, 3])
def test_rest_that_no_one_namespace_can_have_gets_its_own(make, rest):
    """Firmware limits the size of a namespace: all that is left over is in another one, to the last block."""
    host = make(namespace_management=True, namespaces=2, unallocated_bytes=rest * 512)
    limit_namespaces(host, SIZE)
    evidence = erase(host)
    assert evidence["namespaces_made_anew"]
    assert [namespace["nsid"] for namespace in evidence["namespaces"]] == [1, 2]
    assert namespaces(host) == [SIZE, rest * 512]
    assert evidence["bytes"] == SIZE + rest * 512


def test_drive_that_grants_no_size_is_an_error(make):
    """The message has the sizes that were there, for the operator to create them again."""
    host = make(namespace_management=True)
    with host.drive(SLOT) as drive:
        drive.state.namespaces[1].without_storage = 8
    host.set_fault(SLOT, Fault(FaultKind.CREATE_NS_NO_ROOM))
    with pytest.raises(
        EraseFailed,
        match=r"no namespace of any size up to 8192 blocks \(.*\); it has no namespace now, and had namespaces of 8192 "
        "blocks: create one",
    ):
        erase(host)


def test_recorded_sizes_are_in_the_error_too(make):
    host = make(namespace_management=True)
    recorded = DriveLayout((NamespaceShape(SIZE // 512, 512),))
    with host.drive(SLOT) as drive:
        drive.state.namespaces[1].without_storage = 8
    host.set_fault(SLOT, Fault(FaultKind.CREATE_NS_NO_ROOM))
    controller = controller_at(host.paths, PCIAddress.parse(SLOT))
    with pytest.raises(EraseFailed, match="and had namespaces of 8192, 8192 blocks: create one"):
        eraser(host.paths).erase(controller, ZEROES, Watcher(), recorded)


def test_sizes_of_all_former_namespaces_are_in_the_error(make):
    """The drive creates the first one again, and none once both are deleted."""
    host = make(namespace_management=True, namespaces=2)
    change_tool(
        host,
        f"""case "$1 $4" in "delete-ns 2") touch {host.root}/deleted;; esac
if [ "$1" = create-ns ] && [ -e {host.root}/deleted ]; then set -- create-ns "$2" --nsze=0 --ncap=0 --flbas=0; fi
exec {{real}} "$@\"""",
    )
    with pytest.raises(
        EraseFailed, match="it has no namespace now, and had namespaces of 4096, 4096 blocks: create one"
    ):
        erase(host)


def test_empty_drive_that_grants_no_size_is_an_error(make):
    host = make(namespace_management=True)
    delete(host, 1)
    host.set_fault(SLOT, Fault(FaultKind.CREATE_NS_NO_ROOM))
    with pytest.raises(EraseFailed, match="it has no namespace now, and had none: create one"):
        erase(host)


@pytest.mark.parametrize("command", ["create-ns", "delete-ns", "attach-ns"])
def test_drive_that_is_pulled_while_it_is_remade_has_vanished(make, command):
    host = make(namespace_management=True, namespaces=2)
    watcher = Watcher()
    started = watcher.started

    def pulled_at(pid, argv):
        started(pid, argv)
        if argv[1] == command:
            host.set_fault(SLOT, Fault(FaultKind.VANISHES))

    watcher.started = pulled_at
    controller = controller_at(host.paths, PCIAddress.parse(SLOT))
    with pytest.raises(DeviceVanished, match=f"went away while it was being erased: .*{command}"):
        eraser(by_programs(host.paths)).erase(controller, ZEROES, watcher)


def test_rest_below_the_reported_granularity_is_not_tried(make):
    host = make(namespace_management=True, unallocated_bytes=MIB // 2, granularity=MIB, reports_granularity=True)
    created = commands_of(host, "create-ns")
    assert not erase(host)["namespaces_made_anew"]
    assert created() == []


def test_granularity_is_that_of_the_format_of_the_namespace(make):
    """A drive may report one for each LBA format."""
    spec = {"unallocated_bytes": MIB // 2, "granularity": MIB, "reports_granularity": True}
    host = make(namespace_management=True, format_nvm=True, **spec)
    host.format(SLOT, 4)
    host.set_fault(SLOT, Fault(FaultKind.CREATE_NS_INVALID))

    def edit(fields):
        [entry] = fields["namespace-granularity-list"]
        other = dict.fromkeys(entry, 512)
        fields |= {"attributes": 1, "namespace-granularity-list": [*[other] * 4, entry, *[other] * 3]}

    assert not erase(host, paths=answered(host, "id-ns-granularity", edit))["namespaces_made_anew"]


@pytest.mark.parametrize("reported", [True, False])
def test_size_is_rounded_to_the_granularity(make, reported):
    host = make(
        namespace_management=True,
        namespaces=2,
        unallocated_bytes=MIB // 2,
        granularity=MIB,
        reports_granularity=reported,
    )
    erase(host)
    assert namespaces(host) == [SIZE]


def test_drive_that_refuses_what_is_no_multiple_has_the_largest_one(make):
    """Each size that is tried is a multiple of the granularity, which such firmware does not round to."""
    spec = {"unallocated_bytes": MIB // 2, "withheld_bytes": 2 * MIB, "granularity": MIB, "reports_granularity": True}
    host = make(namespace_management=True, namespaces=2, **spec)
    change_tool(
        host,
        f"""case "$1" in create-ns)
    [ $(( ${{{{3#--nsze=}}}} % {MIB // 512} )) -eq 0 ] || set -- create-ns "$2" --nsze=0 --ncap=0 --flbas=0;;
esac
exec {{real}} "$@\"""",
    )
    erase(host)
    assert namespaces(host) == [SIZE]


@pytest.mark.parametrize("spec", [{}, {"unallocated_bytes": MIB}])
def test_namespace_is_kept_when_none_can_be_created(make, spec):
    """Whatever the drive says of its capacity, it grants nothing: its only namespace must not be deleted."""
    host = make(namespace_management=True, **spec)
    host.set_fault(SLOT, Fault(FaultKind.CREATE_NS_NO_ROOM))
    assert erase(host)["bytes"] == SIZE
    assert namespaces(host) == [SIZE]


@pytest.mark.parametrize("rest", [MIB, 512])
def test_rest_refused_for_no_lack_of_capacity_is_an_error(make, rest):
    """Invalid Field does not say that the rest belongs to the drive: a tenant's deleted namespace may lie there."""
    host = make(namespace_management=True, unallocated_bytes=rest)
    host.set_fault(SLOT, Fault(FaultKind.CREATE_NS_INVALID))
    with pytest.raises(EraseFailed, match=f"has {rest} bytes in no namespace.*nothing was deleted"):
        erase(host)
    assert namespaces(host) == [SIZE]


@pytest.mark.parametrize("withheld", [WITHHELD, 512])
def test_rest_that_a_new_namespace_leaves_must_be_explained(make, withheld):
    """After the namespaces were replaced by the largest one, the drive refuses the rest for another reason."""
    host = make(namespace_management=True, namespaces=2, withheld_bytes=withheld)
    host.set_fault(SLOT, Fault(FaultKind.CREATE_NS_INVALID, 2))
    with pytest.raises(EraseFailed, match=f"has {withheld} bytes in no namespace"):
        erase(host)


def test_rest_of_one_block_is_reached(make):
    host = make(namespace_management=True, unallocated_bytes=512)
    assert erase(host)["bytes"] == SIZE + 512
    assert namespaces(host) == [SIZE + 512]


@pytest.mark.parametrize("spec", [{}, {"unallocated_bytes": MIB // 2, "granularity": MIB, "reports_granularity": True}])
def test_namespaces_are_kept_when_create_ns_is_invalid(make, spec):
    """Without a rest that makes a namespace, there is nothing that the namespaces do not reach."""
    host = make(namespace_management=True, namespaces=2, **spec)
    host.set_fault(SLOT, Fault(FaultKind.CREATE_NS_INVALID))
    evidence = erase(host)
    assert (evidence["bytes"], evidence["namespaces_made_anew"]) == (SIZE, False)
    assert namespaces(host) == [SIZE // 2] * 2


def test_smallest_namespace_is_the_one_at_stake(make):
    """A drive that does not create it again keeps the large one, whose id is the lower one."""
    host = make(namespace_management=True)
    delete(host, 1)
    with host.drive(SLOT) as drive:
        for size in (3 * MIB, MIB):
            drive.attach(drive.create_namespace(size // 512, 0, shared=False), [0])
        host.sync_namespaces(drive)
    host.set_fault(SLOT, Fault(FaultKind.CREATE_NS_NO_ROOM))
    with pytest.raises(EraseFailed, match="does not create a namespace of 2048 blocks again"):
        erase(host)
    assert namespaces(host) == [3 * MIB]


@pytest.mark.parametrize("attached", [True, False])
def test_namespace_that_is_not_deleted_is_an_error(make, attached):
    """The drive reports success for a delete that does nothing."""
    host = make(namespace_management=True, namespaces=2)
    if not attached:
        detach(host, 2)
    change_tool(host, """case "$1 $4" in "delete-ns 2") exit 0;; esac\nexec {real} "$@\"""")
    with pytest.raises(EraseFailed, match=r"still has the namespaces \[2\] after they were deleted"):
        erase(host)


@pytest.mark.parametrize(
    ("refused", "left"),
    [
        ("create-ns", "it has no namespace now"),
        ("list-ns", r"its present namespaces are unknown \(nvme list-ns .*\)"),
    ],
)
def test_drive_that_fails_after_a_delete_says_what_is_left(make, refused, left):
    host = make(namespace_management=True)
    with host.drive(SLOT) as drive:
        drive.state.namespaces[1].without_storage = 8
    change_tool(
        host,
        f"""case "$1" in delete-ns) touch {host.root}/deleted;; esac
if [ "$1" = {refused} ] && [ -e {host.root}/deleted ]; then set -- attach-ns "$2" -n 99 -c 0; fi
exec {{real}} "$@\"""",
    )
    with pytest.raises(EraseFailed, match=f"refused a part of it: .*; {left}$"):
        erase(host)


def test_drive_that_does_not_remake_a_namespace_keeps_the_rest(make):
    host = make(namespace_management=True, namespaces=2)
    host.set_fault(SLOT, Fault(FaultKind.CREATE_NS_NO_ROOM))
    with pytest.raises(
        EraseFailed, match=r"does not create a namespace of 4096 blocks again.*it has the namespaces \[2\] now"
    ):
        erase(host)
    assert namespaces(host) == [SIZE // 2]


def test_new_namespace_has_a_format_without_metadata(make):
    host = make(namespace_management=True, namespaces=2)
    with host.drive(SLOT) as drive:
        for namespace in drive.state.namespaces.values():
            namespace.flbas = 1
    erase(host)
    with host.drive(SLOT) as drive:
        assert [namespace.flbas for namespace in drive.state.namespaces.values()] == [0]


def test_new_namespace_has_the_format_of_the_first_one(make):
    host = make(namespace_management=True, namespaces=2, format_nvm=True)
    host.format(SLOT, 4)
    erase(host)
    with host.drive(SLOT) as drive:
        assert [namespace.flbas for namespace in drive.state.namespaces.values()] == [4]


def test_new_namespace_of_an_empty_drive_has_the_first_format(make):
    """FLBAS is the format of a namespace, and says nothing where there is none."""
    host = make(namespace_management=True)
    delete(host, 1)

    def edit(fields):
        if not fields["nsze"]:
            fields["flbas"] = 4
            fields["lbafs"][1] = fields["lbafs"][0]

    erase(host, paths=answered(host, "id-ns", edit))
    with host.drive(SLOT) as drive:
        assert [namespace.flbas for namespace in drive.state.namespaces.values()] == [0]


def test_namespace_that_went_away_is_an_erase_error(make):
    """Another program deletes the namespace after it was listed; id-ns then answers with zeroes."""
    host = make()
    nvme = host.root / "bin/nvme"
    nvme.rename(host.root / "bin/real-nvme")
    nvme.write_text(f"""#!/bin/sh
case "$1" in id-ns) set -- id-ns "$2" -n 9 -o json;; esac
exec {host.root}/bin/real-nvme "$@"
""")
    nvme.chmod(0o755)
    with pytest.raises(EraseFailed, match=r"nvme id-ns \S+ -n 1 shows no blocks"):
        erase(host)
    assert host.find(SLOT, SECRET)


def test_a_drive_that_reports_no_capacity_is_not_taken_apart(make):
    host = make(namespace_management=True, namespaces=2)
    nvme = host.root / "bin/nvme"
    nvme.rename(host.root / "bin/real-nvme")
    nvme.write_text(f"""#!/bin/sh\n{host.root}/bin/real-nvme "$@" | sed 's/"tnvmcap": *[0-9]*/"tnvmcap":0/'\n""")
    nvme.chmod(0o755)
    with pytest.raises(EraseFailed, match=r"TNVMCAP.*nothing was deleted"):
        erase(host)
    with host.drive(SLOT) as drive:
        assert len(drive.state.namespaces) == 2


def test_a_namespace_that_this_host_does_not_show_is_not_passed_over(make, monkeypatch):
    monkeypatch.setattr(namespace_layout, "NODE_TIMEOUT", 0.05)
    host = make(namespaces=2)
    (host.root / "dev/nvme0n2").unlink()
    with pytest.raises(HardwareError, match=r"\[1, 2\].*\[1\]"):
        erase(host)
    assert host.find(SLOT, SECRET)


@pytest.fixture
def late(monkeypatch):
    """Let the host show changes late: a pause between two looks ends that. Returns how often there was one."""
    pauses = []

    def catch_up(work):
        pauses.append(work)
        host = SimulatedHost.open(work.paths.sysfs.parent)
        host.clear_faults(SLOT, FaultKind.BLOCK_DEVICES_LATE)

    monkeypatch.setattr(EraseWork, "pause", catch_up)
    return pauses


def test_a_new_namespace_is_zeroed_when_its_disk_comes_late(make, late):
    """The kernel makes the block device of an attached namespace in its own time."""
    host = make(namespace_management=True)
    delete(host, 1)
    host.set_fault(SLOT, Fault(FaultKind.BLOCK_DEVICES_LATE))
    assert erase(host)["namespaces_made_anew"]
    assert len(late) == 1


def test_a_new_namespace_whose_disk_never_comes_is_an_error(make, monkeypatch):
    monkeypatch.setattr(namespace_layout, "NODE_TIMEOUT", 0.0)
    host = make(namespace_management=True)
    delete(host, 1)
    host.set_fault(SLOT, Fault(FaultKind.BLOCK_DEVICES_LATE))
    with pytest.raises(HardwareError, match=r"the namespaces \[1\], but this host shows block devices for \[\]"):
        erase(host)


def test_a_restored_format_is_zeroed_when_its_size_comes_late(make, late):
    """With metadata the host shows a disk without a size, and shows its size again some time after the format."""
    host = make(format_nvm=True)
    recorded = DriveLayout((NamespaceShape(SIZE // 512, 512),))
    host.format(SLOT, 7)
    host.set_fault(SLOT, Fault(FaultKind.BLOCK_DEVICES_LATE))
    controller = controller_at(host.paths, PCIAddress.parse(SLOT))
    evidence = eraser(host.paths).erase(controller, ZEROES, Watcher(), recorded)
    assert evidence["bytes"] == SIZE
    assert len(late) == 1


def test_a_disk_that_is_smaller_here_than_on_the_drive_is_not_clean(make):
    host = make()
    nvme = host.root / "bin/nvme"
    nvme.rename(host.root / "bin/real-nvme")
    nvme.write_text(f"""#!/bin/sh\n{host.root}/bin/real-nvme "$@" | sed 's/"nsze": *[0-9]*/"nsze":99999/'\n""")
    nvme.chmod(0o755)
    with pytest.raises(EraseFailed, match=f"has {99999 * 512} bytes, but .* has {SIZE}"):
        erase(host)
    assert host.find(SLOT, SECRET)


def test_namespaces_that_change_during_zeroing_are_an_error(make):
    """Another program deletes the first namespace while the second is read back."""
    host = make(namespaces=2)
    watcher = Watcher()
    watcher.on_progress = lambda progress: "reading back nvme0n2" in progress.step and lose(host, 1)
    two = rf"nvme0n1 \({SIZE // 2} bytes\), nvme0n2 \({SIZE // 2} bytes\)"
    with pytest.raises(WrongDrive, match=rf"before, it had {two}; now, nvme0n2 \({SIZE // 2} bytes\)$"):
        erase(host, watcher=watcher)


def test_namespaces_that_all_went_during_zeroing_are_an_error(make):
    host = make()
    watcher = Watcher()
    watcher.on_progress = lambda progress: (
        progress.step.startswith("reading") and progress.percent == 100.0 and lose(host, 1)
    )
    with pytest.raises(WrongDrive, match=r"now, no namespace$"):
        erase(host, watcher=watcher)


def test_a_disk_that_another_program_holds_is_not_touched(make):
    host = make()
    descriptor = os.open(host.root / "dev/nvme0n1", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        with pytest.raises(DeviceInUse):
            erase(host)
    finally:
        os.close(descriptor)
    assert host.find(SLOT, SECRET)


def test_no_mount_gets_a_namespace_that_is_proved_while_another_is_zeroed(make):
    host = make(namespaces=2, namespace_management=False)
    watcher = Watcher()
    free = []

    def on_progress(progress):
        if "namespace 2" in progress.step:
            with open(host.root / "dev/nvme0n1", "rb") as first:
                try:
                    fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    free.append(False)
                else:
                    free.append(True)

    watcher.on_progress = on_progress
    erase(host, watcher=watcher)
    assert free
    assert not any(free)


@both_tools
def test_a_drive_that_is_pulled_meanwhile_has_vanished(make, action):
    host = make(size_bytes=16 * MIB)
    host.set_fault(SLOT, Fault(FaultKind.VANISHES, 40))
    with pytest.raises(DeviceVanished, match="nvme0n1"):
        erase(host, action)


@both_tools
def test_time_that_is_up_ends_the_tool_and_says_what_is_left(make, action):
    host = make()
    host.set_fault(SLOT, Fault(FaultKind.ZERO_BYTES_PER_SECOND, MIB // 2))
    watcher = Watcher(4)
    with pytest.raises(EraseTimeout, match="partly overwritten"):
        erase(host, action, watcher)
    assert watcher.running == {}
    assert host.find(SLOT, SECRET)


def test_time_that_is_up_before_reading_back_is_an_error(make):
    """The kernel may take long to flush, and what was not read back does not count."""
    host, watcher = make(), Watcher()

    class SlowDisk(FileDisk):
        def flush(self):
            super().flush()
            watcher.deadline = Deadline.after(0)

    def hold(paths, path, *, writable):
        return SlowDisk(path, *claim_file(paths, path, writable=writable))

    controller = controller_at(host.paths, PCIAddress.parse(SLOT))
    with pytest.raises(EraseTimeout, match=r"; it is overwritten, but has not been read back$"):
        eraser(dataclasses.replace(host.paths, hold_disk=hold)).erase(controller, ZEROES, watcher)


def test_progress_comes_while_the_tool_runs(make):
    host = make()
    host.set_fault(SLOT, Fault(FaultKind.ZERO_BYTES_PER_SECOND, 2 * MIB))
    watcher = Watcher()
    erase(host, watcher=watcher)
    zeroing = [p.percent for p in watcher.seen if p.step.startswith("BLKZEROOUT")]
    assert zeroing[0] is None
    assert any(percent and 0 < percent < 100 for percent in zeroing)
    assert zeroing[-1] == 100.0
    assert [step.split(",")[0] for step in watcher.steps] == ["BLKZEROOUT", "reading back nvme0n1 (full)"]


def shred_by(host, script):
    """Run *script* in place of ``shred``."""
    (host.root / "bin/shred").write_text(f"#!/bin/sh\n{script}\n")


def test_what_shred_says_is_progress(make):
    host = make()
    heading = "shred: /dev/nvme0n1: pass 1/1 (000000)..."
    shred_by(host, f"echo '{heading}' >&2; echo '{heading}1.0MiB/4.0MiB 25%' >&2")
    watcher = Watcher()
    erase(host, SHRED, watcher, verify="none")
    assert [progress.percent for progress in watcher.seen] == [None, 25.0, 100.0]
    assert [argv[1:] for argv in watcher.argvs if argv[0].endswith("shred")] == [
        ["--iterations=0", "--zero", "--verbose", str(host.root / "dev/nvme0n1")]
    ]


def test_last_words_of_shred_are_its_reason(make):
    host = make()
    shred_by(host, "printf 'one\n\n  two  \nthree\nfour\n' >&2; exit 3")
    with pytest.raises(EraseFailed, match=r"shred failed on \S+nvme0n1 with exit status 3: two three four$"):
        erase(host, SHRED)


def test_a_tool_that_says_nothing_for_long_is_reported_as_stalled(make):
    host = make()
    host.set_fault(SLOT, Fault(FaultKind.ZERO_BYTES_PER_SECOND, 8 * MIB))
    watcher = Watcher()
    stalled = threading.Event()
    watcher.on_progress = lambda progress: stalled.set() if progress.stalled else None
    erase(host, SHRED, watcher, stall_timeout=0.1)
    assert stalled.is_set()


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("action", [CleanupAction.SANITIZE_BLOCK, CleanupAction.SANITIZE_CRYPTO])
def test_a_simulated_drive_is_sanitized_whatever_the_version_of_the_tool(make, style, action):
    host = make(style, crypto=True, block=True, sanitize_seconds=0.1, namespaces=2)
    evidence = erase(host, action)
    assert not host.find(SLOT, SECRET)
    assert evidence["log_after"]["status"] == 1
    assert evidence["bytes"] == SIZE


@pytest.mark.parametrize("style", ["2.13", "3.0"])
def test_drive_in_media_verification_is_sanitized(make, style):
    host = make(style, block=True, sanitize_seconds=0.1)
    host.set_fault(SLOT, Fault(FaultKind.SANITIZE_VERIFIES))
    evidence = erase(host, CleanupAction.SANITIZE_BLOCK)
    assert evidence["log_after"]["status"] == 1
    assert not host.find(SLOT, SECRET)


def test_drive_in_reset_is_erased_when_it_is_back(make):
    host = make(block=True, sanitize_seconds=0.1)
    host.set_fault(SLOT, Fault(FaultKind.NVME_BUSY))
    threading.Timer(1.5, host.clear_faults).start()
    assert erase(host, CleanupAction.SANITIZE_BLOCK)["log_after"]["status"] == 1
