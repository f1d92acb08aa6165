"""Read and write files that several processes use concurrently."""

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file *path* against every other process and thread; the kernel frees it when the holder dies."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Replace *path* atomically: a reader sees either the old or the new text."""
    temporary = path.with_name(f".{path.name}.{threading.get_native_id()}.new")
    temporary.write_text(text)
    temporary.replace(path)


def write_json(path: Path, value: Any) -> None:
    """Replace *path* with *value* as JSON, atomically."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def read_json(path: Path) -> Any:
    """Read the result of :func:`write_json`."""
    return json.loads(path.read_text())


def link(path: Path, target: Path) -> None:
    """Make *path* a relative symbolic link to *target*, replacing another one atomically."""
    temporary = path.with_name(f".{path.name}.{threading.get_native_id()}.new")
    temporary.unlink(missing_ok=True)  # left by a killed process with the same thread number
    temporary.symlink_to(os.path.relpath(target, path.parent))
    temporary.replace(path)
