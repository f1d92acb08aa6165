"""The stand-in for nvme-cli."""

import errno
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from autoclave.exceptions import SimulatorError
from autoclave.simulator import mishaps
from autoclave.simulator.device_nodes import DeviceNode, find_node
from autoclave.simulator.faults import FaultKind
from autoclave.simulator.nvme_commands import COMMANDS, Call, Refused
from autoclave.simulator.nvme_dialect import Answer, Dialect
from autoclave.simulator.nvme_options import Options, UsageError, parse
from autoclave.simulator.nvme_status import CommandFailed
from autoclave.simulator.slots import DriveSlots

_GARBAGE = Answer(out='{\n  "nvme0":{\n    "sprog":\x00')
_LOOK_AGAIN = 0.05


def main(root: str, argv: Sequence[str]) -> int:
    """Run one nvme command on the simulated host in *root*, and return its exit code."""
    host = DriveSlots.open(Path(root))
    answer = NvmeTool(host).run(argv)
    sys.stdout.write(answer.out)
    sys.stderr.write(answer.err)
    return answer.code


class NvmeTool:
    """The command ``nvme`` of one simulated host."""

    def __init__(self, host: DriveSlots) -> None:
        self._host = host
        self._dialect = Dialect(host.inventory.style)

    def run(self, argv: Sequence[str]) -> Answer:
        """The answer to one command line, with the faults of the drive it names."""
        command = argv[0] if argv else "help"
        if command == "version":
            mishaps.delay(self._host, [])
            garbage = FaultKind.NVME_GARBAGE in self._host.faults.active([])
            return _GARBAGE if garbage else Answer(out=self._dialect.version_text)
        if command not in COMMANDS:
            return Answer(err=f"ERROR: Invalid sub-command '{command}' for nvme\n", code=1)
        try:
            options = parse(self._dialect, command, argv[1:])
            answer = self._on_device(command, options)
        except UsageError as error:
            text = f"{error}\n"
            if not str(error).startswith("Expected "):
                text += self._dialect.usage(command)
            answer = Answer(err=text, code=self._dialect.usage_error_code)
        return replace(answer, err=self._dialect.warning(command) + answer.err)

    def _on_device(self, command: str, options: Options) -> Answer:
        if not options.arguments:
            raise UsageError(f"{command}: device path not specified")
        path = options.arguments[0]
        node = find_node(self._host, path)
        if node is None:
            return self._no_device(command, path, options)
        mishaps.delay(self._host, [node.slot.address])
        faults = self._host.faults.active([node.slot.address])
        if FaultKind.NVME_GARBAGE in faults:
            return _GARBAGE
        if FaultKind.NVME_BUSY in faults:
            error = Refused(f"{path}: {os.strerror(errno.EAGAIN)}", errno.EAGAIN)
            as_json = self._dialect.errors_as_json(as_json=options.as_json)
            return self._dialect.refused(str(error), as_json=as_json, code=self._dialect.error_code(error.errno))
        as_json = self._dialect.errors_as_json(as_json=options.as_json) or FaultKind.NVME_JSON_ERRORS in faults
        try:
            answer = self._execute(command, node, options)
        except CommandFailed as error:
            answer = self._dialect.failed(command, error, as_json=as_json)
        except Refused as error:
            answer = self._dialect.refused(str(error), as_json=as_json, code=self._dialect.error_code(error.errno))
        except SimulatorError:  # pulled since we looked
            answer = self._no_device(command, path, options)
        if FaultKind.NVME_EXITS_ZERO in faults:
            answer = replace(answer, code=0)
        return answer

    def _execute(self, command: str, node: DeviceNode, options: Options) -> Answer:
        address = node.slot.address
        if command == "format":
            mishaps.hang_format(self._host, address, (options.number("timeout") or 0) / 1000)
        with self._host.drive(address) as drive:
            if mishaps.vanish(self._host, address, drive.progress):
                raise SimulatorError(f"{address}: the drive has vanished")
            answer = COMMANDS[command](Call(self._host, self._dialect, node, drive, options))
        if command == "sanitize" and "wait" in options:
            self._wait_for_sanitize(address)
            answer = replace(answer, out="Waiting for sanitize completion...\n")
        return answer

    def _wait_for_sanitize(self, address: str) -> None:
        while True:
            with self._host.drive(address) as drive:
                if drive.progress is None:
                    return
            time.sleep(_LOOK_AGAIN)

    def _no_device(self, command: str, path: str, options: Options) -> Answer:
        message = f"{path}: {os.strerror(errno.ENOENT)}"
        as_json = self._dialect.errors_as_json(as_json=options.as_json)
        answer = self._dialect.refused(message, as_json=as_json, code=self._dialect.error_code(errno.EINVAL))
        return replace(answer, err=answer.err + self._dialect.usage(command))
