"""Text that others choose has one spelling, and does nothing to a terminal."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoclave.cli.main import Cell, Printable
from autoclave.rules.plain_text import DRIVE_TEXT_LIMIT, drive_text, excerpt, printable, tells_apart

ESCAPE = "\x1b[31mred\x1b[0m"


def _as_sysfs(raw: bytes) -> str:
    return raw.split(b"\0")[0].decode("utf-8", "backslashreplace")


@pytest.mark.parametrize(
    ("raw", "spelled"),
    [
        (b"S64FNE0R802879      ", "S64FNE0R802879"),
        (b"  padded before", "padded before"),
        (b"ends in NUL\0\0\0\0", "ends in NUL"),
        (b"ESC\x1b[31m", "ESC\\x1b[31m"),
        (b"two\r\nlines\n", "two\\x0d\\x0alines"),
        ("Größe".encode(), "Gr\\xc3\\xb6\\xc3\\x9fe"),
        (b"\xff\xa0", "\\xff\\xa0"),
    ],
)
def test_drive_text_is_printable_ascii(raw: bytes, spelled: str) -> None:
    assert drive_text(_as_sysfs(raw)) == spelled


@given(st.text(max_size=40))
def test_drive_text_of_drive_text_is_itself(text: str) -> None:
    once = drive_text(text)
    assert drive_text(once) == once
    assert once.isprintable()
    assert len(once) <= DRIVE_TEXT_LIMIT


def test_long_drive_texts_stay_different() -> None:
    one, other = drive_text("\x01" * 20 + "a"), drive_text("\x01" * 20 + "b")
    assert len(one) == len(other) == DRIVE_TEXT_LIMIT
    assert one != other


def test_excerpt_is_one_line_and_says_how_much_there_was() -> None:
    assert excerpt("Usage:\n\n  nvme \x1b[1mx\x1b[0m ") == "Usage: nvme \\x1b[1mx\\x1b[0m"
    assert excerpt("a" * 1400, 10) == "aaaaaaaaaa… (1400 characters)"


def test_bidirectional_override_is_shown_and_not_obeyed() -> None:
    assert printable("abc\u202edef") == "abc\\u202edef"
    assert printable("naïve\u3000名前") == "naïve\u3000名前"


def test_cell_of_a_table_escapes_control_characters() -> None:
    assert Cell(f"a\n{ESCAPE}").human_readable() == "a\n\\x1b[31mred\\x1b[0m"
    assert Cell(ESCAPE).machine_readable() == ESCAPE


def test_command_output_escapes_control_characters() -> None:
    """Error messages and every format of a list pass the same stream."""
    written = io.StringIO()
    stream = Printable(written)
    stream.write(f"name:\t{ESCAPE}\n")
    stream.writelines(["\r", "\n"])
    assert written.getvalue() == "name:\t\\x1b[31mred\\x1b[0m\n\\x0d\n"


@pytest.mark.parametrize("serial", [None, "", "0", "0000000000", "FFFFffff", "00-00 00", "-", "...."])
def test_serial_number_of_one_character_tells_no_drive_from_another(serial: str | None) -> None:
    assert not tells_apart(serial)


@pytest.mark.parametrize("serial", ["S1", "0001", r"\x00\x01", "VB1234-56789", "A A B"])
def test_serial_number_of_several_characters_tells_drives_apart(serial: str) -> None:
    assert tells_apart(serial)
