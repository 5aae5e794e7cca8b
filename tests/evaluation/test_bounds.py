"""What lost episodes could have made of an evaluation, and where there are too many of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from sparring.cli import app
from sparring.evaluation.bounds import Bounds
from sparring.evaluation.comparison import Comparison, compare
from sparring.evaluation.evaluation import Evaluation, Row, SuccessCriterion, summarize
from sparring.evaluation.tables import comparison_table, notes, result_table
from sparring.types import Outcome, Reward, Task, Trajectory, TrajectoryGroup

CRITERION = SuccessCriterion(scorer="s:score", independence="scorer", success_threshold=1.0)


def group(name: str, scores: list[float], num_lost: int = 0) -> TrajectoryGroup:
    task = Task(id=name, messages=({"role": "user", "content": "?"},))
    played = tuple(
        Trajectory(
            id=f"{name}/{place}",
            task=task,
            attempt=place,
            turns=(),
            messages=(),
            outcome=Outcome.FINISHED,
            reward=Reward(total=score),
            score=score,
        )
        for place, score in enumerate(scores)
    )
    return TrajectoryGroup(task=task, trajectories=played, num_lost=num_lost)


def evaluation(label: str, *groups: TrajectoryGroup) -> Evaluation:
    row = Row(
        name=label, label=label, split="held_out", policy_version=1, fingerprint="f", temperature=0.8, group_size=2
    )
    return summarize(groups, row, criterion=CRITERION, seconds=1.0, prefix="eval")


def test_lost_episodes_are_wrong_in_the_worst_case_and_right_in_the_best_also_where_none_of_a_task_is_left() -> None:
    one = evaluation("one", group("a", [1.0, 0.5]), group("b", [1.0], 1), group("c", [], 2))
    # Success of what is left: (1/2 + 1) / 2. With what was lost: a 1/2, b 1/2 to 1, c 0 to 1.
    assert one.success.mean == 0.75
    assert one.success_bounds == Bounds(pytest.approx(1 / 3), pytest.approx(2.5 / 3))
    # Scores: a 3/4, b 1/2 to 1, c 0 to 1.
    assert one.score_bounds == Bounds(pytest.approx(1.25 / 3), pytest.approx(2.75 / 3))
    assert (one.num_lost, one.lost_share) == (3, 0.5)
    assert Evaluation.from_json(json.loads(json.dumps(one.as_json()))) == one
    assert one.as_json()["bounds"]["success"] == {"worst": pytest.approx(1 / 3), "best": pytest.approx(2.5 / 3)}


def test_a_difference_whose_sign_lost_episodes_could_turn_round_is_marked() -> None:
    before = evaluation("before", group("a", [1.0, 0.0]), group("b", [0.0, 0.0]))
    after = evaluation("after", group("a", [1.0, 1.0]), group("b", [], 2))
    found = compare(before, after)
    # a alone: 1 - 1/2. With b: after is 1/2 to 1, before 1/4.
    assert (found.difference.mean, found.bounds) == (0.5, Bounds(0.25, 0.75))
    assert not found.is_sign_open
    worse = compare(before, evaluation("after", group("a", [1.0], 1), group("b", [], 2)))
    assert worse.bounds == Bounds(0.0, 0.75)
    open_ = compare(evaluation("before", group("a", [1.0, 0.0]), group("b", [1.0, 0.0])), after)
    # after is 1/2 to 1, before 1/2; and 3/4 where it was right more often.
    assert (open_.bounds, open_.is_sign_open) == (Bounds(0.0, 0.5), False)
    better = evaluation("before", group("a", [1.0, 0.0]), group("b", [1.0, 1.0]))
    turned = compare(better, after)
    assert (turned.difference.mean, turned.bounds, turned.is_sign_open) == (0.5, Bounds(-0.25, 0.25), True)
    assert Comparison.from_json(json.loads(json.dumps(turned.as_json()))) == turned
    table = comparison_table([better, after], [turned])
    assert table is not None
    assert table[2][0][-1] == "-0.25 to +0.25, sign open"
    assert any("could decide whether after is better than before" in note for note in notes([better, after], [turned]))
    assert compare(better, better).bounds is None


def test_a_table_has_columns_for_lost_episodes_only_where_there_are_some() -> None:
    whole, lossy = evaluation("whole", group("a", [1.0, 0.0])), evaluation("lossy", group("a", [1.0], 1))
    _, columns, rows = result_table([whole, lossy], title="held out")
    assert columns[-3:] == ["lost", "success, lost as wrong to right", "score, lost as wrong to right"]
    assert [row[-3:] for row in rows] == [["0", "", ""], ["1 (50%)", "0.50 to 1.00", "0.50 to 1.00"]]
    assert "lost" not in result_table([whole], title="held out")[1]


@given(
    st.lists(st.tuples(st.lists(st.sampled_from([0.0, 1.0]), max_size=3), st.integers(0, 3)), min_size=1, max_size=5),
    st.randoms(),
)
def test_whatever_the_lost_episodes_were_the_mean_lies_within_the_bounds(
    tasks: list[tuple[list[float], int]], rng: object
) -> None:
    tasks = [(scores, lost) for scores, lost in tasks if scores or lost]
    if not any(scores for scores, _ in tasks):
        return
    one = evaluation("one", *(group(str(place), *task) for place, task in enumerate(tasks)))
    rates = []
    for scores, lost in tasks:
        values = [*scores, *(float(rng.random() < 0.5) for _ in range(lost))]  # type: ignore[attr-defined]
        rates.append(sum(values) / len(values))
    bounds, mean = one.success_bounds, sum(rates) / len(rates)
    assert bounds.worst - 1e-9 <= mean <= bounds.best + 1e-9


RECIPE = """
[data]
train = "shop:train"
held_out = "shop:tasks"
[environment]
target = "shop:Shop"
[reward]
reward = "shop:reward"
[rollout]
rollout_max_retries = 0
[engine]
type = "scripted"
script = "shop:act"
"""
SHOP = """
from sparring.environments import Environment
from sparring.errors import InfrastructureError
from sparring.types import Task

