"""Start the privileged helper once, and send it the agent's requests."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec, TypeVar

from oslo_config import cfg
from oslo_privsep import daemon

from autoclave.conf.agent import PRIVILEGED
from autoclave.exceptions import HardwareError, InvalidConfiguration, ToolTimeout
from autoclave.hardware.host import Completed, Deadline, Disk, Line, OpenFile, ToolSink
from autoclave.hardware.privileged import context, server
from autoclave.hardware.privileged import server as _tools
from autoclave.rules.pci_address import PCIAddress

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

START_TIMEOUT = 30.0
"""Seconds within which the helper must start: a command that asks for a password would wait forever."""

_starting = threading.Lock()


def start(helper_command: str) -> "PrivsepHelper":
    """Start the helper of this process by *helper_command*, unless it runs already.

    :raises InvalidConfiguration: the command does not start it.
    """
    with _starting:
        if context.channel is None:
            # oslo.privsep supports only the global configuration.
            cfg.CONF.set_override("helper_command", helper_command, group=PRIVILEGED)
            _start(helper_command)
    return PrivsepHelper()


def _start(helper_command: str) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            context.start()
        except BaseException as error:  # raised again in the thread of the caller
            failures.append(error)

    # Use a thread, because oslo.privsep waits without a limit for a helper that never connects.
    thread = threading.Thread(target=run, name="privsep-start", daemon=True)
    thread.start()
    thread.join(START_TIMEOUT)
    if context.channel is None:
        error = failures[0] if failures else f"it did not connect within {START_TIMEOUT:g} s"
        raise InvalidConfiguration(
            f"the privileged helper cannot be started by {helper_command!r} ({error}); it must run "
            "autoclave-privileged of this installation as root, without asking for a password",
            option=f"[{PRIVILEGED}] helper_command",
        ) from (failures[0] if failures else None)


def _ask(request: Callable[_Parameters, _Result], *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
    """Execute *request* in the helper.

    :raises HardwareError: the request raised it, or the helper has ended or cannot be restarted.
    """
    try:
        return request(*args, **kwargs)
    except (OSError, daemon.FailedToDropPrivileges, daemon.ProtocolError) as error:
        raise HardwareError(f"the privileged helper has ended unexpectedly ({error}), and its tools with it") from error


class PrivsepHelper:
    """Implement :class:`Helper` for an agent without privileges."""

    def find(self, name: str, directories: Sequence[Path]) -> str:
        """Implement :meth:`Helper.find`."""
        return _ask(_tools.find, name, [str(directory) for directory in directories])

    def run(
        self,
        argv: Sequence[str],
        directories: Sequence[Path],
        *,
        deadline: Deadline,
        tools: ToolSink | None,
        on_line: Line | None,
    ) -> Completed:
        """Implement :meth:`Helper.run`."""
        if deadline.passed:
            raise ToolTimeout(f"{argv[0]} was not started: no time was left", argv)
        searched = [str(directory) for directory in directories]
        started = _ask(_tools.start, list(argv), searched, deadline.remaining(), on_line is not None)
        return self._follow(started, tools, on_line)

    def run_program(
        self,
        argv: Sequence[str],
        address: PCIAddress,
        device_uuid: str,
        *,
        deadline: Deadline,
        tools: ToolSink | None,
        on_line: Line | None,
    ) -> Completed:
        """Implement :meth:`Helper.run_program`."""
        if deadline.passed:
            raise ToolTimeout(f"{argv[0]} was not started: no time was left", argv)
        listened = on_line is not None
        started = _ask(_tools.start_program, list(argv), str(address), device_uuid, deadline.remaining(), listened)
        return self._follow(started, tools, on_line)

    @staticmethod
    def _follow(started: tuple[str, int, tuple[str, ...]], tools: ToolSink | None, on_line: Line | None) -> Completed:
        token, pid, command = started
        try:
            if tools is not None:
                tools.started(pid, command)
            over = False
            while not over:
                lines, over = _ask(_tools.follow, token)
                for line in lines:
                    if on_line is not None:
                        on_line(line)
            return Completed(*_ask(_tools.result, token))
        finally:
            if _ask(_tools.end, token) and tools is not None:
                tools.ended(pid)

    def open_block(self, path: Path, *, writable: bool) -> Disk:
        """Implement :meth:`Helper.open_block`."""
        return _HeldDisk(path, *_ask(server.hold_disk, str(path), writable))

    def programs_with_open(self, nodes: Sequence[Path]) -> list[OpenFile]:
        """Implement :meth:`Helper.programs_with_open`."""
        found = _ask(server.programs_with_open, [str(node) for node in nodes])
        return [OpenFile(Path(node), pid, program, writes) for node, pid, program, writes in found]

    def has_zfs_label(self, node: Path) -> bool:
        """Implement :meth:`Helper.has_zfs_label`."""
        return _ask(server.has_zfs_label, str(node))

    def card_serial(self, address: PCIAddress, *, vital_product_data: bool) -> str | None:
        """Implement :meth:`Helper.card_serial`."""
        return _ask(server.card_serial, str(address), vital_product_data)

    def product_uuid(self) -> str | None:
        """Implement :meth:`Helper.product_uuid`."""
        return _ask(server.product_uuid)

    def write_attribute(self, address: PCIAddress, name: str, text: str) -> None:
        """Implement :meth:`Helper.write_attribute`."""
        _ask(server.write_attribute, str(address), name, text)

    def check_program(self, path: str) -> None:
        """Implement :meth:`Helper.check_program`."""
        _ask(server.check_program, path)


class _HeldDisk:
    """Represent a :class:`Disk` that the helper holds."""

    def __init__(self, path: Path, token: str, size: int) -> None:
        self._path = path
        self._token = token
        self._size = size

    @property
    def path(self) -> Path:
        return self._path

    @property
    def size(self) -> int:
        return self._size

    def nonzero_in(self, offset: int, length: int) -> int | None:
        return _ask(server.nonzero_in, self._token, offset, length)

    def zero(self, offset: int, length: int) -> None:
        _ask(server.zero, self._token, offset, length)

    def write_marker(self, offset: int, seed: bytes) -> None:
        _ask(server.write_marker, self._token, offset, seed)

    def has_marker(self, offset: int, seed: bytes) -> bool:
        return _ask(server.has_marker, self._token, offset, seed)

    def flush(self) -> None:
        _ask(server.flush, self._token)

    def close(self) -> None:
        _ask(server.let_go, self._token)
