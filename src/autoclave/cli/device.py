"""``autoclave device``: what an operator asks and says of devices, over ``/autoclave/v1``."""

import argparse
import json
import os
from collections.abc import Iterable
from typing import Any

import requests
from cliff import command, lister, show

from autoclave.exceptions import AutoclaveError

_TIMEOUT = 30
_LIST_COLUMNS = ("uuid", "hostname", "pci_address", "device_state", "progress", "serial", "waiting_for")


class OperatorClient:
    """The operator's half of the HTTP service.

    :param url: where it listens.
    :param token: an administrator's token.
    """

    def __init__(self, url: str, token: str) -> None:
        self._url = url.rstrip("/")
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.headers["X-Auth-Token"] = token

    def get(self, path: str) -> Any:
        """The document at *path* below ``/autoclave/v1``.

        :raises AutoclaveError: the service does not answer, or refuses.
        """
        return self._ask("GET", path)

    def say(self, device: str, what: str, reason: str | None) -> Any:
        """Say *what* (hold, release, accept, forget) of *device*, and return what was answered.

        :raises AutoclaveError: the service does not answer, or refuses.
        """
        return self._ask("POST", f"/devices/{device}/{what}", {"reason": reason} if reason else {})

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        url = f"{self._url}/autoclave/v1{path}"
        try:
            answer = self._session.request(method, url, json=body, timeout=_TIMEOUT)
        except requests.RequestException as error:
            raise AutoclaveError(
                f"{self._url} does not answer ({type(error).__name__}); is Autoclave running there? Name it with --url"
            ) from error
        if not answer.ok:
            raise AutoclaveError(f"{answer.status_code}: {_fault(answer)}")
        return answer.json() if answer.content else {}


def _fault(answer: requests.Response) -> str:
    # the accelerator API wraps its message in JSON twice, for Cyborg's clients
    try:
        message = answer.json()["error_message"]
        return str(json.loads(message)["faultstring"])
    except (ValueError, KeyError, TypeError):
        return answer.text.strip() or answer.reason


def _add_service(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        default=os.environ.get("AUTOCLAVE_URL", "http://127.0.0.1:6666"),
        help="where Autoclave listens (env AUTOCLAVE_URL; default http://127.0.0.1:6666)",
    )
    parser.add_argument(
        "--token",
        default=os.environ.get("AUTOCLAVE_TOKEN", "admin"),
        help="an administrator's token (env AUTOCLAVE_TOKEN)",
    )


def _client(parsed_args: argparse.Namespace) -> OperatorClient:
    return OperatorClient(parsed_args.url, parsed_args.token)


def _add_device(parser: argparse.ArgumentParser) -> None:
    _add_service(parser)
    parser.add_argument("device", help="uuid, or HOST/PCI-ADDRESS")


def _progress(device: dict[str, Any]) -> str:
    progress = device["progress"]
    if progress["step"] is None:
        return ""
    percent = "" if progress["percent"] is None else f"{progress['percent']:.0f} % "
    return f"{percent}{progress['step']}{' (stalled)' if progress['stalled'] else ''}"


class DeviceList(lister.Lister):  # type: ignore[misc]  # cliff comes without types
    """List all devices: state, progress, and what waits for a human."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        _add_service(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        """Ask, and show."""
        devices = _client(parsed_args).get("/devices")["devices"]
        shown = [{**device, "progress": _progress(device)} for device in devices]
        return _LIST_COLUMNS, [tuple(device[column] for column in _LIST_COLUMNS) for device in shown]


class DeviceShow(show.ShowOne):  # type: ignore[misc]
    """Show everything that is known of a device."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        _add_device(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Iterable[str], Iterable[Any]]:
        """Ask, and show."""
        device = _client(parsed_args).get(f"/devices/{parsed_args.device}")
        return tuple(device), tuple(device.values())


class DeviceHistory(lister.Lister):  # type: ignore[misc]
    """Show the history of a device, oldest first, with the evidence of each erase (-f json)."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        _add_device(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        """Ask, and show."""
        events = _client(parsed_args).get(f"/devices/{parsed_args.device}/history")["events"]
        columns = ("at", "event", "from_state", "to_state", "actor", "reason", "evidence")
        return columns, [tuple(event[column] for column in columns) for event in events]


class _Say(command.Command):  # type: ignore[misc]
    what: str
    needs_reason = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        _add_device(parser)
        parser.add_argument("--reason", required=self.needs_reason, help="why; kept in the device's history")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Say it, and tell whether Placement knows already."""
        answer = _client(parsed_args).say(parsed_args.device, self.what, parsed_args.reason)
        settled = answer.get("placement_settled", True) if isinstance(answer, dict) else True
        later = "" if settled else "; Placement does not answer and will be told later"
        self.app.stdout.write(f"{parsed_args.device}: {self.what} recorded{later}\n")


class DeviceHold(_Say):
    """Keep a device from being offered until it is released."""

    what = "hold"
    needs_reason = True


class DeviceRelease(_Say):
    """End a hold. A device that is not clean stays reserved."""

    what = "release"


class DeviceAccept(_Say):
    """Take the drive that was found in a slot for the slot's drive from now on."""

    what = "accept"


class DeviceForget(_Say):
    """Remove a device that has disappeared."""

    what = "forget"
