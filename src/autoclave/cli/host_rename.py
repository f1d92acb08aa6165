"""``autoclave host rename``: another name for a host, on the host itself, while its agent is stopped."""

import argparse
import getpass
import os
from pathlib import Path

from cliff import command

from autoclave.lifecycle.transitions import Cause
from autoclave.rules.device_lifecycle import Actor
from autoclave.services.host_rename import host_site, rename_host
from autoclave.services.service import Resources


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
        """Rename the host, and print what goes with it.

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
