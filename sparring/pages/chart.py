"""A chart of curves over steps as inline SVG. In a page, the page's style defines the colors; `picture` has its own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TypeAlias

from sparring.pages.html import asset, text

WIDTH, HEIGHT = 560, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 40, 30
LABEL_WIDTH = 36
"""The width of a mark's label."""
MAX_POINTS = 300
"""The largest number of points of one line. If there are more, each group of neighbors is drawn as its mean."""
MAX_DOTS = 60
"""A line with at most this many points shows each of them, and its value under the pointer."""
HEAD, KEYS_IN_ROW, SHORT_NAME = 42, 3, 16
"""In a picture: the height of the title, the number of legend entries in a row, and the length of a name up to which there
is more than one in a row."""
STYLES = ("one", "two", "three", "four", "five")
"""The classes of lines. Each has a color and a dash pattern."""

Points: TypeAlias = Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One quantity over steps."""

    name: str
    points: Points
    band: Sequence[tuple[int, float, float]] = ()
    """The interval as (step, low, high)."""
    style: str = ""
    """The CSS class of the line. If it is empty, the line gets the next class of STYLES."""


@dataclass(frozen=True, slots=True)
class Mark:
    """An event after a step."""

    step: int
    label: str
    """The label, which has one or two characters."""
    kind: str
    """The kind of the event: `error`, `warning`, `note` or `change`."""
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines that share one unit, and a description of what to look for in them."""

    title: str
    meaning: str
    lines: tuple[Line, ...]
    is_share: bool = False
    """Whether the values are between 0 and 1."""
    marks: tuple[Mark, ...] = field(default=())


def svg(chart: Chart) -> str:
    """Return one chart as SVG. Its alternative text gives the first and last values, for readers who cannot see the
    chart."""
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(_spoken(chart))}">{_drawn(chart)}</svg>'


def picture(chart: Chart) -> str:
    """Return one chart as an SVG file with its title, its legend and its colors."""
    lines = list(_styled(chart.lines))
    in_row = KEYS_IN_ROW if max(len(line.name) for line, _ in lines) <= SHORT_NAME else 1
    keys = "".join(
        f'<g transform="translate({LEFT + 170 * (place % in_row)} {HEAD + 18 * (place // in_row)})">'
        f'<polyline class="{style}" points="0,-4 28,-4"/><text x="34">{text(line.name)} {line.points[-1][1]:.3g}</text></g>'
        for place, (line, style) in enumerate(lines)
    )
    top = HEAD + 18 * -(-len(lines) // in_row) - TOP // 2
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="sparring-chart" viewBox="0 0 {WIDTH} {top + HEIGHT}" '
        f'width="{WIDTH}" height="{top + HEIGHT}" role="img" aria-label="{text(_spoken(chart))}">'
        f"<style>{asset('sparring.pages', 'chart.css')}</style>"
        f'<rect width="{WIDTH}" height="{top + HEIGHT}"/><text class="title" x="{LEFT}" y="20">{text(chart.title)}</text>'
        f'{keys}<g transform="translate(0 {top})">{_drawn(chart)}</g></svg>'
    )


def _drawn(chart: Chart) -> str:
    """Return the elements of a chart, without the element around them."""
    steps = [step for line in chart.lines for step, _ in line.points]
    values = [value for line in chart.lines for _, value in line.points]
    values += [value for line in chart.lines for _, low, high in line.band for value in (low, high)]
    first, last = min(steps), max(max(steps), min(steps) + 1)
    ticks = [0.0, 0.25, 0.5, 0.75, 1.0] if chart.is_share else _ticks(min(values), max(values))

    def x(step: float) -> float:
        return LEFT + (step - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        share = (value - ticks[0]) / (ticks[-1] - ticks[0])
        return HEIGHT - BOTTOM - min(1.0, max(0.0, share)) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
        for tick in ticks
    ]
    places = sorted({first, (first + last) // 2, last})
    parts += [
        f'<text x="{x(step):.1f}" y="{HEIGHT - 10}" text-anchor="{"end" if step == last else "middle"}">'
        f"{'step ' if step == first else ''}{step}</text>"
        for step in places
    ]
    parts += _drawn_marks([(x(mark.step), mark) for mark in chart.marks if first <= mark.step <= last])
    for line, style in _styled(chart.lines):
        if line.band:
            edge = [(x(step), y(high)) for step, _, high in line.band]
            edge += [(x(step), y(low)) for step, low, _ in reversed(line.band)]
            parts.append(f'<polygon class="{style}" points="{_joined(edge)}"/>')
        drawn = _thinned(line.points)
        parts.append(f'<polyline class="{style}" points="{_joined([(x(step), y(value)) for step, value in drawn])}"/>')
        if len(drawn) <= MAX_DOTS:
            parts += [
                f'<circle class="{style}" cx="{x(step):.1f}" cy="{y(value):.1f}" r="2.5">'
                f"<title>{text(line.name)} after step {step:g}: {value:.4g}</title></circle>"
                for step, value in drawn
            ]
    return "".join(parts)


def _drawn_marks(placed: Sequence[tuple[float, Mark]]) -> list[str]:
    """Draw marks with labels above them, in as many rows as needed to separate them. With more than three rows, labels
    may touch."""
    ends = [float("-inf")] * 3
    drawn = []
    for x, mark in sorted(placed, key=lambda one: one[0]):
        row = next((row for row, end in enumerate(ends) if x - end >= LABEL_WIDTH), len(ends) - 1)
        ends[row] = x
        drawn.append(
            f'<g class="mark {mark.kind}"><title>{text(mark.title)}</title>'
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 4}" y2="{HEIGHT - BOTTOM}"/>'
            f'<text x="{x:.1f}" y="{TOP - 7 - 11 * row}" text-anchor="middle">{text(mark.label)}</text></g>'
        )
    return drawn


def legend(chart: Chart) -> str:
    """Return the names of the lines, each with its pattern and its last value."""
    return " ".join(
        f'<span class="key"><svg viewBox="0 0 28 8" aria-hidden="true"><polyline class="{style}" points="0,4 28,4"/></svg>'
        f"{text(line.name)} <b>{line.points[-1][1]:.3g}</b></span>"
        for line, style in _styled(chart.lines)
    )


def _styled(lines: Sequence[Line]) -> Iterator[tuple[Line, str]]:
    """Yield lines with their styles. Lines beyond the number of styles are left out."""
    yield from ((line, line.style) for line in lines if line.style)
    yield from zip((line for line in lines if not line.style), STYLES, strict=False)


def _thinned(points: Points) -> Sequence[tuple[float, float]]:
    every = -(-len(points) // MAX_POINTS)
    if every == 1:
        return points
    parts = (points[begin : begin + every] for begin in range(0, len(points), every))
    return [(fmean(step for step, _ in part), fmean(value for _, value in part)) for part in parts]


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers that enclose all values. They start at 0 if that widens the range only a little."""
    if low > 0 and low < 0.6 * high:
        low = 0.0
    width = (high - low) or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(width / 4))
    unit = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= width / 4)
    begin, end = math.floor(low / unit), math.ceil(high / unit)
    return [unit * number for number in range(begin, max(end, begin + 1) + 1)]


def _joined(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _spoken(chart: Chart) -> str:
    lines = (
        f"{line.name} {line.points[0][1]:.3g} after step {line.points[0][0]}, {line.points[-1][1]:.3g} after step "
        f"{line.points[-1][0]}"
        for line in chart.lines
    )
    return f"{chart.title}: {'; '.join(lines)}"
