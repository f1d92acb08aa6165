"""The serial of a PCI function: from its Device Serial Number capability, or else from its Vital Product Data."""

import os
import struct
from pathlib import Path

from autoclave.exceptions import HardwareError
from autoclave.hardware.host import HostPaths
from autoclave.hardware.sysfs import function_directory
from autoclave.rules.pci_address import PCIAddress

_FIRST_EXTENDED = 0x100
"""Where extended capabilities begin in the configuration space, which ends at 4096. Only root can read there."""
_SERIAL_NUMBER = 0x0003
_MOST_CAPABILITIES = 960
"""Eight bytes each at least: more of them are a loop."""
_VPD_READ_ONLY, _VPD_END = 0x10, 0x0F
_VPD_BYTES = 32768
_LONGEST = 48
"""Characters of a serial that are kept."""


def card_serial(paths: HostPaths, address: PCIAddress, *, vital_product_data: bool) -> str | None:
    """Return the serial of a function, or None if it has none that tells it from others.

    A serial that is blank, or one character over and over, is none.

    :param vital_product_data: look there as well, which is slow, if there is no Device Serial Number.
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
