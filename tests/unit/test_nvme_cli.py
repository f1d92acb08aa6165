"""What nvme-cli says is understood in every version, and what cannot be understood is not guessed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from scripted_nvme import SAMPLES, ScriptedNvme

from autoclave.exceptions import ToolFailed, ToolGarbage, ToolMissing, ToolTimeout
from autoclave.hardware.command import Commands
from autoclave.hardware.host import Deadline, HostPaths
from autoclave.hardware.nvme_cli import COMMON_NAMESPACE, NvmeCli, refused_as_unsupported
from autoclave.rules.cleanup_policy import Capabilities

VERSIONS = ["1.16", "2.3", "2.13", "2.16", "3.0-rc1"]
every_version = pytest.mark.parametrize("version", VERSIONS)
CONTROLLER = Path("/dev/nvme0")


@pytest.fixture
def tool(tmp_path):
    return ScriptedNvme(tmp_path)


@pytest.fixture
def nvme(tool):
    return NvmeCli(Commands(HostPaths(tools=(tool.root,))), command_timeout=30)


@every_version
def test_the_version_is_known_by_its_first_line(tool, nvme, version):
    tool.replays("version", version, "version")
    assert nvme.version() == version


@every_version
def test_a_controller_is_the_same_whichever_version_describes_it(tool, nvme, version):
    tool.replays("id-ctrl", version, "id-ctrl")
    identity = nvme.identify(CONTROLLER)
    assert (identity.serial, identity.model) == ("LAB0001", "QEMU NVMe Ctrl")
    assert (identity.cntlid, identity.tnvmcap, identity.unvmcap) == (0, 0, 0)
    assert identity.sanicap == 0xA0000003  # negative in 2.3
    assert identity.capabilities == Capabilities(
        crypto_erase=True, block_erase=True, write_zeroes=True, namespace_management=True, format_nvm=True
    )
    assert tool.calls == ["id-ctrl /dev/nvme0 -o json"]


@pytest.mark.parametrize(
    ("claimed", "capabilities"),
    [
        ({"sanicap": 1 << 0}, ["crypto_erase"]),
        ({"sanicap": 1 << 1}, ["block_erase"]),
        ({"oncs": 1 << 3}, ["write_zeroes"]),
        ({"oacs": 1 << 3}, ["namespace_management"]),
        ({"oacs": 1 << 1}, ["format_nvm"]),
        ({"oacs": 1 << 1, "fna": 1 << 2}, ["format_nvm", "format_crypto"]),
        ({"fna": 1 << 2}, []),
    ],
)
def test_each_capability_is_read_from_its_own_bit(tool, nvme, claimed, capabilities):
    sample = json.loads((SAMPLES / "2.13" / "id-ctrl.out").read_text())
    tool.says("id-ctrl", json.dumps(sample | {"sanicap": 0, "oncs": 0, "oacs": 0, "fna": 0} | claimed))
    none = Capabilities(crypto_erase=False, block_erase=False, write_zeroes=False, namespace_management=False)
    assert nvme.identify(CONTROLLER).capabilities == replace(none, **dict.fromkeys(capabilities, True))


@pytest.mark.parametrize(
    ("written", "meant"),
    [("3840755982336.0", 3840755982336), ('"3840755982336"', 3840755982336), ("340282366920938463463374607431768211455",
     2**128 - 1)],
    ids=["float of 1.16", "string of 2.3", "integer since 2.4"],
)  # fmt: skip
def test_a_capacity_is_read_as_float_as_string_and_as_integer(tool, nvme, written, meant):
    sample = (SAMPLES / "2.13" / "id-ctrl.out").read_text()
    tool.says("id-ctrl", sample.replace('"tnvmcap":0', f'"tnvmcap":{written}'))
    assert nvme.identify(CONTROLLER).tnvmcap == meant


@every_version
def test_a_namespace_is_the_same_whichever_version_describes_it(tool, nvme, version):
    tool.replays("id-ns", version, "id-ns")
    namespace = nvme.identify_namespace(CONTROLLER, 1)
    assert namespace.active
    assert (namespace.nsze, namespace.ncap, namespace.flbas) == (2097152, 2097152, 0)
    assert (namespace.flbas, namespace.lba_bytes) == (0, 512)
    assert namespace.formats[4].block_bytes == 4096
    assert tool.calls == ["id-ns /dev/nvme0 -n 1 -o json"]


@pytest.mark.parametrize("version", ["2.3", "2.13", "3.0-rc1"])
def test_a_namespace_that_is_not_attached_is_told_from_one_that_is(tool, nvme, version):
    tool.replays("id-ns", version, "id-ns-inactive")
    assert not nvme.identify_namespace(CONTROLLER, 9).active


def test_the_format_in_use_is_found_beyond_the_sixteenth(tool, nvme):
    namespace = json.loads((SAMPLES / "2.13" / "id-ns.out").read_text())
    namespace["lbafs"] = [{"ms": 0, "ds": 9, "rp": 0}] * 18 + [{"ms": 0, "ds": 13, "rp": 0}]
    namespace["flbas"] = 18 % 16 | 1 << 5
    tool.says("id-ns", json.dumps(namespace))
    assert nvme.identify_namespace(CONTROLLER, COMMON_NAMESPACE).lba_bytes == 8192


@every_version
def test_namespace_ids_are_listed(tool, nvme, version):
    tool.replays("list-ns", version, "list-ns")
    assert nvme.list_namespaces(CONTROLLER) == [1, 2]


@every_version
def test_a_drive_without_namespaces_lists_none(tool, nvme, version):
    tool.replays("list-ns", version, "list-ns-empty")
    assert nvme.list_namespaces(CONTROLLER, allocated=True) == []
    assert tool.calls == ["list-ns /dev/nvme0 -a -n 1 -o json"]


def test_more_namespaces_than_one_answer_holds_are_asked_for_until_they_end(tool, nvme):
    for ids in (range(1, 1025), range(1025, 2049), range(2049, 2052)):
        tool.says("list-ns", json.dumps({"nsid_list": [{"nsid": nsid} for nsid in ids]}))
    assert nvme.list_namespaces(CONTROLLER) == list(range(1, 2052))
    assert [call.split()[3] for call in tool.calls] == ["1", "1025", "2049"]


def test_a_list_that_never_ends_is_not_followed_for_ever(tool, nvme):
    tool.says("list-ns", json.dumps({"nsid_list": [{"nsid": nsid} for nsid in range(1, 1025)]}))
    with pytest.raises(ToolGarbage, match="out of order"):
        nvme.list_namespaces(CONTROLLER)


@every_version
def test_a_running_sanitize_shows_its_progress_and_its_action(tool, nvme, version):
    tool.replays("sanitize-log", version, "log-busy")
    log = nvme.sanitize_log(CONTROLLER)
    assert log.in_progress
    assert not log.succeeded
    assert 0 < log.progress < 65535
    assert log.percent == pytest.approx(100 * log.progress / 65536)
    assert log.action == 2


@every_version
def test_a_finished_sanitize_shows_success_and_the_erased_bit(tool, nvme, version):
    tool.replays("sanitize-log", version, "log-done")
    log = nvme.sanitize_log(CONTROLLER)
    assert (log.status, log.progress, log.cdw10, log.global_data_erased) == (1, 65535, 2, True)
    assert log.succeeded


@every_version
def test_a_drive_that_was_never_sanitized_is_not_a_success(tool, nvme, version):
    tool.replays("sanitize-log", version, "log-never")
    log = nvme.sanitize_log(CONTROLLER)
    assert (log.status, log.succeeded, log.in_progress) == (0, False, False)


@every_version
def test_an_estimate_that_the_drive_does_not_give_is_none_and_not_136_years(tool, nvme, version):
    tool.replays("sanitize-log", version, "log-done")
    estimates = nvme.sanitize_log(CONTROLLER).estimates
    assert estimates["block_erase"] is None  # -1 in 2.3
    assert estimates["crypto_erase"] is None


def test_an_estimate_that_the_drive_gives_is_in_seconds(tool, nvme):
    tool.says("sanitize-log", (SAMPLES / "2.13" / "log-done.out").read_text().replace('"time_block_erase":4294967295',
                                                                      '"time_block_erase":75'))  # fmt: skip
    assert nvme.sanitize_log(CONTROLLER).estimates["block_erase"] == 75


def test_the_log_is_found_under_whatever_name_the_tool_gives_the_device(tool, nvme):
    tool.says("sanitize-log", (SAMPLES / "2.13" / "log-done.out").read_text().replace('"nvme0"', '"nvme3c7"'))
    assert nvme.sanitize_log(CONTROLLER).succeeded


@pytest.mark.parametrize("number", [2, 4])
@every_version
def test_sanitize_is_asked_for_by_number_and_is_silent(tool, nvme, version, number):
    tool.replays("sanitize", version, "sanitize")
    assert nvme.sanitize(CONTROLLER, number) == ""
    assert tool.calls == [f"sanitize /dev/nvme0 --sanact={number}"]


@every_version
def test_a_drive_without_sanitize_is_told_from_one_that_failed(tool, nvme, version):
    tool.replays("sanitize", version, "sanitize-raw")
    with pytest.raises(ToolFailed) as refused:
        nvme.sanitize(CONTROLLER, 2)
    assert refused_as_unsupported(refused.value)
    # 3.0 looks at SANICAP itself and never asks the drive
    assert refused.value.status == (None if version == "3.0-rc1" else 0x001)


@every_version
def test_a_sanitize_in_progress_has_its_status_in_every_version(tool, nvme, version):
    tool.replays("sanitize", version, "sanitize-again")
    with pytest.raises(ToolFailed, match=r"(?i)progress") as refused:
        nvme.sanitize(CONTROLLER, 2)
    assert refused.value.status == 0x01D
    assert not refused_as_unsupported(refused.value)


@pytest.mark.parametrize("version", ["2.13", "2.16", "3.0-rc1"])
def test_an_error_as_json_on_standard_output_is_an_error(tool, nvme, version):
    tool.replays("id-ctrl", version, "create-ns-raw-json")
    with pytest.raises(ToolFailed, match="Invalid Command Opcode") as failed:
        nvme.identify(CONTROLLER)
    assert failed.value.status == 0x001


@pytest.mark.parametrize("version", ["2.3", "2.13", "3.0-rc1"])
def test_a_drive_without_a_sanitize_log_says_so(tool, nvme, version):
    tool.replays("sanitize-log", version, "sanitize-log-raw")
    with pytest.raises(ToolFailed, match="Invalid Field in Command"):
        nvme.sanitize_log(CONTROLLER)


@every_version
def test_a_device_that_does_not_exist_is_named_without_the_usage_text(tool, nvme, version):
    tool.replays("id-ctrl", version, "nodev")
    with pytest.raises(ToolFailed) as failed:
        nvme.identify(Path("/dev/nvme9"))
    assert "nvme id-ctrl /dev/nvme9" in str(failed.value)
    assert "Usage" not in str(failed.value)
    assert "\x1b" not in str(failed.value)


def test_the_exit_code_comes_before_the_answer(tool, nvme):
    tool.says("id-ctrl", (SAMPLES / "2.13" / "id-ctrl.out").read_text(), "I/O error\n", rc=5)
    with pytest.raises(ToolFailed, match="I/O error") as failed:
        nvme.identify(CONTROLLER)
    assert failed.value.returncode == 5


@pytest.mark.parametrize(
    "said",
    [
        {"stdout": '{"error":"Invalid Field in Command","type":"nvme"}'},
        {"stdout": '{"status: 16385":[{"error":"Invalid Command Opcode","type":"nvme"}]}'},
        {"stderr": "NVMe status: Invalid Command Opcode: A reserved coded value(0x4001)\n", "stdout": "{}"},
    ],
    ids=["error", "status", "text"],
)
def test_an_error_with_exit_code_zero_is_still_an_error(tool, nvme, said):
    tool.says("sanitize-log", **said)
    with pytest.raises(ToolFailed, match="Invalid"):
        nvme.sanitize_log(CONTROLLER)


@pytest.mark.parametrize(
    "garbage",
    [
        "",
        "nvme0 is fine\n",
        "[]",
        "{}",
        "null",
        '{"nvme0": {"sprog": 65535}}',
        '{"nvme0":{"sprog":65535,"sstat":"(1)"}}',
        '{"nvme0":{"sprog":65535,"cdw10_info":2,"sstat":{"global_erased":1,"status":"Completed Successfully."}}}',
        f'{{"nvme0":{{"sprog":65535,"cdw10_info":2,"sstat":{{"global_erased":1,"status":"({"1" * 5000})"}}}}}}',
        f'{{"nvme0":{{"sprog":1{"0" * 400},"cdw10_info":2,"sstat":{{"global_erased":1,"status":"(2) Running"}}}}}}',
        '{"nvme0":{"sprog":65536,"cdw10_info":2,"sstat":{"global_erased":1,"status":"(2) Running."}}}',
        '{"nvme0":{"sprog":"many","cdw10_info":2,"sstat":{"global_erased":1,"status":"(1) Completed."}}}',
    ],
)  # fmt: skip
def test_a_log_that_cannot_be_understood_is_garbage_and_never_a_success(tool, nvme, garbage):
    tool.says("sanitize-log", garbage)
    with pytest.raises(ToolGarbage, match="nvme sanitize-log /dev/nvme0"):
        nvme.sanitize_log(CONTROLLER)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sn", 7),
        ("oacs", None),
        ("oncs", True),
        ("tnvmcap", "1e3"),
        ("tnvmcap", 0.5),
        ("tnvmcap", "9" * 5000),
        ("unvmcap", 10**400),
        ("unvmcap", 1 << 128),
        ("oacs", 1 << 64),
        ("sanicap", 1 << 32),
        ("cntlid", []),
    ],
)
def test_a_controller_with_a_field_of_another_kind_is_garbage_and_the_field_is_named(tool, nvme, field, value):
    identity = json.loads((SAMPLES / "2.13" / "id-ctrl.out").read_text())
    tool.says("id-ctrl", json.dumps(identity | {field: value}))
    with pytest.raises(ToolGarbage, match=repr(field)):
        nvme.identify(CONTROLLER)


def test_a_version_that_is_none_is_garbage(tool, nvme):
    tool.says("version", "not the program you think\n")
    with pytest.raises(ToolGarbage, match="nvme version"):
        nvme.version()


@pytest.mark.parametrize("version", ["2.3", "2.13", "2.16", "3.0-rc1"])
def test_a_created_namespace_is_found_in_the_drives_list_and_not_in_what_the_tool_says(tool, nvme, version):
    tool.says("list-ns", '{"nsid_list":[{"nsid":1},{"nsid":2}]}')
    tool.replays("create-ns", version, "create-ns")  # says 5, or nothing
    tool.says("list-ns", '{"nsid_list":[{"nsid":1},{"nsid":2},{"nsid":3}]}')
    assert nvme.create_namespace(CONTROLLER, 2048, 4) == 3
    assert tool.calls[1] == "create-ns /dev/nvme0 --nsze=2048 --ncap=2048 --flbas=4"


def test_a_namespace_that_was_created_but_does_not_exist_is_garbage(tool, nvme):
    tool.says("list-ns", '{"nsid_list":[{"nsid":1}]}')
    tool.says("create-ns", "create-ns: Success, created nsid:2\n")
    tool.says("list-ns", '{"nsid_list":[{"nsid":1}]}')
    with pytest.raises(ToolGarbage, match="0 new ones"):
        nvme.create_namespace(CONTROLLER, 2048, 0)


@pytest.mark.parametrize("version", ["2.3", "2.13", "3.0-rc1"])
def test_a_drive_that_refuses_to_attach_gives_its_status(tool, nvme, version):
    tool.replays("attach-ns", version, "attach-ns-again")
    with pytest.raises(ToolFailed, match="Already Attached") as failed:
        nvme.attach_namespace(CONTROLLER, 1, 0)
    assert failed.value.status == 0x118
    assert tool.calls == ["attach-ns /dev/nvme0 -n 1 -c 0"]


def test_a_missing_nvme_cli_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("autoclave.hardware.command._SYSTEM_DIRECTORIES", ())
    with pytest.raises(ToolMissing, match="nvme"):
        NvmeCli(Commands(HostPaths()), command_timeout=30).version()


def test_a_query_does_not_outlast_the_work_it_is_part_of(tmp_path, tool):
    class Journal:
        def started(self, pid, argv):
            pass

        def ended(self, pid):
            pass

    script = tool.root / "nvme"
    script.write_text("#!/bin/sh\nsleep 60\n")
    nvme = NvmeCli(Commands(HostPaths(tools=(tool.root,))), command_timeout=600)
    with pytest.raises(ToolTimeout):
        nvme.within(Deadline.after(0.2), Journal()).identify(CONTROLLER)


@pytest.mark.parametrize("depth", [600, 950, 200000])
def test_an_answer_that_is_nested_without_end_is_garbage_like_any_other(tool, nvme, depth):
    tool.says("id-ctrl", "[" * depth + "]" * depth)
    with pytest.raises(ToolGarbage, match="nvme id-ctrl /dev/nvme0"):
        nvme.identify(CONTROLLER)


@pytest.mark.parametrize("written", ["\\u001b[31m", "\x1b[31m"], ids=["escaped", "as it is"])
def test_control_characters_of_a_drive_are_read(tool, nvme, written):
    """1.16 prints a control character in a string as it is, later versions escape it: the spelling is the same."""
    sample = (SAMPLES / "2.13" / "id-ctrl.out").read_text()
    tool.says("id-ctrl", sample.replace("QEMU NVMe Ctrl", f"QEMU {written}"))
    assert nvme.identify(CONTROLLER).model == r"QEMU \x1b[31m"


@pytest.mark.parametrize("written", [b"7.2\\n22", b"7.2\n22"])
def test_line_end_in_a_firmware_revision_is_read(tool, nvme, written):
    sample = (SAMPLES / "2.13" / "id-ctrl.out").read_bytes()
    tool.says("id-ctrl")
    (tool.root / "id-ctrl.1.out").write_bytes(sample.replace(b"7.2.22", written))
    assert nvme.identify(CONTROLLER).firmware == r"7.2\x0a22"


def test_bytes_that_are_not_utf8_are_read(tool, nvme):
    sample = (SAMPLES / "2.13" / "id-ctrl.out").read_bytes()
    tool.says("id-ctrl")
    (tool.root / "id-ctrl.1.out").write_bytes(sample.replace(b"LAB0001", b"LAB\xff\\\\x"))
    assert nvme.identify(CONTROLLER).serial == r"LAB\xff\x"


@pytest.mark.parametrize(("stdout", "stderr"), [("", "{}"), ("{}", "")], ids=["stderr", "stdout"])
def test_usage_text_is_the_reason_where_there_is_no_other(tool, nvme, stdout, stderr):
    usage = "\x1b[1mUsage: nvme attach-ns <device> [OPTIONS]\x1b[0m\n" + "  [ --option ]  --- what it does\n" * 40
    tool.says("attach-ns", stdout.format(usage), stderr.format(usage), rc=1)
    with pytest.raises(ToolFailed, match=r"it printed: Usage: nvme attach-ns <device> \[OPTIONS\]") as failed:
        nvme.attach_namespace(CONTROLLER, 1, 0)
    assert str(failed.value).isprintable()
    assert len(str(failed.value)) < 700


def test_answer_that_is_no_json_is_shown(tool, nvme):
    tool.says("id-ctrl", "nvme: segmentation\tfault\x07\n")
    with pytest.raises(ToolGarbage, match=r"it printed: nvme: segmentation fault\\x07"):
        nvme.identify(CONTROLLER)


def test_tool_that_printed_nothing_is_said_to(tool, nvme):
    tool.says("attach-ns", rc=1)
    with pytest.raises(ToolFailed, match="it printed nothing"):
        nvme.attach_namespace(CONTROLLER, 1, 0)


def test_status_without_its_number_is_known_by_its_name(tool, nvme):
    tool.replays("sanitize-log", "2.13", "sanitize-log-raw")
    with pytest.raises(ToolFailed) as failed:
        nvme.sanitize_log(CONTROLLER)
    assert refused_as_unsupported(failed.value)
