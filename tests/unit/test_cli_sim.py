"""``autoclave sim``: an operator plays guest, hands and bad luck."""

import io
import json

import pytest
from cliff.app import App
from cliff.commandmanager import CommandManager

from autoclave.cli import sim
from autoclave.exceptions import SimulatorError
from autoclave.simulator.faults import FaultKind
from autoclave.simulator.host import Fleet

SYSTEM, SANITIZING, ZEROING = "0000:01:00.0", "0000:41:00.0", "0000:42:00.0"


class Shell:
    """Runs the commands on the data directory in *root*."""

    def __init__(self, root):
        self.root = root
        self.host = Fleet(root).ensure("sim-1", 1)

    def run(self, kind, *arguments):
        """Exit status and output of one command."""
        out = io.StringIO()
        app = App("autoclave", "0", CommandManager("no.such.namespace"), stdout=out)
        command = kind(app, None)
        parsed = command.get_parser("autoclave").parse_args(["--data-dir", str(self.root), *map(str, arguments)])
        return command.run(parsed), out.getvalue()


@pytest.fixture
def shell(tmp_path):
    return Shell(tmp_path)


def test_a_directory_without_simulated_hosts_is_named(shell, tmp_path):
    with pytest.raises(SimulatorError, match=r"nope has no simulated hosts; .*--data-dir"):
        shell.run(sim.SimHosts, "--data-dir", tmp_path / "nope")
    with pytest.raises(SimulatorError, match=r"nope has no simulated hosts; .*--data-dir"):
        shell.run(sim.SimRead, "--data-dir", tmp_path / "nope", "sim-1", SANITIZING)


def test_what_a_guest_writes_is_read_and_found(shell):
    shell.run(sim.SimWrite, "sim-1", SANITIZING, "tenant A", "--offset", 512)
    assert shell.run(sim.SimRead, "sim-1", SANITIZING, "--offset", 510, "--length", 11) == (
        0,
        "\\x00\\x00tenant A\\x00\n",
    )
    assert shell.run(sim.SimFind, "sim-1", SANITIZING, "tenant A")[0] == 0
    assert shell.run(sim.SimFind, "sim-1", ZEROING, "tenant A")[0] == 1


def test_faults_are_set_listed_and_cleared(shell):
    shell.run(sim.SimFault, "sim-1", SANITIZING, "sanitize-hangs", 30)
    shell.run(sim.SimFault, "sim-1", "*", "nvme-garbage")
    listed = {row["address"]: row for row in json.loads(shell.run(sim.SimHosts, "-f", "json")[1])}
    assert listed[SANITIZING]["faults"] == "nvme-garbage, sanitize-hangs=30"
    assert (listed[ZEROING]["faults"], listed[ZEROING]["controller"]) == ("nvme-garbage", "nvme2")
    shell.run(sim.SimClear, "sim-1", SANITIZING, "sanitize-hangs")
    assert set(shell.host.faults.active([SANITIZING])) == {FaultKind.NVME_GARBAGE}
    shell.run(sim.SimClear, "sim-1", "*")
    assert shell.host.faults.read() == {}


def test_drives_are_pulled_changed_and_put_back(shell):
    def serial():
        rows = json.loads(shell.run(sim.SimHosts, "-f", "json")[1])
        return next(row["serial"] for row in rows if row["address"] == SANITIZING)

    shell.run(sim.SimPull, "sim-1", SANITIZING)
    assert serial() == ""
    shell.run(sim.SimInsert, "sim-1", SANITIZING, "NEW", "--crypto", "--size", 1, "--vendor", "0x8086")
    assert serial() == "NEW"
    assert shell.host.inventory.slots[SANITIZING].spec.vendor == "8086"
    with shell.host.drive(SANITIZING) as drive:
        assert drive.state.sanicap & 7 == 1
        assert drive.state.capacity == 1 << 20
    shell.run(sim.SimPutBack, "sim-1", SANITIZING)
    assert serial() == "SIM0001A"


def test_a_guest_takes_a_drive_and_gives_it_back(shell):
    shell.run(sim.SimGuestStart, "sim-1", SANITIZING)
    assert shell.host.inventory.slots[SANITIZING].driver == "vfio-pci"
    shell.run(sim.SimGuestStop, "sim-1", SANITIZING)
    assert shell.host.inventory.slots[SANITIZING].driver == "nvme"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sim-9", SANITIZING, "nvme-hangs"), "no simulated host 'sim-9'; it has sim-1"),
        (("sim-1", "0000:99:00.0", "nvme-hangs"), f"no slot 0000:99:00.0; it has {SYSTEM}"),
        (("sim-1", SANITIZING, "nvme-explodes"), "'nvme-explodes' is not a fault; choose from sanitize-fails"),
        (("sim-1", SANITIZING, "nvme-slow"), "nvme-slow needs a value"),
        (("sim-1", SANITIZING, "nvme-missing"), "whole host"),
    ],
)
def test_what_is_not_known_is_named_along_with_what_is(shell, arguments, words):
    with pytest.raises(SimulatorError, match=words):
        shell.run(sim.SimFault, *arguments)


