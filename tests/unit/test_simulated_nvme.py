"""The stand-in for nvme-cli, held against what real versions printed; and that its drives really erase."""

import json
import re
import subprocess
import time
from pathlib import Path

import pytest

from autoclave.simulator.drive_spec import MIB, DriveSpec
from autoclave.simulator.faults import EVERY_DRIVE, Fault, FaultKind
from autoclave.simulator.host import STYLES, SimulatedHost

pytestmark = pytest.mark.thorough

SAMPLES = Path(__file__).parent.parent / "data" / "nvme-cli"
RECORDED = {"2.3": "2.3", "2.13": "2.13", "3.0": "3.0-rc1"}
ABLE, PLAIN, SHARED_1, SHARED_2 = "0000:00:10.0", "0000:00:11.0", "0000:00:12.0", "0000:00:13.0"
SECRET = b"tenant A's secret"
LONG = 600.0


class Bench:
    """A host with the drives of the recordings: nvme0 can do everything, nvme1 nothing, nvme2 and nvme3 share one."""

    def __init__(self, root, style="2.13", **able):
        common = {"model": "QEMU NVMe Ctrl", "firmware": "7.2.22", "size_bytes": 4 * MIB}
        every = {"crypto": True, "block": True, "overwrite": True, "namespace_management": True}
        shared = {"serial": "LAB0003", "subsystem": "nqn.2019-08.org.qemu:lab-ss0"}
        self.host = SimulatedHost.create(
            root / "host",
            "h1",
            [
                DriveSpec(ABLE, "LAB0001", **common | every | {"sanitize_seconds": LONG} | able),
                DriveSpec(PLAIN, "LAB0002", namespaces=2, **common),
                DriveSpec(SHARED_1, **shared, **common, namespace_management=True),
                DriveSpec(SHARED_2, **shared, **common, namespace_management=True),
            ],
            style=style,
        )

    def nvme(self, command, device=None, *options):
        device = [] if device is None else [self.host.paths.dev / device]
        argv = [self.host.paths.tools[0] / "nvme", command, *device, *options]
        return subprocess.run(list(map(str, argv)), capture_output=True, text=True, check=False, timeout=60)

    def json(self, command, device, *options):
        return json.loads(self.nvme(command, device, *options, "-o", "json").stdout)

    def log(self, device="nvme0"):
        return self.json("sanitize-log", device)[device]

    def takes(self, seconds):
        self.host.set_fault(ABLE, Fault(FaultKind.SANITIZE_SECONDS, seconds))


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def sample(style, case, stream):
    return (SAMPLES / RECORDED[style] / f"{case}.{stream}").read_text()


def shape(value):
    """What a parser relies on: keys with their order, and types."""
    if isinstance(value, dict):
        return [(key, shape(item)) for key, item in value.items()]
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


def detached(bench):
    bench.nvme("detach-ns", "nvme0", "-n", "1", "-c", "0")


def without_namespaces(bench):
    bench.nvme("delete-ns", "nvme0", "-n", "1")


def sanitizing(bench):
    bench.nvme("sanitize", "nvme0", "--sanact=2")


def sanitized(bench):
    bench.takes(0)
    sanitizing(bench)


def refusing_create_ns(bench):
    bench.host.set_fault(ABLE, Fault(FaultKind.CREATE_NS_REFUSED))


def nothing(bench):
    """The drives are as they were made."""


