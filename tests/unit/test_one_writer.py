"""One module writes providers, traits and inventories in Placement."""

import ast
from pathlib import Path

import autoclave

SOURCE = Path(autoclave.__file__).parent
WRITES = {"put_inventories", "put_traits", "create_provider", "delete_provider", "rename_provider"}
WRITER = SOURCE / "placement/provider_tree.py"


def written_in(path: Path) -> set[str]:
    """The writes of a Placement client that a module calls or passes on."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in WRITES}


def test_only_provider_tree_writes_providers_traits_and_inventories() -> None:
    doubles = SOURCE / "testing"
    writers = {path for path in SOURCE.rglob("*.py") if written_in(path) and not path.is_relative_to(doubles)}
    assert writers == {WRITER}


def test_provider_tree_uses_every_write_of_the_client() -> None:
    assert written_in(WRITER) == WRITES
