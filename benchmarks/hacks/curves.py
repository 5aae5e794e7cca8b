"""Draws the curves of the hacks: the training reward, the strict score, and the step at which a detector named the
hack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sparring.findings import Finding

WIDTH, HEIGHT, GAP, COLUMNS = 220, 110, 46, 3
REWARD, SCORE, NAMED = "#b4532a", "#2a6fb4", "#777777"


class Named(Protocol):
    """The case that was trained."""

    @property
    def name(self) -> str: ...


class Curves(Protocol):
    """The values of a run to draw."""

    @property
    def case(self) -> Named: ...

    @property
    def rewards(self) -> Sequence[float]: ...

    @property
    def scores(self) -> Sequence[float]: ...

    @property
    def naming(self) -> Finding | None: ...


def picture(runs: Sequence[Curves]) -> str:
    """Draw one panel per run. The reward is drawn from its lowest to its highest value, and the score from 0 to 1."""
    rows = -(-len(runs) // COLUMNS)
    width, height = COLUMNS * (WIDTH + GAP), rows * (HEIGHT + GAP) + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="10" y="16"><tspan fill="{REWARD}">training reward (its own range)</tspan>  '
        f'<tspan fill="{SCORE}">strict score (0 to 1)</tspan>  <tspan fill="{NAMED}">named by a detector</tspan></text>',
    ]
    for index, run in enumerate(runs):
        row, column = divmod(index, COLUMNS)
        lines += _panel(run, x=10 + column * (WIDTH + GAP), y=48 + row * (HEIGHT + GAP))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _panel(run: Curves, *, x: int, y: int) -> list[str]:
    low, high = min(run.rewards), max(run.rewards)
    rewards = [(value - low) / (high - low or 1) for value in run.rewards]
    lines = [
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#cccccc"/>',
        f'<text x="{x}" y="{y - 5}">{run.case.name} (reward {low:.2f} to {high:.2f})</text>',
        _line(rewards, REWARD, x, y),
        _line(run.scores, SCORE, x, y),
    ]
    if run.naming is not None and run.naming.step is not None:
        at = x + WIDTH * (run.naming.step - 1) / max(1, len(run.rewards) - 1)
        lines.append(
            f'<line x1="{at:.1f}" y1="{y}" x2="{at:.1f}" y2="{y + HEIGHT}" stroke="{NAMED}" stroke-dasharray="3 3"/>'
        )
        lines.append(
            f'<text x="{x}" y="{y + HEIGHT + 12}" fill="{NAMED}">step {run.naming.step}: {run.naming.rule}</text>'
        )
    return lines


def _line(values: Sequence[float], color: str, x: int, y: int) -> str:
    step = WIDTH / max(1, len(values) - 1)
    points = " ".join(f"{x + step * index:.1f},{y + HEIGHT * (1 - value):.1f}" for index, value in enumerate(values))
    return f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>'
