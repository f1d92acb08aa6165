"""Run ``autoclave sim``: act on simulated hosts from outside.

``sim bind`` does Nova's part, because simulated hosts have no Nova. ``sim guest`` changes the guests of the null
driver without the agent.
"""

import argparse
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from cliff import command

from autoclave.cli.client import add_service, service_of
from autoclave.cli.main import Rows
from autoclave.exceptions import SimulatorError
from autoclave.rules.pci_address import parse_pci_id
from autoclave.simulator.drive_spec import MIB, DriveSpec, Inventory
from autoclave.simulator.faults import EVERY_DRIVE, Fault, FaultKind
from autoclave.simulator.functions import FunctionSpec
from autoclave.simulator.guests import Guests, SimulatedGuest
from autoclave.simulator.host import Fleet, SimulatedHost

_DEFAULT_DATA_DIR = "/var/lib/autoclave"


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the directory of the hosts."""
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=Path(os.environ.get("AUTOCLAVE_DATA_DIR", _DEFAULT_DATA_DIR)),
        help=f"data directory of `autoclave up` (env AUTOCLAVE_DATA_DIR; default {_DEFAULT_DATA_DIR})",
    )


class OfDrive(command.Command):  # type: ignore[misc]  # cliff comes without types
    """Share the arguments of commands about one slot of a simulated host."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments: the directory of the hosts, and the slot."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add_data_dir(parser)
        parser.add_argument("host", help="name of the simulated host")
        parser.add_argument("address", type=str.lower, help="PCI address, such as 0000:41:00.0")
        return parser

    def host(self, parsed_args: argparse.Namespace) -> SimulatedHost:
        """Return the host.

        :raises SimulatorError: there is no host of that name.
        """
        return Fleet(parsed_args.data_dir).host(parsed_args.host)


class _OnMedia(OfDrive):
    """Share the arguments of commands about the bytes of a drive."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--offset", type=int, default=0, help="first byte (default 0)")
        parser.add_argument("--namespace", type=int, default=1, metavar="NSID", help="namespace id (default 1)")
        return parser


class SimHosts(Rows):
    """List the drives and cards of all simulated hosts, with their faults."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add_data_dir(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
        """Return a row for each slot.

        :raises SimulatorError: there are no simulated hosts.
        """
        columns = ("host", "address", "serial", "model", "driver", "controller", "sanitizing", "faults")
        hosts = Fleet(parsed_args.data_dir).require_hosts()
        return columns, [row for host in hosts for row in _rows(host)]


class SimFault(OfDrive):
    """Set a fault of a drive, until `sim clear`."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.epilog = f"ADDRESS may be '{EVERY_DRIVE}': every drive of the host."
        parser.add_argument("kind", help=f"kind of fault: {', '.join(FaultKind)}")
        parser.add_argument(
            "value",
            nargs="?",
            type=float,
            help="percent, seconds, bytes per second or exit code, depending on the kind",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Run the command.

        :raises SimulatorError: host, address, kind or value is not known.
        """
        host = self.host(parsed_args)
        try:
            fault = Fault(_fault_kind(parsed_args.kind), parsed_args.value)
        except ValueError as e:
            raise SimulatorError(str(e)) from None
        host.set_fault(parsed_args.address, fault)


class SimClear(OfDrive):
    """Clear the faults of a drive."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.epilog = f"ADDRESS may be '{EVERY_DRIVE}': all faults of the host and of its drives."
        parser.add_argument("kind", nargs="?", help="remove only this fault")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Run the command.

        :raises SimulatorError: host, address or kind is not known.
        """
        kind = None if parsed_args.kind is None else _fault_kind(parsed_args.kind)
        address = None if parsed_args.address == EVERY_DRIVE else parsed_args.address
        self.host(parsed_args).clear_faults(address, kind)


class SimPull(OfDrive):
    """Pull a drive, or a card with its virtual functions, out of its slot."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Run the command.

        :raises SimulatorError: host or address is not known, or the slot is empty.
        """
        host = self.host(parsed_args)
        if parsed_args.address in host.functions:
            host.functions.pull(parsed_args.address)
        else:
            host.pull(parsed_args.address)


class SimPutBack(OfDrive):
    """Put the pulled drive back into its slot, with its data."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Run the command.

        :raises SimulatorError: host or address is not known, or nothing was pulled.
        """
        self.host(parsed_args).put_back(parsed_args.address)


