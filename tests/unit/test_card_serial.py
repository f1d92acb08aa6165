"""The serial of a PCI function, as its configuration space and its Vital Product Data have it."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from autoclave.exceptions import HardwareError
from autoclave.hardware.pci_functions import card_serial
from autoclave.hardware.privileged import context, server
from autoclave.hardware.privileged.client import PrivsepHelper
from autoclave.hardware.sysfs import read_hints
from autoclave.rules.pci_address import PCIAddress
from sysfs_tree import SysfsTree

ADDRESS = "0000:25:00.0"
AER, SERIAL = 0x0001, 0x0003


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    made = SysfsTree(tmp_path)
    made.function(ADDRESS)
    return made


def directory(tree: SysfsTree) -> Path:
    return (tree.sys / "bus/pci/devices" / ADDRESS).resolve()


def capabilities(*found: tuple[int, int, int]) -> bytes:
    """A configuration space with extended capabilities: id, low and high word, one behind the other."""
    space = bytearray(4096)
    for number, (kind, low, high) in enumerate(found):
        at = 0x100 + 0x40 * number
        following = at + 0x40 if number + 1 < len(found) else 0
        struct.pack_into("<III", space, at, kind | 1 << 16 | following << 20, low, high)
    return bytes(space)


def vpd(*fields: tuple[str, bytes]) -> bytes:
    name = b"\x82\x05\x00Model"
    body = b"".join(keyword.encode() + bytes([len(value)]) + value for keyword, value in fields)
    return name + b"\x90" + len(body).to_bytes(2, "little") + body + b"\x78"


def serial(tree: SysfsTree, *, look: bool = True) -> str | None:
    return card_serial(tree.paths, PCIAddress.parse(ADDRESS), vital_product_data=look)


def test_a_device_serial_number_is_found_behind_others(tree: SysfsTree) -> None:
    (directory(tree) / "config").write_bytes(capabilities((AER, 1, 2), (SERIAL, 0x00123456, 0x00E04C00)))
    assert serial(tree) == "00e04c0000123456"


@pytest.mark.parametrize(
    "config",
    [
        b"",
        bytes(64),
        bytes(256),
        bytes(4096),
        b"\xff" * 4096,
        capabilities((SERIAL, 0, 0)),
        capabilities((SERIAL, 0xFFFFFFFF, 0xFFFFFFFF)),
        struct.pack("<III", 0x0001 | 0x100 << 20, 0, 0).rjust(0x10C, b"\0").ljust(4096, b"\0"),
    ],
    ids=["empty", "ordinary user", "no extended", "none", "dead", "zero", "ones", "loop"],
)
def test_a_space_without_a_serial_has_none(tree: SysfsTree, config: bytes) -> None:
    (directory(tree) / "config").write_bytes(config)
    assert serial(tree) is None


def test_vital_product_data_is_read_where_nothing_else_is(tree: SysfsTree) -> None:
    (directory(tree) / "vpd").write_bytes(vpd(("PN", b"900-1"), ("SN", b"1322021012345 \0"), ("RV", b"\0")))
    assert serial(tree) == "1322021012345"
    assert serial(tree, look=False) is None
    (directory(tree) / "config").write_bytes(capabilities((SERIAL, 0x12, 0x34)))
    assert serial(tree) == "0000003400000012"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x78",
        b"\x82",
        vpd(),
        vpd(("PN", b"1")),
        vpd(("SN", b"")),
        vpd(("SN", b"000000")),
        vpd(("SN", b"  "))[:-5],
    ],
)
def test_vital_product_data_without_a_serial_has_none(tree: SysfsTree, data: bytes) -> None:
    (directory(tree) / "vpd").write_bytes(data)
    assert serial(tree) is None


def test_a_space_that_cannot_be_read_is_an_error(tree: SysfsTree) -> None:
    (directory(tree) / "config").mkdir()
    with pytest.raises(HardwareError, match="config"):
        serial(tree)


@pytest.fixture
def helper(tree: SysfsTree, monkeypatch: pytest.MonkeyPatch) -> PrivsepHelper:
    """The privileged helper, which does in this process what it would do as root."""
    monkeypatch.setattr(context, "client_mode", False)
    monkeypatch.setattr(server, "_PATHS", tree.paths)
    return PrivsepHelper()


def test_an_ordinary_user_reads_serials_through_its_helper(
    tree: SysfsTree, helper: PrivsepHelper, tmp_path: Path
) -> None:
    (directory(tree) / "vpd").write_bytes(vpd(("SN", b"MT2034X01234")))
    unseen = replace(tree.paths, sysfs=tmp_path / "not for this user", helper=helper)
    address = PCIAddress.parse(ADDRESS)
    assert card_serial(unseen, address, vital_product_data=True) == "MT2034X01234"
    assert card_serial(unseen, address, vital_product_data=False) is None


def test_an_ordinary_user_reads_the_product_uuid_through_its_helper(
    tree: SysfsTree, helper: PrivsepHelper, tmp_path: Path
) -> None:
    file = tree.sys / "class/dmi/id/product_uuid"
    file.parent.mkdir(parents=True)
    file.write_text("4C4C4544-0031-4810-8051-B4C04F564433\n")
    unseen = replace(tree.paths, sysfs=tmp_path / "not for this user", helper=helper)
    assert read_hints(unseen).product_uuid == "4c4c4544003148108051b4c04f564433"


@pytest.mark.parametrize("content", [b"root:x:0:0:root:/root", b"4C4C4544-0031-4810-8051-B4C04F564433" * 2])
def test_the_helper_passes_nothing_on_but_a_product_uuid(
    tree: SysfsTree, helper: PrivsepHelper, content: bytes
) -> None:
    file = tree.sys / "class/dmi/id/product_uuid"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    assert helper.product_uuid() is None


def test_the_helper_passes_on_no_more_than_a_serial(tree: SysfsTree, helper: PrivsepHelper) -> None:
    (directory(tree) / "vpd").write_bytes(vpd(("SN", b"1\x1b2" * 80)))
    found = helper.card_serial(PCIAddress.parse(ADDRESS), vital_product_data=True)
    assert found == "12" * 24
