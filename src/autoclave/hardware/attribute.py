"""Attributes, links and directories of sysfs: read, or an error that names them."""

import os
from pathlib import Path

from autoclave.exceptions import HardwareError
from autoclave.rules.plain_text import drive_text


def read(path: Path) -> str:
    """The text of an attribute without the padding around it; bytes that are not UTF-8 as ``\\xNN``.

    :raises HardwareError: it cannot be read.
    """
    try:
        return path.read_bytes().decode("utf-8", "backslashreplace").strip()
    except OSError as e:
        raise HardwareError(f"cannot read {path}: {e.strerror}") from e


def drive_string(path: Path) -> str:
    """A string that a drive says of itself, in the spelling of :func:`drive_text`.

    :raises HardwareError: it cannot be read.
    """
    try:
        return drive_text(path.read_bytes().decode("utf-8", "backslashreplace"))
    except OSError as e:
        raise HardwareError(f"cannot read {path}: {e.strerror}") from e


def read_if_there(path: Path) -> str | None:
    """The same, or None where the kernel does not have the attribute.

    :raises HardwareError: it is there and cannot be read.
    """
    return read(path) if is_there(path) else None


def number(path: Path, base: int = 10) -> int:
    """The number of an attribute, which is decimal unless *base* says otherwise.

    :raises HardwareError: it cannot be read or is no number.
    """
    text = read(path)
    try:
        return int(text, base)
    except ValueError:
        raise HardwareError(f"{path} says {text[:40]!r}, which is not a number") from None


def link_name(path: Path) -> str | None:
    """The last part of what a link points to, as ``nvme`` of ``driver``; None: there is no link.

    :raises HardwareError: it is there and cannot be read.
    """
    try:
        return os.path.basename(os.readlink(path))
    except FileNotFoundError:
        return None
    except OSError as e:
        raise HardwareError(f"cannot read the link {path}: {e.strerror}") from e


def entries(directory: Path) -> list[Path]:
    """What is in a directory, by name.

    :raises HardwareError: it cannot be listed.
    """
    try:
        return sorted(directory.iterdir())
    except OSError as e:
        raise HardwareError(f"cannot list {directory}: {e.strerror}") from e


def is_there(path: Path) -> bool:
    """Whether an entry exists, a link that leads nowhere included. Only the kernel's plain no counts as no.

    :raises HardwareError: the kernel does not say.
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):  # what is looked for in an attribute is not there either
        return False
    except OSError as e:
        raise HardwareError(f"cannot look at {path}: {e.strerror}") from e
    return True
