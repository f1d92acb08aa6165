"""Run ``autoclave host``: manage hosts and their maintenance, over ``/autoclave/v1``.

``rename`` runs on the host itself, while its agent is stopped.
"""

import argparse
import getpass
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cliff import command

from autoclave.cli.client import add_service, service_of
from autoclave.cli.main import Cell, Fields, Rows
from autoclave.lifecycle.transitions import Cause
from autoclave.rules.device_lifecycle import Actor
from autoclave.services.host_rename import host_site, rename_host
from autoclave.services.service import Resources

_HOSTS = "/autoclave/v1/hosts"
_COLUMNS = ("hostname", "in_maintenance", "reason", "since", "by", "devices", "devices_offered")
_WIDTHS = {"reason": 30, "by": 30}


class HostList(Rows):
    """List the hosts, and which of them are in maintenance."""

    nothing = "There are no hosts."

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add_service(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        """Request the list, and show it."""
        hosts = service_of(parsed_args).ask("GET", _HOSTS)["hosts"]
        return _COLUMNS, [tuple(Cell(each[name], width=_WIDTHS.get(name)) for name in _COLUMNS) for each in hosts]


class _OfHost(command.Command):  # type: ignore[misc]  # cliff comes without types
    """Share the argument of commands about one host."""

    needs_reason: bool | None = None

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add_service(parser)
        parser.add_argument("host", help="name of the host, as `autoclave host list` shows it")
        if self.needs_reason is not None:
            parser.add_argument(
                "--reason", required=self.needs_reason, help="why; kept in the history of the host's devices"
            )
        return parser


class HostShow(_OfHost, Fields):
    """Show a host."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Iterable[str], Iterable[Any]]:
        """Request the host, and show it."""
        host = service_of(parsed_args).ask("GET", f"{_HOSTS}/{parsed_args.host}")
        return tuple(host), tuple(Cell(value) for value in host.values())


class _Act(_OfHost):
    what: str
    done: str

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Send the request, and print whether Placement agrees."""
        body = {"reason": parsed_args.reason} if parsed_args.reason else {}
        answer = service_of(parsed_args).ask("POST", f"{_HOSTS}/{parsed_args.host}/{self.what}", body)
        later = "" if answer["placement_settled"] else "; Placement does not agree yet, Autoclave keeps trying"
        self.app.stdout.write(f"{parsed_args.host}: {self.done}{later}\n")


class HostMaintenance(_Act):
    """Put a host into maintenance: no new instances, no device offered. Running instances keep their devices."""

    what = "maintenance"
    done = "in maintenance"
    needs_reason = True


class HostResume(_Act):
    """End the maintenance of a host. Devices that are held or disabled stay so."""

    what = "resume"
    done = "out of maintenance"
    needs_reason = False


class HostRename(command.Command):  # type: ignore[misc]  # cliff comes without types
    """Rename a host. Its devices stay burned, held, dirty and in maintenance as they are.

    Run it on the host while its agent is stopped. A command that was interrupted is completed by the same command;
    until then no agent starts under either name.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("old", metavar="OLD", help="name of the host, as `autoclave host list` shows it")
        parser.add_argument("new", metavar="NEW", help="its new name; no host with devices may have it")
        parser.add_argument(
            "--config-file",
            action="append",
            default=[],
            metavar="FILE",
            help="configuration file of the host's agent (repeatable)",
        )
        data_dir = os.environ.get("AUTOCLAVE_DATA_DIR")
        parser.add_argument(
            "--data-dir",
            type=Path,
            default=Path(data_dir) if data_dir else None,
            help="of the `autoclave up` of the host (env AUTOCLAVE_DATA_DIR; default: [agent] data_dir)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Rename the host, and print what was renamed.

        :raises AutoclaveError: the host cannot be renamed, or not now.
        """
        old, new = parsed_args.old, parsed_args.new
        cause = Cause(Actor.OPERATOR, getpass.getuser())
        resources = Resources()
        try:
            site = host_site(parsed_args.config_file, parsed_args.data_dir, old, new, resources)
            carried = rename_host(site, old, new, cause, resources)
        finally:
            resources.close()
        self.app.stdout.write(
            f"{old}: renamed to {new}, with {carried.devices} devices, {carried.pci_providers} PCI providers and "
            f"{carried.instances} instances. Start its agent as {new} ([agent] resource_provider_name).\n"
        )
