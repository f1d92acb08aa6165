"""Directives that show what the code has as data: a table in the documentation cannot then differ from it.

``device-states`` is the state machine of devices as a table, ``device-life`` the same as a drawing of which the
directive places the states.
``cleanup-matrix`` is the policy for erasing, ``simulated-faults`` what can go wrong with a simulated host,
``audit-findings`` what an audit can find. ``import-layers`` is the import contract of ``pyproject.toml``.
"""

import ast
import inspect
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from docutils import nodes
from drawings import Arrow, Box, Drawing
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from autoclave.hardware.privileged import CAPABILITIES
from autoclave.rules.audit.kinds import Kind, Severity
from autoclave.rules.cleanup_policy import MATRIX
from autoclave.rules.device_lifecycle import TRANSITIONS, DeviceState
from autoclave.simulator.faults import NEEDS_VALUE, FaultKind


def _table(header: list[str], rows: list[list[str]]) -> nodes.table:
    group = nodes.tgroup(cols=len(header))
    group += [nodes.colspec(colwidth=1) for _ in header]
    head, body = nodes.thead(), nodes.tbody()
    head += _row(header)
    body += [_row(row) for row in rows]
    group += [head, body]
    table = nodes.table()
    table += group
    return table


def _row(cells: list[str]) -> nodes.row:
    row = nodes.row()
    for cell in cells:
        entry = nodes.entry()
        entry += nodes.paragraph(text=cell)
        row += entry
    return row


class DeviceStates(SphinxDirective):
    """``.. device-states::``"""

    def run(self) -> list[nodes.Node]:
        rows = [
            [edge.source, edge.event, edge.target, ", ".join(sorted(edge.actors)), edge.meaning] for edge in TRANSITIONS
        ]
        return [_table(["from", "event", "to", "caused by", "when"], rows)]


class DeviceLife(Drawing):
    """``.. device-life:: caption``; its content places the states, its arrows are the table's."""

    def arrows(self, boxes: list[Box], arrows: list[Arrow]) -> list[Arrow]:
        if arrows:
            raise ValueError("the arrows are made from the table of transitions")
        _require_names("states", (box.name for box in boxes), DeviceState)
        events = defaultdict(list)
        for edge in TRANSITIONS:
            if edge.source is not edge.target:  # the table shows the events that leave the state as it is
                events[edge.source.value, edge.target.value].append(edge.event.value)
        return [Arrow(*ends, tuple(names)) for ends, names in events.items()]


_PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


class ImportLayers(SphinxDirective):
    """``.. import-layers::``, the highest layer first; its content says of each package what it does.

    A line is ``package: text``. The packages must be those of the contract.
    """

    has_content = True

    def run(self) -> list[nodes.Node]:
        contracts = tomllib.loads(_PYPROJECT.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
        [layers] = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
        self.env.note_dependency(str(_PYPROJECT))
        texts = dict(line.split(": ", 1) for line in self.content if line.strip())
        rows = []
        for layer in layers:
            for package in layer.split(" | "):
                name = package.removeprefix("autoclave.")
                if name not in texts:
                    raise self.error(f"the import contract has {name}, which is not described here")
                rows.append([str(len(layers) - layers.index(layer)), name, texts.pop(name)])
        if texts:
            raise self.error(f"the import contract does not have {', '.join(texts)}")
        return [_table(["layer", "package", "what it does"], rows)]


def _require_names(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    if set(names) != set(known):
        raise ValueError(f"the {what} must be {', '.join(known)}")


class CleanupMatrix(SphinxDirective):
    """``.. cleanup-matrix::``"""

    def run(self) -> list[nodes.Node]:
        rows = [[action, strategy, ", then ".join(allowed)] for (action, strategy), allowed in MATRIX.items()]
        return [_table(["clear_action", "clear_strategy", "erase, the first that the drive can do"], rows)]


class PrivilegedCapabilities(SphinxDirective):
    """``.. privileged-capabilities::``"""

    def run(self) -> list[nodes.Node]:
        return [_table(["capability", "why"], [[name, why] for name, why in CAPABILITIES.items()])]


class SimulatedFaults(SphinxDirective):
    """``.. simulated-faults::``"""

    def run(self) -> list[nodes.Node]:
        rows = [
            [kind.value, "needed" if kind in NEEDS_VALUE else "", meaning] for kind, meaning in _documented(FaultKind)
        ]
        return [_table(["fault", "value", "what happens; a value is the number meant there"], rows)]


class AuditFindings(SphinxDirective):
    """``.. audit-findings::``, the worst first"""

    def run(self) -> list[nodes.Node]:
        ordered = sorted(Kind, key=lambda kind: list(Severity).index(kind.severity))
        shown: list[nodes.Node] = []
        for kind in ordered:
            fixed = f" --fix: {kind.fix}." if kind.fix else ""
            entry = nodes.definition_list_item()
            entry += nodes.term(text=f"{kind.label} ({kind.severity})")
            body = nodes.definition()
            body += nodes.paragraph(text=kind.cause)
            body += nodes.paragraph(text=f"{kind.remedy.replace('{', '<').replace('}', '>').replace('`', '')}{fixed}")
            entry += body
            shown.append(nodes.definition_list("", entry))
        return shown


def _documented(kinds: type[FaultKind]) -> Iterator[tuple[FaultKind, str]]:
    """Each member with the text below it in the source, which Python itself does not keep."""
    [body] = [node.body for node in ast.parse(inspect.getsource(kinds)).body if isinstance(node, ast.ClassDef)]
    for member, text in pairwise(body):
        match member, text:
            case ast.Assign(value=ast.Constant(name)), ast.Expr(value=ast.Constant(meaning)):
                yield kinds(name), " ".join(meaning.split())


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("device-states", DeviceStates)
    app.add_directive("device-life", DeviceLife)
    app.add_directive("import-layers", ImportLayers)
    app.add_directive("cleanup-matrix", CleanupMatrix)
    app.add_directive("audit-findings", AuditFindings)
    app.add_directive("simulated-faults", SimulatedFaults)
    app.add_directive("privileged-capabilities", PrivilegedCapabilities)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
