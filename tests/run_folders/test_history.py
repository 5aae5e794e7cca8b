"""A history keeps what detectors need, forgets what would grow without bound, and is the same read back from a folder."""

from pathlib import Path

import pytest

from sparring.errors import DataError
from sparring.run_folders.history import FIRST_STEPS, LAST_STEPS, MOST_DIGESTS, Digest, History, read_steps
from sparring.tracking import LocalTracker
from sparring.types import Reward
from tests.detectors.runs import Script, is_right, look, played, right, task, trajectory, wrong


def judge(one: object) -> Reward:
    return Reward(total=float(is_right(one)), components={"right": float(is_right(one))})  # pyright: ignore


def test_a_digest_holds_what_was_written_done_and_earned() -> None:
    script = Script(1.0, lambda task: "it is 9", look(2), texts=("let me see",), malformed=1, tokens=7)
    one = Digest.of(trajectory(script, task(3), 0, 5, judge=judge))
    assert one is not None
    assert (one.answer, one.texts[0], one.num_malformed, one.num_turns, one.num_tokens) == (
        "it is 9",
        "let me see",
        1,
        3,
        21,
    )
    assert [(call.name, call.arguments) for call in one.calls] == [("look", '{"place": 0}'), ("look", '{"place": 1}')]
    assert (one.prompt, one.reward, one.components, one.score) == ("what is it?", 0.0, {"right": 0.0}, 0.0)


def test_steps_in_the_middle_keep_their_numbers_only() -> None:
    history = History()
    for step in range(1, 51):
        history.add(step, metrics={"a": float(step)}, train=[trajectory(right(1.0), task(step), 0, step, judge=judge)])
    kept = [one.step for one in history.steps if one.train]
    assert kept == [*range(1, FIRST_STEPS + 1), *range(51 - LAST_STEPS, 51)]
    assert [one.metrics["a"] for one in history.steps] == list(range(1, 51))


def test_of_a_large_step_whole_groups_are_kept() -> None:
    history = History()
    many = [
        trajectory(right(1.0), task(index), attempt, 1, judge=judge) for index in range(200) for attempt in range(8)
    ]
    history.add(1, train=many)
    kept = history.steps[0].train
    assert MOST_DIGESTS / 2 < len(kept) <= MOST_DIGESTS
    assert {sum(one.task_id == other.task_id for one in kept) for other in kept} == {8}


def test_a_step_that_is_played_again_replaces_what_followed() -> None:
    history = History()
    for step in (1, 2, 3):
        history.add(step, metrics={"x": 1.0})
    history.add(2, metrics={"x": 2.0})
    history.add(2, validation=[trajectory(wrong(1.0), task(0), 0, 2, judge=judge)])
    assert [(one.step, one.metrics["x"], len(one.validation)) for one in history.steps] == [(1, 1.0, 0), (2, 2.0, 1)]


def test_a_stored_run_reads_back_as_it_was_heard(tmp_path: Path) -> None:
    live, stored = History(), History()
    tracker = LocalTracker(tmp_path)
    for step, groups, validation in played([right(0.5), wrong(0.5)], judge, steps=3, validates=True):
        tracker.log_metrics(step, {"rollout/reward/mean": 0.5})
        tracker.log_groups(step, groups, split="train")
        tracker.log_groups(step, validation, split="validation")
        live.add(
            step,
            metrics={"rollout/reward/mean": 0.5},
            train=[one for group in groups for one in group.trajectories],
            validation=[one for group in validation for one in group.trajectories],
        )
    tracker.close()
    for step, metrics, train, validated in read_steps(tmp_path):
        stored.add(step, metrics=metrics, train=train, validation=validated)
    assert stored.steps == live.steps
    assert stored.last_step == 3


def test_a_folder_without_metrics_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no metrics\.jsonl"):
        list(read_steps(tmp_path))
