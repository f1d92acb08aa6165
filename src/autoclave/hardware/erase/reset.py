"""Reset a PCI function through sysfs. A reset proves nothing about the memory of the device.

So it is never an erase for users, no policy selects it by default, and storage controllers are refused.
"""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from autoclave.exceptions import EraseFailed
from autoclave.hardware import sysfs
from autoclave.hardware.erase.function_work import FunctionWork
from autoclave.hardware.function_access import write_attribute
from autoclave.hardware.host import HostPaths
from autoclave.hardware.sysfs import STORAGE_CLASS, PCIFunction, function_directory
from autoclave.rules.reclaim import RESET

_NO_ANSWER = b"\xff\xff"
"""The vendor id that reads return if no device answers."""


class ResetMethod:
    """Reset the function, by the first way that works of those that ``reset_method`` enables."""

    action: ClassVar[str] = RESET
    attributes: ClassVar[Mapping[str, str]] = {"reset": "1"}

    def lack(self, paths: HostPaths, function: PCIFunction, command: Sequence[str]) -> str | None:  # noqa: ARG002
        """Implement :meth:`FunctionMethod.lack`."""
        if function.class_code.startswith(STORAGE_CLASS):
            return "it is a storage controller, and a reset leaves all data on it"
        directory = function_directory(paths, function.address)
        if not sysfs.is_there(directory / "reset"):
            return f"{directory / 'reset'} does not exist: the kernel knows no way to reset it"
        if self._ways(paths, function) == []:
            return f"{directory / 'reset_method'} is empty: no way to reset it is enabled"
        return None

    def run(self, work: FunctionWork) -> Mapping[str, Any]:
        """Implement :meth:`FunctionMethod.run`."""
        lack = self.lack(work.paths, work.function, work.command)
        if lack is not None:
            raise EraseFailed(f"{work.name} was not reset: {lack}")
        ways = self._ways(work.paths, work.function)
        began = time.monotonic()
        with work.meter("reset"):
            write_attribute(work.paths, work.function.address, "reset", "1")
        seconds = time.monotonic() - began
        self._must_answer(work)
        return {
            "method": "reset",
            "reset_method": ways,
            "seconds": round(seconds, 3),
            "verified": "nothing: a reset does not prove that the memory of the device is empty",
        }

    @staticmethod
    def _ways(paths: HostPaths, function: PCIFunction) -> list[str] | None:
        """Return the enabled ways, in the order in which the kernel tries them; None before Linux 5.15."""
        text = sysfs.read_if_there(function_directory(paths, function.address) / "reset_method")
        return None if text is None else text.split()

    @staticmethod
    def _must_answer(work: FunctionWork) -> None:
        path = function_directory(work.paths, work.function.address) / "config"
        try:
            with open(path, "rb", buffering=0) as config:
                vendor = os.pread(config.fileno(), len(_NO_ANSWER), 0)
        except OSError as error:
            raise EraseFailed(f"{work.name}: cannot read {path} after the reset: {error.strerror}") from error
        if vendor == _NO_ANSWER:
            raise EraseFailed(f"{work.name} does not answer after the reset; restart the host, or replace the device")
