"""Remove the behaviour of each row of the specification table, and expect that a test of the row fails.

A row whose tests all pass without its behaviour names no test of it. The files ``tests/rows/*.toml``, one a
specification, hold a small edit of a file of this checkout for each row::

    [[row]]
    sentence = "Below 2.4 absent"
    edits = [{file = "src/autoclave/api/accelerator/arqs.py", old = "if version >= MANAGED", new = "if True"}]

or, where no edit can remove the behaviour, ``why = "…"`` says so. ``old`` stands in its file exactly once. The edits
are made in a copy of the checkout, one row at a time; this checkout stays as it is.

    .venv/bin/python tests/rows/run.py                      # every row; takes long
    .venv/bin/python tests/rows/run.py --table managed-mode --sentence 'Below 2.4'
"""

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PATIENCE = 900
"""Seconds for the tests of one row. Tests that the edit lets hang have noticed it."""

sys.path.insert(0, str(ROOT / "tests" / "unit"))
from test_specification_table import SPECIFICATIONS, TABLES  # noqa: E402

FILES = dict(
    zip(SPECIFICATIONS, ("nvme", "managed-mode", "provider-config", "one-time-use", "image-traits"), strict=True)
)
"""The name of the file of each specification's rows."""


@dataclass(frozen=True)
class Edit:
    """A change of one file."""

    file: Path
    old: str
    new: str

    def apply(self, copied: Path) -> None:
        """Change the file in the directory *copied*, which has a copy of the checkout.

        :raises ValueError: *old* does not stand in it exactly once.
        """
        file = copied / self.file.relative_to(ROOT)
        text = file.read_text()
        if text.count(self.old) != 1:
            found = text.count(self.old)
            raise ValueError(f"{self.file.relative_to(ROOT)}: found {found} times, not once: {self.old!r}")
        file.write_text(text.replace(self.old, self.new))


@dataclass(frozen=True)
class Row:
    """A row of a table, the edits that remove its behaviour, and the names of its tests."""

    sentence: str
    tests: Sequence[str]
    edits: Sequence[Edit]
    why: str

    def nodes(self, where: dict[str, list[str]]) -> list[str]:
        """The tests as pytest names them; stories of the lab are no part of it."""
        return [node for name in self.tests for node in where.get(name, [])]


def rows(title: str) -> list[Row]:
    """The rows of the table of the specification *title* that have an entry in its file."""
    path = HERE / f"{FILES[title]}.toml"
    entries: list[dict[str, Any]] = tomllib.loads(path.read_text()).get("row", []) if path.exists() else []
    tests = dict(TABLES[title])
    unknown = [entry["sentence"] for entry in entries if entry["sentence"] not in tests]
    if unknown:
        raise ValueError(f"{path.name}: the table has no such sentence: {unknown}")
    return [
        Row(
            entry["sentence"],
            [name for name in tests[entry["sentence"]] if name.startswith("test_")],
            [Edit(ROOT / each["file"], each["old"], each["new"]) for each in entry.get("edits", [])],
            entry.get("why", ""),
        )
        for entry in entries
    ]


def where_tests_are() -> dict[str, list[str]]:
    """The node ids of every test, by its name."""
    found: dict[str, list[str]] = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        module = ast.parse(file.read_text())
        for parent in [module, *(node for node in module.body if isinstance(node, ast.ClassDef))]:
            inside = f"{parent.name}::" if isinstance(parent, ast.ClassDef) else ""
            for node in parent.body:
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                    found.setdefault(node.name, []).append(f"{file.relative_to(ROOT)}::{inside}{node.name}")
    return found


@contextmanager
def copy_of_source() -> Iterator[Path]:
    """Make a directory with a copy of the checkout, without what was made in it."""
    with tempfile.TemporaryDirectory() as scratch:
        copied = Path(scratch) / "copy"
        shutil.copytree(ROOT, copied, ignore=shutil.ignore_patterns(".*", "__pycache__", "build", "mutants"))
        yield copied


def outcome(nodes: Sequence[str], copied: Path) -> str:
    """Run the tests in *copied*: ``fails`` (as they should), ``passes``, or what went wrong."""
    # No bytecode: a file may change twice within a second, which is all that Python compares.
    environment = {**os.environ, "PYTHONPATH": str(copied / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *nodes]
    try:
        ended = subprocess.run(
            command, cwd=copied, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return "fails"
    known = {0: "passes", 1: "fails"}
    return known.get(ended.returncode) or f"pytest ended with {ended.returncode}: {ended.stdout[-400:]}"


def without(row: Row, nodes: Sequence[str]) -> str:
    """Run the tests of *row* as they are, which must pass, and then without its behaviour."""
    if not nodes:
        return "it has no test but stories of the lab: give a reason in its place"
    with copy_of_source() as copied:
        before = outcome(nodes, copied)
        if before != "passes":
            return f"{before} with the behaviour, so it proves nothing"
        for edit in row.edits:
            edit.apply(copied)
        return outcome(nodes, copied)


def main(argv: Sequence[str]) -> int:
    """Run the rows that are asked for; 1 if one names no test that fails."""
    parser = argparse.ArgumentParser(description="Remove the behaviour of each row; a test of it must fail.")
    parser.add_argument("--table", choices=list(FILES.values()), help="only this specification's rows")
    parser.add_argument("--sentence", default="", help="only rows whose sentence contains this")
    args = parser.parse_args(argv)
    where, bad = where_tests_are(), 0
    for title, name in FILES.items():
        for row in rows(title) if args.table in (None, name) else []:
            if args.sentence not in row.sentence or row.why:
                continue
            began = time.monotonic()
            result = without(row, row.nodes(where))
            bad += result != "fails"
            mark = "ok " if result == "fails" else "BAD"
            print(f"{mark} {name}: {row.sentence} ({result}, {time.monotonic() - began:.0f} s)", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