class SimInsert(OfDrive):
    """Insert another drive into a slot. A known serial number inserts that drive, with its data."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("serial", help="serial number, at most 20 characters")
        parser.add_argument("--model", default=DriveSpec.model, help=f"model (default {DriveSpec.model})")
        parser.add_argument("--vendor", default=DriveSpec.vendor, help=f"PCI vendor id (default {DriveSpec.vendor})")
        parser.add_argument("--product", default=DriveSpec.product, help=f"PCI id (default {DriveSpec.product})")
        parser.add_argument("--size", type=int, default=64, metavar="MIB", help="capacity in MiB (default 64)")
        parser.add_argument("--crypto", action="store_true", help="support Sanitize with crypto erase")
        parser.add_argument("--block", action="store_true", help="support Sanitize with block erase")
        parser.add_argument("--no-write-zeroes", action="store_true", help="do not support Write Zeroes")
        parser.add_argument("--format", action="store_true", help="support Format NVM with user data erase")
        parser.add_argument("--format-crypto", action="store_true", help="support Format NVM with crypto erase as well")
        parser.add_argument("--namespace-management", action="store_true", help="support Namespace Management")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Run the command.

        :raises SimulatorError: the host is not known, no drive can be like that, or it is plugged in elsewhere.
        """
        spec = DriveSpec(
            address=parsed_args.address,
            serial=parsed_args.serial,
            model=parsed_args.model,
            vendor=_pci_id(parsed_args.vendor),
            product=_pci_id(parsed_args.product),
            size_bytes=parsed_args.size * MIB,
            crypto=parsed_args.crypto,
            block=parsed_args.block,
            write_zeroes=not parsed_args.no_write_zeroes,
            namespace_management=parsed_args.namespace_management,
            format_nvm=parsed_args.format,
            format_crypto=parsed_args.format_crypto,
        )
        self.host(parsed_args).insert(parsed_args.address, spec)


class SimWrite(_OnMedia):
    """Write text to a drive, as its guest would."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("text", help="text to write, as UTF-8")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Run the command.

        :raises SimulatorError: host or address is not known, or the drive refuses.
        """
        self.host(parsed_args).write(
            parsed_args.address, parsed_args.offset, parsed_args.text.encode(), nsid=parsed_args.namespace
        )


class SimRead(_OnMedia):
    r"""Show bytes of a drive; bytes that are not printable ASCII are shown as \xNN."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--length", type=int, default=64, help="bytes (default 64)")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Run the command.

        :raises SimulatorError: host, address or namespace is not known.
        """
        data = self.host(parsed_args).read(
            parsed_args.address, parsed_args.offset, parsed_args.length, nsid=parsed_args.namespace
        )
        shown = "".join(chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}" for byte in data)
        self.app.stdout.write(f"{shown}\n")


class SimFind(OfDrive):
    """Search a drive for a text: exit status 0 if found, 1 if not."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("text", help="text to search for, as UTF-8")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Run the command.

        :raises SimulatorError: host or address is not known.
        """
        return 0 if self.host(parsed_args).find(parsed_args.address, parsed_args.text.encode()) else 1


class SimGuestStart(OfDrive):
    """Bind a drive to vfio-pci, as libvirt does when its guest starts."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Run the command.

        :raises SimulatorError: host or address is not known, or a guest has it.
        """
        self.host(parsed_args).give_to_guest(parsed_args.address)


class SimGuestStop(OfDrive):
    """Bind a drive to the nvme driver, as libvirt does when its guest ends."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Run the command.

        :raises SimulatorError: host or address is not known, or no guest has it.
        """
        self.host(parsed_args).give_back(parsed_args.address)


class SimPlug(OfDrive):
    """Plug in a PCI function other than a drive, such as a card or a virtual function of one."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("ids", metavar="VENDOR:PRODUCT", help="PCI ids, such as 10de:25b6")
        parser.add_argument(
            "--class",
            dest="class_code",
            default=FunctionSpec.class_code,
            help=f"PCI class (default {FunctionSpec.class_code})",
        )
        parser.add_argument("--driver", help="the host's driver for it (default none)")
        parser.add_argument("--interface", help="network interface of its driver, which is up")
        parser.add_argument("--physfn", type=str.lower, help="address of its physical function")
        parser.add_argument("--serial", type=str.lower, help="its Device Serial Number, 16 digits (default none)")
        parser.add_argument(
            "--reset",
            default=FunctionSpec.reset_method,
            metavar="WAYS",
            help=f"ways to reset it (default '{FunctionSpec.reset_method}'), or none",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Run the command.

        :raises SimulatorError: the host is not known, no function can be like that, or the slot is taken.
        """
        vendor, _, product = parsed_args.ids.partition(":")
        spec = FunctionSpec(
            address=parsed_args.address,
            vendor=_pci_id(vendor),
            product=_pci_id(product),
            class_code=parsed_args.class_code,
            driver=parsed_args.driver,
            interface=parsed_args.interface,
            physfn=parsed_args.physfn,
            serial=parsed_args.serial,
            reset_method=None if parsed_args.reset == "none" else parsed_args.reset,
        )
        self.host(parsed_args).functions.plug(spec)


