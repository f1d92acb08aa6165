"""A cloud without Autoclave, as a reader of the documentation has one, and what he puts for the names of the pages."""

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import keystone_process
import placement_behind_keystone
import pytest
import sqlalchemy as sa
from keystoneauth1.identity.v3 import Password
from keystoneauth1.session import Session
from processes import COMMAND, Process, written
from sessions import PAGES, Reader
from sessions import Session as PageSession

from autoclave.simulator.drive_spec import default_drives
from autoclave.simulator.host import SimulatedHost
from dbfixtures import SERVERS
from freeport import free_port

EXAMPLES = PAGES / "examples"
_CONFIGS = {
    "autoclave-api": "controller.conf",
    "autoclave-conductor": "controller.conf",
    "autoclave-agent": "agent.conf",
}
"""The units of the pages, and the configuration file of each."""
HOST = "compute-1.example.com"
_SYSTEMCTL = """\
systemctl() {
    for unit in "${@:3}"; do
        $(sed -n 's/^ExecStart=//p' "$unit.service") >>"$unit.log" 2>&1 & echo $! >"$unit.pid"
    done
}"""
"""``systemctl enable --now`` where no systemd is: it runs what the units of the pages run."""


class DocumentedCloud:
    """Keystone, Placement, a database server and a broker; what the pages do with them is done by :meth:`follow`.

    :param server: which of :data:`dbfixtures.SERVERS`.
    """

    def __init__(self, directory: Path, server: str) -> None:
        self._directory = directory
        self._name = f"autoclave_test_{uuid.uuid4().hex[:12]}"
        self._server = server
        self._admin = sa.make_url(SERVERS[server])
        self._running: list[Process] = []
        self._ports = {service: free_port() for service in ("identity", "placement", "api")}
        self.url = f"http://127.0.0.1:{self._ports['api']}"

    @property
    def log(self) -> str:
        """What everything has said."""
        return "\n".join(f"--- {file.name}\n{file.read_text()[-20000:]}" for file in self._directory.glob("*.log"))

    def start(self) -> None:
        """What is there before Autoclave."""
        identity, placement = (f"http://127.0.0.1:{self._ports[service]}" for service in ("identity", "placement"))
        keystone_process.prepare(self._directory, f"{identity}/v3", "secret")
        placement_behind_keystone.prepare(self._directory, f"{identity}/v3", "secret")
        for module, url in ((keystone_process, identity), (placement_behind_keystone, placement)):
            script, port = str(module.__file__), url.rpartition(":")[2]
            argv = [sys.executable, script, str(self._directory), port]
            self._running.append(Process(argv, self._directory / f"{Path(script).stem}.log"))
            self._running[-1].wait_for_http(url)
        self._introduce()
        self._host = SimulatedHost.create(self._directory / "host", HOST, default_drives(1))
        drives = {key: value for key, value in self._host.conf_overrides().items() if key[0] == "agent"}
        here = {
            ("api", "host_ip"): "127.0.0.1",
            ("api", "port"): self._ports["api"],
            ("agent", "periodic_interval"): 1,
            **drives,
        }
        for name, config in _CONFIGS.items():
            text = (EXAMPLES / config).read_text()
            (self._directory / config).write_text(f"{self._local(text, name)}\n{written(here)}")
            unit = f"{name}.service"
            (self._directory / unit).write_text(self._local((EXAMPLES / unit).read_text(), name))

    def follow(self, session: PageSession, machine: str = "autoclave-api") -> None:
        """What a reader does on the machine of a unit, as administrator of the cloud.

        :param machine: the name of the unit.
        """
        identity = {
            "OS_AUTH_URL": f"http://127.0.0.1:{self._ports['identity']}/v3",
            "OS_USERNAME": "admin",
            "OS_PASSWORD": "secret",
            "OS_PROJECT_NAME": "admin",
            "OS_USER_DOMAIN_ID": "default",
            "OS_PROJECT_DOMAIN_ID": "default",
        }
        told = [_SYSTEMCTL, *(f"export {name}={value}" for name, value in identity.items())]
        reader = Reader(self._directory, session, instead=self._instead(machine), told=told, log=lambda: self.log)
        reader.run(session.steps())

    def stop(self) -> None:
        """End all that runs, and take back what the page made on the servers."""
        for unit in _CONFIGS:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                os.kill(int((self._directory / f"{unit}.pid").read_text()), signal.SIGKILL)
        for process in self._running:
            process.kill()
        for command in ("delete_vhost", "delete_user"):
            subprocess.run(["rabbitmqctl", "-q", command, self._name], capture_output=True, timeout=60)
        user = self._name if self._server == "postgresql" else f"{self._name}@'%%'"
        force = " WITH (FORCE)" if self._server == "postgresql" else ""
        with self._administrator() as connection:
            connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {self._name}{force}")
            connection.exec_driver_sql(f"DROP USER IF EXISTS {user}")

    def _introduce(self) -> None:
        """The users and services that are there before Autoclave, and the provider that nova-compute makes."""
        identity = f"http://127.0.0.1:{self._ports['identity']}/v3"
        domains = {"user_domain_id": "default", "project_domain_id": "default"}
        admin = Session(auth=Password(identity, username="admin", password="secret", project_name="admin", **domains))

        def make(kind: str, **values: str) -> str:
            made = admin.post(f"{identity}/{kind}s", json={kind: values}).json()
            return str(made[kind]["id"])

        roles = {role["name"]: role["id"] for role in admin.get(f"{identity}/roles").json()["roles"]}
        project = make("project", name="service", domain_id="default")
        for name in ("placement", "nova"):
            user = make("user", name=name, password="secret", domain_id="default")
            admin.put(f"{identity}/projects/{project}/users/{user}/roles/{roles['service']}")
        url = f"http://127.0.0.1:{self._ports['placement']}"
        make("endpoint", service_id=make("service", type="placement"), interface="public", region_id="one", url=url)
        admin.post(f"{url}/resource_providers", json={"name": HOST})

    def _local(self, text: str, machine: str) -> str:
        for theirs, ours in self._instead(machine).items():
            text = text.replace(theirs, ours)
        return text

    def _instead(self, machine: str) -> dict[str, str]:
        """What a reader puts for the names of the pages, the longer ones first."""
        postgresql, mariadb = re.findall(
            r"\S+://autoclave:\S+@database/\S+", (EXAMPLES / "controller.conf").read_text()
        )
        account = f"-h {self._admin.host} -P {self._admin.port} -u {self._admin.username}"
        url = sa.make_url(postgresql if self._server == "postgresql" else mariadb)
        url = url.set(host=self._admin.host, port=self._admin.port, database=self._name, username=self._name)
        return {
            postgresql: url.render_as_string(hide_password=False),
            "rabbit://autoclave:secret@broker:5672/autoclave": f"rabbit://{self._name}:secret@127.0.0.1:5672/{self._name}",
            "sudo -u postgres psql": f"psql {_libpq(self._admin)}",
            "sudo mariadb": f"mariadb {account}",
            "sudo rabbitmqctl": "rabbitmqctl -q",
            "pg_dump --format=custom --file=autoclave.dump --host=database --username=autoclave autoclave": (
                f"pg_dump --format=custom --file=autoclave.dump {_libpq(self._admin)} {self._name}"
            ),
            "mariadb-dump --host=database --user=autoclave --password --single-transaction autoclave": (
                f"mariadb-dump {account} --single-transaction {self._name}"
            ),
            "USER autoclave": f"USER {self._name}",
            "OWNER autoclave": f"OWNER {self._name}",
            "DATABASE autoclave": f"DATABASE {self._name}",
            "autoclave.* TO autoclave@": f"{self._name}.* TO {self._name}@",
            "add_vhost autoclave": f"add_vhost {self._name}",
            "add_user autoclave": f"add_user {self._name}",
            "-p autoclave autoclave": f"-p {self._name} {self._name}",
            "RegionOne": "one",
            "http://identity.example.com:5000": f"http://127.0.0.1:{self._ports['identity']}",
            "http://controller:6666": self.url,
            "/etc/autoclave/autoclave.conf": str(self._directory / _CONFIGS[machine]),
            "/etc/autoclave/policy.yaml": str(EXAMPLES / "policy.yaml"),
            "/var/lib/autoclave": str(self._directory / "data"),
            "/opt/autoclave/bin/autoclave": COMMAND,
        }

    def require(self) -> None:
        """Skip the test where something is missing."""
        client = {"postgresql": "psql", "mariadb": "mariadb"}[self._server]
        for command in (client, "rabbitmqctl", "curl"):
            if shutil.which(command) is None:
                pytest.skip(f"{command} is not installed")
        if importlib.util.find_spec("keystone") is None:
            pytest.skip("keystone is not installed")
        if subprocess.run(["rabbitmqctl", "-q", "list_vhosts"], capture_output=True, timeout=60).returncode:
            pytest.skip("this account may not manage a broker on this machine")
        try:
            with self._administrator():
                pass
        except sa.exc.OperationalError as error:
            pytest.skip(f"no {self._server} for tests at {self._admin.host}:{self._admin.port}: {error.orig}")

    @contextmanager
    def _administrator(self) -> Iterator[sa.Connection]:
        engine = sa.create_engine(self._admin, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with engine.connect() as connection:
            yield connection


def _libpq(url: sa.URL) -> str:
    return f"-h {url.host} -p {url.port} -U {url.username}"


@contextmanager
def documented_cloud(directory: Path, server: str) -> Iterator[DocumentedCloud]:
    """One that is started, and gone afterwards; skips the test where it cannot be."""
    made = DocumentedCloud(directory, server)
    made.require()
    try:
        made.start()
        yield made
    finally:
        made.stop()
