"""Access PCI functions with privileges: write their attributes, and run the operator's programs for them.

Both happen only while nothing uses the function. A helper verifies this itself, right before.
"""

import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from autoclave.exceptions import DeviceInUse, HardwareError, ToolMissing, ToolTimeout
from autoclave.hardware import sysfs
from autoclave.hardware.block import programs_with_open
from autoclave.hardware.command import Commands
from autoclave.hardware.host import Completed, Deadline, HostPaths, Line, ToolSink
from autoclave.hardware.sysfs import BRIDGE_CLASS, STORAGE_CLASS, PCIFunction, function_directory, vfio_nodes
from autoclave.hardware.usage import host_uses
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.reclaim import program_fault

_VIRTUAL = re.compile(r"virtfn[0-9]+")


def function_users(paths: HostPaths, function: PCIFunction) -> list[str]:
    """Return what uses the function now, one line each: this host, a guest through VFIO, or its virtual functions.

    :raises DeviceVanished: it was removed.
    :raises HardwareError: one of the sources cannot be read.
    """
    entries = sysfs.entries(function_directory(paths, function.address))
    virtual = sum(1 for entry in entries if _VIRTUAL.fullmatch(entry.name))
    opened = programs_with_open(paths, vfio_nodes(paths, function.address))
    return [
        *host_uses(paths, function),
        *(f"{file.node} is open by {file}" for file in opened),
        *([f"it has {virtual} virtual functions"] if virtual else []),
    ]


def require_free(paths: HostPaths, address: PCIAddress) -> PCIFunction:
    """Return the function at an address after verifying that nothing uses it.

    :raises SlotEmpty: there is none.
    :raises DeviceInUse: it is used.
    :raises HardwareError: it cannot be read.
    """
    function = sysfs.pci_function(paths, address)
    users = function_users(paths, function)
    if users:
        raise DeviceInUse(f"{address} is in use: {'; '.join(users)}; it was not touched", users)
    return function


def write_attribute(paths: HostPaths, address: PCIAddress, name: str, text: str) -> None:
    """Write a sysfs attribute of a function that nothing uses. Storage controllers and bridges are refused.

    :raises DeviceInUse: the function is used.
    :raises HardwareError: it is refused, or the kernel reports an error.
    """
    if paths.helper is not None:
        paths.helper.write_attribute(address, name, text)
        return
    function = require_free(paths, address)
    if function.class_code.startswith((STORAGE_CLASS, BRIDGE_CLASS)):
        raise HardwareError(f"{address} has the PCI class {function.class_code}: {name} is not written")
    path = function_directory(paths, address) / name
    try:
        if paths.write_attribute is not None:
            paths.write_attribute(path, text)
            return
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise HardwareError(f"cannot write {text!r} to {path}: {error.strerror}") from error


def check_program(paths: HostPaths, path: str) -> None:
    """Verify that a program of the operator may be run as root.

    :param path: as configured; on a simulated host, it is below the host's ``etc``.
    :raises ToolMissing: it does not exist, or a user other than root can change or replace it.
    """
    if paths.helper is not None:
        paths.helper.check_program(path)
    else:
        os.close(_open_program(paths, path))


def _open_program(paths: HostPaths, path: str) -> int:
    """Open a program without following links; return its descriptor.

    :raises ToolMissing: see :func:`check_program`.
    """
    root, owner = Path("/"), 0
    steps = PurePosixPath(path).parts[1:]
    if paths.etc != HostPaths.etc:
        # A simulated host belongs to the user who runs it.
        root, steps = paths.etc, steps[1:]
        owner = os.stat(root).st_uid
    here = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    walked = root
    try:
        _require_owned(os.fstat(here), walked, owner, path)
        for step in steps[:-1]:
            walked /= step
            below = os.open(step, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = below
            _require_owned(os.fstat(here), walked, owner, path)
        walked /= steps[-1]
        # Without O_NONBLOCK, the open of a named pipe would wait.
        program = os.open(steps[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
    except OSError as error:
        is_link = os.path.islink(walked)
        reason = "it is a symbolic link" if is_link else error.strerror
        raise ToolMissing(f"{path} cannot be run: {walked}: {reason}", [path]) from error
    finally:
        os.close(here)
    try:
        found = os.fstat(program)
        _require_owned(found, walked, owner, path)
        if not stat.S_ISREG(found.st_mode):
            raise ToolMissing(f"{path} cannot be run: it is not a regular file", [path])
        if not found.st_mode & 0o111:
            raise ToolMissing(f"{path} cannot be run: it is not executable", [path])
    except BaseException:
        os.close(program)
        raise
    return program


def _require_owned(found: os.stat_result, walked: Path, owner: int, path: str) -> None:
    if found.st_uid != owner or found.st_mode & 0o022:
        raise ToolMissing(
            f"{path} is not run: a user other than root can change {walked}; it must belong to root and not be "
            "writable for its group or for others",
            [path],
        )


class OperatorPrograms:
    """Run programs of the operator for one device.

    :param commands: runs them, on its host.
    :param address: the function of the device.
    """

    def __init__(self, commands: Commands, address: PCIAddress, device_uuid: str) -> None:
        self._commands = commands
        self._address = address
        self._device_uuid = device_uuid

    def run(
        self,
        argv: Sequence[str],
        *,
        deadline: Deadline,
        tools: ToolSink | None = None,
        on_line: Line | None = None,
    ) -> Completed:
        """Run *argv* while nothing uses the function, and return its result, whatever its exit code.

        The program gets no shell, no input, an own environment, ``/`` as its working directory, and its own process
        group. Only lines of its standard output are passed on. The file that is executed is the one that was verified.

        :raises DeviceInUse: the function is used.
        :raises HardwareError: see :meth:`Commands.run` for the kinds.
        """
        paths = self._commands.paths
        if paths.helper is not None:
            return paths.helper.run_program(
                argv, self._address, self._device_uuid, deadline=deadline, tools=tools, on_line=on_line
            )
        fault = program_fault(argv)
        if fault is not None:
            raise HardwareError(f"the command {list(argv)} is not run: it {fault}")
        program = _open_program(paths, argv[0])
        try:
            function = require_free(paths, self._address)
            if deadline.passed:
                raise ToolTimeout(f"{argv[0]} was not started: no time was left", argv)
            return self._commands.execute(
                argv,
                self._environment(function, deadline),
                deadline=deadline,
                tools=tools,
                on_line=on_line,
                program=program,
                cwd=Path("/"),
                only_stdout=True,
            )
        finally:
            os.close(program)

    def _environment(self, function: PCIFunction, deadline: Deadline) -> Mapping[str, str]:
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "AUTOCLAVE_PCI_ADDRESS": str(self._address),
            "AUTOCLAVE_VENDOR_ID": function.vendor_id,
            "AUTOCLAVE_PRODUCT_ID": function.product_id,
            "AUTOCLAVE_DEVICE_UUID": self._device_uuid,
            "AUTOCLAVE_TIMEOUT": str(int(deadline.remaining())),
        }