SAME = [
    ("version", nothing, "version", None, ()),
    ("list-ns", nothing, "list-ns", "nvme1", ("-o", "json")),
    ("list-ns-empty", detached, "list-ns", "nvme0", ("-o", "json")),
    ("id-ns-inactive", nothing, "id-ns", "nvme0", ("-n", "9", "-o", "json")),
    ("log-never", nothing, "sanitize-log", "nvme0", ("-o", "json")),
    ("log-done", sanitized, "sanitize-log", "nvme0", ("-o", "json")),
    ("sanitize", nothing, "sanitize", "nvme0", ("--sanact=2",)),
    ("sanitize-again", sanitizing, "sanitize", "nvme0", ("--sanact=2",)),
    ("sanitize-noact", nothing, "sanitize", "nvme0", ()),
    ("sanitize-raw", nothing, "sanitize", "nvme1", ("-a", "2")),
    ("sanitize-word", nothing, "sanitize", "nvme1", ("-a", "start-block-erase")),
    ("sanitize-log-raw", nothing, "sanitize-log", "nvme1", ("-o", "json")),
    ("create-ns-raw", refusing_create_ns, "create-ns", "nvme0", ("-s", "100", "-c", "100", "-f", "0")),
    ("attach-ns-again", nothing, "attach-ns", "nvme0", ("-n", "1", "-c", "0")),
    ("attach-ns", detached, "attach-ns", "nvme0", ("-n", "1", "-c", "0")),
    ("detach-ns", nothing, "detach-ns", "nvme0", ("-n", "1", "-c", "0")),
    ("delete-ns", nothing, "delete-ns", "nvme0", ("-n", "1")),
    ("ns-rescan", nothing, "ns-rescan", "nvme0", ()),
    ("wz", nothing, "write-zeroes", "nvme1n1", ("-s", "0", "-c", "7")),
    ("wz-65536", nothing, "write-zeroes", "nvme1n1", ("-s", "0", "-c", "65536")),
    ("wz-oor", nothing, "write-zeroes", "nvme1n1", ("-s", "4095", "-c", "1")),
]


@pytest.mark.parametrize("style", RECORDED)
@pytest.mark.parametrize(("case", "prepare", "command", "device", "options"), SAME, ids=[case[0] for case in SAME])
def test_it_answers_word_for_word_as_the_real_one(tmp_path, style, case, prepare, command, device, options):
    bench = Bench(tmp_path, style)
    prepare(bench)
    answer = bench.nvme(command, device, *options)
    assert (answer.stdout, answer.stderr, answer.returncode) == (
        sample(style, case, "out"),
        sample(style, case, "err"),
        int(sample(style, case, "rc")),
    )


@pytest.mark.parametrize("style", RECORDED)
@pytest.mark.parametrize(
    ("case", "command", "device"),
    [
        ("id-ctrl", "id-ctrl", "nvme1"),
        ("id-ns", "id-ns", "nvme1n1"),
    ],
)
def test_its_reports_have_the_keys_and_types_of_the_real_one(tmp_path, style, case, command, device):
    answer = Bench(tmp_path, style).nvme(command, device, "-o", "json")
    assert shape(json.loads(answer.stdout)) == shape(json.loads(sample(style, case, "out")))
    assert (answer.stderr, answer.returncode) == (sample(style, case, "err"), 0)


@pytest.mark.parametrize("style", RECORDED)
def test_a_running_sanitize_is_reported_as_by_the_real_one(tmp_path, style):
    bench = Bench(tmp_path, style)
    sanitizing(bench)
    answer = bench.nvme("sanitize-log", "nvme0", "-o", "json")
    progress = re.compile(r'("sprog":)\d+')
    assert progress.sub(r"\1N", answer.stdout) == progress.sub(r"\1N", sample(style, "log-busy", "out"))
    assert answer.stderr == sample(style, "log-busy", "err")


@pytest.mark.parametrize("style", RECORDED)
def test_a_created_namespace_is_announced_as_by_the_real_one(tmp_path, style):
    bench = Bench(tmp_path, style)
    without_namespaces(bench)
    answer = bench.nvme("create-ns", "nvme0", "--nsze=100", "--ncap=100", "--flbas=0")
    assert answer.stdout == sample(style, "create-ns", "out").replace("nsid:5", "nsid:1")
    assert answer.stderr == sample(style, "create-ns", "err")


