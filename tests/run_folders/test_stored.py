"""What a run or a recording wrote is read back as it was."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from pathlib import Path

import pytest

from sparring.errors import DataError
from sparring.run_folders.stored import read_metrics, read_trajectories
from sparring.tracking import LocalTracker
from sparring.types import (
    Outcome,
    Reward,
    Sampling,
    StopReason,
    Task,
    Trajectory,
    TrajectoryGroup,
    Turn,
    Usage,
)

SAMPLED = Turn(
    id=0, parent=None, branch_reason=None, prompt_ids=(1, 2), token_ids=(3, 4), sampled_logprobs=(-0.5, -1.0),
    versions=((4, 2),), fingerprint="f", stop_reason=StopReason.LENGTH, sampling=Sampling(temperature=0.5, max_tokens=2),
    message={"role": "assistant", "content": "a"}, num_computed_tokens=4, seconds=0.25,
)  # fmt: skip
REPORTED = dataclasses.replace(
    SAMPLED,
    id=1,
    branch_reason="repeated",
    prompt_ids=(),
    token_ids=(),
    sampled_logprobs=(),
    versions=((0, 0),),
    usage=Usage(num_prompt_tokens=7, num_sampled_tokens=2),
)
PLAYED = Trajectory(
    id="train/0/t/0.0",
    task=Task(id="t", messages=({"role": "user", "content": "q"},), fields={"answer": "a"}, seed=3),
    attempt=0,
    turns=(SAMPLED, REPORTED),
    messages=({"role": "user", "content": "q"}, SAMPLED.message),
    outcome=Outcome.MAX_TOKENS,
    reward=Reward(total=1.0, per_turn={0: 0.25, 1: 0.75}, components={"x": 1.0}, record={"model": "m"}),
    score=0.5,
    score_parts={"format": 1.0},
    final_state={"orders": [1]},
    metrics={"turns": 2.0},
    transitions=({"turn": 0, "tool": "get"},),
    error="cut",
    seconds=1.5,
)


def stored(folder: Path, trajectory: Trajectory) -> Path:
    tracker = LocalTracker(folder)
    tracker.log_groups(1, [TrajectoryGroup(task=trajectory.task, trajectories=(trajectory,))], split="train")
    tracker.close()
    return folder / "trajectories" / "train-1.jsonl"


def test_an_episode_comes_back_with_its_turns_its_rewards_and_the_environments_log(tmp_path: Path) -> None:
    assert read_trajectories(stored(tmp_path, PLAYED)) == [PLAYED]


def test_sampling_that_was_left_to_an_endpoint_stays_unknown(tmp_path: Path) -> None:
    turn = dataclasses.replace(
        REPORTED, id=0, sampling=Sampling(temperature=math.nan, top_p=math.nan, max_tokens=2**63 - 1)
    )
    (trajectory,) = read_trajectories(stored(tmp_path, dataclasses.replace(PLAYED, turns=(turn,))))
    sampling = trajectory.turns[0].sampling
    assert math.isnan(sampling.temperature)
    assert sampling.max_tokens == 2**63 - 1


def test_what_is_no_trajectory_is_named_with_its_line(tmp_path: Path) -> None:
    path = stored(tmp_path, PLAYED)
    whole = path.read_text("utf-8")
    for line, problem in {"{": "line 2", "[]": "not a JSON object", '{"id": "x"}': "not a trajectory"}.items():
        path.write_text(f"{whole}{line}\n", "utf-8")
        with pytest.raises(DataError, match=problem):
            read_trajectories(path)
    with pytest.raises(DataError, match="sparring record"):
        read_trajectories(tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        read_trajectories(tmp_path / "none.jsonl")


def test_metrics_of_an_earlier_version_have_the_names_of_today(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"step": 1, "metrics": {"timing_s/episode/world": 2.0, "timing_s/episode/judge": 0.5, "loss": 1.0}}\n'
    )
    by_step, _ = read_metrics(path)
    assert by_step == {1: {"timing_s/episode/environment": 2.0, "timing_s/episode/reward": 0.5, "loss": 1.0}}


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("score",), "1"),
        (("metrics",), {"turns": "two"}),
        (("messages",), ["hi"]),
        (("turns", 0), []),
        (("turns", 0, "token_ids"), [1, "2"]),
        (("reward", "components"), []),
        (("task", "fields"), None),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_line(
    tmp_path: Path, place: tuple[str | int, ...], value: object
) -> None:
    path = stored(tmp_path, PLAYED)
    row = json.loads(path.read_text("utf-8"))
    *outer, last = place
    functools.reduce(lambda at, key: at[key], outer, row)[last] = value
    path.write_text(json.dumps(row), "utf-8")
    with pytest.raises(DataError, match=r"line 1: .*not a trajectory that `sparring` wrote"):
        read_trajectories(path)


@pytest.mark.parametrize("line", [b"\xff", b"[]", b"{}", b'{"trajectory_id": [], "transition": 1}'])
def test_a_damaged_log_of_the_environment_is_refused_with_its_line(tmp_path: Path, line: bytes) -> None:
    path = stored(tmp_path, PLAYED)
    (tmp_path / "environment" / path.name).write_bytes(line)
    with pytest.raises(DataError, match=rf"environment/{path.name}, line 1"):
        read_trajectories(path)
