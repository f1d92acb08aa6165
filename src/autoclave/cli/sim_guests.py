"""``autoclave sim guest …`` for the guests that the null driver runs: what becomes of them without the agent."""

import argparse

from cliff import command

from autoclave.cli.sim import add_data_dir
from autoclave.cli.tables import Rows
from autoclave.simulator.guests import Guests, SimulatedGuest
from autoclave.simulator.host import Fleet


class _OfGuest(command.Command):  # type: ignore[misc]  # cliff comes without types
    """A command about one guest of one simulated host."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments: where the hosts are, and which guest is meant."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add_data_dir(parser)
        parser.add_argument("host", help="name of the simulated host")
        parser.add_argument("instance", type=str.lower, help="UUID of the instance")
        return parser

    def guests(self, parsed_args: argparse.Namespace) -> Guests:
        """Those of the host that is meant.

        :raises SimulatorError: there is none of that name.
        """
        return Guests(Fleet(parsed_args.data_dir).host(parsed_args.host))


class SimGuestList(Rows):
    """List the guests of all simulated hosts, and what they have been given."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add_data_dir(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
        """One row a guest.

        :raises SimulatorError: there are no simulated hosts.
        """
        rows: list[tuple[object, ...]] = [
            (host.name, guest.uuid, _state(guest), ", ".join(function.address for function in guest.functions))
            for host in Fleet(parsed_args.data_dir).require_hosts()
            for guest in Guests(host).all().values()
        ]
        return ("host", "instance", "state", "devices"), rows


class SimGuestXml(_OfGuest):
    """Show how libvirt would have been told of a guest."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """:raises SimulatorError: host or guest is not known."""
        self.app.stdout.write(self.guests(parsed_args).get(parsed_args.instance).xml)


class SimGuestDie(_OfGuest):
    """Let a guest die, as when QEMU crashes: it is off, and its host has its devices back."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """:raises SimulatorError: host or guest is not known."""
        self.guests(parsed_args).end(parsed_args.instance, crashed=True)


class SimGuestVanish(_OfGuest):
    """Let a guest vanish, as when somebody ends and undefines it behind the agent's back."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """:raises SimulatorError: host or guest is not known."""
        self.guests(parsed_args).vanish(parsed_args.instance)


def _state(guest: SimulatedGuest) -> str:
    if guest.running:
        return "running"
    return "crashed" if guest.crashed else "off"
