"""``autoclave up``, ``api``, ``conductor``, ``agent``: run services until SIGTERM or SIGINT."""

import argparse
import os
import socket
import threading
from pathlib import Path

from cliff import command
from oslo_config import cfg

from autoclave.api.app import create_app
from autoclave.conf import new_config
from autoclave.services.agent import AgentService
from autoclave.services.api import APIService
from autoclave.services.conductor import ConductorService
from autoclave.services.service import Service, run_until_signal
from autoclave.services.up import AllInOne
from autoclave.services.wiring import cloud_ports, cloud_transport, database_of


class Up(command.Command):  # type: ignore[misc]  # cliff comes without types
    """Run everything in one process: SQLite, Placement embedded, nothing else to install.

    Every caller is an administrator, so it listens on loopback only.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("--config-file", action="append", default=[], metavar="FILE", help="configuration file")
        data_dir = os.environ.get("AUTOCLAVE_DATA_DIR")
        parser.add_argument(
            "--data-dir",
            type=Path,
            default=Path(data_dir) if data_dir else None,
            help="where everything is kept (env AUTOCLAVE_DATA_DIR; default: [agent] data_dir)",
        )
        parser.add_argument("--bind", type=_address, metavar="HOST:PORT", help="where to listen (127.0.0.1:6666)")
        parser.add_argument("--simulate", type=_count, default=0, metavar="N", help="run on N simulated hosts")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Serve until a signal comes."""
        everything = AllInOne(parsed_args.config_file, parsed_args.data_dir, parsed_args.bind, parsed_args.simulate)
        started = threading.Event()
        threading.Thread(target=self._announce, args=(everything, started), daemon=True).start()
        run_until_signal(everything, started)

    def _announce(self, everything: AllInOne, started: threading.Event) -> None:
        started.wait()
        self.app.stdout.write(
            f"Autoclave listens on {everything.url}; its data is in {everything.data_dir}.\n"
            f"For OpenStack's clients ({everything.data_dir}/clouds.yaml; use OS_CLIENT_CONFIG_FILE and "
            f"OS_CLOUD=autoclave):\n\n{everything.clouds_yaml}"
        )
        self.app.stdout.flush()


class _OneService(command.Command):  # type: ignore[misc]
    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments: the configuration."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--config-file", action="append", required=True, metavar="FILE", help="configuration file (repeatable)"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Serve until a signal comes."""
        run_until_signal(self.make(new_config(parsed_args.config_file)))

    def make(self, conf: cfg.ConfigOpts) -> Service:
        """The service of *conf*."""
        raise NotImplementedError


class RunAPI(_OneService):
    """Run the HTTP service. Any number of them may run."""

    def make(self, conf: cfg.ConfigOpts) -> Service:
        """The api service."""
        database = database_of(conf)
        transport = cloud_transport(conf, database)
        return APIService(conf, create_app(conf, cloud_ports(conf, database, transport), transport))


class RunConductor(_OneService):
    """Run a conductor. Any number of them may run."""

    def make(self, conf: cfg.ConfigOpts) -> Service:
        """The conductor service."""
        database = database_of(conf)
        transport = cloud_transport(conf, database)
        name = f"{socket.gethostname()}-{os.getpid()}"
        return ConductorService(conf, cloud_ports(conf, database, transport), transport, name)


class RunAgent(_OneService):
    """Run the agent of this host."""

    def make(self, conf: cfg.ConfigOpts) -> Service:
        """The agent service."""
        database = database_of(conf)
        transport = cloud_transport(conf, database)
        return AgentService(conf, cloud_ports(conf, database, transport), transport)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:6666")
    return host.strip("[]"), int(port)


def _count(text: str) -> int:
    if not (text.isdecimal() and 0 < int(text) <= 64):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of hosts from 1 to 64")
    return int(text)
