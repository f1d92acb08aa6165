"""OpenStack's own Placement for tests, at a fraction of what a new one costs."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from autoclave.placement.embedded import EmbeddedPlacement
from dbfixtures import forgo_sync


@cache
def _template() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="autoclave-placement-")
    _template.folder = folder  # type: ignore[attr-defined]  # lives, and is removed, with the process
    path = Path(folder.name) / "template.db"
    EmbeddedPlacement.start(path).stop()
    return path


@contextmanager
def running_placement(directory: Path) -> Iterator[EmbeddedPlacement]:
    """An empty one with a database of its own in *directory*."""
    path = directory / "placement.db"
    shutil.copyfile(_template(), path)
    service = EmbeddedPlacement.start(path)
    try:
        forgo_sync(service.engine())
        yield service
    finally:
        service.stop()
