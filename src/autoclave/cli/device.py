"""Run ``autoclave device``: show devices and record the operator's decisions, over ``/autoclave/v1``."""

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cliff import command

from autoclave.cli.client import add_service, service_of
from autoclave.cli.main import Cell, Fields, Rows, in_words, with_details
from autoclave.rules.device_lifecycle import SHOWN_STATES
from autoclave.rules.reclaim import Reclaim, RequestedBy

_DEVICES = "/autoclave/v1/devices"
_LIST_COLUMNS = (
    *("uuid", "hostname", "pci_address", "requested_by", "reclaim", "device_state"),
    *("progress", "serial", "waiting_for"),
)
_FILTERS = ("hostname", "type", "requested_by", "reclaim", "device_state", "limit", "marker")
_HISTORY = ("at", "event", "to_state", "actor", "reason", "proof")
_HISTORY_DETAILS = (
    "from_state",
    "device_uuid",
    "serial",
    "instance_uuid",
    "project_id",
    "user_id",
    "request_id",
    "evidence",
)
_WIDTHS = {"waiting_for": 40, "reason": 30, "proof": 24}
"""Limit the characters of a line in tables of several devices or events."""
_BLOCK_WIDTH = 90
"""Limit the characters of a line in the table of one device."""


class _OfDevice(command.Command):  # type: ignore[misc]  # cliff comes without types
    """Share the argument of commands about one device."""

    named_by = "uuid, or HOST/PCI-ADDRESS"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add_service(parser)
        parser.add_argument("device", help=self.named_by)
        return parser


def _progress(progress: Mapping[str, Any]) -> str:
    if progress["step"] is None:
        return ""
    percent = "" if progress["percent"] is None else f"{progress['percent']:.0f} % "
    if progress["stalled"]:
        return f"{percent}{progress['step']} (stalled)"
    left = progress["seconds_left"]
    return f"{percent}{progress['step']}{'' if left is None else f', {in_words(left)} left'}"


def _functions(functions: Iterable[Mapping[str, Any]]) -> str:
    return "\n".join(f"{each['pci_address']} {each['instance_uuid']}" for each in functions)


def _arqs(arqs: Iterable[Mapping[str, Any]]) -> str:
    return "\n".join(f"{arq['uuid']} {arq['state']}" for arq in arqs)


def _second(at: str) -> str:
    return f"{at[:10]} {at[11:19]} UTC"


_SHOWN: Mapping[str, Callable[[Any], str]] = {
    "progress": _progress,
    "arqs": _arqs,
    "functions": _functions,
    "at": _second,
}


class DeviceList(Rows):
    """List all devices: state, progress, and what waits for a human."""

    nothing = "There are no such devices."

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add_service(parser)
        parser.add_argument("--host", dest="hostname", metavar="HOST", help="only of this host")
        parser.add_argument("--type", type=str.upper, help="only of this type, such as NVME or GPU")
        parser.add_argument(
            "--requested-by", choices=[each.value for each in RequestedBy], help="only those that these ask for"
        )
        parser.add_argument(
            "--reclaim", choices=[each.value for each in Reclaim], help="only those with this reclaim policy"
        )
        parser.add_argument(
            "--state", dest="device_state", choices=SHOWN_STATES, help="only those that are shown with this state"
        )
        parser.add_argument("--limit", help="devices at most (default: all)")
        parser.add_argument("--marker", metavar="UUID", help="only those behind this device of a list")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        """Request the data, and print it."""
        filters = {name: value for name in _FILTERS if (value := getattr(parsed_args, name)) is not None}
        devices = service_of(parsed_args).ask("GET", _DEVICES, query=filters)["devices"]
        shown = [{**device, "progress": _progress(device["progress"])} for device in devices]
        return _LIST_COLUMNS, [tuple(Cell(each[c], width=_WIDTHS.get(c)) for c in _LIST_COLUMNS) for each in shown]


