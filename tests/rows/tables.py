"""Remove one row at a time from the tables of ``autoclave.rules``, and expect that a test fails.

`make mutants` changes what functions do. A table is made at import, and mutmut leaves it alone. A row here is an
element of a tuple, list, set or dictionary that a module assigns to a name; elements inside of others count as well.
``tests/rows/tables.toml`` names the tests of each module::

    device_states = ["tests/unit/test_device_states.py"]

The rows are removed from a copy of ``src``. This checkout stays as it is.

    .venv/bin/python tests/rows/tables.py                   # every table; some minutes
    .venv/bin/python tests/rows/tables.py device_states     # the tables of one module
"""

import argparse
import ast
import copy
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from run import ROOT, copy_of_source, outcome

RULES = Path("src/autoclave/rules")
TESTS: dict[str, list[str]] = tomllib.loads((Path(__file__).parent / "tables.toml").read_text())
"""The test files of each module that has tables, by the module's name below ``autoclave.rules``."""


@dataclass(frozen=True)
class TableRow:
    """A row of a table.

    :param table: the name that the module gives to the table.
    :param text: the row as the module has it.
    :param without: the whole module without the row.
    """

    table: str
    text: str
    without: str


def modules() -> dict[str, Path]:
    """Return the modules that have tables, by their names below ``autoclave.rules``."""
    files = sorted((ROOT / RULES).rglob("*.py"))
    named = {".".join(file.relative_to(ROOT / RULES).with_suffix("").parts): file for file in files}
    return {name: file for name, file in named.items() if any(rows_of(file.read_text()))}


def rows_of(source: str) -> Iterator[TableRow]:
    """Yield every row of the tables in the module *source*."""
    module = ast.parse(source)
    for position, statement in enumerate(module.body):
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
            continue
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        if not isinstance(target, ast.Name) or not target.id.isupper():
            continue  # a type, or names for the members of an enumeration
        for number, table in enumerate(_containers(statement.value)):
            for index, element in enumerate(_elements(table)):
                changed = copy.deepcopy(module)
                copied = changed.body[position]
                assert isinstance(copied, ast.Assign | ast.AnnAssign)
                assert copied.value is not None
                _remove(_containers(copied.value)[number], index)
                yield TableRow(target.id, ast.unparse(element), ast.unparse(changed))


def _containers(value: ast.AST) -> list[ast.Tuple | ast.List | ast.Set | ast.Dict]:
    if isinstance(value, ast.Subscript | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        return []  # made of something else, which has its own rows
    found = [value] if isinstance(value, ast.Tuple | ast.List | ast.Set | ast.Dict) else []
    return found + [inner for child in ast.iter_child_nodes(value) for inner in _containers(child)]


def _elements(table: ast.Tuple | ast.List | ast.Set | ast.Dict) -> Sequence[ast.expr]:
    return [key for key in table.keys if key is not None] if isinstance(table, ast.Dict) else table.elts


def _remove(table: ast.Tuple | ast.List | ast.Set | ast.Dict, index: int) -> None:
    if isinstance(table, ast.Dict):
        del table.keys[index], table.values[index]
    else:
        del table.elts[index]


def check(name: str, source: Path) -> int:
    """Remove the rows of one module, each by itself, and return how many no test misses.

    :raises RuntimeError: the tests do not pass with all rows.
    """
    survivors = 0
    with copy_of_source() as copied:
        before = outcome(TESTS[name], copied)
        if before != "passes":
            raise RuntimeError(f"{name}: {before} with all rows, so it proves nothing")
        target = copied / source.relative_to(ROOT)
        for row in rows_of(source.read_text()):
            target.write_text(row.without)
            began = time.monotonic()
            result = outcome(TESTS[name], copied)
            noticed = result == "fails" or "error during collection" in result  # the module needs the row at import
            survivors += not noticed
            mark = "ok " if noticed else "BAD"
            result = result.partition("\n")[0]
            print(f"{mark} {name}.{row.table}: {row.text} ({result}, {time.monotonic() - began:.0f} s)", flush=True)
    return survivors


def main(argv: Sequence[str]) -> int:
    """Check the modules that are asked for; 1 if a row can be removed unnoticed."""
    found = modules()
    parser = argparse.ArgumentParser(description="Remove each row of the tables of the rules; a test must fail.")
    parser.add_argument("module", nargs="*", help=f"below autoclave.rules; all without: {', '.join(found)}")
    chosen: list[str] = parser.parse_args(argv).module or list(found)
    if unknown := sorted(set(chosen) - found.keys()):
        parser.error(f"no module with a table: {', '.join(unknown)}; there are: {', '.join(found)}")
    return 1 if sum(check(name, found[name]) for name in chosen) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