class SimDriver(OfDrive):
    """Bind a function other than a drive to a driver, as its operator would."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("driver", nargs="?", help="such as vfio-pci (default none)")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Run the command.

        :raises SimulatorError: the host is not known, or has no such function.
        """
        self.host(parsed_args).functions.bind(parsed_args.address, parsed_args.driver)


def _fault_kind(text: str) -> FaultKind:
    try:
        return FaultKind(text)
    except ValueError:
        raise SimulatorError(f"{text!r} is not a fault; choose from {', '.join(FaultKind)}") from None


def _pci_id(text: str) -> str:
    try:
        return parse_pci_id(text)
    except ValueError as e:
        raise SimulatorError(str(e)) from None


def _rows(host: SimulatedHost) -> Iterator[tuple[object, ...]]:
    inventory = host.inventory
    yield from _drives(host, inventory)
    for plugged in sorted(host.functions.all().values(), key=lambda each: each.address):
        spec = plugged.spec
        model = f"{spec.vendor}:{spec.product} {f'of {spec.physfn}' if spec.physfn else ''}".strip()
        driver, faults = plugged.driver or "", _faults(host, spec.address)
        yield (inventory.name, spec.address, "", model if plugged.present else "(empty)", driver, "", "", faults)


def _drives(host: SimulatedHost, inventory: Inventory) -> Iterator[tuple[object, ...]]:
    for slot in sorted(inventory.slots.values(), key=lambda each: each.address):
        progress = None
        if slot.present and slot.spec.physfn is None:
            with host.drive(slot.address) as drive:
                progress = drive.progress
        yield (
            inventory.name,
            slot.address,
            slot.spec.serial if slot.present else "",
            slot.spec.model if slot.present else "(empty)",
            slot.driver or "",
            "" if slot.instance is None else f"nvme{slot.instance}",
            "" if progress is None else f"{progress:.0f}%",
            _faults(host, slot.address),
        )


def _faults(host: SimulatedHost, address: str) -> str:
    faults = host.faults.active([address])
    return ", ".join(str(kind) if value is None else f"{kind}={value:g}" for kind, value in faults.items())


class SimBind(OfDrive):
    """Bind an accelerator request to a drive of a simulated host, as Nova does for an instance.

    Nova claims the drive in Placement first. This command does not, so that the service alone decides. To
    unbind the drive, run `openstack accelerator arq delete`.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser = super().get_parser(prog_name)
        parser.add_argument("request", type=_request, metavar="ARQ", help="UUID of the accelerator request")
        parser.add_argument(
            "--instance", type=uuid.UUID, default=None, metavar="UUID", help="UUID of the instance (default: a new one)"
        )
        add_service(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Run the command.

        :raises AutoclaveError: the host is not simulated, or the service does not answer, or refuses.
        """
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
            f"{text!r} is not a UUID; `openstack accelerator arq create PROFILE -f value -c uuid` creates a request "
            "and shows its UUID"
        ) from None


class _OfGuest(command.Command):  # type: ignore[misc]  # cliff comes without types
    """Share the arguments of commands about one guest of a simulated host."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments: the directory of the hosts, and the guest."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add_data_dir(parser)
        parser.add_argument("host", help="name of the simulated host")
        parser.add_argument("instance", type=str.lower, help="UUID of the instance")
        return parser

    def guests(self, parsed_args: argparse.Namespace) -> Guests:
        """Return the guests of the host.

        :raises SimulatorError: there is no host of that name.
        """
        return Guests(Fleet(parsed_args.data_dir).host(parsed_args.host))


class SimGuestList(Rows):
    """List the guests of all simulated hosts, with their devices."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add_data_dir(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
        """Return a row for each guest.

        :raises SimulatorError: there are no simulated hosts.
        """
        rows: list[tuple[object, ...]] = [
            (host.name, guest.uuid, _state(guest), ", ".join(function.address for function in guest.functions))
            for host in Fleet(parsed_args.data_dir).require_hosts()
            for guest in Guests(host).all().values()
        ]
        return ("host", "instance", "state", "devices"), rows


class SimGuestXml(_OfGuest):
    """Show the domain XML of a guest, as libvirt would get it."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Run the command.

        :raises SimulatorError: host or guest is not known.
        """
        self.app.stdout.write(self.guests(parsed_args).get(parsed_args.instance).xml)


class SimGuestDie(_OfGuest):
    """Let a guest die, as in a crash of QEMU: it is off, and its devices return to the host."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Run the command.

        :raises SimulatorError: host or guest is not known.
        """
        self.guests(parsed_args).end(parsed_args.instance, crashed=True)


class SimGuestVanish(_OfGuest):
    """Let a guest vanish, as if it was destroyed and undefined without the agent."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Run the command.

        :raises SimulatorError: host or guest is not known.
        """
        self.guests(parsed_args).vanish(parsed_args.instance)


def _state(guest: SimulatedGuest) -> str:
    if guest.running:
        return "running"
    return "crashed" if guest.crashed else "off"
