"""A sanitize counts only if the drive's own log proves one that we saw or started, of our action, as completed."""

import fcntl
import json
import shutil
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from erase_doubles import Watcher, eraser, hangs
from scripted_nvme import SAMPLES, ScriptedNvme

from autoclave.exceptions import (
    DeviceInUse,
    DeviceVanished,
    EraseFailed,
    EraseTimeout,
    EraseUnsupported,
    HardwareError,
    ToolFailed,
    ToolGarbage,
    ToolMissing,
    WrongDrive,
)
from autoclave.hardware import nvme_cli
from autoclave.hardware.erase import sanitize
from autoclave.hardware.nvme import controller_at
from autoclave.hardware.sysfs import function_directory
from autoclave.rules.cleanup_policy import CleanupAction
from autoclave.rules.pci_address import PCIAddress
from autoclave.simulator import disk
from sysfs_tree import DISK_BYTES, SysfsTree

BLOCK, CRYPTO = CleanupAction.SANITIZE_BLOCK, CleanupAction.SANITIZE_CRYPTO
ADDRESS = PCIAddress.parse("0000:41:00.0")
WORDS = {
    0: "(0) NVM Subsystem has never been sanitized.",
    1: "(1) Most Recent Sanitize Command Completed Successfully.",
    2: "(2) Sanitize in Progress.",
    3: "(3) Most Recent Sanitize Command Failed.",
    4: "(4) Most Recent Sanitize Command (No-Deallocate After Sanitize) Completed Successfully.",
}
VERIFICATION = "(4) Media Verification"
IN_PROGRESS = "NVMe status: Sanitize In Progress: The requested function is prohibited(0x1d)\n"


def log(status, cdw10=2, progress=None, state=None, erased=None):
    rest = {} if cdw10 is None else {"cdw10_info": cdw10}
    progress = 65535 if progress is None else progress
    sstat = {
        "global_erased": int(status in (1, 4) if erased is None else erased),
        "no_cmplted_passes": 0,
        "status": WORDS[status],
    }
    if state is not None:
        rest |= {"sanitize_state_information": {"sanitize_state": state}}
    return json.dumps({"nvme7": {"sprog": progress, "sstat": sstat, **rest, "time_block_erase": 4294967295}})


@pytest.fixture
def drive(tmp_path):
    """A controller whose nvme-cli is scripted: it can do both sanitizes, and accepts one unless told otherwise."""

    class Drive:
        def __init__(self):
            (tmp_path / "tools").mkdir()
            self.tool = ScriptedNvme(tmp_path / "tools")
            self.host = SysfsTree(tmp_path)
            self.paths = replace(self.host.paths, tools=(self.tool.root,))
            self.host.controller(str(ADDRESS), "nvme7", "nvme-subsys7", serial="LAB0001", model="QEMU NVMe Ctrl")
            self.controller = controller_at(self.paths, ADDRESS)
            self.function = function_directory(self.paths, ADDRESS)
            self.tool.replays("version", "2.13", "version")
            self.tool.replays("id-ctrl", "2.13", "id-ctrl")
            self.watcher = Watcher()

        def logs(self, *pages):
            for page in pages:
                self.tool.says("sanitize-log", page)

        def is_described_as(self, **fields):
            identity = json.loads((SAMPLES / "2.13" / "id-ctrl.out").read_text())
            (self.tool.root / "id-ctrl.1.out").write_text(json.dumps(identity | fields))

        @property
        def sanitizing(self):
            """The commands that were sent, but for those that ask for identity and layout."""
            return [command for command in self.tool.commands if command.startswith("sanitize")]

        def erase(self, action=BLOCK, **changes):
            return eraser(self.paths, **changes).erase(self.controller, action, self.watcher)

    return Drive()


