#!/usr/bin/env python3
"""Erase the NVMe drive at a PCI address by Sanitize, and end with 0 only if the drive says that it has.

A command for clean_burned_devices.py, and an example of one. Block erase is preferred to crypto erase; a drive that
can do neither is not erased. Needs nvme-cli 1.16 or later, Python 3.11 and root.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BLOCK_ERASE, CRYPTO_ERASE = 2, 4
"""The action of a Sanitize command (CDW10 bits 2:0)."""
CAN_CRYPTO, CAN_BLOCK = 1 << 0, 1 << 1
"""Bits of SANICAP."""
DONE, RUNNING, DONE_WITHOUT_DEALLOCATION = 1, 2, 4
"""Values of SSTAT."""


class NotErased(Exception):
    """Why not."""


class Drive:
    """A controller with its namespaces.

    :param sysfs: ``/sys``.
    :param dev: ``/dev``.
    :raises NotErased: there is none at *address*, or another driver than nvme has it.
    """

    def __init__(self, address: str, sysfs: Path, dev: Path) -> None:
        function = sysfs / "bus" / "pci" / "devices" / address
        if not function.exists():
            raise NotErased(f"{address}: this host has no such PCI function")
        controllers = sorted(function.glob("nvme/nvme*"))
        if len(controllers) != 1:
            driver = (function / "driver").resolve().name if (function / "driver").exists() else "no driver"
            raise NotErased(f"{address}: it is no NVMe controller, or not with the nvme driver ({driver} has it)")
        self.node = dev / controllers[0].name
        # Under native multipath, the namespace of the subsystem has the device node, and the path to it has none.
        names = {re.sub(r"c\d+n", "n", found.name) for found in controllers[0].glob("nvme*n*")}
        self._namespaces = [dev / name for name in sorted(names)]

    def refuse_if_in_use(self) -> None:
        """See to it that nothing on this host uses the drive: it may be another one than the guest had.

        :raises NotErased: something does.
        """
        for namespace in self._namespaces:
            try:
                # Of a block device, this is refused while it or a partition is mounted, swap, or of LVM or RAID.
                os.close(os.open(namespace, os.O_RDONLY | os.O_EXCL))
            except OSError as error:
                raise NotErased(f"{namespace} is in use on this host: {error.strerror}") from error

    def action(self) -> int:
        """The best erase that the drive can do.

        :raises NotErased: it can do none.
        """
        capabilities = int(self._json("id-ctrl")["sanicap"])
        if capabilities & CAN_BLOCK:
            return BLOCK_ERASE
        if capabilities & CAN_CRYPTO:
            return CRYPTO_ERASE
        raise NotErased(f"{self.node} supports neither block erase nor crypto erase")

    def status(self) -> tuple[int, int, str]:
        """The sanitize log: SSTAT, the action of the operation that it is of, and the same in words."""
        [log] = self._json("sanitize-log").values()  # the key is the device's name
        words = str(log["sstat"]["status"])
        number = re.match(r"\((\d+)\)", words)
        if number is None:
            raise NotErased(f"the sanitize log of {self.node} cannot be understood: {words!r}")
        return int(number[1]), int(log["cdw10_info"]) & 0b111, words

    def sanitize(self, action: int) -> str:
        """Start it; what the tool says, which is nothing if all is well."""
        return _nvme("sanitize", str(self.node), f"--sanact={action}")

    def _json(self, command: str) -> dict[str, Any]:
        said = _nvme(command, str(self.node), "-o", "json", stdout_only=True)
        try:
            answer = json.loads(said)
        except ValueError as error:
            raise NotErased(f"nvme {command} {self.node} printed what is no JSON: {error}") from None
        if not isinstance(answer, dict):
            raise NotErased(f"nvme {command} {self.node} printed no JSON object")
        return answer


def _nvme(*argv: str, stdout_only: bool = False) -> str:
    done = subprocess.run(["nvme", *argv], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise NotErased(f"nvme {' '.join(argv)} ended with {done.returncode}: {said}")
    return done.stdout if stdout_only else done.stdout + done.stderr


def erase(drive: Drive, poll: float) -> None:
    """Erase it, and wait until it is done. An operation that runs already is waited for, and does not count.

    Neither does one that has ended before: the log must have shown ours running, or the tool must have had nothing to
    say when it was started, since a drive that begins an operation rewrites its log.

    :raises NotErased: it is not.
    """
    drive.refuse_if_in_use()
    action = drive.action()
    while drive.status()[0] == RUNNING:
        time.sleep(poll)
    said = drive.sanitize(action)
    status, of_action, words = drive.status()
    if status != RUNNING:  # it may have been that quick, or the log be late
        time.sleep(poll)
        status, of_action, words = drive.status()
    seen_running = status == RUNNING
    while status == RUNNING:
        time.sleep(poll)
        status, of_action, words = drive.status()
    if said and not seen_running:
        raise NotErased(f"{drive.node}: no sanitize was seen running, and nvme said: {' '.join(said.split())}")
    if status not in (DONE, DONE_WITHOUT_DEALLOCATION) or of_action != action:
        raise NotErased(f"{drive.node}: the drive says of its last sanitize (action {of_action}): {words}")


def main(argv: Sequence[str]) -> int:
    """Run with these arguments; the exit code."""
    parser = argparse.ArgumentParser(description="Erase the NVMe drive at a PCI address by Sanitize.")
    parser.add_argument("--sysfs", type=Path, default=Path("/sys"), help="of a simulated host")
    parser.add_argument("--dev", type=Path, default=Path("/dev"), help="of a simulated host")
    parser.add_argument("--poll", type=float, default=2.0, metavar="SECONDS", help="between two looks (default: 2)")
    parser.add_argument("address")
    parser.add_argument("provider", nargs="?", help="the resource provider's uuid; not needed")
    args = parser.parse_args(argv)
    try:
        erase(Drive(args.address, args.sysfs, args.dev), args.poll)
    except (NotErased, OSError, ValueError, LookupError, TypeError) as error:
        print(f"erase_nvme: {args.address} is not erased: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
