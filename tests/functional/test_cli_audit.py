"""``autoclave audit`` beside ``autoclave up`` that runs, in the place of one that does not, and on a controller."""

import json
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from test_up import running

import burnedrows
from autoclave.cli.main import main
from autoclave.db import schema
from autoclave.db.columns import utcnow
from autoclave.db.engine import Database, sqlite_url
from autoclave.db.tables import agents, devices
from autoclave.rules.device_lifecycle import DeviceState
from autoclave.rules.reclaim import Reclaim

pytestmark = pytest.mark.thorough


class Operator:
    """At a data directory, and before a screen."""

    def __init__(self, data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.data_dir = data_dir
        self._capsys = capsys

    def audit(self, *arguments: str, code: int) -> list[dict[str, Any]]:
        """What programs are told."""
        where = ["--data-dir", str(self.data_dir), "--wait", "0", "-f", "json"]
        assert main(["audit", *where, *arguments]) == code
        shown: list[dict[str, Any]] = json.loads(self._capsys.readouterr().out)
        return shown

    def kinds(self, *arguments: str, code: int) -> set[str]:
        """The kinds of all findings that are no information."""
        return {row["finding"] for row in self.audit(*arguments, code=code) if row["severity"] != "information"}

    def refused(self, *arguments: str) -> str:
        """The one line of an audit that could not look."""
        self._capsys.readouterr()
        assert main(["audit", *arguments]) == 2
        said = self._capsys.readouterr()
        assert said.out == ""
        assert "Traceback" not in said.err
        return said.err

    def edit(self, statement: sa.Executable) -> None:
        """By hand, in the database."""
        self.write(lambda tx: tx.execute(statement))

    def write(self, what: Callable[[Connection], object]) -> None:
        database = Database(sqlite_url(self.data_dir / "autoclave.db"))
        with database.write() as tx:
            what(tx)
        database.dispose()

    def states(self) -> set[DeviceState]:
        database = Database(sqlite_url(self.data_dir / "autoclave.db"))
        with database.read() as tx:
            found = set(tx.execute(sa.select(devices.c.device_state)).scalars())
        database.dispose()
        return found


@pytest.fixture
def operator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(tmp_path / "data", capsys)


def test_a_service_that_runs_and_one_that_does_not_are_audited_alike(operator: Operator) -> None:
    with running(operator.data_dir):
        assert operator.kinds(code=0) == set()
    assert operator.kinds(code=0) == set()

    # held by hand, so that Placement, which was not told, offers what it must not
    operator.edit(devices.update().values(held=True, hold_reason="by hand"))
    assert operator.kinds(code=1) == {"reserved-too-low"}
    fixed = [row for row in operator.audit("--fix", code=1) if row["finding"] == "reserved-too-low"]
    assert {row["done"] for row in fixed} == {"reserved=total"}
    assert operator.kinds(code=0) == set()

    with running(operator.data_dir):
        assert operator.kinds(code=0) == set()


def test_the_table_for_people_tells_cause_and_remedy(operator: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    with running(operator.data_dir):
        pass
    operator.edit(devices.update().values(device_state=DeviceState.ALLOCATED))
    assert main(["audit", "--data-dir", str(operator.data_dir), "--wait", "0"]) == 1
    shown = capsys.readouterr().out
    assert "allocated-without" in shown
    assert max(map(len, shown.splitlines())) <= 120


def test_an_audit_without_findings_says_so_on_stderr(operator: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    with running(operator.data_dir):
        pass
    capsys.readouterr()
    assert main(["audit", "--data-dir", str(operator.data_dir), "--wait", "0"]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "Nothing was found.\n")


def test_a_controller_has_the_database_and_placement_and_looks_at_no_host(operator: Operator, tmp_path: Path) -> None:
    with running(operator.data_dir) as everything:
        config = tmp_path / "controller.conf"
        config.write_text(
            f"[database]\nconnection = sqlite:///{operator.data_dir}/autoclave.db\n"
            f"[placement]\nendpoint = {everything.url}/placement\n[agent]\ndata_dir = {tmp_path}/none\n"
        )
        operator.data_dir = tmp_path / "none"
        assert operator.audit("--config-file", str(config), code=0) == []


def test_what_cannot_be_looked_at_is_told_in_a_line_and_by_its_code(operator: Operator, tmp_path: Path) -> None:
    assert "--data-dir" in operator.refused("--data-dir", str(tmp_path / "nothing"))
    config = tmp_path / "autoclave.conf"
    config.write_text(f"[database]\nconnection = sqlite:///{tmp_path}/no/such.db\n")
    assert "unable to open" in operator.refused("--config-file", str(config))
    assert "/nowhere.conf" in operator.refused("--config-file", "/nowhere.conf")
    assert "not a file" in operator.refused("--config-file", str(tmp_path))
    assert "File name too long" in operator.refused("--data-dir", "/" + "x" * 300)
    with pytest.raises(SystemExit):
        main(["audit", "--wait", "long"])


@pytest.mark.parametrize(
    "mode", [(), ("--fix",), ("--quarantine", "--yes", "--force")], ids=["look", "fix", "quarantine"]
)
def test_a_name_that_nothing_on_record_has_is_not_told_to_agree(operator: Operator, mode: tuple[str, ...]) -> None:
    with running(operator.data_dir):
        pass
    where = ("--data-dir", str(operator.data_dir), *mode)
    assert "'sim-7' is on record; the hosts on record: sim-1\n" in operator.refused(*where, "--host", "sim-7")
    assert "is 'sim-1/41'; name it by its uuid" in operator.refused(*where, "--device", "sim-1/41")
    assert operator.states() == {DeviceState.AVAILABLE}
    elsewhere = operator.refused(*where, "--host", "sim-1", "--device", "sim-2/0000:41:00.0")
    assert "no device of sim-1 on record is 'sim-2/0000:41:00.0'" in elsewhere


def test_a_function_is_taken_back_once_and_a_name_that_is_none_is_refused(
    operator: Operator, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(operator.data_dir):
        pass
    card, address = str(uuid.uuid4()), "0000:81:00.0"
    operator.write(lambda tx: burnedrows.insert(tx, card, "sim-1", address, [address], reclaim=Reclaim.NONE))
    operator.write(lambda tx: burnedrows.claim(tx, card, "gone"))

    def take_back(function: str) -> int:
        return main(["function", "take-back", "--data-dir", str(operator.data_dir), function])

    for said in ("taken back from gone; ", "no instance has it; "):
        capsys.readouterr()
        assert take_back("sim-1/0000:81:00.0") == 0
        assert capsys.readouterr().out.startswith(f"sim-1/0000:81:00.0: {said}Placement will be told later: ")
    assert take_back("sim-7/0000:81:00.0") == 1
    assert "sim-7 has no PCI function 0000:81:00.0 for instances on record." in capsys.readouterr().err
    for misnamed in ("0000:81:00.0", "sim-1/81"):
        with pytest.raises(SystemExit):
            take_back(misnamed)


def test_a_schema_that_is_behind_is_the_one_finding(operator: Operator) -> None:
    with running(operator.data_dir):
        pass
    path = operator.data_dir / "autoclave.db"
    path.unlink()
    database = Database(sqlite_url(path))
    schema.upgrade(database, "0002")
    database.dispose()
    [row] = operator.audit(code=2)
    assert row["finding"] == "schema-behind"
    assert "autoclave db sync" in row["remedy"]


def test_a_quarantine_is_shown_first_and_done_when_no_agent_is_at_work(operator: Operator) -> None:
    with running(operator.data_dir):
        shown = operator.audit("--quarantine", code=1)
        assert {row["done"] for row in shown} == {None}
        assert operator.states() == {DeviceState.AVAILABLE}
        assert "Stop them and the conductors first" in operator.refused(
            "--data-dir", str(operator.data_dir), "--quarantine", "--yes"
        )
    operator.edit(agents.update().values(last_seen=utcnow() - timedelta(minutes=6)))

    done = operator.audit("--quarantine", "--yes", code=1)

    assert {row["done"] for row in done} == {"error, reserved=total"}
    assert len(done) == len(shown)
    assert operator.states() == {DeviceState.ERROR}
    assert operator.audit("--quarantine", "--yes", code=0) == []
    with running(operator.data_dir):
        assert operator.kinds(code=0) == set()


def test_an_agent_that_only_the_backup_says_was_seen_is_no_hindrance_for_who_knows_better(operator: Operator) -> None:
    with running(operator.data_dir):
        pass
    assert "sim-1" in operator.refused("--data-dir", str(operator.data_dir), "--quarantine", "--yes")
    operator.audit("--quarantine", "--yes", "--force", code=1)
    assert operator.states() == {DeviceState.ERROR}


def test_an_agent_with_long_periods_is_not_taken_for_dead_between_two_of_them(
    operator: Operator, tmp_path: Path
) -> None:
    with running(operator.data_dir):
        pass
    operator.edit(agents.update().values(last_seen=utcnow() - timedelta(minutes=6)))
    config = tmp_path / "autoclave.conf"
    config.write_text("[agent]\nperiodic_interval = 600\n")

    assert operator.kinds("--config-file", str(config), code=0) == set()
    where = ("--config-file", str(config), "--data-dir", str(operator.data_dir))
    assert "Stop them and the conductors first" in operator.refused(*where, "--quarantine", "--yes")
    assert operator.kinds(code=1) == {"agent-silent"}
