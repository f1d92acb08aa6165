"""Read the PCI functions of a host, and their serials.

The serial is in the Device Serial Number capability, or else in the Vital Product Data.
"""

import os
import struct
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path

from autoclave.exceptions import HardwareError
from autoclave.hardware import sysfs
from autoclave.hardware.erase.methods import function_lack
from autoclave.hardware.host import HostPaths
from autoclave.hardware.sysfs import function_directory
from autoclave.hardware.usage import host_uses, is_with_vfio, objection
from autoclave.rules.pci_address import PCIAddress, unattachable
from autoclave.rules.pci_inventory import DevType, Match, PCIFunction
from autoclave.rules.reclaim import Reclaim

NVME_ERASE_FOR_FLAVORS = (
    'it is an NVMe controller, which [pci] cannot erase: name it in [nvme] device_spec, with "requested_by": "flavor"'
)


class HostFunctions:
    """Take one snapshot of the bus, without bridges.

    :ivar functions: all functions, in bus order.
    :ivar unreadable: the reason by the name of the sysfs entry, for functions that exist but cannot be identified. Such
        a function must not be treated as gone.
    :ivar unclear: the reason by address, for functions whose users :meth:`withheld` could not determine. Such a
        function must not be offered; its state stays the same.
    :raises HardwareError: the bus cannot be listed.
    """

    def __init__(self, paths: HostPaths) -> None:
        self._paths = paths
        found, unreadable = sysfs.pci_functions(paths)
        self._found = {each.address: each for each in found if not each.class_code.startswith(sysfs.BRIDGE_CLASS)}
        self._virtual: dict[PCIAddress, list[sysfs.PCIFunction]] = defaultdict(list)
        for each in found:
            if each.physfn is not None:
                self._virtual[each.physfn].append(each)
        self.functions = tuple(_function(each) for each in self._found.values())
        self.unreadable: Mapping[str, str] = {each.address: each.reason for each in unreadable}
        self.unclear: dict[str, str] = {}

    def seen(self, address: PCIAddress) -> sysfs.PCIFunction | None:
        """Return the function at *address* from sysfs, or None if it is unreadable, a bridge, or not there."""
        return self._found.get(address)

    def withheld(
        self, match: Match, allowed_host_devices: frozenset[PCIAddress], meant: Collection[PCIAddress]
    ) -> str | None:
        """Return why a function must not be offered to a guest now, or None if it may be.

        It must not be offered if no guest supports its PCI domain, this host uses it, or it is unmanaged and not bound
        to VFIO. The same applies if its virtual functions would vanish under their users. A drive would also pass
        uncleaned from guest to guest, unless the operator has named it. A function that a guest has is not in use by
        this host.

        :param match: a match of one of :attr:`functions`.
        :param allowed_host_devices: ``[agent] allow_host_device``.
        :param meant: every function that an entry selects, including those for Neutron's ports.
        """
        it = self._found[match.function.address]
        if (beyond := unattachable(it.address)) is not None:
            return beyond
        try:
            with_vfio = is_with_vfio(self._paths, it)
            users = [] if it.address in allowed_host_devices else host_uses(self._paths, it)
        except HardwareError as error:
            return self._unclear(it.address, error)
        is_drive, policy = it.class_code.startswith(sysfs.NVME_CLASS), match.policy
        if is_drive and policy.reclaim is Reclaim.ERASE:
            return NVME_ERASE_FOR_FLAVORS
        if is_drive and policy.reclaim is Reclaim.NONE and not _is_named(match):
            return (
                "it is an NVMe controller, and the next guest would find the data of the last one: set "
                "one_time_use, or let [nvme] device_spec offer it, which erases it. To offer it uncleaned anyway, "
                f'give an entry its vendor_id and product_id or its exact address, "{it.address}"'
            )
        try:
            if (lack := function_lack(self._paths, it, policy)) is not None:
                return lack
        except HardwareError as error:
            return self._unclear(it.address, error)
        objected = objection(it, users, with_vfio=with_vfio, managed=match.managed, virtual_functions=0)
        try:
            return objected or self._of_virtual_functions(it.address, meant)
        except HardwareError as error:
            return self._unclear(it.address, error)

    def _unclear(self, address: PCIAddress, error: HardwareError) -> str:
        self.unclear[str(address)] = str(error)
        return str(error)

    def _of_virtual_functions(self, physical: PCIAddress, meant: Collection[PCIAddress]) -> str | None:
        """Return why a virtual function keeps its physical function from being offered, or None.

        The virtual functions vanish when a guest gets the physical one.

        :raises HardwareError: the kernel does not show whether a virtual function is used.
        """
        for unreadable in self.unreadable:
            if sysfs.physical_of(self._paths, unreadable) == str(physical):
                raise HardwareError(f"its virtual function {unreadable} cannot be read, so it may be in use")
        for virtual in self._virtual[physical]:
            if virtual.address in meant:
                return (
                    f"its virtual function {virtual.address} is offered, and would disappear: let entries match "
                    "either the physical function or the virtual ones"
                )
            users = host_uses(self._paths, virtual)
            if is_with_vfio(self._paths, virtual):
                users = [f"{virtual.driver} has it for a guest"]
            if users:
                return (
                    f"its virtual function {virtual.address} is in use ({'; '.join(users)}), and would disappear: end "
                    "that, or write 0 into sriov_numvfs of the physical one"
                )
        return None


