"""``autoclave sim bind``: what Nova says when an instance gets a drive, for simulated hosts, which have no Nova."""

import argparse
import uuid

from autoclave.cli.client import add_service, service_of
from autoclave.cli.sim import OfDrive


class SimBind(OfDrive):
    """Bind an accelerator request to a drive of a simulated host, as Nova does for an instance.

    Nova claims the drive in Placement first; here nobody does, and the service alone decides. The drive
    is given back with `openstack accelerator arq delete`.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments."""
        parser = super().get_parser(prog_name)
        parser.add_argument("request", type=_request, metavar="ARQ", help="uuid of the accelerator request")
        parser.add_argument(
            "--instance", type=uuid.UUID, default=None, metavar="UUID", help="the instance (default: a new one)"
        )
        add_service(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """:raises AutoclaveError: the host is not simulated, or the service does not answer, or refuses."""
        host = self.host(parsed_args).root.name
        service = service_of(parsed_args, parsed_args.data_dir)
        device = service.ask("GET", f"/autoclave/v1/devices/{host}/{parsed_args.address}")
        instance = str(parsed_args.instance or uuid.uuid4())
        values = {"hostname": host, "device_rp_uuid": device["rp_uuid"], "instance_uuid": instance}
        patch = [{"op": "add", "path": f"/{name}", "value": value} for name, value in values.items()]
        service.ask("PATCH", "/v2/accelerator_requests", {parsed_args.request: patch})
        self.app.stdout.write(f"{host}/{parsed_args.address} is bound to instance {instance}\n")


def _request(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no uuid; `openstack accelerator arq create PROFILE -f value -c uuid` makes a request and "
            "shows its uuid"
        ) from None