class DeviceShow(_OfDevice, Fields):
    """Show everything that is known of a device."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Iterable[str], Iterable[Any]]:
        """Request the data, and print it."""
        device = service_of(parsed_args).ask("GET", f"{_DEVICES}/{parsed_args.device}")
        return tuple(device), tuple(_field(name, value) for name, value in device.items())


def _field(name: str, value: Any) -> Cell:
    return Cell(value, _SHOWN[name]) if name in _SHOWN else Cell(value, width=_BLOCK_WIDTH)


class DeviceHistory(_OfDevice, Rows):
    """Show the history of a device, oldest first: who had it, and what proved each erase.

    A device is a slot. The history of a drive, in all slots that it was in, is that of its serial number.
    """

    named_by = "uuid, HOST/PCI-ADDRESS, or the serial number of a drive"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--long", action="store_true", help="with all of the evidence, for programs: best with -f json"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        """Request the data, and print it."""
        events = service_of(parsed_args).ask("GET", f"{_DEVICES}/{parsed_args.device}/history")["events"]
        columns = with_details(parsed_args, _HISTORY, _HISTORY_DETAILS)
        proved = [{**event, "proof": _proof(event["evidence"] or {})} for event in events]
        return columns, [tuple(Cell(event[c], _SHOWN.get(c, str), _WIDTHS.get(c)) for c in columns) for event in proved]


def _proof(evidence: Mapping[str, Any]) -> str | None:
    """Summarize the evidence of an erase."""
    how = evidence.get("action", evidence.get("method"))
    parts = [str(part) for part in (how, evidence.get("verified")) if part is not None]
    return ": ".join(parts) or None


class _OfOperator(_OfDevice):
    """Share the arguments of the operator's decisions about a device."""

    needs_reason = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--reason", required=self.needs_reason, help="why; kept in the device's history")
        return parser


def _because(parsed_args: argparse.Namespace) -> dict[str, str]:
    return {"reason": parsed_args.reason} if parsed_args.reason else {}


class DeviceClean(_OfOperator):
    """Clean a device in error again. It goes on in the background: see `device list`."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Request the clean.

        :raises AutoclaveError: the service does not answer, or the device cannot be cleaned now.
        """
        service_of(parsed_args).ask("POST", f"{_DEVICES}/{parsed_args.device}/clean", _because(parsed_args))
        self.app.stdout.write(f"{parsed_args.device}: its host was asked to clean it\n")


class _Say(_OfOperator):
    what: str

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Send the decision, and print whether Placement agrees."""
        path = f"{_DEVICES}/{parsed_args.device}/{self.what}"
        answer = service_of(parsed_args).ask("POST", path, self.body(parsed_args))
        later = "" if answer["placement_settled"] else "; Placement does not answer and will be told later"
        self.app.stdout.write(f"{parsed_args.device}: {self.what} recorded{later}\n")

    def body(self, parsed_args: argparse.Namespace) -> dict[str, str]:
        """Return the body of the request."""
        return _because(parsed_args)


class DeviceHold(_Say):
    """Keep a device from being offered until it is released."""

    what = "hold"
    needs_reason = True


class DeviceRelease(_Say):
    """End a hold; or release a spent device, which you have cleaned. A device that is not clean stays reserved."""

    what = "release"


class DeviceAccept(_Say):
    """Take the drive that was found in a slot for the slot's drive from now on, or a found layout for that drive's."""

    what = "accept"


class DeviceForget(_Say):
    """Remove a device that has disappeared."""

    what = "forget"


class DeviceTakeBack(_Say):
    """Give a device back whose server is no longer there, and have it cleaned.

    Refuses while the agent of its host sees a guest that has it. Where the agent cannot be asked, look there yourself.
    """

    what = "take-back"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--server", help="uuid of the server that is gone, if several servers have the device")
        return parser

    def body(self, parsed_args: argparse.Namespace) -> dict[str, str]:
        """Return the body of the request."""
        named = {"instance_uuid": parsed_args.server} if parsed_args.server else {}
        return {**_because(parsed_args), **named}
