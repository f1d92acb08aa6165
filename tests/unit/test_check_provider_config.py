"""``autoclave check provider-config`` tells before the restart what the files add, or all that is wrong with them."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from cliff.app import App
from cliff.commandmanager import CommandManager

from autoclave.cli.check import CheckProviderConfig

GOOD = """
meta: {schema_version: 1.0}
providers:
- identification: {uuid: $COMPUTE_NODE}
  inventories: {additional: {CUSTOM_LLC: {total: 22, reserved: 2}}}
  traits: {additional: [CUSTOM_U, CUSTOM_T]}
"""
NAMED = "meta: {schema_version: '1.0'}\nproviders: [identification: {name: gpu}]\n"
LLC = {
    "total": 22,
    "reserved": 2,
    "min_unit": 1,
    "max_unit": 2147483647,
    "step_size": 1,
    "allocation_ratio": 1.0,
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "provider_config"
    made.mkdir(mode=0o755)
    put(made / "10-all.yaml", GOOD)
    return made


def put(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o644)
    return path


def shown(*argv: str) -> str:
    output = io.StringIO()
    command = CheckProviderConfig(App("autoclave", "test", CommandManager("autoclave.test"), stdout=output), None)
    assert command.run(command.get_parser("check provider-config").parse_args(argv)) == 0
    return output.getvalue()


def autoclave(*argv: str) -> "subprocess.CompletedProcess[str]":
    program = "import sys; from autoclave.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "check", "provider-config", *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_directory_is_shown_merged_with_every_default(directory: Path) -> None:
    put(directory / "20-gpu.yaml", NAMED)
    assert json.loads(shown(str(directory), "-f", "json")) == [
        {
            "uuid": "$COMPUTE_NODE",
            "name": None,
            "inventories": {"CUSTOM_LLC": LLC},
            "traits": ["CUSTOM_T", "CUSTOM_U"],
            "place": f"{directory}/10-all.yaml:4: providers[0]",
        },
        {
            "uuid": None,
            "name": "gpu",
            "inventories": {},
            "traits": [],
            "place": f"{directory}/20-gpu.yaml:2: providers[0]",
        },
    ]


def test_people_are_shown_a_table(directory: Path) -> None:
    table = shown(str(directory))
    for word in ("$COMPUTE_NODE", "CUSTOM_LLC", "total 22", "max_unit 2147483647", "CUSTOM_T"):
        assert word in table


def test_one_file_is_checked_alone_whatever_its_name(directory: Path) -> None:
    path = put(directory / "new.draft", NAMED)
    assert shown(str(path), "-f", "value", "-c", "name") == "gpu\n"


def test_every_fault_of_every_file_is_told(directory: Path) -> None:
    put(directory / "20-two.yaml", GOOD.replace("total: 22", "total: 1").replace("CUSTOM_T", "HW_T"))
    put(directory / "30-bad.yaml", "a: [")
    done = autoclave(str(directory), "-f", "json")
    assert (done.returncode, done.stdout) == (1, "")
    lines = [line.removeprefix(f"{directory}/") for line in done.stderr.splitlines()]
    assert [line.partition(": ")[0] for line in lines[1:]] == [
        "20-two.yaml:5",
        "20-two.yaml:6",
        "30-bad.yaml:1",
        "20-two.yaml:4",
    ]


def test_a_path_that_is_not_there_is_an_error_here(tmp_path: Path) -> None:
    done = autoclave(str(tmp_path / "none"))
    assert done.returncode == 1
    assert done.stderr.splitlines()[1:] == [f"{tmp_path}/none: cannot be read: No such file or directory"]


def test_a_field_that_will_be_ignored_is_told_and_no_error(directory: Path) -> None:
    put(directory / "20-gpu.yaml", NAMED + "provider: []\n")
    done = autoclave(str(directory), "-f", "json")
    assert done.returncode == 0
    assert len(json.loads(done.stdout)) == 2
    assert "20-gpu.yaml:3: provider: unknown field, ignored; did you mean providers?" in done.stderr
