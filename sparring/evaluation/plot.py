"""A picture (SVG) that compares runs. It shows success over steps, and each policy's final result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from sparring.evaluation.across_runs import AcrossRuns, Compared
from sparring.evaluation.evaluation import Evaluation

WIDTH, LEFT, RIGHT, CURVES, ROW, LEGEND = 760, 300, 30, 240, 24, 20
COLORS = ("#2a7f62", "#c8553d", "#3b5b9d", "#b8860b", "#7b4f9d", "#4a4a4a", "#2a9fb0", "#a04070")
"""The colors of runs. They repeat if there are more runs."""


def plot(compared: AcrossRuns) -> str:
    """Return the SVG document. The upper part shows each run's validation results with their intervals; the lower part
    shows one row per evaluation with its interval."""
    parts, top = [], 16
    names = list(dict.fromkeys([*compared.curves, *(row.run for row in compared.rows)]))
    colors = {name: COLORS[place % len(COLORS)] for place, name in enumerate(names)}
    if any(len(curve) > 1 for curve in compared.curves.values()):
        parts += _curves(compared, colors, top)
        top += CURVES + 40 + LEGEND * len(compared.curves)
    parts += _rows(compared.rows, colors, top)
    height = top + ROW * len(compared.rows) + 40
    return (
        "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
                'font-family="sans-serif" font-size="12">',
                '<rect width="100%" height="100%" fill="white"/>',
                *parts,
                "</svg>",
            ]
        )
        + "\n"
    )


def _curves(compared: AcrossRuns, colors: dict[str, str], top: int) -> list[str]:
    last = max(one.policy_version or 0 for curve in compared.curves.values() for one in curve) or 1
    left = 60

    def x(one: Evaluation) -> float:
        return left + (one.policy_version or 0) / last * (WIDTH - left - RIGHT)

    def y(value: float) -> float:
        return top + (1 - min(1.0, max(0.0, value))) * (CURVES - 20)

    parts = [_text(left, top + CURVES + 14, f"step (to {last}); success in validation, band: 95 % interval")]
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(_line(left, y(value), WIDTH - RIGHT, y(value), "#ddd"))
        parts.append(_text(left - 8, y(value) + 4, f"{value:g}", anchor="end"))
    for place, (name, curve) in enumerate(compared.curves.items()):
        color = colors[name]
        band = [(x(one), y(one.success.high)) for one in curve]
        band += [(x(one), y(one.success.low)) for one in reversed(curve)]
        parts.append(f'<polygon points="{_points(band)}" fill="{color}" fill-opacity="0.12"/>')
        middle = _points([(x(one), y(one.success.mean)) for one in curve])
        parts.append(f'<polyline points="{middle}" fill="none" stroke="{color}" stroke-width="2"/>')
        down = top + CURVES + 34 + LEGEND * place
        parts += [_line(left, down - 4, left + 24, down - 4, color, 3), _text(left + 32, down, name)]
    return parts


def _rows(rows: Sequence[Compared], colors: dict[str, str], top: int) -> list[str]:
    x: Callable[[float], float] = lambda value: LEFT + min(1.0, max(0.0, value)) * (WIDTH - LEFT - RIGHT)  # noqa: E731
    bottom = top + ROW * len(rows)
    parts = []
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(_line(x(value), top, x(value), bottom, "#ddd"))
        parts.append(_text(x(value), bottom + 16, f"{value:g}", anchor="middle"))
    for place, row in enumerate(rows):
        one, middle = row.evaluation, top + ROW * place + ROW / 2
        color = colors[row.run]
        label = f"{row.source}: {one.name}, {one.setting}, {one.split}"
        shown = label if len(label) <= 46 else f"...{label[-43:]}"
        parts += [
            _text(LEFT - 10, middle + 4, shown, anchor="end"),
            *_bounds_line(one, middle, x),
            _line(x(one.success.low), middle, x(one.success.high), middle, color, 3),
            f'<circle cx="{x(one.success.mean):.1f}" cy="{middle:.1f}" r="5" fill="{color}"/>',
        ]
    thin = "; thin: lost episodes counted as wrong, as right" if any(row.evaluation.lost for row in rows) else ""
    parts.append(_text(LEFT, bottom + 32, f"success, 95 % interval{thin}"))
    return parts


def _bounds_line(one: Evaluation, middle: float, x: Callable[[float], float]) -> list[str]:
    """If any episode was lost, draw a line from the success rate with every lost episode incorrect to the success rate
    with every lost episode correct."""
    if not one.lost:
        return []
    return [_line(x(one.success_bounds.worst), middle + 7, x(one.success_bounds.best), middle + 7, "#999")]


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _line(x1: float, y1: float, x2: float, y2: float, color: str, width: int = 1) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" stroke-width="{width}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
