"""Simulate functions that are not drives: graphics cards, network cards and their virtual functions."""

import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autoclave.exceptions import SimulatorError
from autoclave.rules.pci_address import PCIAddress, parse_pci_id
from autoclave.simulator import files
from autoclave.simulator.drive_spec import Inventory
from autoclave.simulator.sysfs import SysfsTree

_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)
"""Matches names of drivers and interfaces, which become names of directories."""


@dataclass(frozen=True)
class FunctionSpec:
    """Specify one PCI function without a medium.

    :param address: the full PCI address, such as ``0000:81:00.0``.
    :param vendor: PCI vendor id, four hexadecimal digits without ``0x``.
    :param product: PCI device id, four hexadecimal digits without ``0x``.
    :param class_code: six hexadecimal digits; a network card is ``020000``.
    :param driver: the host's driver for it, or None.
    :param interface: the network interface of its driver, which is up; or None.
    :param iommu: the host has an IOMMU.
    :param iommu_group: the number of its group; None for a group of its own.
    :param numa_node: -1 if the platform does not report it.
    :param physfn: for a virtual function, the address of its physical function.
    :param serial: its Device Serial Number, 16 hexadecimal digits, or None.
    :param reset_method: the ways in which the kernel can reset it; None if there is none.
    :raises SimulatorError: no function can have these values.
    """

    address: str
    vendor: str
    product: str
    class_code: str = "030200"
    driver: str | None = None
    interface: str | None = None
    iommu: bool = True
    iommu_group: int | None = None
    numa_node: int = -1
    physfn: str | None = None
    serial: str | None = None
    reset_method: str | None = "flr bus"

    def __post_init__(self) -> None:
        try:
            written = (str(PCIAddress.parse(self.address)), parse_pci_id(self.vendor), parse_pci_id(self.product))
        except ValueError as e:
            raise SimulatorError(f"function at {self.address!r}: {e}") from None
        for given, canonical in zip((self.address, self.vendor, self.product), written, strict=True):
            if given != canonical:
                raise SimulatorError(f"function at {self.address}: write {canonical!r} instead of {given!r}")
        if re.fullmatch(r"[0-9a-f]{6}", self.class_code) is None:
            raise SimulatorError(f"function at {self.address}: a PCI class is six digits, not {self.class_code!r}")
        if self.serial is not None and re.fullmatch(r"[0-9a-f]{16}", self.serial) is None:
            raise SimulatorError(f"function at {self.address}: a serial is 16 digits, not {self.serial!r}")
        _require_name(self.address, "driver", self.driver)
        _require_name(self.address, "interface", self.interface)


@dataclass
class PluggedFunction:
    """Describe a function in its slot.

    :param driver: its current kernel driver.
    :param present: it is plugged in.
    :param resets: how often it was reset since it was plugged in.
    """

    spec: FunctionSpec
    driver: str | None
    present: bool = True
    resets: int = 0

    @property
    def address(self) -> str:
        return self.spec.address


