"""Run services until SIGTERM or SIGINT: ``autoclave up``, ``api``, ``conductor``, ``agent``."""

import argparse
import logging
import os
import socket
from pathlib import Path

from cliff import command
from oslo_config import cfg, types

from autoclave.api.app import create_app
from autoclave.conf import new_config
from autoclave.services.api import APIService, Listener
from autoclave.services.service import Group, Resources, Service, cloud_parts, look_at_placement, run_until_signal
from autoclave.services.up import AllInOne
from autoclave.services.workers import AgentService, ConductorService


class Up(command.Command):  # type: ignore[misc]  # cliff comes without types
    """Run all services in one process, with SQLite and an embedded Placement.

    Every caller is an administrator, so it listens on loopback only.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("--config-file", action="append", default=[], metavar="FILE", help="configuration file")
        data_dir = os.environ.get("AUTOCLAVE_DATA_DIR")
        parser.add_argument(
            "--data-dir",
            type=Path,
            default=Path(data_dir) if data_dir else None,
            help="data directory (env AUTOCLAVE_DATA_DIR; default: [agent] data_dir)",
        )
        parser.add_argument(
            "--bind", type=_address, metavar="HOST:PORT", help="address and port to listen on (127.0.0.1:6666)"
        )
        parser.add_argument("--simulate", type=_count, default=0, metavar="N", help="run on N simulated hosts")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Serve until a signal comes."""
        _log_with_time()
        everything = AllInOne(parsed_args.config_file, parsed_args.data_dir, parsed_args.bind, parsed_args.simulate)
        run_until_signal(everything, lambda: self._announce(everything))

    def _announce(self, everything: AllInOne) -> None:
        self.app.stdout.write(
            f"Autoclave listens on {everything.url}; its data is in {everything.data_dir}.\n"
            "In another terminal, for the commands `autoclave` and `openstack`:\n\n"
            f"{everything.clouds.exports}\n"
        )
        self.app.stdout.flush()


class _OneService(command.Command):  # type: ignore[misc]
    name: str

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments: the configuration."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--config-file", action="append", required=True, metavar="FILE", help="configuration file (repeatable)"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Serve until a signal comes."""
        _log_with_time()
        resources = Resources()
        try:
            service = self.make(new_config(parsed_args.config_file), resources)
            run_until_signal(Group([service], resources), self._announce)
        finally:
            resources.close()

    def make(self, conf: cfg.ConfigOpts, resources: Resources) -> Service:
        """Return the service of *conf*.

        :param resources: collects the parts of the service.
        """
        raise NotImplementedError

    def _announce(self) -> None:
        self.app.stdout.write(f"Autoclave's {self.name} is ready.\n")
        self.app.stdout.flush()


class RunAPI(_OneService):
    """Run the HTTP service. Any number of them may run."""

    name = "api"

    def make(self, conf: cfg.ConfigOpts, resources: Resources) -> Service:
        """Return the api service."""
        listener = Listener(conf)
        resources.add(listener.close)
        listener.open()
        ports, transport = cloud_parts(conf, resources)
        return APIService(listener, create_app(conf, ports, transport))


class RunConductor(_OneService):
    """Run a conductor. Any number of them may run."""

    name = "conductor"

    def make(self, conf: cfg.ConfigOpts, resources: Resources) -> Service:
        """Return the conductor service."""
        ports, transport = cloud_parts(conf, resources)
        look_at_placement(ports.placement)
        return ConductorService(conf, ports, transport, f"{socket.gethostname()}-{os.getpid()}")


class RunAgent(_OneService):
    """Run the agent of this host."""

    name = "agent"

    def make(self, conf: cfg.ConfigOpts, resources: Resources) -> Service:
        """Return the agent service."""
        ports, transport = cloud_parts(conf, resources)
        return AgentService(conf, ports, transport)


def _log_with_time() -> None:
    """Begin every line as oslo.log does."""
    form = logging.Formatter(
        "%(asctime)s.%(msecs)03d %(process)d %(levelname)s %(name)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S"
    )
    for handler in logging.getLogger().handlers:
        handler.setFormatter(form)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    name = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        types.HostAddress()(name)
        if not (port.isascii() and port.isdecimal() and int(port) < 65536):
            raise ValueError(port)
        return name, int(port)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:6666 or [::1]:6666") from None


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= 64):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of hosts from 1 to 64")
    return int(text)
