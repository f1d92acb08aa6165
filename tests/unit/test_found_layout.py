"""The layout of a drive is read as the drive states it, and no command changes anything."""

import pytest

from autoclave.exceptions import ToolFailed
from autoclave.hardware.command import Commands
from autoclave.hardware.erase.found_layout import FoundLayout, allocated_namespaces, flbas_of, format_index, read_layout
from autoclave.hardware.nvme import controller_at
from autoclave.hardware.nvme_cli import NvmeCli
from autoclave.hardware.nvme_json import LBAFormat
from autoclave.rules.drive_layout import NamespaceShape
from autoclave.rules.pci_address import PCIAddress
from autoclave.simulator.drive_spec import MIB, DriveSpec
from autoclave.simulator.faults import Fault, FaultKind
from autoclave.simulator.host import SimulatedHost

SLOT = "0000:42:00.0"
SMALL, LARGE, LARGE_META = LBAFormat(0, 512), LBAFormat(0, 4096), LBAFormat(8, 4096)


@pytest.fixture
def make(tmp_path):
    """Makes a host with one drive of two namespaces."""

    def make(**spec):
        spec = {"serial": "SIM1", "size_bytes": 4 * MIB, "namespaces": 2, "format_nvm": True} | spec
        return SimulatedHost.create(tmp_path / "host", "h1", [DriveSpec(address=SLOT, **spec)])

    return make


def found(host: SimulatedHost) -> FoundLayout:
    nvme, node = nvme_of(host)
    return read_layout(nvme, node, nvme.identify(node))


def nvme_of(host):
    return NvmeCli(Commands(host.paths), command_timeout=30), controller_at(host.paths, PCIAddress.parse(SLOT)).path


def detach(host, nsid):
    with host.drive(SLOT) as drive:
        drive.detach(nsid, [0])
        host.sync_namespaces(drive)


@pytest.mark.parametrize(
    ("index", "extended", "flbas"),
    [(0, False, 0x00), (7, False, 0x07), (7, True, 0x17), (15, False, 0x0F), (16, False, 0x20), (63, True, 0x7F)],
)
def test_flbas_has_the_index_in_two_parts(index, extended, flbas):
    """NVMe 2.0: bits 3:0 and 6:5 are the index, bit 4 tells where the metadata is."""
    assert flbas_of(index, extended=extended) == flbas


@pytest.mark.parametrize(
    ("formats", "on_record", "index"),
    [
        ((SMALL, LARGE), 1, 1),
        ((SMALL, LARGE, LARGE), 2, 2),
        ((SMALL, LARGE, LARGE), 0, 1),
        ((LARGE, LARGE_META), 1, 0),
        ((SMALL, LARGE_META), 1, None),
        ((), 0, None),
    ],
    ids=["same index", "one of two", "first of two", "other index", "none", "no formats"],
)
def test_recorded_format_is_found_by_its_bytes(formats, on_record, index):
    """A firmware update may renumber the formats; of several alike, the one on record is meant."""
    shape = NamespaceShape(blocks=8, block_bytes=4096, lba_format=on_record)
    assert format_index(formats, shape) == index


def test_each_namespace_has_its_shape(make):
    host = make()
    with host.drive(SLOT) as drive:
        first, second = drive.state.namespaces.values()
        first.flbas, first.blocks, first.dps = 5 | 1 << 4, 512, 1
        second.flbas, second.without_storage = 0 | 1 << 4, 3
        host.sync_namespaces(drive)
    layout = found(host).layout
    assert layout.unattached == 0
    assert layout.namespaces == (
        NamespaceShape(blocks=512, block_bytes=4096, metadata_bytes=8, extended=True, dps=1, lba_format=5),
        # Without metadata, bit 4 of FLBAS says nothing.
        NamespaceShape(blocks=4096, block_bytes=512, without_storage=3),
    )


def test_write_protected_namespace_is_seen(make):
    host = make()
    nvme, real = host.root / "bin/nvme", host.root / "bin/real-nvme"
    nvme.rename(real)
    nvme.write_text(f"""#!/bin/sh\n{real} "$@" | sed 's/"nsattr": *0/"nsattr":1/'\n""")
    nvme.chmod(0o755)
    assert [shape.write_protected for shape in found(host).layout.namespaces] == [True, True]


def test_detached_namespace_is_counted(make):
    host = make(namespace_management=True, unallocated_bytes=MIB)
    detach(host, 2)
    read = found(host)
    assert (read.nsids, read.layout.unattached, read.layout.unallocated) == ((1,), 1, MIB)
    assert [identity.nsze for identity in read.identities] == [4096]


def test_without_a_list_of_all_the_attached_ones_count(make):
    """Controllers of NVMe 1.0 list no namespaces that are not attached."""
    host = make(namespace_management=True)
    nvme, node = nvme_of(host)
    host.set_fault(SLOT, Fault(FaultKind.LIST_NS_REFUSED))
    assert allocated_namespaces(nvme, node, [1, 2]) == [1, 2]
    with pytest.raises(ToolFailed):
        allocated_namespaces(nvme, node, [])


def test_list_that_fails_for_another_reason_is_an_error(make):
    """An answer such as EAGAIN says nothing of what is not attached."""
    host = make(namespace_management=True)
    nvme, node = nvme_of(host)
    host.set_fault(SLOT, Fault(FaultKind.NVME_BUSY))
    with pytest.raises(ToolFailed):
        allocated_namespaces(nvme, node, [1, 2])
