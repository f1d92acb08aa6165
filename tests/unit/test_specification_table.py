"""The page that names the tests of each sentence of the specifications names tests that there are."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "source" / "contributor" / "specifications.rst").read_text()
SPECIFICATIONS = [
    "Generic NVMe driver with secure cleanup",
    "VFIO variant managed mode",
    "Provider configuration file",
    "One-time-use devices",
    "Image traits",
]

ROW = re.compile(r"^ {3}\* - (?P<sentence>.+(?:\n {7}.+)*)\n {5}- (?P<tests>.+(?:\n {7}.+)*)\n", re.MULTILINE)
HEADING = "Sentence"


def rows(text: str) -> list[tuple[str, list[str]]]:
    """The sentences of the tables in *text*, and the literals in the cell beside each: the names of its tests."""
    found = [(row["sentence"], row["tests"]) for row in ROW.finditer(text)]
    assert len(found) == len(re.findall(r"^ *\* +-", text, re.MULTILINE)), "a row is written in another way"
    return [(" ".join(cell.split()), re.findall(r"``(.+?)``", tests)) for cell, tests in found if cell != HEADING]


SECTIONS = re.split(r"^(.+)\n-{3,}\n", PAGE, flags=re.MULTILINE)
TABLES = {title: rows(text) for title, text in zip(SECTIONS[1::2], SECTIONS[2::2], strict=True)}


def functions(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


@pytest.fixture(scope="module")
def existing() -> set[str]:
    """What may be named: tests by their names, stories of the lab by their whole ones."""
    tests = {
        name for file in (ROOT / "tests").rglob("test_*.py") for name in functions(file) if name.startswith("test_")
    }
    stories = {
        ".".join([*file.relative_to(ROOT).with_suffix("").parts, name])
        for file in (ROOT / "lab").rglob("*.py")
        for name in functions(file)
    }
    return tests | stories


def test_the_page_has_a_table_for_each_specification_and_none_elsewhere() -> None:
    assert list(TABLES) == SPECIFICATIONS
    assert all(TABLES.values())
    assert rows(SECTIONS[0]) == []


@pytest.mark.parametrize("title", SPECIFICATIONS)
def test_every_sentence_has_tests_that_there_are_and_names_none_twice(title: str, existing: set[str]) -> None:
    table = TABLES[title]
    assert {sentence: missing for sentence, names in table if (missing := sorted(set(names) - existing))} == {}
    assert [sentence for sentence, names in table if not names] == []
    assert [sentence for sentence, names in table if len(names) != len(set(names))] == []


@pytest.mark.parametrize("title", SPECIFICATIONS)
def test_no_sentence_is_twice_in_a_table(title: str) -> None:
    sentences = [sentence for sentence, _ in TABLES[title]]
    assert len(sentences) == len(set(sentences))


def test_a_row_that_is_written_in_another_way_is_not_overlooked() -> None:
    with pytest.raises(AssertionError, match="another way"):
        rows("   * - A sentence\n     - ``test_x``\n   *  - Another one\n      - nothing\n")


def test_what_the_nvme_specification_wants_installed_is_declared() -> None:
    assert "nvme-cli" in (ROOT / "bindep.txt").read_text().splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {each.name: each.specifier for each in map(Requirement, project["dependencies"])}
    assert "futurist" in wanted
    assert not wanted["os-traits"].contains("3.8.0")
    assert wanted["os-traits"].contains("3.9.0")
