"""``autoclave check`` tells before the restart what the options that name devices will do."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from cliff.app import App
from cliff.commandmanager import CommandManager
from cliff.lister import Lister

from autoclave.cli.check import (
    CheckDeviceSpec,
    CheckEntries,
    CheckPassthroughWhitelist,
    CheckPCIAlias,
    CheckPCIDeviceSpec,
)
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


@pytest.mark.parametrize("check", [CheckPassthroughWhitelist, CheckPCIDeviceSpec])
def test_the_guarantee_of_an_entry_is_shown(check: type[CheckEntries]) -> None:
    entry = '{"vendor_id": "10de", "reclaim": "erase", "clear_action": "reset"}'
    assert run(entry, check=check)[0]["guarantee"] == "returns uncleaned (reset)"
    assert run(entry, CARD, check=check)[0]["guarantee"] == "returns uncleaned (reset)"


def test_an_entry_of_the_whitelist_that_cannot_be_used_is_refused_by_the_name_of_that_option() -> None:
    with pytest.raises(InvalidConfiguration, match=r"\[pci\] passthrough_whitelist, entry 1, key 'managed'"):
        run('{"vendor_id": "10de", "managed": "maybe"}', check=CheckPassthroughWhitelist)


def test_entries_may_stand_in_a_configuration_file(tmp_path: Path) -> None:
    file = tmp_path / "autoclave.conf"
    file.write_text('[nvme]\ndevice_spec = {"vendor_id": "144d"}\ndevice_spec = {"vendor_id": "8086"}\n')
    rows = run("--config-file", str(file))
    assert [row["text"] for row in rows] == ['{"vendor_id": "144d"}', '{"vendor_id": "8086"}']


@pytest.mark.parametrize("argv", [[], ["--config-file", "autoclave.conf", '{"vendor_id": "144d"}']])
def test_entries_stand_either_in_a_file_or_in_the_command(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(*argv)
    assert stopped.value.code == 2


# [pci] device_spec and [pci] alias

PHYSICAL, VIRTUAL = "--device=0000:82:00.0=8086:1572", "--device=0000:82:02.1=8086:154c@0000:82:00.0"
CARD = "--device=0000:8a:00.0=10de:25b6"
ALWAYS = ["COMPUTE_MANAGED_PCI_DEVICE", "OWNER_NOVA"]


def test_each_function_is_shown_with_what_placement_is_told_of_it() -> None:
    entries = (
        '{"vendor_id": "10de", "one_time_use": "yes", "traits": "blue, big"}',
        '{"product_id": "154c", "managed": "no", "resource_class": "nic"}',
    )
    card, virtual, physical = run(*entries, CARD, VIRTUAL, PHYSICAL, check=CheckPCIDeviceSpec)
    assert card == {
        "address": "0000:8a:00.0",
        "matches": True,
        "entry": 1,
        "provider": "0000:8A:00.0",
        "resource_class": "CUSTOM_PCI_10DE_25B6",
        "traits": ["COMPUTE_MANAGED_PCI_DEVICE", "CUSTOM_BIG", "CUSTOM_BLUE", "HW_PCI_ONE_TIME_USE", "OWNER_NOVA"],
        "one_time_use": True,
        "managed": True,
        "guarantee": "held until released",
        "for": "flavors",
    }
    assert [virtual[key] for key in ("provider", "resource_class", "traits", "one_time_use", "managed")] == [
        "0000:82:00.0", "CUSTOM_NIC", ALWAYS, False, False,
    ]  # fmt: skip
    assert (physical["matches"], physical["provider"], physical["for"]) == (False, None, None)


def test_a_function_for_neutron_has_no_provider() -> None:
    [row] = run('{"vendor_id": "8086", "physical_network": "physnet1"}', VIRTUAL, check=CheckPCIDeviceSpec)
    assert (row["matches"], row["entry"], row["provider"], row["for"]) == (True, 1, None, "ports of Neutron")


def test_entries_that_contradict_each_other_for_the_named_functions_are_refused() -> None:
    with pytest.raises(InvalidConfiguration, match=r"0000:82:00\.0 is a physical function"):
        run('{"vendor_id": "8086"}', PHYSICAL, VIRTUAL, check=CheckPCIDeviceSpec)
    with pytest.raises(InvalidConfiguration, match=r"entry 1, key 'one_time_use': 0000:82:02\.1 is a virtual function"):
        run('{"vendor_id": "8086", "one_time_use": true}', VIRTUAL, check=CheckPCIDeviceSpec)


def test_entries_are_shown_with_the_class_and_traits_that_they_come_to() -> None:
    entries = (
        '{"vendor_id": "10de", "product_id": "25B6", "traits": "blue"}',
        '{"vendor_id": "10de"}',
        '{"vendor_id": "8086", "physical_network": null}',
    )
    rows = run(*entries, check=CheckPCIDeviceSpec)
    assert [(row["resource_class"], row["traits"], row["for"]) for row in rows] == [
        ("CUSTOM_PCI_10DE_25B6", ["CUSTOM_BLUE"], "flavors"),
        (None, [], "flavors"),
        (None, [], "ports of Neutron"),
    ]


def test_a_misspelled_one_time_use_is_found_before_a_service_is_given_it(tmp_path: Path) -> None:
    file = tmp_path / "autoclave.conf"
    file.write_text('[pci]\ndevice_spec = {"vendor_id": "10de", "one_time_us": true}\n')
    with pytest.raises(InvalidConfiguration, match=r"\[pci\] device_spec, entry 1, key 'one_time_us'.*did you mean"):
        run("--config-file", str(file), check=CheckPCIDeviceSpec)


def test_an_alias_is_shown_as_what_placement_is_asked(tmp_path: Path) -> None:
    entry = '{"name": "gpu", "vendor_id": "10de", "product_id": "25b6", "traits": "b, a", "live_migratable": false}'
    expected = {
        "name": "gpu",
        "resource_class": "CUSTOM_PCI_10DE_25B6",
        "required": ["CUSTOM_A", "CUSTOM_B"],
        "forbidden": ["HW_PCI_LIVE_MIGRATABLE"],
    }
    assert run(entry, check=CheckPCIAlias) == [expected]
    file = tmp_path / "autoclave.conf"
    file.write_text(f"[pci]\nalias = {entry}\n")
    assert run("--config-file", str(file), check=CheckPCIAlias) == [expected]
    with pytest.raises(InvalidConfiguration, match=r"\[pci\] alias, entry 2, key 'name'"):
        run(entry, entry, check=CheckPCIAlias)


@pytest.mark.parametrize("check", [CheckDeviceSpec, CheckPassthroughWhitelist])
def test_a_dollar_is_read_as_in_the_option(check: type[Lister]) -> None:
    with pytest.raises(InvalidConfiguration, match=r"write '\$\$' for the character itself"):
        run('{"address": {"bus": "$name"}}', check=check)
    [row] = run('{"address": {"bus": "0a$$"}}', check=check)
    assert row["text"] == '{"address": {"bus": "0a$"}}'
