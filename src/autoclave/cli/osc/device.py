"""Extend ``openstack accelerator device`` by ``device_state`` (accelerator API 2.5).

openstackclient 10.x and python-cyborgclient both register ``accelerator device list``, ``show``, ``disable`` and
``enable``. Their commands lack the column ``device_state``, and report success when the service refuses. The commands
here are registered in the group ``openstack.extension``. openstackclient loads this group last, so they win in any
order of installation.
"""

import argparse
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Self

from openstack import exceptions, resource
from openstack.accelerator.v2 import device
from osc_lib import utils
from osc_lib.command import command


class Device(device.Device):  # type: ignore[misc]  # openstacksdk's classes are not typed strictly
    """Represent a device with ``device_state`` that can be cleaned.

    Its actions fail where the service refuses; those of openstacksdk 4.22 ignore the answer.
    """

    _max_microversion = "2.5"

    device_state = resource.Body("device_state")
    """Hold available, allocated, pending_cleaning, cleaning or error; None below microversion 2.5."""

    def clean(self, session: Any) -> None:
        """Start to clean the device again; it must be in ``error``.

        :param session: openstacksdk's accelerator proxy.
        :raises openstack.exceptions.HttpException: the service refused; has its reason.
        """
        self._act(session, "clean", "2.5")

    def enable(self, session: Any) -> Self:
        """Offer the device again.

        :param session: openstacksdk's accelerator proxy.
        :raises openstack.exceptions.HttpException: the service refused, with its reason.
        """
        self._act(session, "enable", "2.3")
        return self

    def disable(self, session: Any) -> Self:
        """Keep the device from being offered.

        :param session: openstacksdk's accelerator proxy.
        :raises openstack.exceptions.HttpException: the service refused, with its reason.
        """
        self._act(session, "disable", "2.3")
        return self

    def _act(self, session: Any, action: str, microversion: str) -> None:
        answer = session.post(f"{self.base_path}/{self.id}/{action}", microversion=microversion)
        exceptions.raise_from_response(answer)


_LIST = ("uuid", "type", "vendor", "hostname", "std_board_info")
_LONG = ("created_at", "updated_at", "model", "vendor_board_info")
_STATE = ("status", "device_state")
_SHOW = (
    "created_at",
    "updated_at",
    "uuid",
    "type",
    "vendor",
    "model",
    "hostname",
    "std_board_info",
    "vendor_board_info",
    *_STATE,
)


class ListDevice(command.Lister):  # type: ignore[misc]  # osc-lib comes without types
    """List all devices."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("--long", dest="detail", action="store_true", help="List additional fields in output")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[tuple[Any, ...]]]:
        """List the devices at the newest microversion that client and service share.

        :raises openstack.exceptions.HttpException: the service refused, with its reason.
        """
        columns = _LIST + (_LONG if parsed_args.detail else ()) + _STATE
        devices = list(Device.list(self.app.client_manager.sdk_connection.accelerator))
        return columns, (utils.get_item_properties(device, columns) for device in devices)


class ShowDevice(command.ShowOne):  # type: ignore[misc]
    """Show device details."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        return _with_device(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Show the device at the newest microversion that client and service share.

        :raises openstack.exceptions.HttpException: the service refused, with its reason.
        """
        device = Device(id=parsed_args.device).fetch(self.app.client_manager.sdk_connection.accelerator)
        return _SHOW, utils.get_item_properties(device, _SHOW)


class CleanDevice(command.Command):  # type: ignore[misc]
    """Clean a device again after a failed cleanup (accelerator API 2.5)."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        return _with_device(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Request the clean, which runs in the background."""
        Device(id=parsed_args.device).clean(self.app.client_manager.sdk_connection.accelerator)


class DisableDevice(command.Command):  # type: ignore[misc]
    """Disable a device (accelerator API 2.3)."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        return _with_device(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Disable the device; fail where the service refuses."""
        Device(id=parsed_args.device).disable(self.app.client_manager.sdk_connection.accelerator)


class EnableDevice(command.Command):  # type: ignore[misc]
    """Enable a device (accelerator API 2.3)."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        return _with_device(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Enable the device; fail where the service refuses."""
        Device(id=parsed_args.device).enable(self.app.client_manager.sdk_connection.accelerator)


def _with_device(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("device", metavar="<device>", type=_uuid, help="UUID of the device")
    return parser


def _uuid(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a UUID; `openstack accelerator device list` shows UUIDs. To name a device as "
            "HOST/PCI-ADDRESS, use `autoclave device show` or `autoclave device clean`"
        ) from None
