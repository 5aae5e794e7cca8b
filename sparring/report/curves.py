"""The charts of a run: curves over steps, with marks at findings and resumed steps."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sparring.pages.chart import STYLES, Chart, Line, Mark
from sparring.report.reading import Record


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
            lines=(
                _line(record, "reward", "rollout/reward/mean"),
                _line(record, "score", "rollout/score/mean"),
                _line(record, "reward of all offered tasks", "rollout/reward/offered_mean"),
            ),
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
