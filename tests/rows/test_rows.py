"""The edits of ``tests/rows/*.toml`` still mean something: each ``old`` stands in its file exactly once."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from run import FILES, ROOT, SPECIFICATIONS, rows
from tables import TESTS, modules, rows_of


@pytest.mark.parametrize("title", SPECIFICATIONS)
def test_the_edits_of_every_row_can_be_made(title: str) -> None:
    """An edit that no longer applies would let its row go unchecked."""
    wrong = [
        (row.sentence, edit.old)
        for row in rows(title)
        for edit in row.edits
        if edit.file.read_text().count(edit.old) != 1
    ]
    assert wrong == []


@pytest.mark.parametrize("title", SPECIFICATIONS)
def test_every_row_has_edits_or_a_reason(title: str) -> None:
    """`edits` remove the behaviour; `why` says that none can."""
    assert [row.sentence for row in rows(title) if bool(row.edits) is bool(row.why)] == []
    assert FILES[title]


def test_every_module_with_tables_names_its_tests() -> None:
    """A table without tests would be left out of ``tables.py``."""
    assert sorted(TESTS) == sorted(modules())
    assert [file for files in TESTS.values() for file in files if not (ROOT / file).is_file()] == []


def test_every_row_of_a_table_is_removed_by_itself() -> None:
    """Elements inside of other elements are rows too; what a comprehension makes is not."""
    source = 'A = frozenset({"x", "y"})\nB = {"k": ("z",)}\nC = {row for row in (A, B)}\nType = tuple[int, str]\n'
    assert [(row.table, row.text, row.without.splitlines()[:2]) for row in rows_of(source)] == [
        ("A", "'x'", ["A = frozenset({'y'})", "B = {'k': ('z',)}"]),
        ("A", "'y'", ["A = frozenset({'x'})", "B = {'k': ('z',)}"]),
        ("B", "'k'", ["A = frozenset({'x', 'y'})", "B = {}"]),
        ("B", "'z'", ["A = frozenset({'x', 'y'})", "B = {'k': ()}"]),
    ]
