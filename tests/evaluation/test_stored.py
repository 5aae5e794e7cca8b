"""Stored episodes are scored again and shown side by side, without a model."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from sparring.cli import app
from sparring.evaluation.report import read_report
from sparring.run_folders import RunFolder
from sparring.run_folders.stored import read_trajectories
from sparring.tracking import LocalTracker
from sparring.types import Message, Outcome, Reward, Sampling, StopReason, Task, Trajectory, TrajectoryGroup, Turn

ROOT = Path(__file__).parents[2]
STRICT = """
def strict(trajectory):
    return float(trajectory.messages[-1]["content"].startswith("ans a"))

def half(trajectory):
    return 0.5

def torch_free(trajectory):
    import sys
    assert "torch" not in sys.modules
    return 1.0
"""


def sparring(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), terminal_width=200)


def report_of(*arguments: str) -> dict[str, Any]:
    result = sparring("eval", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "recipes" / "pointer_chase", "toy", ignore=shutil.ignore_patterns("__pycache__"))
    Path("mine.py").write_text(STRICT, "utf-8")


@pytest.fixture
def run() -> Path:
    """A run whose held-out tasks the expert and a constant have played."""
    report = report_of("toy", "--policy", "constant:ans a", "--policy", "expert", "evaluation.eval_num_tasks=30")
    return Path(report["path"]).parents[1]


def test_stored_episodes_are_scored_again_without_torch_as_the_scorer_does_by_hand(run: Path) -> None:
    report = report_of(str(run), "--rescore", "--scorer", "mine:strict")
    assert report["rescored"] == {"episodes": "held_out-1", "scorer": "mine:strict"}
    constant, expert = report["evaluations"]
    assert (constant["scorer"], constant["independence"]) == ("mine:strict", "scorer")
    assert constant["success"]["mean"] == 1.0
    stored = read_trajectories(run / "trajectories" / "held_out-1.jsonl")
    answers = {one.task.id: one.messages[-1]["content"] for one in stored if one.id.split("/")[1].startswith("expert@")}
    assert {task["id"]: task["score"] for task in expert["tasks"]} == {
        i: float(t == "ans a") for i, t in answers.items()
    }
    # The trajectories have the new scores too, and what was played otherwise.
    again = read_trajectories(run / "trajectories" / "rescored-1.jsonl")
    assert [(one.id, one.messages, one.reward) for one in again] == [
        (one.id, one.messages, one.reward) for one in stored
    ]
    assert fmean(one.score or 0.0 for one in again) == pytest.approx((1.0 + expert["score"]["mean"]) / 2)
    # The first scores stay, and the second are in a file next to them.
    assert sorted(path.name for path in (run / "evaluations").iterdir()) == ["held_out-001.json", "rescored-001.json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "sparring", "eval", str(run), "--rescore", "--scorer", "mine:torch_free"]
    subprocess.run(command, check=True, capture_output=True, env=environment)
    # As the run was scored first, its own scorer scores again.
    same = report_of(str(run), "--rescore", "--scorer", "environment:scorer")
    first = read_report(run / "evaluations" / "held_out-001.json")
    assert [one["tasks"] for one in same["evaluations"]] == [one.as_json()["tasks"] for one in first.evaluations]


def test_a_scorer_that_is_the_reward_is_shown_as_such(run: Path) -> None:
    shown = sparring("eval", str(run), "--rescore", "--scorer", "environment:reward")
    assert "shares code with the reward" in " ".join(shown.stdout.split())


def test_what_cannot_be_scored_again_is_refused(run: Path) -> None:
    for arguments, code, message in (
        ((str(run), "--rescore"), 2, "--scorer MODULE:NAME"),
        ((str(run), "--rescore", "--scorer", "mine:none"), 2, "has no 'none'"),
        ((str(run), "--rescore", "--scorer", "mine:half", "--episodes", "train-3"), 3, "it has held_out-1"),
        ((str(run), "--rescore", "--scorer", "mine:half", "--policy", "expert"), 2, "does not read --policy"),
        ((str(run), "--rescore", "--compare"), 2, "give only one of them"),
        (("--compare", f"{run}@5"), 3, "has no validation result after step 5"),
        (("--compare", "nowhere"), 3, "does not exist"),
    ):
        refused = sparring("eval", *arguments)
        assert (refused.exit_code, message in " ".join(refused.output.split())) == (code, True), refused.output


def turn(text: str) -> Turn:
    message: Message = {"role": "assistant", "content": text}
    return Turn(
        id=0, parent=None, branch_reason=None, prompt_ids=(), token_ids=(), sampled_logprobs=(), versions=((3, 1),),
        fingerprint="f", stop_reason=StopReason.STOP, sampling=Sampling(temperature=0.7), message=message,
        num_computed_tokens=0, seconds=0.0,
    )  # fmt: skip


def test_numbers_of_random_episodes_are_those_that_are_counted_by_hand(run: Path) -> None:
    rng, groups = random.Random(4), []
    right: dict[str, list[bool]] = defaultdict(list)
    for number in range(12):
        task = Task(id=f"r{number}", messages=({"role": "user", "content": "?"},))
        members = []
        for member in range(5):
            right[task.id].append(rng.random() < 0.5)
            text = "ans a" if right[task.id][-1] else "ans b"
            members.append(
                Trajectory(
                    id=f"validation/step-3@1/{task.id}/{member}.0",
                    task=task,
                    attempt=member,
                    turns=(turn(text),),
                    messages=(*task.messages, turn(text).message),
                    outcome=Outcome.FINISHED,
                    score=0.25,
                    reward=Reward(total=rng.random()),
                )
            )
        groups.append(TrajectoryGroup(task=task, trajectories=tuple(members)))
    tracker = LocalTracker(run)
    tracker.log_groups(3, groups, split="validation")
    tracker.close()
    (found,) = report_of(str(run), "--rescore", "--scorer", "mine:strict", "--episodes", "validation-3")["evaluations"]
    assert (found["name"], found["temperature"], found["group_size"]) == ("validation-3", 0.7, 5)
    assert found["success"]["mean"] == pytest.approx(fmean(fmean(results) for results in right.values()))
    for k in range(1, 6):
        subsets = [list(combinations(results, k)) for results in right.values()]
        at, power = (fmean(sum(map(how, some)) / len(some) for some in subsets) for how in (any, all))
        assert found["metrics"][f"val/reward/pass_at_{k}"] == pytest.approx(at)
        assert found["metrics"][f"val/reward/pass_power_{k}"] == pytest.approx(power)
    assert "val/reward/pass_at_6" not in found["metrics"]


def test_runs_checkpoints_and_files_stand_side_by_side_as_table_and_picture(run: Path) -> None:
    other = Path("runs/other")
    shutil.copytree(run, other)
    report = read_report(run / "evaluations" / "held_out-001.json")
    for step, evaluation in ((0, report.evaluations[0]), (10, report.evaluations[1])):
        row = {
            "format": 2,
            **evaluation.as_json(),
            "name": f"step {step}",
            "split": "validation",
            "policy_version": step,
        }
        (other / "evaluations" / f"validation-{step}.json").write_text(json.dumps(row), "utf-8")
    shown = report_of(
        "--compare", run.name, "other@10", str(other / "evaluations" / "held_out-001.json"), "--plot", "both.svg"
    )
    rows = [
        (row["source"].split("/")[-1], row["evaluation"]["name"], row["difference"] is None) for row in shown["rows"]
    ]
    assert rows == [
        (run.name, "constant:ans a", True),
        (run.name, "expert", False),
        ("other@10", "step 10", False),
        ("held_out-001.json", "constant:ans a", False),
        ("held_out-001.json", "expert", False),
    ]
    constant, expert = (one.success.mean for one in report.evaluations)
    differences = [row["difference"]["difference"]["mean"] for row in shown["rows"][1:]]
    assert differences == pytest.approx([expert - constant, expert - constant, 0.0, expert - constant])
    assert [one["step"] for one in shown["curves"]["runs/other"]] == [0, 10]
    picture = ElementTree.parse("both.svg").getroot()
    circles = [float(one.get("cx", 0)) for one in picture.iter() if one.tag.endswith("circle")]
    assert len(circles) == 5
    # From 0 at the left edge of the rows to 1 at their right one: success 1 is the furthest right.
    assert circles[1] == circles[2] == max(circles)
    assert sum(one.tag.endswith("polyline") for one in picture.iter()) == 1


def test_a_run_folder_numbers_past_evaluations_under_way(run: Path) -> None:
    folder = RunFolder(run)
    assert folder.next_evaluation_path().name == "held_out-002.json"
    (folder.evaluations / "held_out-004.part").mkdir()
    assert folder.next_evaluation_path().name == "held_out-005.json"
    assert folder.next_evaluation_path("rescored").name == "rescored-001.json"
