"""A format with secure erase counts only with a proof: what was written before is not there afterwards."""

import json
import time
from dataclasses import replace

import pytest
from erase_doubles import Watcher, eraser, hangs

from autoclave.exceptions import (
    DeviceInUse,
    DeviceVanished,
    EraseFailed,
    EraseTimeout,
    EraseUnsupported,
    VerifyFailed,
)
from autoclave.hardware.block import open_block
from autoclave.hardware.host import Deadline
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


def erase(host, action=CRYPTO, watcher=None, paths=None, **changes):
    paths = paths or host.paths
    controller = controller_at(paths, PCIAddress.parse(SLOT))
    return eraser(paths, **changes).erase(controller, action, watcher or Watcher())


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
    assert evidence["secure_erase_setting"] == {BLOCK: 1, CRYPTO: 2}[action]
    assert evidence["bytes"] == SIZE
    assert evidence["namespaces_made_anew"] is False
    [namespace] = evidence["namespaces"]
    assert (namespace["nsid"], namespace["block_device"], namespace["bytes"]) == (1, "nvme0n1", SIZE)
    assert namespace["markers"] > 10
    assert "no longer read back" in evidence["verified"]
    assert json.loads(json.dumps(evidence)) == evidence


@both
def test_format_that_erased_nothing_is_not_believed(make, action):
    """The drive reports success and has erased nothing: the markers are still there."""
    host = make()
    host.set_fault(SLOT, Fault(FaultKind.FORMAT_LEAVES_DATA))
    with pytest.raises(VerifyFailed, match=r"reported success, but .*nvme0n1 still has the marker at byte 0"):
        erase(host, action)


def test_format_of_one_of_two_namespaces_is_not_enough(make):
    """Without FNA bits 0 and 1 a format reaches one namespace, so each gets its own."""
    host = make(namespaces=2)
    watcher = Watcher()
    evidence = erase(host, CRYPTO, watcher)
    assert [options[1] for options in formats(watcher)] == ["1", "2"]
    assert [namespace["nsid"] for namespace in evidence["namespaces"]] == [1, 2]
    assert not host.find(SLOT, SECRET[:8])


def test_evidence_shares_the_time_of_the_formats(make):
    """All namespaces are formatted before the first is read back: each has its part of the time by its size."""
    host = make(namespaces=2, size_bytes=SIZE)
    moments = []

    def answer(argv):
        if argv[1] in ("format", "ns-rescan"):
            moments.append(time.monotonic())
        return host.paths.answer_tool(argv)

    began = time.monotonic()
    evidence = erase(host, paths=replace(host.paths, answer_tool=answer))
    elapsed = time.monotonic() - began
    first, second = evidence["namespaces"]
    assert first["seconds"] == second["seconds"]
    assert 0.002 < moments[-1] - moments[0] <= first["seconds"] + second["seconds"] + 0.002 <= elapsed + 0.004
    assert first["read_back_seconds"] + second["read_back_seconds"] <= elapsed
    figures = [figure for each in (first, second) for figure in (each["seconds"], each["read_back_seconds"])]
    assert all(isinstance(figure, float) and figure == round(figure, 3) for figure in figures)


def answered_as(host, **fields):
    """Return the host with some fields of Identify Controller replaced."""

    def answer(argv):
        answered = host.paths.answer_tool(argv)
        if argv[1] == "id-ctrl":
            return replace(answered, stdout=json.dumps(json.loads(answered.stdout) | fields))
        return answered

    return replace(host.paths, answer_tool=answer)


def sent(paths, seen):
    """Return the host that records the namespace id of each format in *seen*."""

    def answer(argv):
        if argv[1] == "format":
            seen.append(int(argv[4]))
        return paths.answer_tool(argv)

    return replace(paths, answer_tool=answer)


EVERY = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("fna", "second_format", "expected"),
    [
        pytest.param(0b0000, 0, [1, 2], id="each alone"),
        pytest.param(0b0001, 0, [EVERY], id="formats reach all"),
        pytest.param(0b0010, 0, [EVERY], id="secure erases reach all"),
        pytest.param(0b0010, 4, [1, 2], id="secure erases reach all, of two formats"),
        pytest.param(0b1001, 0, [1, 2], id="formats reach all, without broadcast"),
        pytest.param(0b1010, 0, [1, 2], id="secure erases reach all, without broadcast"),
    ],
)
def test_format_is_broadcast_where_fna_allows(make, fna, second_format, expected):
    """A broadcast has one LBA format for all: namespaces keep theirs only if a drive formats each alone."""
    host = make(namespaces=2)
    host.format(SLOT, second_format, nsid=2)
    seen = []
    paths = sent(answered_as(host, fna=fna | 0b100), seen)
    erase(host, paths=paths)
    assert seen == expected


def test_format_that_reaches_all_and_changes_one_is_an_error(make):
    """A drive that formats all namespaces as one cannot keep two LBA formats: the other one is reported."""
    host = make(namespaces=2)
    host.format(SLOT, 4, nsid=2)
    seen = []
    with pytest.raises(EraseFailed, match="its layout has changed: namespace 2 has LBA format 0"):
        erase(host, paths=sent(answered_as(host, fna=0b101), seen))
    assert seen == [EVERY]


