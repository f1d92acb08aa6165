"""The pace of earlier erases is remembered for the next estimate, and never stands in the way of an erase."""

from pathlib import Path

import pytest

from autoclave.hardware.erase.work import FILE_NAME, EraseRates


def test_what_a_model_did_last_is_what_is_expected_of_the_next(tmp_path: Path) -> None:
    rates = EraseRates(tmp_path)
    assert rates.of("Fine Drive", "write_zeroes") is None
    rates.remember("Fine Drive", "write_zeroes", 4_000, 2.0)
    rates.remember("Fine Drive", "shred", 4_000, 8.0)
    rates.remember("Fine Drive", "write_zeroes", 9_000, 3.0)
    again = EraseRates(tmp_path)
    assert again.of("Fine Drive", "write_zeroes") == 3_000
    assert again.of("Fine Drive", "shred") == 500
    assert again.of("Other Drive", "shred") is None


def test_slow_drive_has_a_rate_too(tmp_path: Path) -> None:
    rates = EraseRates(tmp_path)
    rates.remember("Fine Drive", "shred", 10, 20.0)
    assert rates.of("Fine Drive", "shred") == 0.5


@pytest.mark.parametrize(("size", "seconds"), [(0, 1.0), (10, 0.0)])
def test_what_gives_no_rate_does_not_replace_the_last_one(tmp_path: Path, size: int, seconds: float) -> None:
    rates = EraseRates(tmp_path)
    rates.remember("Fine Drive", "shred", 10, 1.0)
    rates.remember("Fine Drive", "shred", size, seconds)
    assert rates.of("Fine Drive", "shred") == 10


def test_file_is_laid_out_for_people(tmp_path: Path) -> None:
    rates = EraseRates(tmp_path)
    rates.remember("Fine Drive", "write_zeroes", 9, 3.0)
    rates.remember("Fine Drive", "shred", 4, 2.0)
    assert (tmp_path / FILE_NAME).read_text() == ('{\n "Fine Drive": {\n  "shred": 2.0,\n  "write_zeroes": 3.0\n }\n}')


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"Fine Drive": 5}',
        '{"Fine Drive": {"shred": "fast"}}',
        '{"Fine Drive": {"shred": 0}}',
        "\xff",
    ],
)
def test_a_file_that_makes_no_sense_is_no_estimate_and_is_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE_NAME).write_text(content, encoding="latin-1")
    rates = EraseRates(tmp_path)
    assert rates.of("Fine Drive", "shred") is None
    rates.remember("Fine Drive", "shred", 10, 1.0)
    assert rates.of("Fine Drive", "shred") == 10


def test_a_directory_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    EraseRates(tmp_path / "missing").remember("Fine Drive", "shred", 10, 1.0)
    assert "Cannot record" in caplog.text
