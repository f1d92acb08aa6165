"""The ``autoclave`` command as a whole."""

import logging
import subprocess
import sys

import pytest
from cliff.command import Command

from autoclave.cli.main import COMMANDS, Autoclave, main


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_there_and_says_what_it_does(name: str) -> None:
    command, found, rest = Autoclave().command_manager.find_command(name.split())

    assert (found, rest) == (name, [])
    assert issubclass(command, Command)
    assert command.__doc__


def test_a_command_that_only_asks_does_not_load_the_services() -> None:
    program = (
        "import sys\n"
        "from autoclave.cli.main import main\n"
        "main(['device', 'list', '--url', 'http://127.0.0.1:1'])\n"
        "print(*{name.partition('.')[0] for name in sys.modules} & {'falcon', 'sqlalchemy', 'oslo_messaging'})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert "does not answer" in done.stderr
    assert done.stdout.strip() == ""


def test_a_command_leaves_no_log_handler_behind() -> None:
    before = list(logging.getLogger().handlers)
    assert main(["plan", "--config-file", "/nowhere/autoclave.conf"]) == 1
    assert logging.getLogger().handlers == before


@pytest.mark.parametrize(
    "address", ["::1", "a b:1", ":1", "h:", "h:1_0", "h:65536", "[::1:1"], ids=lambda text: text.replace(" ", "_")
)
def test_an_address_that_cannot_be_bound_is_named(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["up", "--bind", address])
    assert f"argument --bind: {address!r} is not HOST:PORT, such as 127.0.0.1:6666" in capsys.readouterr().err