def test_a_sanitize_is_started_watched_and_proved_by_the_log(drive):
    drive.host.disk(drive.function / "nvme/nvme7", "nvme7n1")
    drive.controller = controller_at(drive.paths, ADDRESS)
    firmware = json.loads((SAMPLES / "2.13" / "id-ctrl.out").read_text())["fr"].strip()
    drive.logs(log(0, 0), log(2, progress=100), log(2, progress=40000), log(1))
    drive.tool.says("sanitize")
    evidence = drive.erase()
    assert drive.tool.calls.count(f"sanitize {drive.controller.path} --sanact=2") == 1
    nodes = {call.split()[1] for call in drive.tool.calls if call != "version"}
    assert nodes == {str(drive.controller.path)}
    assert evidence["action"] == "sanitize_block"
    assert evidence["nvme_cli"] == "2.13"
    assert (evidence["serial"], evidence["model"], evidence["firmware"]) == ("LAB0001", "QEMU NVMe Ctrl", firmware)
    assert evidence["bytes"] == DISK_BYTES
    assert evidence["began"] <= evidence["ended"]
    assert {datetime.fromisoformat(evidence[name]).utcoffset() for name in ("began", "ended")} == {timedelta(0)}
    assert evidence["started"] is True
    assert evidence["method"] == "sanitize"
    assert evidence["verified"].startswith(
        "the sanitize status log page (81h) shows that the requested action completed"
    )
    assert evidence["log_before"]["status"] == 0
    assert evidence["log_after"] == {
        "status": 1,
        "words": WORDS[1],
        "progress": 65535,
        "global_data_erased": True,
        "cdw10": 2,
    }
    assert json.loads(json.dumps(evidence)) == evidence


def test_progress_is_told_in_percent_and_ends_at_a_hundred(drive):
    drive.logs(log(0, 0), log(2, progress=16384), log(2, progress=32768), log(1))
    drive.tool.says("sanitize")
    drive.erase()
    percents = [progress.percent for progress in drive.watcher.seen]
    assert percents == [None, 25.0, 50.0, 100.0]
    assert drive.watcher.seen[2].seconds_left is not None
    assert drive.watcher.steps == ["sanitize, block erase"]


def test_every_process_is_journalled_and_has_ended(drive):
    drive.logs(log(0, 0), log(2), log(1))
    drive.tool.says("sanitize")
    drive.erase()
    assert len(drive.watcher.argvs) == len(drive.tool.calls)
    assert drive.watcher.running == {}


def test_success_without_deallocation_is_success(drive):
    drive.logs(log(0, 0), log(2, 0x204), log(4, 0x204))
    drive.tool.says("sanitize")
    assert drive.erase(CRYPTO)["log_after"]["status"] == 4


def test_a_write_before_the_log_is_read_is_noticed(drive):
    """Something of the host wrote to a namespace while, or after, the drive sanitized; the drive itself says so."""
    drive.logs(log(0, 0), log(2), log(1, erased=False))
    drive.tool.says("sanitize")
    with pytest.raises(EraseFailed, match="data was written since"):
        drive.erase()


