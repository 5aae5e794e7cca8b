"""The review of stored episodes: a changed reward is held against the scorer on what was really played."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparring.cli import app
from sparring.errors import DataError, UsageError
from sparring.evaluation.review import review
from sparring.tracking import LocalTracker
from sparring.types import Outcome, Reward, Task, Trajectory, TrajectoryGroup

RECIPE = """
[data]
train = "tasks.jsonl"
[environment]
target = "environment:Nothing"
[reward]
reward = "environment:reward"
scorer = "environment:scorer"
"""
CODE = """
from sparring.environments import Environment
from sparring.types import Score

class Nothing(Environment):
    pass

def reward(trajectory):
    return {reward}

def scorer(trajectory):
    right = trajectory.messages[-1]["content"] == "<final_output>B3</final_output>"
    return Score(float(right), {{"format": float(right)}})
"""
LENIENT = 'float("B3" in trajectory.messages[-1]["content"])'
STRICT = 'float(trajectory.messages[-1]["content"] == "<final_output>B3</final_output>")'
ANSWERS = {"<final_output>B3</final_output>": 1.0, "<final_response>B3</final_response>": 0.0, "no": 0.0}


def recipe(folder: Path, reward: str, file: str = "recipe.toml") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / file).write_text(RECIPE, "utf-8")
    (folder / "environment.py").write_text(CODE.format(reward=reward), "utf-8")
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = recipe(tmp_path / "run", LENIENT, "run.toml")
    task = Task(id="t", messages=())
    played = tuple(
        Trajectory(
            id=f"train/0/t/{index}.0",
            task=task,
            attempt=index,
            turns=(),
            outcome=Outcome.FINISHED,
            score=score,
            messages=({"role": "assistant", "content": text},),
            reward=Reward(total=float("B3" in text)),
        )
        for index, (text, score) in enumerate(ANSWERS.items())
    )
    tracker = LocalTracker(folder)
    for step in (2, 10):
        tracker.log_groups(step, [TrajectoryGroup(task=task, trajectories=played)], split="train")
    tracker.log_groups(4, [TrajectoryGroup(task=task, trajectories=played[:1])], split="validation")
    tracker.close()
    return folder


def test_the_runs_own_reward_is_compared_with_its_scorer_on_the_newest_episodes_of_each_split(run: Path) -> None:
    found = review(run)
    assert found.episodes == ("train-10", "validation-4")
    assert (found.after.num, found.after.paid_wrong, found.num_changed) == (4, 1, 0)
    assert found.after.culprits == {"part format": 1, "tag final_response": 1}
    assert found.independence == "scorer"


def test_a_fixed_reward_agrees_with_the_scorer_on_the_same_episodes(run: Path, tmp_path: Path) -> None:
    found = review(run, recipe(tmp_path / "fixed", STRICT), episodes="train")
    assert found.episodes == ("train-10",)
    assert (found.before.paid_wrong, found.after.paid_wrong, found.num_changed) == (1, 0, 1)
    assert (found.mean_before, found.mean_after) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert review(run, episodes="train-2").episodes == ("train-2",)


def test_what_cannot_be_reviewed_is_reported(run: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist; specify a folder"):
        review(tmp_path / "nope")
    with pytest.raises(DataError, match="no episodes 'held_out'; its newest episodes are: train-10, validation-4"):
        review(run, episodes="held_out")
    silent = recipe(tmp_path / "silent", STRICT)
    (silent / "recipe.toml").write_text(RECIPE.replace('scorer = "environment:scorer"', ""), "utf-8")
    with pytest.raises(UsageError, match=r"has no reward\.scorer"):
        review(run, silent)


def test_the_command_shows_what_is_at_fault_and_ends_with_5_while_a_wrong_answer_is_paid(
    run: Path, tmp_path: Path
) -> None:
    result = CliRunner().invoke(app, ["review", str(run)])
    assert result.exit_code == 5
    assert "train/0/t/1.0 is wrong but rewarded (reward 1, score 0): the scorer denies format (0)" in result.output
    assert "1 of 4 episodes are paid for an answer that the scorer rejects" in result.output
    fixed = recipe(tmp_path / "fixed", STRICT)
    result = CliRunner().invoke(app, ["review", str(run), str(fixed), "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["after"]["share"] == 1.0


@pytest.mark.parametrize(
    ("reward", "unpaid"),
    [("0.5", 2), ("0.0", 2), ('0.5 - 0.4 * ("B3</final_output>" in trajectory.messages[-1]["content"])', 2)],
)
def test_a_reward_by_which_right_answers_earn_no_more_than_wrong_ones_is_refused(
    run: Path, tmp_path: Path, reward: str, unpaid: int
) -> None:
    # Right are attempt 0 of train-10 and the one of validation-4, wrong two of train-10: 4 pairs of one task.
    flat = recipe(tmp_path / "flat", reward)
    found = review(run, flat)
    assert (found.after.paid_wrong, found.after.unpaid_right, found.after.num_inverted, found.after.num_pairs) == (
        0,
        unpaid,
        4,
        4,
    )
    result = CliRunner().invoke(app, ["review", str(run), str(flat)])
    assert result.exit_code == 5
    assert "2 of 2 right answers earn no more than a wrong one" in " ".join(result.output.split())
    assert "4 of 4 pairs of a task are inverted" in " ".join(result.output.split())


def test_a_right_answer_that_costs_steps_and_a_wrong_one_with_partial_credit_are_not_refused(
    run: Path, tmp_path: Path
) -> None:
    partial = recipe(tmp_path / "partial", f"0.3 + 0.6 * {STRICT}")
    assert review(run, partial).refusal is None
