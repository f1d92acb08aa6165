"""The troubleshooting page quotes messages, findings and metrics that exist in the source."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from autoclave.rules.audit.kinds import Kind

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "source"
_FIELD = re.compile(r"^:(Log|Reason|Audit):((?: .*\n)(?: {3}.*\n)*)", re.MULTILINE)
_LITERAL = re.compile(r"``([^`]+)``")
_PLACEHOLDER = re.compile(r"%(?:\.\d+)?[sdfr]")


def quoted(*fields: str) -> list[str]:
    """Return the literals in *fields* of the page, in its order."""
    page = (PAGES / "recover.rst").read_text()
    found = (literal for name, text in _FIELD.findall(page) if name in fields for literal in _LITERAL.findall(text))
    return list(dict.fromkeys(" ".join(literal.split()) for literal in found))


def _texts(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)


@cache
def messages() -> str:
    """Return every string of the product, with ``…`` for what is filled in."""
    texts = (text for path in sorted((ROOT / "src").rglob("*.py")) for text in _texts(path))
    return "\n".join(_PLACEHOLDER.sub("…", text) for text in texts)


@pytest.mark.parametrize("quote", quoted("Log", "Reason"))
def test_a_quoted_message_exists_in_the_source(quote: str) -> None:
    fragments = [fragment.strip(" (),;:") for fragment in quote.split("…")]
    missing = [fragment for fragment in fragments if fragment not in messages()]
    assert not missing


def test_every_quoted_finding_exists() -> None:
    findings = set(quoted("Audit"))
    assert findings
    assert findings <= {kind.label for kind in Kind}


def test_the_page_of_metrics_names_every_metric() -> None:
    source = (ROOT / "src/autoclave/api/metrics.py").read_text()
    names = set(re.findall(r'"(autoclave_\w+)"', source))
    conditions = set(re.findall(r'"(\w+)"', source[source.index("_CONDITIONS =") :].split("\n", 1)[0]))
    page = (PAGES / "metrics.rst").read_text()
    assert len(names) >= 4
    assert len(conditions) >= 7
    assert set(re.findall(r"^``(autoclave_\w+)", page, re.MULTILINE)) == names
    assert conditions <= set(re.findall(r"^ +``(\w+)``  ", page, re.MULTILINE))