class Functions:
    """Manage the functions of the simulated host in *root*. Several processes may call every method concurrently."""

    def __init__(self, root: Path, tree: SysfsTree) -> None:
        self._root = root
        self._file = root / "state" / "functions.json"
        self._lock = root / "state" / "host.lock"
        self._tree = tree

    def __contains__(self, address: str) -> bool:
        return address in self.all()

    def all(self) -> dict[str, PluggedFunction]:
        """Return all functions by address, including pulled ones."""
        if not self._file.exists():
            return {}
        return {address: _plugged(fields) for address, fields in files.read_json(self._file).items()}

    def plug(self, *specs: FunctionSpec) -> None:
        """Plug functions into their slots. A virtual function must come after its physical function.

        :raises SimulatorError: the slot is occupied, or the physical function does not exist.
        """
        with self._change() as functions:
            drives = Inventory.load(self._root).slots
            for spec in specs:
                if spec.address in drives and drives[spec.address].present:
                    raise SimulatorError(f"{spec.address}: the slot has a drive; pull it first")
                before = functions.get(spec.address)
                if before is not None and before.present:
                    raise SimulatorError(f"{spec.address}: the slot has a function already; pull it first")
                if spec.physfn is not None and (spec.physfn not in functions or not functions[spec.physfn].present):
                    raise SimulatorError(f"{spec.address}: there is no physical function {spec.physfn}")
                functions[spec.address] = plugged = PluggedFunction(spec, spec.driver)
                self._tree.add_function(plugged)
                self._tree.write_config(spec.address, _config_space(spec))
                if spec.reset_method is not None:
                    self._tree.add_reset(spec.address, spec.reset_method)
                self._attach(plugged)
                self._tree.announce(plugged)

    def pull(self, address: str) -> None:
        """Pull a function, its virtual functions first.

        :raises SimulatorError: it is not present.
        """
        with self._change() as functions:
            self._present(functions, address)
            for plugged in [each for each in functions.values() if each.spec.physfn == address] + [functions[address]]:
                if plugged.present:
                    self._tree.hide(plugged)
                    self._detach(plugged)
                    self._tree.remove_function(plugged)
                    plugged.present = False

    def bind(self, address: str, driver: str | None) -> None:
        """Bind a function to a driver; None only unbinds it.

        :raises SimulatorError: it is not present, or the name of the driver is invalid.
        """
        _require_name(address, "driver", driver)
        with self._change() as functions:
            self._give(self._present(functions, address), driver)

    def give_back(self, address: str) -> None:
        """Bind a function to the host's driver again, as libvirt does for managed functions.

        :raises SimulatorError: it is not present.
        """
        with self._change() as functions:
            plugged = self._present(functions, address)
            self._give(plugged, plugged.spec.driver)

    def reset(self, address: str) -> None:
        """Reset a function.

        :raises SimulatorError: it is not present.
        """
        with self._change() as functions:
            self._present(functions, address).resets += 1

    def _give(self, plugged: PluggedFunction, driver: str | None) -> None:
        self._detach(plugged)
        plugged.driver = driver
        self._attach(plugged)

    def _attach(self, plugged: PluggedFunction) -> None:
        self._tree.set_driver(plugged)
        if plugged.spec.interface is not None and plugged.driver == plugged.spec.driver:
            self._tree.add_interface(plugged, plugged.spec.interface)

    def _detach(self, plugged: PluggedFunction) -> None:
        if plugged.spec.interface is not None:
            self._tree.remove_interface(plugged, plugged.spec.interface)
        self._tree.set_driver(PluggedFunction(plugged.spec, None))

    def _present(self, functions: dict[str, PluggedFunction], address: str) -> PluggedFunction:
        if address not in functions or not functions[address].present:
            raise SimulatorError(
                f"{address}: the slot has no function other than a drive; `autoclave sim list` shows all functions"
            )
        return functions[address]

    @contextmanager
    def _change(self) -> Iterator[dict[str, PluggedFunction]]:
        with files.locked(self._lock):
            functions = self.all()
            yield functions
            files.write_json(self._file, {address: asdict(plugged) for address, plugged in functions.items()})


def _config_space(spec: FunctionSpec) -> bytes:
    """Return the configuration space: the ids, and a Device Serial Number capability, if any."""
    space, serial = bytearray(4096), spec.serial
    struct.pack_into("<HH", space, 0, int(spec.vendor, 16), int(spec.product, 16))
    if serial is not None:
        struct.pack_into("<III", space, 0x100, 0x0001_0003, int(serial[8:], 16), int(serial[:8], 16))
    return bytes(space)


def _require_name(address: str, what: str, name: str | None) -> None:
    if name is not None and _NAME.fullmatch(name) is None:
        raise SimulatorError(
            f"function at {address}: {name!r} is not a name of {what}: use letters, digits, '_', '-' and '.'"
        )


def _plugged(fields: dict[str, Any]) -> PluggedFunction:
    return PluggedFunction(FunctionSpec(**fields["spec"]), fields["driver"], fields["present"], fields.get("resets", 0))


def default_functions() -> Sequence[FunctionSpec]:
    """Return the functions of a rehearsal host.

    These are a graphics card, and a network card with two virtual functions, one of them for guests.
    """
    card = "0000:82:00.0"
    return (
        FunctionSpec("0000:81:00.0", "10de", "25b6", driver="nouveau"),
        FunctionSpec(card, "8086", "1572", class_code="020000", driver="i40e", interface="ens2"),
        FunctionSpec("0000:82:02.0", "8086", "154c", class_code="020000", driver="vfio-pci", physfn=card),
        FunctionSpec("0000:82:02.1", "8086", "154c", class_code="020000", driver="iavf", physfn=card),
    )
