"""The ``autoclave`` command."""

import logging as python_logging
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from typing import Any, TextIO

from cliff.app import App
from cliff.commandmanager import CommandManager

from autoclave.rules.plain_text import printable

COMMANDS = {
    "up": "serve:Up",
    "api": "serve:RunAPI",
    "conductor": "serve:RunConductor",
    "agent": "serve:RunAgent",
    "db sync": "db:DbSync",
    "db version": "db:DbVersion",
    "upgrade check": "upgrade:UpgradeCheck",
    "db online-data-migrations": "db:DbOnlineDataMigrations",
    "audit": "audit:Audit",
    "plan": "plan:Plan",
    "plan show": "plan:PlanShow",
    "explain": "explain:Explain",
    "check device-spec": "check:CheckDeviceSpec",
    "check passthrough-whitelist": "check:CheckPassthroughWhitelist",
    "check pci-device-spec": "check_pci:CheckPCIDeviceSpec",
    "check pci-alias": "check_pci:CheckPCIAlias",
    "check provider-config": "check_provider_config:CheckProviderConfig",
    "host list": "host:HostList",
    "host show": "host:HostShow",
    "host maintenance": "host:HostMaintenance",
    "host resume": "host:HostResume",
    "host rename": "host_rename:HostRename",
    "device list": "device:DeviceList",
    "device show": "device:DeviceShow",
    "device hold": "device:DeviceHold",
    "device release": "device:DeviceRelease",
    "device accept": "device:DeviceAccept",
    "device forget": "device:DeviceForget",
    "device take-back": "device:DeviceTakeBack",
    "device clean": "device:DeviceClean",
    "device history": "device:DeviceHistory",
    "burned list": "burned:BurnedList",
    "burned show": "burned:BurnedShow",
    "burned history": "burned:BurnedHistory",
    "burned release": "burned:BurnedRelease",
    "function list": "function_list:FunctionList",
    "function take-back": "function:FunctionTakeBack",
    "sim list": "sim:SimHosts",
    "sim fault": "sim:SimFault",
    "sim clear": "sim:SimClear",
    "sim pull": "sim:SimPull",
    "sim put-back": "sim:SimPutBack",
    "sim insert": "sim:SimInsert",
    "sim plug": "sim:SimPlug",
    "sim driver": "sim:SimDriver",
    "sim write": "sim:SimWrite",
    "sim read": "sim:SimRead",
    "sim find": "sim:SimFind",
    "sim bind": "sim_bind:SimBind",
    "sim guest start": "sim:SimGuestStart",
    "sim guest stop": "sim:SimGuestStop",
    "sim guest list": "sim_guests:SimGuestList",
    "sim guest xml": "sim_guests:SimGuestXml",
    "sim guest die": "sim_guests:SimGuestDie",
    "sim guest vanish": "sim_guests:SimGuestVanish",
}
"""Every command, by module and class below ``autoclave.cli``. A module is imported when its command is run: the
services are large, and most commands need nothing of them. Named here rather than by entry point: what is listed
is what there is."""


class Printable:
    """A text stream that shows control characters instead of sending them to a terminal.

    Names, serial numbers and reasons come from users, guests, drives and tools.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write *text*; line ends and tabs stay as they are."""
        self._stream.write(printable(text, keep="\n\t"))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each of *lines*."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Autoclave(App):  # type: ignore[misc]  # cliff comes without types
    """The application. cliff shows a command's error as one line, and its traceback only with --debug."""

    CONSOLE_MESSAGE_FORMAT = "%(levelname)s %(name)s: %(message)s"

    def __init__(self) -> None:
        commands = CommandManager(None)
        for name, where in COMMANDS.items():
            commands.commands[name] = metadata.EntryPoint(name, f"autoclave.cli.{where}", "autoclave.cli")
        super().__init__(
            description="Manages the life of the PCI devices that hosts pass through to virtual machines.",
            version=metadata.version("autoclave"),
            command_manager=commands,
            stdout=Printable(sys.stdout),
            stderr=Printable(sys.stderr),
            deferred_help=True,
        )

    def configure_logging(self) -> None:
        """Warnings and worse of everybody, and what Autoclave itself says, to stderr."""
        super().configure_logging()
        for name in ("alembic", "oslo_service"):  # each tells how it was made
            python_logging.getLogger(name).setLevel(python_logging.WARNING)
        # It warns of every message that a service, which stops, does not wait for.
        python_logging.getLogger("amqp").setLevel(python_logging.ERROR)
        if not self.options.debug:  # a traceback of what is raised as well, and told in one line
            python_logging.getLogger("oslo_db.sqlalchemy.exc_filters").setLevel(python_logging.CRITICAL)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the ``autoclave`` command; returns the exit code."""
    root = python_logging.getLogger()
    before = list(root.handlers)
    try:
        return int(Autoclave().run(list(sys.argv[1:] if argv is None else argv)) or 0)
    finally:
        # cliff leaves them behind, and with them the stderr of this call, which its caller may close
        for handler in [each for each in root.handlers if each not in before]:
            root.removeHandler(handler)