def test_the_data_directory_may_come_from_the_environment(shell, monkeypatch):
    monkeypatch.setenv("AUTOCLAVE_DATA_DIR", str(shell.root))
    command = sim.SimPull(None, None)
    command.run(command.get_parser("autoclave").parse_args(["sim-1", SANITIZING]))
    assert not shell.host.inventory.slots[SANITIZING].present


CARD, VIRTUAL = "0000:91:00.0", "0000:91:02.0"


def listed(shell):
    return {row["address"]: row for row in json.loads(shell.run(sim.SimHosts, "-f", "json")[1])}


def test_a_card_is_plugged_in_with_its_virtual_function_and_both_go_together(shell):
    shell.run(sim.SimPlug, "sim-1", CARD, "0x10DE:25b6", "--class", "020000", "--driver", "i40e", "--interface", "ens9")
    shell.run(sim.SimPlug, "sim-1", VIRTUAL, "10de:25b7", "--physfn", CARD)
    assert (listed(shell)[CARD]["model"], listed(shell)[CARD]["driver"]) == ("10de:25b6", "i40e")
    assert listed(shell)[VIRTUAL]["model"] == f"10de:25b7 of {CARD}"
    assert (shell.root / "sim/sim-1/sys/class/net/ens9").exists()
    shell.run(sim.SimPull, "sim-1", CARD)
    assert [listed(shell)[each]["model"] for each in (CARD, VIRTUAL)] == ["(empty)", "(empty)"]


def test_a_function_is_bound_to_a_driver_and_taken_from_it(shell):
    shell.run(sim.SimPlug, "sim-1", CARD, "10de:25b6", "--driver", "nouveau")
    for argument, driver in (("vfio-pci", "vfio-pci"), (None, "")):
        shell.run(sim.SimDriver, "sim-1", CARD, *filter(None, [argument]))
        assert listed(shell)[CARD]["driver"] == driver
    shell.run(sim.SimGuestStop, "sim-1", CARD)
    assert listed(shell)[CARD]["driver"] == "nouveau"


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        (sim.SimInsert, (SANITIZING, "NEW", "--size", "0"), "0 bytes are too few for 1 namespaces"),
        (sim.SimInsert, (SANITIZING, "NEW", "--size", "-1"), "are too few"),
        (sim.SimInsert, ("0000:81:00.0", "NEW"), "the slot has a function that is not a drive; pull it first"),
        (sim.SimPlug, (SANITIZING, "10de:25b6"), "the slot has a drive; pull it first"),
        (sim.SimPlug, (CARD, "10de"), "'' is not a PCI id"),
        (sim.SimPlug, (CARD, "10de:25b6", "--class", "net"), "a PCI class is six digits"),
        (sim.SimPlug, (CARD, "10de:25b6", "--physfn", CARD), f"there is no physical function {CARD}"),
        (sim.SimPlug, (CARD, "10de:25b6", "--driver", "../../x"), r"'../../x' is not a name of driver"),
        (sim.SimPlug, (CARD, "10de:25b6", "--driver", "x", "--interface", "a/b"), "'a/b' is not a name of interface"),
        (sim.SimDriver, (CARD, "vfio-pci"), "the slot has no function other than a drive"),
        (sim.SimDriver, ("0000:81:00.0", "a/b"), "'a/b' is not a name of driver"),
        (sim.SimDriver, (SANITIZING, "vfio-pci"), "the slot has no function other than a drive"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(shell, command, arguments, words):
    before = listed(shell)
    with pytest.raises(SimulatorError, match=words):
        shell.run(command, "sim-1", *arguments)
    assert listed(shell) == before


def test_a_drive_for_which_there_is_no_room_can_be_made_smaller(shell):
    with pytest.raises(SimulatorError, match="drive NEW of"):
        shell.run(sim.SimInsert, "sim-1", "0000:47:00.0", "NEW", "--size", 1 << 50)
    shell.run(sim.SimInsert, "sim-1", "0000:47:00.0", "NEW", "--size", 1)
    assert listed(shell)["0000:47:00.0"]["serial"] == "NEW"