def is_free(node):
    """Whether a mount would get the disk."""
    with open(node, "rb") as disk:
        try:
            fcntl.flock(disk, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def comes_back_anew(node):
    """The block device went away and is there again, as after a reset: another one under its old name."""
    node.rename(node.with_name("gone"))
    node.touch()


def test_no_mount_gets_a_namespace_while_the_drive_sanitizes(drive):
    disk = drive.host.disk(drive.function / "nvme/nvme7", "nvme7n1")
    drive.controller = controller_at(drive.paths, ADDRESS)
    free = []
    drive.watcher.on_progress = lambda _: free.append(is_free(drive.host.dev / disk.name))
    drive.logs(log(0, 0), log(2, progress=100), log(2, progress=200), log(1))
    drive.tool.says("sanitize")

    drive.erase()

    assert free
    assert not any(free)
    assert is_free(drive.host.dev / disk.name)


def test_namespace_that_comes_back_while_the_drive_sanitizes_is_held_too(drive):
    node = drive.host.dev / drive.host.disk(drive.function / "nvme/nvme7", "nvme7n1").name
    drive.controller = controller_at(drive.paths, ADDRESS)
    free = []

    def on_progress(progress):
        if progress.percent == 25.0:
            comes_back_anew(node)
        else:
            free.append(is_free(node))

    drive.watcher.on_progress = on_progress
    drive.logs(log(0, 0), log(2, progress=16384), log(2, progress=32768), log(1))
    drive.tool.says("sanitize")

    drive.erase()

    assert free[-2:] == [False, False]


def test_namespace_that_something_takes_as_it_comes_back_is_no_clean_drive(drive):
    node = drive.host.dev / drive.host.disk(drive.function / "nvme/nvme7", "nvme7n1").name
    drive.controller = controller_at(drive.paths, ADDRESS)
    mounts = []

    def on_progress(progress):
        if not mounts:
            comes_back_anew(node)
            mounts.append(node.open("rb"))
            fcntl.flock(mounts[0], fcntl.LOCK_EX)

    drive.watcher.on_progress = on_progress
    drive.logs(log(0, 0), log(2, progress=100), log(1))
    drive.tool.says("sanitize")

    with pytest.raises(DeviceInUse, match=r"nvme7n1 is open exclusively by .*, while the drive was being sanitized"):
        drive.erase()
    mounts[0].close()


def test_namespace_that_is_taken_before_the_sanitize_starts_nothing(drive):
    node = drive.host.dev / drive.host.disk(drive.function / "nvme/nvme7", "nvme7n1").name
    drive.controller = controller_at(drive.paths, ADDRESS)
    drive.logs(log(0, 0))
    with node.open("rb") as disk:
        fcntl.flock(disk, fcntl.LOCK_EX)

        with pytest.raises(DeviceInUse, match="nvme7n1"):
            drive.erase()

    assert "sanitize" not in drive.tool.commands


def test_an_old_success_with_data_written_since_is_refused(drive):
    """The tool exits with 0 and says nothing, the drive does nothing, and the log still has the last success."""
    drive.logs(log(1, erased=False))
    drive.tool.says("sanitize")
    with pytest.raises(EraseFailed, match="Global Data Erased is 0"):
        drive.erase()


def test_a_repeated_sanitize_of_an_erased_drive_counts(drive):
    """A second crypto erase with nothing written since is over at once, and leaves the log as it was."""
    drive.logs(log(1, 4))
    drive.tool.says("sanitize")
    assert drive.erase(CRYPTO)["log_after"]["global_data_erased"] is True


def test_an_older_success_never_counts_when_the_command_is_refused(drive):
    drive.logs(log(1))
    drive.tool.replays("sanitize", "2.13", "sanitize-raw")
    with pytest.raises(EraseUnsupported, match="Invalid Command Opcode"):
        drive.erase()


def test_an_older_success_never_counts_when_the_drive_is_in_failure_mode(drive):
    drive.logs(log(1))
    drive.tool.says("sanitize", stderr="NVMe status: Sanitize Failed: The most recent sanitize failed(0x1c)\n", rc=1)
    with pytest.raises(EraseFailed, match="Sanitize Failed"):
        drive.erase()


def test_an_older_success_never_counts_when_the_tool_complains_and_exits_with_zero(drive):
    drive.logs(log(1))
    drive.tool.says("sanitize", stderr="block erase action unsupported\n", rc=0)
    with pytest.raises(EraseFailed, match="block erase action unsupported"):
        drive.erase()


def test_a_chatty_tool_is_believed_once_the_operation_was_seen_running(drive):
    drive.logs(log(0, 0), log(2), log(1))
    drive.tool.says("sanitize", stdout="sanitize: started\n")
    assert drive.erase()["log_after"]["status"] == 1


def test_an_erase_that_ends_before_the_first_look_is_proved_by_the_accepted_command(drive):
    drive.logs(log(1, 4), log(1, 4))
    drive.tool.says("sanitize")
    evidence = drive.erase(CRYPTO)
    assert evidence["log_after"]["status"] == 1
    assert drive.sanitizing[-3:] == ["sanitize", "sanitize-log", "sanitize-log"]


def test_a_log_that_is_late_does_not_pass_off_an_older_success_as_ours(drive):
    drive.logs(log(1), log(1), log(2, progress=9), log(3))
    drive.tool.says("sanitize")
    with pytest.raises(EraseFailed, match="Failed"):
        drive.erase()


def test_a_running_sanitize_of_our_action_is_polled_and_not_started_again(drive):
    drive.logs(log(2, progress=30000), log(2, progress=60000), log(1))
    evidence = drive.erase()
    assert "sanitize" not in drive.tool.commands
    assert evidence["started"] is False
    assert evidence["log_before"]["status"] == 2


def test_a_running_sanitize_of_another_action_is_waited_out_and_ours_follows(drive):
    drive.logs(log(2, 4, 100), log(2, 4, 200), log(1, 4), log(2, 2, 100), log(1, 2))
    drive.tool.says("sanitize")
    evidence = drive.erase(BLOCK)
    assert drive.sanitizing == ["sanitize-log"] * 3 + ["sanitize"] + ["sanitize-log"] * 2
    assert evidence["log_after"]["cdw10"] == 2
    assert drive.watcher.steps == ["waiting for sanitize, crypto erase to end", "sanitize, block erase"]


def test_running_sanitize_of_unknown_action_is_waited_out(drive):
    """Old versions of nvme-cli do not show dword 10; the progress shown is that of the running operation."""
    drive.logs(log(2, None, 16384), log(2, None, 32768), log(1, None), log(2, 2, 49152), log(1, 2))
    drive.tool.says("sanitize")
    assert drive.erase(BLOCK)["started"] is True
    waiting, sanitizing = "waiting for a sanitize of unknown kind to end", "sanitize, block erase"
    assert [(progress.step, progress.percent) for progress in drive.watcher.seen] == [
        (waiting, None),
        (waiting, 25.0),
        (waiting, 50.0),
        (sanitizing, None),
        (sanitizing, 75.0),
        (sanitizing, 100.0),
    ]


def test_joined_sanitize_counts_at_the_first_look_after_its_end(drive):
    """It was seen running, so its log needs no second look."""
    drive.logs(log(2), log(1))
    assert drive.erase()["started"] is False
    assert drive.sanitizing == ["sanitize-log", "sanitize-log"]


def test_the_failure_of_another_action_does_not_keep_ours_from_starting(drive):
    drive.logs(log(2, 3, 100), log(3, 3), log(2, 2, 100), log(1, 2))
    drive.tool.says("sanitize")
    assert drive.erase(BLOCK)["log_after"]["status"] == 1


def test_a_sanitize_that_began_between_look_and_start_is_waited_out(drive):
    drive.logs(log(0, 0), log(2, 4, 100), log(1, 4), log(2, 2, 100), log(1, 2))
    drive.tool.says("sanitize", stderr=IN_PROGRESS, rc=1)
    drive.tool.says("sanitize")
    assert drive.erase(BLOCK)["started"] is True
    assert drive.tool.commands.count("sanitize") == 2


def test_a_sanitize_of_our_action_that_began_between_look_and_start_is_joined(drive):
    drive.logs(log(0, 0), log(2, 2, 100), log(1, 2))
    drive.tool.says("sanitize", stderr=IN_PROGRESS, rc=1)
    assert drive.erase(BLOCK)["started"] is False
    assert drive.tool.commands.count("sanitize") == 1


def test_a_drive_that_fails_is_quoted(drive):
    drive.logs(log(0, 0), log(2, progress=1), log(3))
    drive.tool.says("sanitize")
    with pytest.raises(EraseFailed, match=r"0000:41:00\.0.*\(3\) Most Recent Sanitize Command Failed") as failed:
        drive.erase()
    assert "LAB0001" in str(failed.value)


@pytest.mark.parametrize("shown", [4, 3, 1, 0, None])
def test_a_success_with_another_action_in_the_log_is_not_ours(drive, shown):
    drive.logs(log(0, 0), log(2, 2, 1), log(1, shown))
    drive.tool.says("sanitize")
    words = "no action" if shown is None else f"action {shown}"
    with pytest.raises(
        EraseFailed, match=f"not the requested one: its log has {words}, and sanitize_block is action 2"
    ):
        drive.erase(BLOCK)


def test_another_sanitize_that_runs_after_ours_was_accepted_is_no_proof(drive):
    drive.logs(log(0, 0), log(2, 4, 1))
    drive.tool.says("sanitize")
    with pytest.raises(EraseFailed, match="another sanitize"):
        drive.erase(BLOCK)


def test_a_log_that_says_never_sanitized_after_the_command_was_accepted_is_no_proof(drive):
    drive.logs(log(0, 0))
    drive.tool.says("sanitize")
    with pytest.raises(EraseFailed, match="never been sanitized"):
        drive.erase()


def test_an_action_that_sanicap_does_not_claim_is_never_sent(drive):
    drive.is_described_as(sanicap=1)
    with pytest.raises(EraseUnsupported, match="not touched"):
        drive.erase(BLOCK)
    assert "sanitize" not in drive.tool.commands


def test_an_action_that_the_tool_refuses_by_itself_is_unsupported(drive):
    drive.logs(log(0, 0))
    drive.tool.replays("sanitize", "3.0-rc1", "sanitize-raw")
    with pytest.raises(EraseUnsupported, match="block erase action unsupported"):
        drive.erase()


def test_progress_that_stands_still_is_reported_as_stalled_and_the_timeout_decides(drive):
    drive.logs(log(0, 0), log(2, progress=655))
    drive.tool.says("sanitize")
    drive.watcher = Watcher(4)
    with pytest.raises(EraseTimeout, match=r"it may still be sanitizing$"):
        drive.erase(stall_timeout=0.1)
    stalled = [progress for progress in drive.watcher.seen if progress.stalled]
    assert stalled
    assert stalled[-1].percent == pytest.approx(100 * 655 / 65536)
    assert not drive.watcher.seen[0].stalled


def test_progress_that_moves_again_is_no_longer_stalled(drive):
    drive.logs(log(0, 0), *[log(2, progress=655)] * 40, log(2, progress=700), log(1))
    drive.tool.says("sanitize")
    drive.erase(stall_timeout=0.05)
    moved = [progress for progress in drive.watcher.seen if progress.percent == pytest.approx(1.07, abs=0.01)]
    # The first alone: on a slow machine it may stand still again until the next answer.
    assert not moved[0].stalled
    assert any(progress.stalled for progress in drive.watcher.seen)


def test_time_that_is_up_while_another_sanitize_runs_says_that_ours_was_not_started(drive):
    drive.logs(log(2, 4, 100))
    drive.watcher = Watcher(2)
    with pytest.raises(EraseTimeout, match="requested one was not started"):
        drive.erase(BLOCK)
    assert "sanitize" not in drive.tool.commands


def test_a_tool_that_hangs_is_ended_at_the_deadline(drive):
    drive.tool.says("sanitize-log", log(0, 0))
    drive.tool.says("sanitize", hook="sleep 60")
    drive.watcher = Watcher(4)
    with pytest.raises(EraseTimeout, match="may have been started"):
        drive.erase()
    assert drive.watcher.running == {}


READ_LOG, BEGIN, LEAVE = ["sanitize-log", "-o", "json"], ["sanitize", "--sanact=2"], ["sanitize", "--sanact=5"]
OTHERS_VERIFICATION = log(2, 4, state=VERIFICATION)


@pytest.mark.parametrize("state", ["live", "dead"])
@pytest.mark.parametrize(
    ("pages", "refused", "hanging", "number", "left_behind"),
    [
        pytest.param([], False, READ_LOG, 1, "no sanitize was started", id="at the first look"),
        pytest.param([log(0)], True, READ_LOG, 2, "requested one was not started", id="after another one was quicker"),
        pytest.param([log(2, 4)], False, READ_LOG, 2, "requested one was not started", id="while another one runs"),
        pytest.param(
            [OTHERS_VERIFICATION], False, LEAVE, 1, "requested one was not started", id="as another one verifies"
        ),
        pytest.param([log(0)], False, BEGIN, 1, "a sanitize may have been started", id="as ours is started"),
        pytest.param([log(0)], False, READ_LOG, 2, "it may still be sanitizing", id="after ours was started"),
        pytest.param(
            [log(2, state=VERIFICATION)], False, LEAVE, 1, "it may still be sanitizing", id="as ours verifies"
        ),
    ],
)
def test_hanging_tool_ends_the_erase_with_the_state(drive, state, pages, refused, hanging, number, left_behind):
    """The deadline passes while nvme-cli hangs: the error names the state of the drive, and quotes no answer."""
    drive.logs(*pages)
    drive.tool.says("sanitize", stderr=IN_PROGRESS if refused else "", rc=int(refused))
    times = iter(range(1, 100))

    def hang(argv):
        (drive.function / "nvme/nvme7/state").write_text(state)
        return [*argv[1:2], *argv[3:]] == hanging and next(times) == number

    drive.paths = hangs(drive.paths, drive.watcher, hang)
    with pytest.raises(EraseTimeout, match=f"within .nvme. cleanup_timeout; .*{left_behind}$"):
        drive.erase()


def test_a_drive_that_does_not_answer_for_a_while_is_asked_again(drive):
    drive.logs(log(0, 0), log(2, progress=1))
    drive.tool.says("sanitize-log", stderr="Resource temporarily unavailable\n", rc=1)
    drive.tool.says("sanitize-log", "")
    drive.logs(log(2, progress=2), log(1))
    drive.tool.says("sanitize")
    assert drive.erase()["log_after"]["status"] == 1


def test_a_drive_that_never_answers_again_is_not_clean(drive):
    drive.logs(log(0, 0), log(2, progress=1))
    drive.tool.says("sanitize-log", stderr="Input/output error\n", rc=1)
    drive.tool.says("sanitize")
    drive.watcher = Watcher(2)
    with pytest.raises(EraseTimeout, match=r"its latest answer: .*Input/output error"):
        drive.erase()


def test_tool_that_cannot_be_executed_any_longer_ends_the_wait(drive):
    """Waiting does not help: the drive is in error at once, and not at the deadline."""
    drive.logs(log(0), log(2, progress=1))
    drive.tool.says("sanitize")
    drive.watcher.on_progress = lambda _: (drive.tool.root / "nvme").chmod(0o644)
    with pytest.raises(ToolMissing, match="nvme is not executable"):
        drive.erase()


def test_drive_in_reset_is_asked_until_it_answers(drive, monkeypatch, caplog):
    """A reset may take longer than any number of looks; it ends the cleaning only at the deadline. One line logs it."""
    monkeypatch.setattr(sanitize, "PATIENCE", 0.0)
    drive.logs(log(0, 0), log(2, progress=1))
    for _ in range(8):
        drive.tool.says("sanitize-log", stderr="Input/output error\n", rc=1)
    drive.logs(log(2, progress=2), log(1))
    drive.tool.says("sanitize")
    assert drive.erase()["log_after"]["status"] == 1
    assert caplog.text.count("does not report the progress of its sanitize") == 1


@pytest.mark.parametrize("command", ["id-ctrl", "sanitize-log", "sanitize"])
def test_command_that_was_not_sent_is_repeated(drive, monkeypatch, command):
    """The kernel answers EAGAIN while it resets the controller, whichever command comes first then."""
    monkeypatch.setattr(nvme_cli, "_RETRY_PAUSE", 0.01)
    identity = (drive.tool.root / "id-ctrl.1.out").read_text()
    drive.tool.forgets("id-ctrl")
    pages = {"id-ctrl": [identity], "sanitize-log": [log(0, 0), log(2, progress=1), log(1)], "sanitize": [""]}
    for name, answers in pages.items():
        for _ in range(4 if name == command else 0):
            drive.tool.says(name, stderr="Resource temporarily unavailable\n", rc=1)
        for answer in answers:
            drive.tool.says(name, answer)
    assert drive.erase()["log_after"]["status"] == 1


def test_controller_that_the_kernel_gave_up_ends_the_wait(drive):
    drive.logs(log(0, 0), log(2, progress=1))
    state = drive.function / "nvme/nvme7/state"
    drive.tool.says("sanitize-log", stderr="Input/output error\n", rc=1, hook=f"echo dead > {state}")
    drive.tool.says("sanitize")
    with pytest.raises(ToolFailed, match="Input/output error"):
        drive.erase()


def test_stalled_sanitize_is_named_in_the_reason(drive):
    drive.logs(log(0, 0), log(2, progress=655))
    drive.tool.says("sanitize")
    drive.watcher = Watcher(3)
    with pytest.raises(EraseTimeout, match=r"sanitize, block erase has stalled at 1 % for \d+ s"):
        drive.erase(stall_timeout=0.1)


def test_media_verification_is_ended_by_action_5(drive):
    """The drive has sanitized, and waits for the host to look at its media before the operation counts as completed."""
    waiting = log(2, 2 | 1 << 10, state=VERIFICATION)
    drive.logs(waiting, waiting, log(2, 2 | 1 << 10, state="(5) Post-Verification Deallocation"), log(1))
    drive.tool.says("sanitize")
    assert drive.erase()["log_after"]["status"] == 1
    assert [call for call in drive.tool.calls if call.startswith("sanitize ")] == [
        f"sanitize {drive.controller.path} --sanact=5"
    ]


def test_media_verification_of_another_action_is_ended_first(drive):
    drive.logs(log(2, 4, state=VERIFICATION), log(1, 4), log(2, progress=1), log(1))
    drive.tool.says("sanitize")
    assert drive.erase(BLOCK)["started"]
    actions = [call.split("=")[1] for call in drive.tool.calls if call.startswith("sanitize ")]
    assert actions == ["5", "2"]


def test_media_verification_of_both_actions_is_ended(drive):
    other, ours = log(2, 4, state=VERIFICATION), log(2, state=VERIFICATION)
    drive.logs(other, log(1, 4), log(2, progress=1), ours, ours, log(1))
    drive.tool.says("sanitize")
    assert drive.erase(BLOCK)["log_after"]["status"] == 1
    actions = [call.split("=")[1] for call in drive.tool.calls if call.startswith("sanitize ")]
    assert actions == ["5", "2", "5"]


def test_media_verification_that_does_not_end_is_named(drive):
    drive.logs(log(2, state=VERIFICATION))
    drive.tool.says("sanitize", stderr="Invalid Sanitize Action\n", rc=1)
    with pytest.raises(EraseFailed, match=r"waits in Media Verification.*Invalid Sanitize Action"):
        drive.erase()


def test_media_verification_that_ended_by_itself_is_judged(drive):
    drive.logs(log(2, state=VERIFICATION), log(2, state=VERIFICATION), log(1))
    drive.tool.says("sanitize", stderr="NVMe status: Invalid Field in Command(0x4002)\n", rc=1)
    assert drive.erase()["log_after"]["status"] == 1


def test_media_verification_is_left_once_for_each_operation(drive):
    waiting = log(2, state=VERIFICATION)
    drive.logs(waiting, waiting, waiting, waiting, log(1))
    drive.tool.says("sanitize")
    drive.erase()
    assert drive.tool.commands.count("sanitize") == 1


def test_old_tool_leaves_media_verification_to_be_guessed(drive):
    drive.logs(log(2))
    drive.watcher = Watcher(2)
    with pytest.raises(EraseTimeout, match="Media Verification"):
        drive.erase()


def test_a_log_that_turns_into_garbage_is_not_success(drive, monkeypatch):
    monkeypatch.setattr(sanitize, "PATIENCE", 0.1)
    drive.logs(log(0, 0), log(2, progress=1), '{"nvme7": {"sprog": 65535, "sstat": {}}}')
    drive.tool.says("sanitize")
    with pytest.raises(ToolGarbage):
        drive.erase()


def test_a_first_log_that_cannot_be_read_starts_nothing(drive):
    drive.tool.replays("sanitize-log", "2.13", "sanitize-log-raw")
    with pytest.raises(ToolFailed, match="Invalid Field"):
        drive.erase()
    assert drive.sanitizing == ["sanitize-log"]


def test_first_log_is_read_again_after_an_io_error(drive):
    """The drive resets itself as the cleaning begins: that says nothing of its log."""
    drive.tool.says("sanitize-log", stderr="Input/output error\n", rc=1)
    drive.logs(log(0, 0), log(2, progress=1), log(1))
    drive.tool.says("sanitize")
    assert drive.erase()["log_before"]["status"] == 0


def test_a_drive_that_goes_away_is_told_from_one_that_fails(drive):
    drive.logs(log(0, 0), log(2, progress=1))
    drive.tool.says("sanitize-log", stderr="/dev/nvme7: No such file or directory\n", rc=1)
    drive.tool.says("sanitize")

    def pull(progress):
        if progress.percent is not None:
            shutil.rmtree(drive.function.resolve())

    drive.watcher.on_progress = pull
    with pytest.raises(DeviceVanished, match=r"0000:41:00\.0 .*LAB0001\) went away .* erased: cannot read "):
        drive.erase()


@pytest.mark.parametrize(
    ("command", "first"),
    [
        pytest.param("sanitize-log", log(0), id="sanitize-log"),
        pytest.param("sanitize", log(0), id="sanitize"),
        pytest.param("sanitize", log(2, state=VERIFICATION), id="exit of Media Verification"),
    ],
)
def test_drive_that_goes_away_is_reported_with_the_tools_words(drive, command, first):
    """What the tool said may tell why the drive went away."""
    gone = {"stderr": "Input/output error\n", "rc": 1, "hook": f"rm -rf {drive.function.resolve()} {drive.function}"}
    if command != "sanitize-log":
        drive.logs(first)
    drive.tool.says(command, **gone)
    with pytest.raises(DeviceVanished, match=r"went away while it was being erased: .*Input/output error"):
        drive.erase()


def test_sanitize_opens_no_namespace_for_writing(drive):
    """udev probes a disk after a writable close, and a write-protected namespace could not be opened."""
    node = drive.host.dev / drive.host.disk(drive.function / "nvme/nvme7", "nvme7n1").name
    drive.controller = controller_at(drive.paths, ADDRESS)
    held = []

    def hold(paths, path, *, writable):
        held.append((path, writable))
        return disk.hold_file(paths, path, writable=writable)

    drive.paths = replace(drive.paths, hold_disk=hold)
    drive.logs(log(0), log(2), log(1))
    drive.tool.says("sanitize")
    drive.erase()
    assert held == [(node, False)]


def test_the_log_of_another_drive_that_took_the_name_proves_nothing(drive):
    # Ours is pulled while it is sanitizing; the kernel gives its number to the next drive that is plugged in, whose
    # log has an old success of the same action.
    drive.host.controller("0000:42:00.0", "nvme8", "nvme-subsys8", serial="OTHER")
    drive.logs(log(0, 0), log(2, progress=100))
    drive.tool.says("sanitize-log", log(1), hook=f"rm -rf {drive.function.resolve()} {drive.function}")
    drive.tool.says("sanitize")
    with pytest.raises(DeviceVanished):
        drive.erase()


def test_the_log_of_another_drive_in_the_same_slot_proves_nothing(drive):
    serial = drive.function / "nvme/nvme7/serial"
    drive.logs(log(0, 0), log(2, progress=100))
    drive.tool.says("sanitize-log", log(1), hook=f"echo OTHER > {serial}")
    drive.tool.says("sanitize")
    with pytest.raises(WrongDrive, match="OTHER"):
        drive.erase()


def test_no_sanitize_is_started_on_another_drive_that_took_the_name(drive):
    serial = drive.function / "nvme/nvme7/serial"
    drive.tool.says("sanitize-log", log(0, 0), hook=f"echo OTHER > {serial}")
    with pytest.raises(WrongDrive):
        drive.erase()
    assert "sanitize" not in drive.tool.commands


def test_a_drive_that_lost_its_driver_meanwhile_is_not_proved(drive):
    drive.logs(log(0, 0), log(2, progress=100))
    drive.tool.says("sanitize-log", log(1), hook=f"rm {drive.function}/driver")
    drive.tool.says("sanitize")
    with pytest.raises(HardwareError, match="no driver"):
        drive.erase()
