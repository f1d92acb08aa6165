"""Directives that show what the code has as data: a table in the documentation cannot then differ from it.

``device-states`` is the state machine of devices, as a table and as a graph in the DOT language (shown as
text, so that Graphviz is not needed). ``cleanup-matrix`` is the policy for erasing, ``simulated-faults`` what
can go wrong with a simulated host, ``audit-findings`` what an audit can find.
"""

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from docutils import nodes
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
        states = "\n".join(f"    {state};" for state in DeviceState)
        edges = "\n".join(f'    {edge.source} -> {edge.target} [label="{edge.event}"];' for edge in TRANSITIONS)
        graph = f"digraph device_state {{\n{states}\n{edges}\n}}"
        return [
            _table(["from", "event", "to", "caused by", "when"], rows),
            nodes.paragraph(text="The same as a graph, for dot -Tsvg:"),
            nodes.literal_block(graph, graph, language="dot"),
        ]


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
    app.add_directive("cleanup-matrix", CleanupMatrix)
    app.add_directive("audit-findings", AuditFindings)
    app.add_directive("simulated-faults", SimulatedFaults)
    app.add_directive("privileged-capabilities", PrivilegedCapabilities)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
