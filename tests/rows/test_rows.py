"""The edits of ``tests/rows/*.toml`` still mean something: each ``old`` stands in its file exactly once."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from run import FILES, SPECIFICATIONS, rows


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
