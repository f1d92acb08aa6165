"""Directories of the simulated sysfs that appear and vanish in one step."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path


class SysfsDirs:
    """Builds directories aside, on the same file system, and renames them into place.

    :param staging: where; it must exist.
    """

    def __init__(self, staging: Path) -> None:
        self._staging = staging

    def add(self, target: Path, contents: Mapping[str, str]) -> None:
        """Let *target* appear.

        :param contents: text by relative path; a path that ends in a slash is an empty directory.
        """
        aside = self._aside(target)
        aside.mkdir()
        for key, text in contents.items():
            path = aside / key
            if key.endswith("/"):
                path.mkdir(parents=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        aside.rename(target)

    def rewrite(self, target: Path, contents: Mapping[str, str]) -> None:
        """Change the text of attributes that *target* has, each in one step."""
        for key, text in contents.items():
            path = target / key
            if path.read_text() != f"{text}\n":
                aside = self._aside(path)
                aside.write_text(f"{text}\n")
                aside.rename(path)

    def remove(self, target: Path) -> None:
        """Let *target* vanish; nothing happens if it does not exist."""
        aside = self._aside(target)
        try:
            target.rename(aside)
        except FileNotFoundError:
            return
        shutil.rmtree(aside)

    def _aside(self, target: Path) -> Path:
        aside = self._staging / f"{target.name}.{os.getpid()}"
        if aside.is_dir():  # left by a process of the same number that was killed
            shutil.rmtree(aside)
        return aside
