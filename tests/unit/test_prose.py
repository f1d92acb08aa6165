"""``make lint`` refuses phrases in new prose, and nothing in code."""

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prose", ROOT / "tools" / "prose.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["prose"] = module
    spec.loader.exec_module(module)
    return module


prose = _load()
ENTRIES: list[dict[str, Any]] = tomllib.loads(prose.PHRASES.read_text())["phrase"]
PHRASES = prose.read_phrases()


def found(path: str, text: str) -> list[tuple[int, str]]:
    return [(hit.line, hit.text.lower()) for hit in prose.find(path, text, PHRASES)]


def sample(entry: dict[str, Any], example: str) -> tuple[str, str]:
    """Return a file with *example* in a place that the phrase is searched in."""
    return ("page.py", f'"""{example}"""\n') if "where" in entry else ("page.rst", f"{example}\n")


@pytest.mark.parametrize(
    ("entry", "example"),
    [(entry, example) for entry in ENTRIES for example in entry["refused"]],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_example_of_a_phrase_is_refused(entry: dict[str, Any], example: str) -> None:
    path, text = sample(entry, example)
    assert len(prose.find(path, text, [prose.compile_phrase(entry)])) == 1


@pytest.mark.parametrize(
    ("entry", "example"),
    [(entry, example) for entry in ENTRIES for example in entry.get("allowed", ())],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_allowed_example_is_not_refused(entry: dict[str, Any], example: str) -> None:
    path, text = sample(entry, example)
    assert prose.find(path, text, [prose.compile_phrase(entry)]) == []


def test_docstrings_and_comments_of_python_are_searched() -> None:
    text = '''\
"""Return it to whoever asks."""

LIMIT = 3
"""Whether it is meanwhile."""


def settle():
    # It is not offered any
    # more.
    return "nobody"  # and nobody waits
'''
    assert found("module.py", text) == [
        (1, "whoever"),
        (4, "whether"),
        (4, "meanwhile"),
        (8, "any more"),
        (10, "nobody"),
    ]


def test_strings_and_code_of_python_are_not_searched() -> None:
    text = '''\
def tell(nobody):
    """Return ``nobody``."""
    likewise = "any"  # kept
    more = f"""whoever {nobody}"""
'''
    assert found("module.py", text) == []


def test_code_in_pages_is_not_searched() -> None:
    rst = """\
Nobody sees it::

    echo nobody

.. code-block:: console

   $ echo nobody

      nobody

``nobody`` and nobody
"""
    markdown = """\
Nobody sees it:

    echo nobody

```
nobody
```

`nobody` and nobody
"""
    assert found("page.rst", rst) == [(1, "nobody"), (11, "nobody")]
    assert found("page.md", markdown) == [(1, "nobody"), (9, "nobody")]


def test_release_notes_are_searched() -> None:
    assert found("releasenotes/notes/a.yaml", "fixes:\n  - |\n    Nobody waits.\n") == [(3, "nobody")]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with a page of old prose."""
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "old.rst").write_text("Nobody waits.\n")
    return tmp_path


def test_known_phrases_pass_and_a_planted_one_fails(checkout: Path) -> None:
    known = checkout / "known.txt"
    assert prose.check(checkout, PHRASES, known, update=True) == []
    assert prose.check(checkout, PHRASES, known, update=False) == []
    (checkout / "new.rst").write_text("It is ready.\n\nWhoever asks gets it.\n")
    assert prose.check(checkout, PHRASES, known, update=False) == [
        "new.rst: 1 refused phrases, 0 known",
        "new.rst:3: 'Whoever': say the caller, the client, the operator",
    ]


def test_an_update_lowers_known_counts_and_raises_none(checkout: Path) -> None:
    known = checkout / "known.txt"
    prose.check(checkout, PHRASES, known, update=True)
    (checkout / "old.rst").write_text("Nobody waits.\n\nNobody else does.\n")
    assert len(prose.check(checkout, PHRASES, known, update=True)) == 3
    assert prose.read_known(known) == {"old.rst": 1}
    (checkout / "old.rst").write_text("No client waits.\n")
    assert prose.check(checkout, PHRASES, known, update=True) == []
    assert prose.read_known(known) == {}
    assert known.exists()


def test_every_known_file_exists() -> None:
    known = prose.read_known(prose.KNOWN)
    assert [name for name in known if not (ROOT / name).is_file()] == []