class Shop(Environment):
    def reset(self, task):
        if task.id in ("t0", "t1"):
            raise InfrastructureError("the shop is closed")

def tasks():
    return [Task(id=f"t{n}", messages=({"role": "user", "content": f"{n}?"},)) for n in range(8)]

def train():
    return [Task(id="train", messages=({"role": "user", "content": "?"},))]

def act(messages):
    return "yes"

def reward(trajectory):
    return 1.0
"""


def evaluated(folder: Path, *overrides: str) -> Result:
    (folder / "recipe.toml").write_text(RECIPE, "utf-8")
    (folder / "shop.py").write_text(SHOP, "utf-8")
    arguments = [
        "eval",
        str(folder),
        f"run.runs_dir={folder / 'runs'}",
        *(overrides or ["evaluation.eval_group_size=1"]),
    ]
    return CliRunner().invoke(app, arguments, terminal_width=300)


def test_an_evaluation_that_lost_more_than_its_share_is_written_and_ends_with_an_exit_code_of_its_own(
    tmp_path: Path,
) -> None:
    result = evaluated(tmp_path)
    assert result.exit_code == 4, result.output
    assert "lost 2 of 8 episodes (25%): more than rollout.max_lost_share = 0.2" in result.output
    assert "the shop is closed (2 attempts)" in result.output
    assert "success is 0.75 if they count as wrong and 1.00 if they count as right" in result.output
    (report,) = (tmp_path / "runs").glob("*/evaluations/held_out-001.json")
    (written,) = json.loads(report.read_text())["evaluations"]
    assert (written["lost"], written["bounds"]["success"]) == ({"t0": 1, "t1": 1}, {"worst": 0.75, "best": 1.0})


def test_an_evaluation_that_lost_no_more_than_its_share_ends_well(tmp_path: Path) -> None:
    result = evaluated(tmp_path, "evaluation.eval_group_size=1", "rollout.max_lost_share=0.25")
    assert result.exit_code == 0, result.output


def test_lost_episodes_that_gather_in_a_task_are_reported_with_an_evaluation(tmp_path: Path) -> None:
    result = evaluated(tmp_path, "evaluation.eval_group_size=8", "rollout.max_lost_share=0.5")
    assert result.exit_code == 0, result.output
    (report,) = (tmp_path / "runs").glob("*/evaluations/held_out-001.json")
    (finding,) = json.loads(report.read_text())["findings"]
    # 16 of 64 attempts were lost, and all 8 of this task: the other one is as bad, and of equals one is named.
    task = finding["evidence"]["task"]
    assert (finding["rule"], task["lost"], task["played"], task["all_lost"], task["all_played"]) == (
        "rollouts.lost_together",
        8,
        8,
        16,
        64,
    )
    assert "rollouts.lost_together" in result.output