def test_format_that_reaches_all_is_sent_once(make):
    """FNA bits 0 and 1: one command is enough for all namespaces."""
    host = make(namespaces=2, format_all=True)
    watcher = Watcher()
    evidence = erase(host, BLOCK, watcher)
    assert [options[1] for options in formats(watcher)] == [str(0xFFFFFFFF)]
    assert len(evidence["namespaces"]) == 2
    assert watcher.steps[0] == "format, user data erase"
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
    ("command", "number", "left_behind"),
    [
        pytest.param("id-ctrl", 1, "nothing was started", id="at the first look"),
        pytest.param("id-ctrl", 3, "nothing was formatted", id="before the markers"),
        pytest.param("format", 1, "it may still be formatting", id="as it formats"),
        pytest.param("ns-rescan", 1, "it may still be formatting", id="after the format"),
        pytest.param("id-ctrl", 4, "it is formatted, but not proved to be erased", id="before the proof"),
    ],
)
def test_hanging_tool_ends_the_format_with_the_state(make, command, number, left_behind):
    """The deadline passes while nvme-cli hangs: the error says in which state the drive was left."""
    host = make()
    watcher = Watcher()
    times = iter(range(1, 100))
    paths = hangs(host.paths, watcher, lambda argv: argv[1] == command and next(times) == number)
    with pytest.raises(EraseTimeout, match=f"cleanup_timeout; {left_behind}$"):
        erase(host, watcher=watcher, paths=paths)


@pytest.mark.parametrize(
    ("command", "number", "left_behind"),
    [
        pytest.param("id-ctrl", 3, "nothing was formatted", id="at the markers"),
        pytest.param("ns-rescan", 1, "it is formatted, but was not read back", id="at the proof"),
    ],
)
def test_deadline_is_kept_between_the_tools(make, command, number, left_behind):
    """The deadline passes while the markers are written or read; no tool runs then."""
    host = make()
    watcher = Watcher()
    times = iter(range(1, 100))

    def answer(argv):
        if argv[1] == command and next(times) == number:
            watcher.deadline = Deadline.after(0)
        return host.paths.answer_tool(argv)

    with pytest.raises(EraseTimeout, match=f"cleanup_timeout; {left_behind}$"):
        erase(host, watcher=watcher, paths=replace(host.paths, answer_tool=answer))


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


def test_format_that_the_kernel_gives_up_has_timed_out(make):
    """The kernel ends the command at the deadline: nvme-cli fails then, and the drive did not."""
    host = make()
    host.set_fault(SLOT, Fault(FaultKind.FORMAT_FAILS))
    watcher = Watcher()

    def answer(argv):
        if argv[1] == "format":
            watcher.deadline = Deadline.after(0)
        return host.paths.answer_tool(argv)

    with pytest.raises(EraseTimeout, match=r"cleanup_timeout; it may still be formatting$"):
        erase(host, watcher=watcher, paths=replace(host.paths, answer_tool=answer))


def test_drive_pulled_during_its_format_is_reported(make):
    """What the tool said may tell why the drive went away."""
    host = make()

    def answer(argv):
        if argv[1] == "format":
            host.pull(SLOT)
        return host.paths.answer_tool(argv)

    with pytest.raises(DeviceVanished, match=r"went away while it was being erased: nvme format .* failed"):
        erase(host, paths=replace(host.paths, answer_tool=answer))


@pytest.mark.parametrize(("size", "markers"), [(4096, 1), (8192, 2), (12288, 3)])
def test_small_namespace_is_proved_at_both_ends(make, size, markers):
    """The smallest namespace that can be proved has room for one marker, the next one for two: its ends."""
    host = make(size_bytes=size)
    [namespace] = erase(host)["namespaces"]
    assert 1 <= namespace["markers"] <= markers
    assert namespace["markers"] >= min(markers, 2)


def test_many_small_namespaces_are_proved(make):
    """Each has room for two markers, and none is written past its end."""
    host = make(size_bytes=32 * 8192, namespaces=32, format_all=True)
    evidence = erase(host)
    assert {namespace["markers"] for namespace in evidence["namespaces"]} == {2}


class UnreadableDisk:
    """A disk whose markers cannot be read once *fails* says so."""

    def __init__(self, disk, fails):
        self._disk, self._fails = disk, fails

    def __getattr__(self, name):
        return getattr(self._disk, name)

    def has_marker(self, offset, seed):
        if self._fails():
            raise EraseFailed(f"{self._disk.path} cannot be read at byte {offset}: Input/output error")
        return self._disk.has_marker(offset, seed)


@pytest.mark.parametrize("pulled", [False, True])
def test_drive_that_cannot_be_read_back_is_not_proved(make, pulled):
    """An I/O error of the read-back is quoted; that of a drive that was pulled is reported as such."""
    host = make()
    formatted = []

    def answer(argv):
        formatted.extend(argv[1:2] if argv[1] == "format" else [])
        return host.paths.answer_tool(argv)

    def fails():
        if formatted and pulled:
            host.pull(SLOT)
        return bool(formatted)

    def hold(paths, path, *, writable):
        return UnreadableDisk(host.paths.hold_disk(paths, path, writable=writable), fails)

    words = "nvme0n1 cannot be read at byte 0: Input/output error"
    gone = DeviceVanished, f"went away while it was being erased: .*{words}"
    error, message = gone if pulled else (EraseFailed, f"^[^ ]*{words}")
    with pytest.raises(error, match=message):
        erase(host, paths=replace(host.paths, answer_tool=answer, hold_disk=hold))


def test_namespace_that_the_host_cannot_see_is_not_formatted(make):
    """Linux shows no bytes of some formats: a marker cannot be written there, so nothing could be proved."""
    host = make()
    host.format(SLOT, 7)
    with pytest.raises(EraseFailed, match="too few for a marker"):
        erase(host)
    assert host.find(SLOT, SECRET)
