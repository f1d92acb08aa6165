"""``autoclave upgrade check``: each check, its remedy and its exit code."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
from cliff.app import App
from cliff.commandmanager import CommandManager

from autoclave.cli.db import UpgradeCheck
from autoclave.db import agents, schema
from autoclave.db.columns import utcnow
from autoclave.db.engine import Database
from autoclave.db.tables import attach_handles
from autoclave.testing.placement import FakePlacement
from dbfixtures import make_device, make_slot, sqlite_database
from oldrows import bound_by_the_release_before


class Site:
    """A configuration, a database, and what the command says of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sections: dict[str, str] = {}

    def use(self, url: str) -> None:
        self.sections["database"] = f"connection = {url}"

    def write(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.write_text(text)
        return path

    def check(self) -> tuple[int, str]:
        text = "".join(f"[{name}]\n{lines}\n" for name, lines in self.sections.items())
        config = self.write("autoclave.conf", text)
        output = io.StringIO()
        app = App("autoclave", "test", CommandManager("autoclave.test"), stdout=output, stderr=output)
        command = UpgradeCheck(app, None)
        code = command.run(command.get_parser("x").parse_args(["--config-file", str(config)]))
        # the table breaks lines; a test looks for sentences
        return code, " ".join(output.getvalue().replace("|", " ").split())


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    found = sqlite_database(tmp_path)
    yield found
    found.dispose()


@pytest.fixture
def site(tmp_path: Path, database: Database) -> Site:
    made = Site(tmp_path)
    made.use(str(database.writer_engine.url))
    return made


def an_agent(database: Database, hostname: str, version: str) -> None:
    with database.write() as tx:
        agents.register(tx, agents.AgentRecord(hostname, "run", version, utcnow(), utcnow()))


def test_a_site_with_nothing_to_do_passes(site: Site, database: Database) -> None:
    an_agent(database, "host-1", "1.1")
    with database.write() as tx:
        make_device(tx)
    code, said = site.check()
    assert code == 0, said
    assert said.count("Result: Success") == 7


def test_an_older_schema_fails_and_the_command_is_named(empty_url: str, site: Site) -> None:
    old = Database(empty_url)
    schema.upgrade(old, "0001_base")
    old.dispose()
    site.use(empty_url)
    code, said = site.check()
    assert code == 2
    assert "schema 0001_base" in said
    assert "autoclave db sync" in said


def test_devices_without_a_state_fail_and_the_command_is_named(site: Site, database: Database) -> None:
    an_agent(database, "host-1", "1.1")
    with database.write() as tx:
        make_device(tx, device_state=None)
    code, said = site.check()
    assert code == 2
    assert "1 devices have no device_state" in said
    assert "autoclave db online-data-migrations" in said


def test_binds_of_the_release_before_are_a_warning(site: Site, database: Database) -> None:
    an_agent(database, "host-1", "1.1")
    with database.write() as tx:
        bound_by_the_release_before(tx, make_slot(tx))
    code, said = site.check()
    assert code == 1
    assert "previous release" in said


def test_handles_that_cannot_be_read_are_named(site: Site, database: Database) -> None:
    with database.write() as tx:
        broken, sound = make_slot(tx), make_slot(tx)
        handle = attach_handles.c.id == broken.handle_id
        tx.execute(attach_handles.update().where(handle).values(attach_info='{"managed": "perhaps"}'))
    code, said = site.check()
    assert code == 1
    assert "has an unreadable managed" in said
    assert broken.device.pci_address in said
    assert sound.device.pci_address not in said


def test_agents_that_cannot_clean_are_named(site: Site, database: Database) -> None:
    an_agent(database, "old-host", "1.0")
    with database.write() as tx:
        make_device(tx, hostname="silent-host")
    code, said = site.check()
    assert code == 1
    assert "agents of old-host are older than RPC 1.1" in said
    assert "No agent of silent-host" in said


def test_a_cap_that_was_forgotten_is_a_warning(site: Site) -> None:
    site.sections["upgrade_levels"] = "agent = 1.0"
    code, said = site.check()
    assert code == 1
    assert "[upgrade_levels] agent = 1.0" in said


@pytest.mark.parametrize(
    ("text", "code", "wanted"),
    [
        ('{"cyborg:device:clean": "role:admin"}', 2, "JSON"),
        ('"cyborg:device:clean": "role:ops"\n', 0, "Success"),
        ('"cyborg:fpga:program": "role:ops"\n', 2, "'cyborg:fpga:program' governs nothing"),
        ("- a list\n", 2, "cannot be read as rules"),
    ],
)
def test_a_policy_file_of_another_time_is_told(site: Site, text: str, code: int, wanted: str) -> None:
    path = site.write("policy.file", text)
    site.sections["oslo_policy"] = f"policy_file = {path}"
    found, said = site.check()
    assert (found, wanted in said) == (code, True), said


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_arguments: Any) -> None:
        pass


@contextmanager
def served(app: Any) -> Iterator[str]:
    with make_server("127.0.0.1", 0, app, handler_class=_Quiet) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_placement_that_knows_the_traits_passes(site: Site) -> None:
    with served(FakePlacement()) as url:
        site.sections["placement"] = f"endpoint = {url}"
        code, said = site.check()
    assert code == 0, said


def test_a_placement_that_does_not_know_a_trait_fails(site: Site) -> None:
    def without_traits(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "application/json")])
        return [b'{"traits": ["OWNER_CYBORG"]}']

    with served(without_traits) as url:
        site.sections["placement"] = f"endpoint = {url}"
        code, said = site.check()
    assert code == 2
    assert "HW_NVME_BES" in said
    assert "upgrade Placement's os-traits" in said


def test_a_placement_that_is_away_is_a_warning(site: Site) -> None:
    site.sections["placement"] = "endpoint = http://127.0.0.1:1"
    code, said = site.check()
    assert code == 1
    assert "Not checked: Placement did not answer" in said


def test_a_database_that_does_not_answer_is_no_result(site: Site) -> None:
    site.use("postgresql+psycopg://someone@127.0.0.1:1/x")
    code, said = site.check()
    assert code == 255
    assert "refused" in said


def test_a_configuration_that_cannot_be_read_is_no_result(site: Site) -> None:
    site.sections["nvme"] = "devise_spec = {}"
    code, said = site.check()
    assert code == 255
    assert "device_spec" in said
