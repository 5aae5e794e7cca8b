"""Curves over steps as inline SVG, with marks at findings and resumed steps. The page's style defines the colors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TypeAlias

from sparring.pages.html import text
from sparring.report.reading import Record

WIDTH, HEIGHT = 560, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 40, 30
LABEL_WIDTH = 36
"""The width of a mark's label."""
MAX_POINTS = 300
"""The largest number of points of one line. If there are more, each group of neighbors is drawn as its mean."""
MAX_DOTS = 60
"""A line with at most this many points shows each of them, and its value under the pointer."""
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


def charts(record: Record) -> list[Chart]:
    """Return the charts for which the run has numbers, with the most important chart first."""
    marks = tuple(_marks(record))
    found = [
        Chart(
            title="Validation: completion and correctness",
            meaning="Success with its 95 % interval. If episodes finish and are wrong, look at the reward. If "
            "finished episodes are right but rare, look at the budgets.",
            lines=(_success(record), _line(record, "finished by itself", "val/completion")), is_share=True, marks=marks,
        ),
        Chart(
            title="Training: reward and the independent score",
            meaning="Both are measured on the same episodes. If only the reward rises, the policy exploits the reward.",
            lines=(_line(record, "reward", "rollout/reward/mean"), _line(record, "score", "rollout/score/mean")),
            marks=marks,
        ),
        Chart(
            title="Reward and scorer disagree",
            meaning="Shares of training episodes.",
            lines=(
                _line(record, "paid and wrong", "rollout/agreement/paid_wrong"),
                _line(record, "right and not paid", "rollout/agreement/unpaid_right"),
            ),
            is_share=True, marks=marks,
        ),
        _family(record, "Reward by component", "Every component moves with the total; look at a component that rises alone.",
                "rollout/reward/components/", marks),
        _family(record, "Score by part", "Look at the part that stays low: it keeps the score low.",
                "rollout/score/parts/", marks),
        Chart(
            title="Groups to learn from",
            meaning="The share of groups whose episodes did not all get the same reward. Below 0.3, little is learned.",
            lines=(_line(record, "groups with a signal", "analysis/batch_valid_ratio"),), is_share=True, marks=marks,
        ),
        Chart(
            title="Turns and budgets",
            meaning="The share of episodes that ran out of turns, and the share of turns that were cut at the token "
            "limit.",
            lines=(
                _line(record, "out of turns", "rollout/outcome/max_turns"),
                _line(record, "turns cut", "rollout/truncated_turns"),
            ),
            is_share=True, marks=marks,
        ),
        Chart(title="Turns per episode", meaning="Policy calls; they should not stay at 1 or at the limit.",
              lines=(_line(record, "turns", "rollout/turns/mean"),), marks=marks),
        Chart(title="Entropy", meaning="In nats, over trained tokens. A drop to almost 0 is a collapse.",
              lines=(_line(record, "entropy", "training/entropy"),), marks=marks),
        Chart(title="Gradient norm", meaning="Before clipping; it should not keep growing.",
              lines=(_line(record, "norm", "training/grad_norm"),), marks=marks),
        Chart(
            title="Distance from the policy that sampled",
            meaning="KL estimate k3, and the distance from the base model if that is measured.",
            lines=(
                _line(record, "to the sampler", "training/kl_k3"),
                _line(record, "to the base model", "training/reference_kl_k3"),
            ),
            marks=marks,
        ),
        Chart(title="Seconds per step", meaning="Rollouts and learning.",
              lines=(_line(record, "rollouts", "timing_s/rollout"), _line(record, "learning", "timing_s/training")),
              marks=marks),
    ]  # fmt: skip
    kept = (_with_lines(chart) for chart in found)
    return [chart for chart in kept if chart.lines]


def numbered_findings(record: Record) -> dict[int, str]:
    """Return the labels of the findings that have a step, keyed by their index among all findings."""
    placed = [place for place, finding in enumerate(record.findings) if finding.step is not None]
    return {place: f"F{number}" for number, place in enumerate(placed, start=1)}


def svg(chart: Chart) -> str:
    """Return one chart as SVG. Its alternative text gives the first and last values, for readers who cannot see the
    chart."""
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
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(_spoken(chart))}">{"".join(parts)}</svg>'


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


def _marks(record: Record) -> Iterator[Mark]:
    for step in record.resumed_after:
        yield Mark(step, "R", "change", f"the run was resumed after step {step}")
    taken: dict[int, list[int]] = {}
    labels = numbered_findings(record)
    for place in labels:
        taken.setdefault(record.findings[place].step or 0, []).append(place)
    for step, places in taken.items():
        heaviest = next(kind for kind in ("error", "warning", "note") if kind in {_kind(record, one) for one in places})
        label = labels[places[0]] if len(places) == 1 else f"{labels[places[0]]}+{len(places) - 1}"
        found = "; ".join(f"{labels[place]} {record.findings[place].rule}" for place in places)
        yield Mark(step, label, heaviest, f"after step {step}: {found}")


def _kind(record: Record, place: int) -> str:
    return record.findings[place].severity.value


def _success(record: Record) -> Line:
    validations = record.validations.items()
    return Line(
        name="success",
        points=[(step, one.success.mean) for step, one in validations],
        band=[(step, one.success.low, one.success.high) for step, one in validations],
    )


def _line(record: Record, name: str, metric: str) -> Line:
    return Line(name=name, points=[(step, value) for step, value in record.series(metric) if math.isfinite(value)])


def _family(record: Record, title: str, meaning: str, prefix: str, marks: tuple[Mark, ...]) -> Chart:
    names = record.names(prefix)
    lines = tuple(_line(record, name.removeprefix(prefix), name) for name in names[: len(STYLES)])
    if len(names) > len(STYLES):
        meaning += f" {len(STYLES)} of {len(names)} are drawn."
    return Chart(title=title, meaning=meaning, lines=lines, marks=marks)


def _with_lines(chart: Chart) -> Chart:
    """Return the chart without lines that have no measurements."""
    lines = tuple(line for line in chart.lines if line.points)
    return Chart(title=chart.title, meaning=chart.meaning, lines=lines, is_share=chart.is_share, marks=chart.marks)


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
