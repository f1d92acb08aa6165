"""Run the ``autoclave`` command, and share how its commands print tables, values and durations.

A value has a raw form for programs and a readable form for tables.
"""

import argparse
import logging as python_logging
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from typing import Any, TextIO

from cliff import lister, show
from cliff.app import App
from cliff.columns import FormattableColumn
from cliff.commandmanager import CommandManager

from autoclave.exceptions import AutoclaveError
from autoclave.rules.plain_text import printable

COMMANDS = {
    "up": "serve:Up",
    "api": "serve:RunAPI",
    "conductor": "serve:RunConductor",
    "agent": "serve:RunAgent",
    "db sync": "db:DbSync",
    "db version": "db:DbVersion",
    "upgrade check": "db:UpgradeCheck",
    "db online-data-migrations": "db:DbOnlineDataMigrations",
    "audit": "audit:Audit",
    "plan": "plan:Plan",
    "plan show": "plan:PlanShow",
    "explain": "explain:Explain",
    "check device-spec": "check:CheckDeviceSpec",
    "check passthrough-whitelist": "check:CheckPassthroughWhitelist",
    "check pci-device-spec": "check:CheckPCIDeviceSpec",
    "check pci-alias": "check:CheckPCIAlias",
    "check provider-config": "check:CheckProviderConfig",
    "host list": "host:HostList",
    "host show": "host:HostShow",
    "host maintenance": "host:HostMaintenance",
    "host resume": "host:HostResume",
    "host rename": "host:HostRename",
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
    "function list": "function:FunctionList",
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
    "sim bind": "sim:SimBind",
    "sim guest start": "sim:SimGuestStart",
    "sim guest stop": "sim:SimGuestStop",
    "sim guest list": "sim:SimGuestList",
    "sim guest xml": "sim:SimGuestXml",
    "sim guest die": "sim:SimGuestDie",
    "sim guest vanish": "sim:SimGuestVanish",
}
"""Map every command to its module and class below ``autoclave.cli``.

A module is imported when its command runs, because the services are large. Entry points are not used: this list is
complete.
"""


class Printable:
    """Print control characters visibly instead of sending them to a terminal.

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
    """Run a command. cliff prints an error as one line, and its traceback only with --debug."""

    CONSOLE_MESSAGE_FORMAT = "%(levelname)s %(name)s: %(message)s"

    def __init__(self) -> None:
        commands = CommandManager(None)
        for name, where in COMMANDS.items():
            commands.commands[name] = metadata.EntryPoint(name, f"autoclave.cli.{where}", "autoclave.cli")
        super().__init__(
            description="Manage the life cycle of PCI devices that hosts pass through to virtual machines.",
            version=metadata.version("autoclave"),
            command_manager=commands,
            stdout=Printable(sys.stdout),
            stderr=Printable(sys.stderr),
            deferred_help=True,
        )

    def configure_logging(self) -> None:
        """Log warnings of all libraries, and Autoclave's own messages, to stderr."""
        super().configure_logging()
        for name in ("alembic", "oslo_service"):  # both log their own setup
            python_logging.getLogger(name).setLevel(python_logging.WARNING)
        # It warns of every message that a stopping service does not wait for.
        python_logging.getLogger("amqp").setLevel(python_logging.ERROR)
        if not self.options.debug:  # it logs a traceback of an error that is raised and printed in one line
            python_logging.getLogger("oslo_db.sqlalchemy.exc_filters").setLevel(python_logging.CRITICAL)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ``autoclave`` command, and return the exit code."""
    root = python_logging.getLogger()
    before = list(root.handlers)
    try:
        return int(Autoclave().run(list(sys.argv[1:] if argv is None else argv)) or 0)
    finally:
        # cliff keeps its handlers, and with them the stderr of this call, which the caller may close
        for handler in [each for each in root.handlers if each not in before]:
            root.removeHandler(handler)


class Cell(FormattableColumn):  # type: ignore[misc]  # cliff comes without types
    """Hold a value with a readable form for tables.

    :param shown: the readable form; None is printed as nothing.
    :param width: characters of a line; None does not break it.
    """

    def __init__(self, value: Any, shown: Callable[[Any], str] = str, width: int | None = None) -> None:
        super().__init__(value)
        self._shown = shown
        self._width = width

    def human_readable(self) -> str:
        text = "" if self._value is None else printable(self._shown(self._value), keep="\n")
        return text if self._width is None else textwrap.fill(text, self._width)

    def __lt__(self, other: Any) -> bool:
        """Sort empty values last, numbers by value, and the rest by text: cliff sorts a column by its cells."""
        if not isinstance(other, Cell):
            return NotImplemented
        return self._sort_key() < other._sort_key()

    def _sort_key(self) -> tuple[int, float, str]:
        value = self._value
        if value is None or value == "":
            return 2, 0.0, ""
        if isinstance(value, bool | int | float):
            return 0, float(value), ""
        return 1, 0.0, self._shown(value)

    def machine_readable(self) -> Any:
        return self._value


def in_words(seconds: float) -> str:
    """Format a duration, such as ``45 s``, ``12 min`` or ``3 h 20 min``: no finer than an estimate can be."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


class Rows(lister.Lister):  # type: ignore[misc]  # cliff comes without types
    """Print a row for each of several objects. Rows can be sorted by every column."""

    nothing: str | None = None
    """Replace an empty table by this text on stderr; None: print the table."""

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Iterable[Any]) -> int:
        """Print the rows.

        :raises AutoclaveError: ``--column`` or ``--sort-column`` names an unknown column.
        """
        _refuse_unknown("--column", parsed_args.columns, column_names)
        _refuse_unknown("--sort-column", parsed_args.sort_columns, column_names)
        # Cells can be compared where plain values cannot: text with None.
        cells = [tuple(each if isinstance(each, FormattableColumn) else Cell(each) for each in row) for row in data]
        if not cells and self.nothing is not None and parsed_args.formatter == "table":
            self.app.stderr.write(f"{self.nothing}\n")
            return 0
        status: int = super().produce_output(parsed_args, column_names, cells)
        return status


class Fields(show.ShowOne):  # type: ignore[misc]
    """Print the fields of one object."""

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Iterable[str], data: Any) -> int:
        """Print the fields.

        :raises AutoclaveError: ``--column`` names an unknown field.
        """
        names = tuple(column_names)
        _refuse_unknown("--column", parsed_args.columns, names)
        status: int = super().produce_output(parsed_args, names, data)
        return status


def with_details(
    parsed_args: argparse.Namespace, columns: tuple[str, ...], details: tuple[str, ...]
) -> tuple[str, ...]:
    """Return *columns*, and *details* if ``--long`` is given or one of their columns is named."""
    named = {_normal(name) for name in (*parsed_args.columns, *parsed_args.sort_columns)}
    return columns + details if parsed_args.long or not named.isdisjoint(details) else columns


def _refuse_unknown(option: str, asked: Sequence[str], columns: Sequence[str]) -> None:
    known = {_normal(column) for column in columns}
    for name in asked:
        if _normal(name) not in known:
            raise AutoclaveError(f"{option} {name}: no such column. Available columns: {', '.join(columns)}.")


def _normal(name: str) -> str:
    """Normalize a column name as cliff compares it."""
    return name.lower().strip().replace(" ", "_")
