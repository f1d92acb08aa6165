"""``autoclave check`` tells before the restart what a device_spec or passthrough_whitelist will do."""

import io
import json
from typing import Any

import pytest
from cliff.app import App
from cliff.commandmanager import CommandManager
from cliff.lister import Lister

from autoclave.cli.check import CheckDeviceSpec, CheckPassthroughWhitelist
from autoclave.exceptions import InvalidConfiguration

AUTO = {"clear_action": "auto", "clear_strategy": "auto"}


def run(*argv: str, check: type[Lister] = CheckDeviceSpec) -> Any:
    output = io.StringIO()
    command = check(App("autoclave", "test", CommandManager("autoclave.test"), stdout=output), None)
    arguments = command.get_parser("check device-spec").parse_args(["-f", "json", *argv])
    assert command.run(arguments) == 0
    return json.loads(output.getvalue())


def test_each_device_is_shown_with_whether_it_is_meant_and_by_which_entry() -> None:
    rows = run(
        '[{"vendor_id": "8086"}, {"address": "*:0a:00.*"}]',
        "--device=0000:0A:00.1=144d:a808",
        "--device=0000:0b:00.0=144D:a808",
        "--device=0000:0a:00.0=0x8086:1",
    )
    assert rows == [
        {"address": "0000:0a:00.1", "matches": True, "entry": 2, **AUTO},
        {"address": "0000:0b:00.0", "matches": False, "entry": None, "clear_action": None, "clear_strategy": None},
        {"address": "0000:0a:00.0", "matches": True, "entry": 1, **AUTO},
    ]


def test_several_values_are_read_as_several_lines_of_the_option() -> None:
    rows = run('{"vendor_id": "8086"}', '{"vendor_id": "144d"}', "--device", "0000:0a:00.1=144d:a808")
    assert rows == [{"address": "0000:0a:00.1", "matches": True, "entry": 2, **AUTO}]


def test_without_a_device_the_entries_are_shown_as_they_are_understood() -> None:
    good = '{"vendor_id": "144d", "clear_action": "sanitize", "clear_strategy": "crypto"}'
    [auto, crypto] = run('{"vendor_id": "8086"}', good)
    assert auto == {"entry": 1, "text": '{"vendor_id": "8086"}', **AUTO}
    assert (crypto["entry"], crypto["clear_action"], crypto["clear_strategy"]) == (2, "sanitize", "crypto")


def test_an_entry_that_cannot_be_used_is_refused_even_when_no_device_asks_for_it() -> None:
    with pytest.raises(InvalidConfiguration, match=r"\[nvme\] device_spec, entry 1, key 'vendor': unknown key"):
        run('{"vendor": "8086"}')


@pytest.mark.parametrize("device", ["0000:0a:00.1", "0a:00.1=144d:a808", "0000:0a:00.1=144d", "0000:0a:00.1=x:y", "="])
def test_a_device_that_cannot_be_read_is_refused_with_the_form_to_use(
    device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        run('{"vendor_id": "8086"}', "--device", device)
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert repr(device) in message
    assert "0000:0a:00.1=144d:a808" in message


def test_a_virtual_function_is_meant_by_its_physical_functions_address_and_managed_is_shown() -> None:
    rows = run(
        '[{"address": "0000:82:00.0", "managed": "no"}, {"vendor_id": "10de"}]',
        "--device=0000:82:02.1=8086:154c@0000:82:00.0",
        "--device=0000:82:02.1=8086:154c",
        "--device=0000:81:00.0=10de:25b6",
        check=CheckPassthroughWhitelist,
    )
    assert [(row["matches"], row["entry"], row["managed"]) for row in rows] == [
        (True, 1, False),
        (False, None, None),
        (True, 2, True),
    ]


def test_an_entry_of_the_whitelist_that_cannot_be_used_is_refused_by_the_name_of_that_option() -> None:
    with pytest.raises(InvalidConfiguration, match=r"\[pci\] passthrough_whitelist, entry 1, key 'managed'"):
        run('{"vendor_id": "10de", "managed": "maybe"}', check=CheckPassthroughWhitelist)