def _function(found: sysfs.PCIFunction) -> PCIFunction:
    own = DevType.PF if found.is_pf else DevType.PCI
    dev_type = own if found.physfn is None else DevType.VF
    return PCIFunction(found.address, found.vendor_id, found.product_id, dev_type, found.physfn)


def _is_named(match: Match) -> bool:
    """Return whether the entry selects exactly one model of device, or exactly this device."""
    return match.entry.address.single is not None or None not in (match.entry.vendor_id, match.entry.product_id)


_FIRST_EXTENDED = 0x100
"""The offset of extended capabilities in the configuration space, which ends at 4096. Only root can read there."""
_SERIAL_NUMBER = 0x0003
_MOST_CAPABILITIES = 960
"""The most capabilities of at least eight bytes each; more of them indicate a loop."""
_VPD_READ_ONLY, _VPD_END = 0x10, 0x0F
_VPD_BYTES = 32768
_LONGEST = 48
"""The most characters of a serial."""


def card_serial(paths: HostPaths, address: PCIAddress, *, vital_product_data: bool) -> str | None:
    """Return the serial of a function, or None if it has no distinctive serial.

    A blank serial, or one repeated character, does not identify a function.

    :param vital_product_data: without a Device Serial Number, also read the Vital Product Data, which is slow.
    :raises HardwareError: it cannot be read.
    """
    if paths.helper is not None:
        return paths.helper.card_serial(address, vital_product_data=vital_product_data)
    directory = function_directory(paths, address)
    serial = _usable(_device_serial_number(_content(directory / "config", 4096)))
    if serial is None and vital_product_data:
        serial = _usable(_product_serial_number(_content(directory / "vpd", _VPD_BYTES)))
    return serial


def _usable(serial: str | None) -> str | None:
    text = "".join(each for each in serial or "" if each.isascii() and each.isprintable()).strip()[:_LONGEST]
    return text if len(set(text)) > 1 else None


def _device_serial_number(config: bytes) -> str | None:
    at = _FIRST_EXTENDED
    for _ in range(_MOST_CAPABILITIES):
        if at < _FIRST_EXTENDED or at + 12 > len(config):
            return None
        header, low, high = struct.unpack_from("<III", config, at)
        if header & 0xFFFF == _SERIAL_NUMBER:
            return f"{high:08x}{low:08x}"
        at = header >> 20 & 0xFFC
    return None


def _product_serial_number(data: bytes) -> str | None:
    at = 0
    while at < len(data):
        tag = data[at]
        if tag & 0x80:
            if at + 3 > len(data):
                return None
            name, size, at = tag & 0x7F, int.from_bytes(data[at + 1 : at + 3], "little"), at + 3
        else:
            name, size, at = tag >> 3, tag & 0x07, at + 1
        if name == _VPD_END:
            return None
        if name == _VPD_READ_ONLY:
            return _keyword(data[at : at + size], b"SN")
        at += size
    return None


def _keyword(fields: bytes, wanted: bytes) -> str | None:
    at = 0
    while at + 3 <= len(fields):
        keyword, size = fields[at : at + 2], fields[at + 2]
        if keyword == wanted:
            return fields[at + 3 : at + 3 + size].decode("ascii", "replace")
        at += 3 + size
    return None


def _content(path: Path, size: int) -> bytes:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise HardwareError(f"cannot read {path}: {error.strerror}") from error
    try:
        return os.pread(file, size, 0)
    except OSError as error:
        raise HardwareError(f"cannot read {path}: {error.strerror}") from error
    finally:
        os.close(file)
