"""``autoclave function``: PCI functions that instances get by flavor."""

import argparse
import getpass
from collections import defaultdict

from cliff import command

from autoclave.audit.remedies import TakingBack
from autoclave.cli.audit import add_audited
from autoclave.exceptions import InvalidConfiguration
from autoclave.lifecycle.transitions import Cause
from autoclave.rules.device_lifecycle import Actor
from autoclave.rules.pci_address import PCIAddress
from autoclave.services.audit import audited
from autoclave.services.service import Resources


class FunctionTakeBack(command.Command):  # type: ignore[misc]  # cliff comes without types
    """Take PCI functions back from instances that are not there, as `autoclave audit` names them.

    Refuses while a guest of the host has one, or nobody can tell. What is of one time use stays burned; all else is
    offered again, so clean it first.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "functions", nargs="+", type=_slot, metavar="HOST/PCI-ADDRESS", help="a function, not the card it is of"
        )
        add_audited(parser)
        parser.add_argument(
            "--looked",
            action="store_true",
            help="you have looked, and no guest of the host has them: needed where the host cannot be asked from here",
        )
        parser.add_argument("--reason", help="why; kept in the device's history")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Do it, host by host, and tell what was done.

        :raises AutoclaveError: nothing was done for the host that it names, nor for those after it.
        """
        of_hosts: dict[str, list[str]] = defaultdict(list)
        for host, address in dict.fromkeys(parsed_args.functions):
            of_hosts[host].append(address)
        cause = Cause(Actor.OPERATOR, getpass.getuser(), reason=parsed_args.reason)
        resources = Resources()
        try:
            parts = audited(parsed_args.config_file, parsed_args.data_dir, resources)
            if parts.schema_behind is not None:
                raise InvalidConfiguration(parts.schema_behind.seen)
            taking = TakingBack(parts.db, parts.placement, parts.hosts)
            for host, addresses in of_hosts.items():
                done = taking.take_back(host, addresses, cause, looked=parsed_args.looked)
                for address, told in done.items():
                    self.app.stdout.write(f"{host}/{address}: {told}\n")
        finally:
            resources.close()


def _slot(text: str) -> tuple[str, str]:
    host, slash, address = text.rpartition("/")
    if not slash or not host:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST/PCI-ADDRESS, such as host-1/0000:41:00.0")
    try:
        return host, str(PCIAddress.parse(address))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
