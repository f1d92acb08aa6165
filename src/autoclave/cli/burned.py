"""Run ``autoclave burned``: manage burned one-time-use devices, over ``/autoclave/v1``."""

import argparse
from collections.abc import Iterable
from typing import Any

from cliff import command

from autoclave.cli.client import add_service, service_of
from autoclave.cli.main import Cell, Fields, Rows, with_details

_BURNED = "/autoclave/v1/burned"
_COLUMNS = ("hostname", "pci_address", "burned_at", "burned_for", "in_use", "waiting_for")
_DETAILS = (
    "serial",
    "rp_uuid",
    "resource_class",
    "one_time_use",
    "instance_uuid",
    "confirmed",
    "release_pending",
    "missing",
    "offered",
)
_HISTORY = ("at", "event", "to_state", "actor", "request_id", "reason")
_WIDTHS = {"waiting_for": 24, "reason": 30}
"""Limit the characters of a line in the table of all devices."""


class _OfDevice(command.Command):  # type: ignore[misc]  # cliff comes without types
    """Share the argument of commands about one burned device."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add_service(parser)
        parser.add_argument("device", help="uuid of its resource provider, or HOST/PCI-ADDRESS")
        return parser


def _second(at: str) -> str:
    return f"{at[:10]} {at[11:19]} UTC"


def _cell(name: str, value: Any) -> Cell:
    return Cell(value, _second if name in ("burned_at", "at") else str, _WIDTHS.get(name))


class BurnedList(Rows):
    """List the devices that are not offered again until they are released. Moments are in UTC."""

    nothing = "There are no burned devices."

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add_service(parser)
        parser.add_argument("--host", help="only of this host")
        parser.add_argument("--long", action="store_true", help="all that is known, for programs: best with -f json")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        """Request the data, and print it."""
        asked = {} if parsed_args.host is None else {"hostname": parsed_args.host}
        rows = service_of(parsed_args).ask("GET", _BURNED, query=asked)["burned"]
        columns = with_details(parsed_args, _COLUMNS, _DETAILS)
        return columns, [tuple(_cell(name, row[name]) for name in columns) for row in rows]


class BurnedShow(_OfDevice, Fields):
    """Show what is known of a burned device."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Iterable[str], Iterable[Any]]:
        """Request the data, and print it."""
        row = service_of(parsed_args).ask("GET", f"{_BURNED}/{parsed_args.device}")
        return tuple(row), tuple(_cell(name, value) for name, value in row.items())


class BurnedHistory(_OfDevice, Rows):
    """Show how a device was burned and released, and by whom, oldest first. It need not be burned now."""

    nothing = "It was never burned."

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        """Request the data, and print it."""
        events = service_of(parsed_args).ask("GET", f"{_BURNED}/{parsed_args.device}/history")["events"]
        return _HISTORY, [tuple(_cell(name, event[name]) for name in _HISTORY) for event in events]


class BurnedRelease(_OfDevice):
    """Say that a burned device is clean: it is offered again."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--burned-for",
            metavar="INSTANCE",
            help="only if it is still burned by this instance: nobody has used it since it was looked at",
        )
        parser.add_argument("--reason", help="why, or how it was cleaned; kept in the device's history")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Release it, and print whether Placement agrees.

        :raises AutoclaveError: the service does not answer, or the device cannot be released.
        """
        said = {"burned_for": parsed_args.burned_for, "reason": parsed_args.reason}
        body = {key: value for key, value in said.items() if value is not None}
        answer = service_of(parsed_args).ask("POST", f"{_BURNED}/{parsed_args.device}/release", body)
        later = "released; it is offered as soon as Placement answers, and the device is in its host"
        told = "released and offered again" if answer["placement_settled"] else later
        self.app.stdout.write(f"{parsed_args.device}: {told}\n")
