"""Draw a figure as SVG from lines of text, so that the documentation needs no Graphviz.

The content of the directive ``drawing`` has boxes on a grid and arrows between them::

    .. drawing:: Who writes to the database

       box api 1,0 API
       box database 0,0-1 Database
       api -> database: accelerator requests; device profiles

A box has a name, its row, its column or range of columns, and a label. ``store`` in place of ``box`` gives it
another colour. The label of an arrow is broken at each semicolon. The argument of the directive is the caption.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from math import hypot, inf
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

_BOX = re.compile(r"(box|store) (\w+) (\d+),(\d+)(?:-(\d+))? (.+)")
_ARROW = re.compile(r"(\w+) -> (\w+)(?:: (.+))?")

_HEIGHT = 46
_LINE = 16
_HEAD = 9
_FILL = {"box": "#f4f7fa", "store": "#fdf3dc"}
_APART = 9
"""Half the distance between the two arrows of boxes that have one in each direction."""


@dataclass(frozen=True)
class Box:
    """A box on the grid."""

    kind: str
    name: str
    row: int
    first: int
    last: int
    label: str


@dataclass(frozen=True)
class Arrow:
    """An arrow between two boxes, by their names."""

    source: str
    target: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Grid:
    """The size of a cell, and how much of its width lies between two boxes."""

    width: int
    height: int
    gap: int


@dataclass(frozen=True)
class _Rectangle:
    left: float
    top: float
    right: float
    bottom: float

    @property
    def centre(self) -> tuple[float, float]:
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2

    def exit_of(self, x: float, y: float, dx: float, dy: float) -> tuple[float, float]:
        """Return where a line from a point inside leaves the rectangle."""
        across = ((self.right if dx > 0 else self.left) - x) / dx if dx else inf
        along = ((self.bottom if dy > 0 else self.top) - y) / dy if dy else inf
        scale = min(across, along)
        return x + scale * dx, y + scale * dy


@dataclass(frozen=True)
class _Label:
    lines: tuple[str, ...]
    x: float
    y: float
    anchor: str
    weight: str = "normal"

    @property
    def ends(self) -> tuple[float, float]:
        """The top of the first line and the bottom of the last."""
        return self.y - _LINE, self.y + (len(self.lines) - 1) * _LINE + 6

    def drawn(self) -> str:
        """Return its SVG elements."""
        style = f'text-anchor="{self.anchor}" font-weight="{self.weight}"'
        return "".join(
            f'<text x="{self.x:.1f}" y="{self.y + number * _LINE:.1f}" {style}>{escape(line)}</text>'
            for number, line in enumerate(self.lines)
        )


def parse(lines: Iterable[str]) -> tuple[list[Box], list[Arrow]]:
    """Read the content of a drawing.

    :raises ValueError: a line is neither a box nor an arrow, or an arrow names a box that is not there.
    """
    boxes, arrows = [], []
    for line in filter(None, map(str.strip, lines)):
        if match := _BOX.fullmatch(line):
            kind, name, row, first, last, label = match.groups()
            boxes.append(Box(kind, name, int(row), int(first), int(last or first), label))
        elif match := _ARROW.fullmatch(line):
            source, target, label = match.groups()
            arrows.append(Arrow(source, target, tuple(part.strip() for part in (label or "").split(";") if part)))
        else:
            raise ValueError(f"neither a box nor an arrow: {line}")
    known = {box.name for box in boxes}
    for arrow in arrows:
        if missing := {arrow.source, arrow.target} - known:
            raise ValueError(f"an arrow names a box that is not there: {', '.join(sorted(missing))}")
    return boxes, arrows


def svg(boxes: Iterable[Box], arrows: Iterable[Arrow], grid: Grid, title: str) -> str:
    """Return the drawing as an SVG element."""
    boxes, arrows = list(boxes), list(arrows)
    places = {box.name: _place(box, grid) for box in boxes}
    pairs = {(arrow.source, arrow.target) for arrow in arrows}
    shapes, labels = [], []
    for arrow in arrows:
        shape, label = _arrow(arrow, places, is_paired=(arrow.target, arrow.source) in pairs)
        shapes.append(shape)
        labels.append(label)
    for box in boxes:
        shape, label = _box(box, places[box.name])
        shapes.append(shape)
        labels.append(label)
    top = min(0, *(label.ends[0] for label in labels))
    bottom = max(*(place.bottom + 2 for place in places.values()), *(label.ends[1] for label in labels))
    width = (1 + max(box.last for box in boxes)) * grid.width
    style = f"width: 100%; max-width: {width}px; font: 13px monospace"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(title)}"'
        f' viewBox="0 {top:.0f} {width} {bottom - top:.0f}" style="{style}">'
        f"{''.join(shapes)}{''.join(label.drawn() for label in labels)}</svg>"
    )


def _place(box: Box, grid: Grid) -> _Rectangle:
    left, right = box.first * grid.width + grid.gap / 2, (box.last + 1) * grid.width - grid.gap / 2
    top = box.row * grid.height + 2
    return _Rectangle(left, top, right, top + _HEIGHT)


def _box(box: Box, place: _Rectangle) -> tuple[str, _Label]:
    x, y = place.centre
    rectangle = (
        f'<rect x="{place.left:g}" y="{place.top:g}" width="{place.right - place.left:g}" height="{_HEIGHT}" rx="8"'
        f' fill="{_FILL[box.kind]}" stroke="#445"/>'
    )
    return rectangle, _Label((box.label,), x, y + 4, "middle", "bold")


def _arrow(arrow: Arrow, places: Mapping[str, _Rectangle], *, is_paired: bool) -> tuple[str, _Label]:
    source, target = places[arrow.source], places[arrow.target]
    (x1, y1), (x2, y2) = _centres(source, target)
    length = hypot(x2 - x1, y2 - y1)
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    # To the left of the arrow's direction, where y grows downwards: the two arrows of a pair part.
    nx, ny = dy, -dx
    apart = _APART if is_paired else 0
    x1, y1 = source.exit_of(x1 + nx * apart, y1 + ny * apart, dx, dy)
    x2, y2 = target.exit_of(x2 + nx * apart, y2 + ny * apart, -dx, -dy)
    bx, by = x2 - dx * _HEAD, y2 - dy * _HEAD
    sx, sy = nx * _HEAD / 2, ny * _HEAD / 2
    head = f"{x2:.1f},{y2:.1f} {bx + sx:.1f},{by + sy:.1f} {bx - sx:.1f},{by - sy:.1f}"
    shape = (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#445"/>'
        f'<polygon points="{head}" fill="#445"/>'
    )
    half = len(arrow.lines) * _LINE / 2
    away = 6 + half * abs(ny)
    x, y = (x1 + x2) / 2 + nx * away, (y1 + y2) / 2 + ny * away
    anchor = "middle" if abs(nx) < 0.3 else "start" if nx > 0 else "end"
    return shape, _Label(arrow.lines, x, y - half + _LINE - 4, anchor)


def _centres(source: _Rectangle, target: _Rectangle) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the centres, or two points right above each other where one box is as wide as the other, or wider."""
    narrower = min(source, target, key=lambda each: each.right - each.left)
    wider = target if narrower is source else source
    x = narrower.centre[0]
    if wider.left < x < wider.right:
        return (x, source.centre[1]), (x, target.centre[1])
    return source.centre, target.centre


class Drawing(SphinxDirective):
    """``.. drawing:: caption``"""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec = {  # noqa: RUF012 - docutils' own hook
        "cell": directives.positive_int_list,
        "gap": directives.nonnegative_int,
    }

    def arrows(self, boxes: list[Box], arrows: list[Arrow]) -> list[Arrow]:
        """Return the arrows to draw.

        :raises ValueError: the content does not fit.
        """
        del boxes
        return arrows

    def run(self) -> list[nodes.Node]:
        try:
            boxes, arrows = parse(self.content)
            arrows = self.arrows(boxes, arrows)
        except ValueError as error:
            raise self.error(str(error)) from error
        caption = " ".join(self.arguments[0].split())
        width, height = self.options.get("cell", (210, 150))
        grid = Grid(width, height, self.options.get("gap", 60))
        drawn = svg(boxes, arrows, grid, caption.replace("`", ""))
        figure = nodes.figure("", nodes.raw("", drawn, format="html"))
        text, messages = self.state.inline_text(caption, self.lineno)
        figure += nodes.caption(caption, "", *text)
        self.set_source_info(figure)
        return [figure, *messages]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("drawing", Drawing)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