@pytest.mark.parametrize("style", RECORDED)
@pytest.mark.parametrize(
    ("case", "device", "options"),
    [("sanitize-raw-json", "nvme1", ("-a", "2")), ("create-ns-raw-json", "nvme0", ("-s", "100", "-c", "100"))],
)
def test_a_json_option_that_a_version_does_not_have_is_an_error(tmp_path, style, case, device, options):
    bench = Bench(tmp_path, style)
    refusing_create_ns(bench)
    answer = bench.nvme(case.partition("-raw")[0], device, *options, "-o", "json")
    expected = sample(style, case, "err").splitlines()[:2]  # the message and the head of the help text
    assert (answer.stdout, answer.stderr.splitlines()[:2]) == (sample(style, case, "out"), expected)
    assert answer.returncode == int(sample(style, case, "rc"))


@pytest.mark.parametrize("style", RECORDED)
def test_a_device_that_does_not_exist_is_reported_as_by_the_real_one(tmp_path, style):
    bench = Bench(tmp_path, style)
    answer = bench.nvme("id-ctrl", "nvme9", "-o", "json")
    dev = str(bench.host.paths.dev)
    assert answer.stdout.replace(dev, "/dev") == sample(style, "nodev", "out")
    assert (
        answer.stderr.replace(dev, "/dev").splitlines()
        == sample(style, "nodev", "err").splitlines()[: len(answer.stderr.splitlines())]
    )
    assert answer.returncode == 1


