"""A hint counts only where it tells one machine from all others."""

from pathlib import Path

import pytest

from autoclave.hardware.host import HostPaths
from autoclave.hardware.sysfs import read_hints
from autoclave.rules.host_setup import NO_HINTS, HostHints, former_name, hint

A = HostHints("0f" * 16, "1e" * 16)
B = HostHints("2d" * 16, "3c" * 16)


@pytest.mark.parametrize(
    "text", ["", " \n", "uninitialized", "0" * 32, "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF", "Not Settable", "0f" * 17]
)
def test_a_value_that_says_nothing_is_no_hint(text: str) -> None:
    assert hint(text) is None


def test_two_spellings_of_a_hint_are_one() -> None:
    assert hint("4C4C4544-0031-4810-8051-B4C04F564433\n") == hint("4c4c4544003148108051b4c04f564433") is not None


def test_both_hints_name_the_former_host() -> None:
    assert former_name("new", A, {"old": A, "other": B}) == "old"


@pytest.mark.parametrize(
    ("hints", "known"),
    [
        (A, {}),
        (A, {"new": A}),
        (A, {"old": A, "clone": A}),
        (A, {"old": A, "new": A}),
        (A, {"old": HostHints(A.machine_id, B.product_uuid)}),
        (A, {"old": HostHints(B.machine_id, A.product_uuid)}),
        (A, {"old": HostHints(A.machine_id, None)}),
        (A, {"one": HostHints(A.machine_id, B.product_uuid), "two": HostHints(B.machine_id, A.product_uuid)}),
        (HostHints(A.machine_id, None), {"old": A}),
        (NO_HINTS, {"old": NO_HINTS}),
    ],
)
def test_less_than_both_hints_of_one_other_host_count_for_nothing(
    hints: HostHints, known: dict[str, HostHints]
) -> None:
    assert former_name("new", hints, known) is None


def test_hints_are_read_through_the_paths_of_the_host(tmp_path: Path) -> None:
    paths = HostPaths(sysfs=tmp_path / "sys", dev=tmp_path / "dev", proc=tmp_path / "proc", etc=tmp_path / "etc")
    assert read_hints(paths) == NO_HINTS
    (tmp_path / "sys/class/dmi/id").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine-id").write_text(f"{A.machine_id}\n")
    assert read_hints(paths) == HostHints(A.machine_id, None)
    (tmp_path / "sys/class/dmi/id/product_uuid").write_text("4C4C4544-0031-4810-8051-B4C04F564433\n")
    assert read_hints(paths) == HostHints(A.machine_id, "4c4c4544003148108051b4c04f564433")


def test_a_hint_that_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "machine-id").mkdir()
    assert read_hints(HostPaths(sysfs=tmp_path, etc=tmp_path)) == NO_HINTS
