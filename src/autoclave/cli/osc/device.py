"""``openstack accelerator device clean``."""

import argparse
import uuid

from osc_lib.command import command

from autoclave.cli.osc.sdk_device import Device


class CleanDevice(command.Command):  # type: ignore[misc]  # osc-lib comes without types
    """Clean a device again after a failed cleanup (accelerator API 2.5)."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("device", metavar="<device>", type=_uuid, help="uuid of the device, which is in error")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Ask for it; the cleanup goes on in the background."""
        Device(id=parsed_args.device).clean(self.app.client_manager.autoclave)


def _uuid(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no uuid: `openstack accelerator device list` shows them. For a device as HOST/PCI-ADDRESS "
            "there is `autoclave device clean`"
        ) from None