def test_the_real_dev_is_never_touched(bench):
    tool = bench.host.paths.tools[0] / "nvme"
    answer = subprocess.run([tool, "id-ctrl", "/dev/null"], capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert "No such file" in answer.stderr


@pytest.mark.parametrize(("style", "kind"), [("1.16", float), ("2.3", str), ("2.13", int), ("2.16", int), ("3.0", int)])
def test_capacities_have_the_type_that_each_version_gives_them(tmp_path, style, kind):
    answer = Bench(tmp_path, style).json("id-ctrl", "nvme0")
    assert type(answer["tnvmcap"]) is kind
    assert int(answer["tnvmcap"]) == 4 * MIB
    assert answer["sanicap"] == (0xA0000007 - (1 << 32) if style == "2.3" else 0xA0000007)


def test_1_16_exits_with_the_errno_of_the_status(tmp_path):
    bench = Bench(tmp_path, "1.16")
    sanitizing(bench)
    busy = bench.nvme("sanitize", "nvme0", "-a", "2")
    assert (busy.returncode, "SANITIZE_IN_PROGRESS" in busy.stderr) == (115, True)
    assert bench.nvme("sanitize", "nvme0", "-a", "start-block-erase").returncode == 234
    assert bench.nvme("write-zeroes", "nvme1n1", "-s", "999999").returncode == 121
    assert bench.nvme("id-ctrl", "nvme9").returncode == 22


def test_2_16_says_more_than_is_true_about_a_failed_create_ns(tmp_path):
    bench = Bench(tmp_path, "2.16")
    refusing_create_ns(bench)
    answer = bench.nvme("create-ns", "nvme0", "-s", "1", "-c", "1", "-o", "json")
    assert set(json.loads(answer.stdout)) == {"status: 16385", "error"}
    assert bench.json("delete-ns", "nvme0", "-n", "1") == {"delete-ns": "success", "nsid": "1"}


def test_3_0_can_wait_for_the_sanitize_itself(tmp_path):
    bench = Bench(tmp_path, "3.0", sanitize_seconds=0.1)
    answer = bench.nvme("sanitize", "nvme0", "--sanact=2", "--wait")
    assert answer.stdout == sample("3.0", "sanitize-wait", "out")
    assert bench.log()["sstat"]["status"].startswith("(1)")


@pytest.mark.parametrize("action", [2, 3, 4])
@pytest.mark.parametrize("style", STYLES)
def test_a_sanitize_really_erases_and_the_data_is_there_until_then(tmp_path, style, action):
    bench = Bench(tmp_path, style)
    bench.host.write(ABLE, 2 * MIB, SECRET)
    assert bench.nvme("sanitize", "nvme0", f"--sanact={action}").returncode == 0
    assert bench.log()["sstat"]["status"] == "(2) Sanitize in Progress."
    assert bench.host.read(ABLE, 2 * MIB, len(SECRET)) == SECRET
    bench.takes(0)
    log = bench.log()
    assert (log["sstat"]["status"][:3], log["sstat"]["global_erased"], log["cdw10_info"]) == ("(1)", 1, action)
    assert log["sprog"] == 65535
    assert not bench.host.find(ABLE, SECRET)
    assert SECRET not in (bench.host.paths.dev / "nvme0n1").read_bytes()


def test_the_media_is_clean_even_if_nobody_has_read_the_log(bench):
    bench.host.write(ABLE, 0, SECRET)
    sanitized(bench)
    assert bench.host.read(ABLE, 0, len(SECRET)) == bytes(len(SECRET))


def test_crypto_erase_leaves_noise_not_zeros(bench):
    bench.host.write(ABLE, 0, SECRET)
    bench.takes(0)
    bench.nvme("sanitize", "nvme0", "--sanact=4")
    assert bench.host.read(ABLE, 0, len(SECRET)) not in (SECRET, bytes(len(SECRET)))


def test_a_sanitize_goes_on_when_everyone_who_asked_is_gone(tmp_path):
    bench = Bench(tmp_path, sanitize_seconds=0.2)
    sanitizing(bench)
    deadline = time.monotonic() + 60
    while SimulatedHost.open(bench.host.root).inventory and not bench.log()["sstat"]["status"].startswith("(1)"):
        assert time.monotonic() < deadline
    assert bench.log()["sstat"]["global_erased"] == 1


def test_progress_grows(tmp_path):
    bench = Bench(tmp_path, sanitize_seconds=20.0)
    sanitizing(bench)
    seen = [bench.log()["sprog"] for _ in range(3)]
    assert seen[0] < seen[1] < seen[2] < 65535


def test_a_write_ends_global_erased(bench):
    sanitized(bench)
    bench.host.write(ABLE, 0, b"x")
    assert bench.log()["sstat"]["global_erased"] == 0


@pytest.mark.parametrize(
    ("command", "device", "options"),
    [
        ("create-ns", "nvme0", ("-s", "1", "-c", "1")),
        ("delete-ns", "nvme0", ("-n", "1")),
        ("attach-ns", "nvme0", ("-n", "1", "-c", "0")),
        ("detach-ns", "nvme0", ("-n", "1", "-c", "0")),
        ("write-zeroes", "nvme0n1", ("-s", "0", "-c", "0")),
        ("sanitize", "nvme0", ("-a", "4")),
    ],
)
def test_a_sanitizing_drive_does_nothing_else(bench, command, device, options):
    sanitizing(bench)
    answer = bench.nvme(command, device, *options)
    assert (answer.returncode, "(0x1d)" in answer.stderr) == (1, True)


@pytest.mark.parametrize("command", ["id-ctrl", "sanitize-log", "list-ns"])
def test_a_sanitizing_drive_still_says_how_it_is(bench, command):
    sanitizing(bench)
    assert bench.nvme(command, "nvme0", "-o", "json").returncode == 0


def test_an_action_outside_sanicap_is_refused(tmp_path):
    bench = Bench(tmp_path, crypto=False)
    answer = bench.nvme("sanitize", "nvme0", "-a", "4")
    assert (answer.returncode, "(0x4002)" in answer.stderr) == (1, True)
    assert bench.log()["sstat"]["status"].startswith("(0)")


def test_no_deallocate_has_a_status_of_its_own(bench):
    bench.takes(0)
    bench.nvme("sanitize", "nvme0", "-a", "2", "-d")
    log = bench.log()
    assert (log["sstat"]["status"][:3], log["cdw10_info"]) == ("(4)", 0x202)


def failed(bench, *options):
    bench.host.write(ABLE, 0, SECRET)
    bench.host.set_fault(ABLE, Fault(FaultKind.SANITIZE_FAILS), Fault(FaultKind.SANITIZE_SECONDS, 0))
    bench.nvme("sanitize", "nvme0", "--sanact=2", *options)


def test_a_failed_sanitize_says_so_and_keeps_the_data(bench):
    failed(bench)
    assert bench.log()["sstat"] | {"no_cmplted_passes": 0} == {
        "media_verification_canceled": 0,
        "global_erased": 0,
        "no_cmplted_passes": 0,
        "status": "(3) Most Recent Sanitize Command Failed.",
    }
    assert bench.host.find(ABLE, SECRET)
    assert "(0x1c)" in bench.nvme("write-zeroes", "nvme0n1", "-s", "0", "-c", "0").stderr


def test_after_a_restricted_failure_only_a_restricted_sanitize_helps(bench):
    failed(bench)
    bench.host.clear_faults(ABLE, FaultKind.SANITIZE_FAILS)
    assert "(0x1c)" in bench.nvme("sanitize", "nvme0", "-a", "1").stderr
    assert "(0x1c)" in bench.nvme("sanitize", "nvme0", "-a", "2", "--ause").stderr
    assert bench.nvme("sanitize", "nvme0", "-a", "2").returncode == 0
    assert bench.log()["sstat"]["status"].startswith("(1)")
    assert not bench.host.find(ABLE, SECRET)


def test_an_unrestricted_failure_can_be_left_but_stays_on_record(bench):
    failed(bench, "--ause")
    assert bench.nvme("sanitize", "nvme0", "-a", "1").returncode == 0
    assert bench.nvme("write-zeroes", "nvme0n1", "-s", "0", "-c", "0").returncode == 0
    assert bench.log()["sstat"]["status"].startswith("(3)")


def test_a_hanging_sanitize_stands_still_and_goes_on_when_the_fault_is_cleared(tmp_path):
    bench = Bench(tmp_path, sanitize_seconds=0.2)
    bench.host.set_fault(ABLE, Fault(FaultKind.SANITIZE_HANGS, 25))
    sanitizing(bench)
    deadline = time.monotonic() + 60
    while bench.log()["sprog"] < 65536 // 4:
        assert time.monotonic() < deadline
    time.sleep(0.3)
    assert (bench.log()["sprog"], bench.log()["sstat"]["status"][:3]) == (65536 // 4, "(2)")
    bench.host.clear_faults(ABLE)
    while not bench.log()["sstat"]["status"].startswith("(1)"):
        assert time.monotonic() < deadline


def test_a_namespace_made_anew_shows_what_was_there_before(bench):
    """DLFEAT 0: a drive may do so, and an erase that only makes namespaces anew has erased nothing."""
    bench.host.write(ABLE, MIB, SECRET)
    bench.nvme("delete-ns", "nvme0", "-n", "0xffffffff")
    assert bench.json("list-ns", "nvme0", "-a") == {"nsid_list": []}
    assert not (bench.host.paths.dev / "nvme0n1").exists()
    assert bench.host.find(ABLE, SECRET)
    blocks = bench.json("id-ctrl", "nvme0")["unvmcap"] // 4096
    bench.nvme("create-ns", "nvme0", f"--nsze={blocks}", f"--ncap={blocks}", "--block-size=4096")
    assert bench.json("list-ns", "nvme0") == {"nsid_list": []}
    bench.nvme("attach-ns", "nvme0", "-n", "1", "-c", "0")
    assert SECRET in (bench.host.paths.dev / "nvme0n1").read_bytes()
    assert bench.json("id-ns", "nvme0n1")["flbas"] == 4
    assert (bench.host.paths.sysfs / "block/nvme0n1/size").read_text() == f"{4 * MIB // 512}\n"


def test_a_namespace_larger_than_what_is_left_is_refused(bench):
    answer = bench.nvme("create-ns", "nvme0", "-s", "8", "-c", "8")
    assert (answer.returncode, "(0x4115)" in answer.stderr) == (1, True)


def test_namespaces_survive_a_sanitize(bench):
    sanitized(bench)
    assert bench.json("list-ns", "nvme0") == {"nsid_list": [{"nsid": 1}]}


def test_write_zeroes_zeroes_exactly_what_it_was_told(bench):
    bench.host.fill(PLAIN, b"\xff")
    bench.nvme("write-zeroes", "nvme1n1", "-s", "2", "-c", "3")
    assert bench.host.read(PLAIN, 0, 8 * 512) == b"\xff" * 1024 + bytes(2048) + b"\xff" * 1024


def test_write_zeroes_on_the_controller_needs_a_namespace_id(bench):
    answer = bench.nvme("write-zeroes", "nvme1", "-s", "0", "-c", "0")
    assert (answer.returncode, answer.stderr) == (1, "get-namespace-id: Inappropriate ioctl for device\n")
    assert bench.nvme("write-zeroes", "nvme1", "-n", "1", "-s", "0", "-c", "0").returncode == 0


def test_what_one_controller_of_a_subsystem_erases_is_erased_for_both(bench):
    bench.host.write(SHARED_1, 0, SECRET)
    assert bench.host.find(SHARED_2, SECRET)
    bench.nvme("write-zeroes", "nvme3", "-n", "1", "-s", "0", "-c", "0")
    assert not bench.host.find(SHARED_1, SECRET)


def test_garbage_and_a_lie_about_success_come_when_asked_for(bench):
    bench.host.set_fault(ABLE, Fault(FaultKind.NVME_GARBAGE))
    garbage = bench.nvme("sanitize-log", "nvme0", "-o", "json")
    assert garbage.returncode == 0
    with pytest.raises(json.JSONDecodeError):
        json.loads(garbage.stdout)
    bench.host.clear_faults(ABLE)
    bench.host.set_fault(ABLE, Fault(FaultKind.NVME_EXITS_ZERO))
    lie = bench.nvme("attach-ns", "nvme0", "-n", "1", "-c", "0")
    assert (lie.returncode, "(0x4118)" in lie.stderr) == (0, True)


def test_errors_come_as_json_from_a_version_that_never_does_so(tmp_path):
    bench = Bench(tmp_path, "2.3")
    bench.host.set_fault(ABLE, Fault(FaultKind.NVME_JSON_ERRORS))
    answer = bench.nvme("attach-ns", "nvme0", "-n", "1", "-c", "0")
    assert (answer.returncode, answer.stderr) == (1, "")
    assert "Already Attached" in json.loads(answer.stdout)["error"]


def test_a_command_hangs_until_the_fault_is_cleared(bench):
    bench.host.set_fault(EVERY_DRIVE, Fault(FaultKind.NVME_HANGS))
    tool = bench.host.paths.tools[0] / "nvme"
    with subprocess.Popen([tool, "version"], stdout=subprocess.PIPE, text=True) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        bench.host.clear_faults()
        assert process.communicate(timeout=60)[0].startswith("nvme version")


def test_a_slow_command_takes_its_time_and_still_answers(bench):
    bench.host.set_fault(ABLE, Fault(FaultKind.NVME_SLOW, 0.5))
    tool = bench.host.paths.tools[0] / "nvme"
    argv = [tool, "list-ns", bench.host.paths.dev / "nvme0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
        assert process.communicate(timeout=60)[0] == "[   0]:0x1\n"


def test_a_drive_vanishes_with_the_next_command_once(bench):
    bench.host.set_fault(ABLE, Fault(FaultKind.VANISHES))
    answer = bench.nvme("id-ctrl", "nvme0")
    assert (answer.returncode, "No such file" in answer.stderr) == (1, True)
    assert not (bench.host.paths.sysfs / "bus/pci/devices" / ABLE).exists()
    bench.host.put_back(ABLE)
    assert bench.nvme("id-ctrl", "nvme0").returncode == 0


@pytest.mark.parametrize("percent", [0, 10, 29, 99.9])
def test_a_drive_vanishes_in_the_middle_of_a_sanitize_however_late_somebody_looks(tmp_path, percent):
    bench = Bench(tmp_path, sanitize_seconds=0.0)
    bench.host.write(ABLE, 0, SECRET)
    bench.host.set_fault(ABLE, Fault(FaultKind.VANISHES, percent))
    sanitizing(bench)
    assert bench.nvme("sanitize-log", "nvme0").returncode != 0
    assert not (bench.host.paths.dev / "nvme0").exists()
    bench.host.put_back(ABLE)
    assert bench.log()["sstat"]["global_erased"] == 1
