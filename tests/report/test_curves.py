"""Curves: round ticks, places of points and marks, and what is left out."""

import re
from pathlib import Path

import pytest

from sparring.pages.chart import BOTTOM, HEIGHT, LEFT, MAX_POINTS, RIGHT, TOP, WIDTH, Chart, Line, svg
from sparring.pages.chart import _ticks as ticks
from sparring.report.curves import charts
from sparring.report.reading import read_run
from sparring.run_folders.stored import RESUMED
from tests.report.stored_run import StoredRun, evaluation, finding, held_out


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.25, 0.5, 0.75, 1]),
        (0.2, 0.9, [0, 0.25, 0.5, 0.75, 1]),
        (-3, 5, [-4, -2, 0, 2, 4, 6]),
        (98, 100, [98, 98.5, 99, 99.5, 100]),
    ],
)
def test_ticks_are_round_and_hold_all_values(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize("value", [0.0, 7.0, -2.0, 1e-9])
def test_a_value_that_never_changes_has_ticks_around_it(value: float) -> None:
    found = ticks(value, value)
    assert found[0] <= value <= found[-1]
    assert found[0] < found[-1]


def test_the_first_and_last_step_stand_at_the_edges_and_shares_between_0_and_1() -> None:
    drawn = svg(Chart(title="t", meaning="", lines=(Line(name="a", points=[(0, 0.0), (10, 1.0)]),), is_share=True))
    points = re.search(r'<polyline class="one" points="([^"]+)"', drawn)
    assert points is not None
    assert points[1] == f"{LEFT:.1f},{HEIGHT - BOTTOM:.1f} {WIDTH - RIGHT:.1f},{TOP:.1f}"


def test_a_run_has_the_curves_that_it_measured_with_a_mark_at_each_finding_and_resumption(tmp_path: Path) -> None:
    run = StoredRun(tmp_path)
    numbers = {"rollout/reward/mean": 0.5, "rollout/score/mean": 0.1, "rollout/reward/components/<b>": 0.5}
    run.log(
        dict.fromkeys((1, 2, 3), numbers),
        findings=[finding(step=2), finding("a.b", "note", 2), finding("c.d", step=None)],
    )
    run.log(dict.fromkeys((3, 4), numbers))
    run.validated(0, evaluation("step 0", held_out("a", [0.0, 1.0])))
    run.validated(4, evaluation("step 4", held_out("a", [1.0, 1.0])))
    found = {chart.title: chart for chart in charts(read_run(run.path))}
    assert list(found) == [
        "Validation: completion and correctness",
        "Training: reward and the independent score",
        "Reward by component",
    ]
    both = found["Training: reward and the independent score"]
    assert [line.name for line in both.lines] == ["reward", "score"]
    assert [(mark.step, mark.label, mark.kind) for mark in both.marks] == [(2, "F1+1", "error")]
    assert "&lt;b&gt;" in svg(found["Reward by component"])
    assert "<b>" not in svg(found["Reward by component"])


def test_a_resumption_is_marked(tmp_path: Path) -> None:
    run = StoredRun(tmp_path)
    run.log({step: {"rollout/reward/mean": 1.0} for step in (1, 2, 3)})
    run.log({1: {RESUMED: 1.0}, 2: {"rollout/reward/mean": 1.0}})
    (chart,) = charts(read_run(run.path))
    assert [(mark.step, mark.label) for mark in chart.marks] == [(1, "R")]


def test_a_long_line_is_drawn_as_means_of_neighbors() -> None:
    points = [(step, float(step % 2)) for step in range(3 * MAX_POINTS)]
    drawn = svg(Chart(title="t", meaning="", lines=(Line(name="a", points=points),), is_share=True))
    line = re.search(r'<polyline class="one" points="([^"]+)"', drawn)
    assert line is not None
    assert len(line[1].split()) == MAX_POINTS
