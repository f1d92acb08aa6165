"""Simulate guests: none runs, but each takes its PCI functions from the host as in libvirt."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from autoclave.exceptions import DeviceVanished, SimulatorError
from autoclave.hardware.sysfs import pci_function
from autoclave.rules.pci_address import PCIAddress
from autoclave.simulator import files
from autoclave.simulator.faults import FaultKind
from autoclave.simulator.host import SimulatedHost

_VFIO = "vfio-pci"
_LOOK_AGAIN = 0.05
_HANGS_FOR = 60.0


@dataclass(frozen=True)
class GuestFunction:
    """Describe a PCI function of a guest.

    :param managed: it is bound to vfio-pci for the guest, and then to the host's driver again. Otherwise it must
        already be bound to vfio-pci.
    """

    address: str
    managed: bool


@dataclass(frozen=True)
class SimulatedGuest:
    """Describe a guest.

    :param xml: the domain XML that libvirt would get.
    :param crashed: it is off because it crashed.
    """

    uuid: str
    xml: str
    functions: tuple[GuestFunction, ...]
    running: bool = False
    crashed: bool = False


class Guests:
    """Manage the guests of *host*, in its directory. Several processes may use them concurrently.

    Every method that takes a uuid raises :class:`~autoclave.exceptions.SimulatorError` for an unknown guest.
    """

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host
        self._file = host.root / "state" / "guests.json"
        self._lock = host.root / "state" / "guests.lock"

    def all(self) -> dict[str, SimulatedGuest]:
        """Return all guests by uuid, running or not."""
        try:
            return {fields["uuid"]: _guest(fields) for fields in files.read_json(self._file)}
        except FileNotFoundError:
            return {}

    def get(self, uuid: str) -> SimulatedGuest:
        """Return the guest."""
        return _known(self.all(), uuid)

    def define(self, uuid: str, xml: str, functions: tuple[GuestFunction, ...]) -> None:
        """Define a guest, or change its definition for the next start."""
        with self._change() as guests:
            before = guests.get(uuid)
            if before is not None and before.running:
                raise SimulatorError(f"guest {uuid} runs; end it first")
            guests[uuid] = SimulatedGuest(uuid, xml, functions)

    def start(self, uuid: str) -> None:
        """Run the guest with its functions; do nothing if it runs.

        :raises SimulatorError: a function is missing, another running guest has it, or it is unmanaged and not bound to
            vfio-pci.
        """
        with self._change() as guests:
            guest = _known(guests, uuid)
            if guest.running:
                return
            for function in guest.functions:
                self._require_free(function, guests)
            # Record first: a crash in between leaves a guest that counts as having all its functions.
            guests[uuid] = replace(guest, running=True, crashed=False)
            self._write(guests)
            for function in guest.functions:
                if self._driver(function.address) != _VFIO:
                    self._host.give_to_guest(function.address)

    def end(self, uuid: str, *, crashed: bool = False) -> None:
        """End the guest and return its managed functions to the host; do nothing if it is off.

        :param crashed: it ended by itself.
        :raises SimulatorError: the fault ``destroy-fails`` is active.
        """
        if not crashed and FaultKind.DESTROY_FAILS in self._host.faults.active([]):
            raise SimulatorError(f"guest {uuid} cannot be ended: fault {FaultKind.DESTROY_FAILS}")
        with self._change() as guests:
            guest = _known(guests, uuid)
            if guest.running:
                self._give_back(guest)
                guests[uuid] = replace(guest, running=False, crashed=crashed)

    def forget(self, uuid: str) -> None:
        """Remove the guest, which must be off; do nothing without such a guest."""
        with self._change() as guests:
            if uuid in guests and guests[uuid].running:
                raise SimulatorError(f"guest {uuid} runs; end it first")
            guests.pop(uuid, None)

    def vanish(self, uuid: str) -> None:
        """End the guest and remove it, as an operator with ``virsh`` would without the agent."""
        self.end(uuid, crashed=True)
        self.forget(uuid)

    def obey_spawn_faults(self) -> None:
        """Hang as long as a fault requires, and fail.

        :raises SimulatorError: a fault is active.
        """
        faults = self._host.faults
        begun = time.monotonic()
        while FaultKind.SPAWN_HANGS in (active := faults.active([])):
            if time.monotonic() - begun >= (active[FaultKind.SPAWN_HANGS] or _HANGS_FOR):
                raise SimulatorError(f"the guest does not start: fault {FaultKind.SPAWN_HANGS}")
            time.sleep(_LOOK_AGAIN)
        if FaultKind.SPAWN_FAILS in active:
            raise SimulatorError(f"the guest does not start: fault {FaultKind.SPAWN_FAILS}")

    def _require_free(self, function: GuestFunction, guests: dict[str, SimulatedGuest]) -> None:
        for other in guests.values():
            if other.running and function.address in (each.address for each in other.functions):
                raise SimulatorError(f"PCI device {function.address} is in use by guest {other.uuid}")
        if self._driver(function.address) != _VFIO and not function.managed:
            raise SimulatorError(f"unmanaged PCI device {function.address} is not bound to {_VFIO}")

    def _give_back(self, guest: SimulatedGuest) -> None:
        for function in guest.functions:
            try:
                given = function.managed and self._driver(function.address) == _VFIO
            except SimulatorError:
                continue  # it was pulled while the guest had it
            if given:
                self._host.give_back(function.address)

    def _driver(self, address: str) -> str | None:
        try:
            return pci_function(self._host.paths, PCIAddress.parse(address)).driver
        except DeviceVanished as error:
            raise SimulatorError(str(error)) from error

    @contextmanager
    def _change(self) -> Iterator[dict[str, SimulatedGuest]]:
        with files.locked(self._lock):
            guests = self.all()
            yield guests
            self._write(guests)

    def _write(self, guests: dict[str, SimulatedGuest]) -> None:
        files.write_json(self._file, [asdict(guest) for guest in guests.values()])


def _guest(fields: dict[str, Any]) -> SimulatedGuest:
    functions = tuple(GuestFunction(**each) for each in fields["functions"])
    return SimulatedGuest(**{**fields, "functions": functions})


def _known(guests: dict[str, SimulatedGuest], uuid: str) -> SimulatedGuest:
    try:
        return guests[uuid]
    except KeyError:
        raise SimulatorError(
            f"there is no guest {uuid} on this host; `autoclave sim guest list` shows where each is"
        ) from None
