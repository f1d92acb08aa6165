"""Looking into sysfs, where most entries are attributes and not directories."""

from pathlib import Path

from autoclave.hardware import sysfs


def test_looking_for_a_partition_inside_an_attribute_finds_none(tmp_path: Path) -> None:
    # A disk's directory in a real sysfs is full of attributes: /sys/block/nvme0n1/alignment_offset/partition.
    (tmp_path / "alignment_offset").write_text("0\n")
    (tmp_path / "nvme0n1p1").mkdir()
    (tmp_path / "nvme0n1p1" / "partition").write_text("1\n")

    parts = [entry.name for entry in sysfs.entries(tmp_path) if sysfs.is_there(entry / "partition")]

    assert parts == ["nvme0n1p1"]
