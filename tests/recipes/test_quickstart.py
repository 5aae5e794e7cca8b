"""The inspection desk: honest splits, a right expert, hasty clerks, and no shortcut to a high score."""

import asyncio
import importlib.util
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sparring.agents.scripted_session import ScriptedSession
from sparring.agents.tool_loop import play
from sparring.environments import answer, record_demonstration
from sparring.rewards import evaluate_reward
from sparring.scorers import evaluate_score
from sparring.types import Message, Outcome, Task, Trajectory


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        path.replace("/", "_"), Path(__file__).parents[2] / "recipes" / f"{path}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


desk: Any = load("quickstart/environment")
SPLITS: dict[str, Callable[..., list[Task]]] = {
    "train": desk.train_tasks,
    "validation": desk.validation_tasks,
    "held_out": desk.held_out_tasks,
}


def graded(task: Task, messages: list[Message]) -> tuple[float, float]:
    """Score and reward of a conversation."""
    trajectory = Trajectory(
        id=task.id,
        task=task,
        attempt=0,
        turns=(),
        messages=tuple(messages),
        outcome=Outcome.FINISHED,
        reward=None,
        score=None,
    )
    score = asyncio.run(evaluate_score(desk.scorer, trajectory)).value
    return score, asyncio.run(evaluate_reward(desk.reward, trajectory)).total


def final(**fields: str) -> Message:
    return answer(f"<final_output>{json.dumps(fields)}</final_output>")


def entities(task: Task) -> set[str]:
    """Items, parts and people of a task."""
    tables = task.fields["world"]
    texts = itertools.chain(*(table.values() for table in tables.values()))
    names = {word for text in texts for word in text.split() if word in desk.NAMES}
    return names | {key for table in tables.values() for key in table}


def test_the_splits_share_no_entity_and_each_uses_many() -> None:
    found = {split: set().union(*map(entities, make(num=400))) for split, make in SPLITS.items()}
    for left, right in itertools.combinations(found, 2):
        assert not found[left] & found[right]
    assert len(found["train"]) > 500
    assert len(found["held_out"]) > 200


def test_the_lists_of_entities_are_split_without_gap_or_overlap() -> None:
    parts = [desk._entities(desk.NAMES, split) for split in SPLITS]
    assert sorted(itertools.chain(*parts)) == sorted(desk.NAMES)


def test_tasks_follow_from_the_seed_and_have_unique_ids() -> None:
    assert desk.train_tasks(50) == desk.train_tasks(50)
    assert desk.train_tasks(50) != desk.train_tasks(50, seed=1)
    assert len({task.id for make in SPLITS.values() for task in make(40)}) == 120
    assert len(desk.train_tasks()) >= 512
    assert len(desk.held_out_tasks()) == 128


@pytest.mark.parametrize("split", SPLITS)
def test_the_expert_scores_1_and_earns_the_most_in_3_to_8_turns(split: str) -> None:
    for task in SPLITS[split](64):
        messages = record_demonstration(desk.InspectionDesk, task)
        assert graded(task, messages) == (1.0, pytest.approx(1.0))
        assert 3 <= sum(message["role"] == "assistant" for message in messages) <= 8


def test_the_expert_plays_through_the_tool_loop() -> None:
    task = desk.held_out_tasks(1)[0]
    environment = desk.InspectionDesk()
    session = ScriptedSession(*environment.demonstrate(task))
    result = asyncio.run(play(task, environment, session, max_turns=8))
    assert result.outcome is Outcome.FINISHED
    assert result.metrics["tool_errors"] == 0
    assert graded(task, list(result.messages))[0] == 1.0


def test_every_clerk_who_skips_a_check_of_the_task_is_wrong_but_well_formed() -> None:
    for task in desk.train_tasks(128):
        checks = task.fields["checks"]
        for size in range(1, len(checks) + 1):
            for skipped in itertools.combinations(checks, size):
                messages = record_demonstration(desk.InspectionDesk, task, desk.clerk(task, frozenset(skipped)))
                score, reward = graded(task, messages)
                assert score == 0.0
                assert 0.1 <= reward < 1.0


def log_scores(**shares: float) -> float:
    conversations = desk.clerk_log(400, **shares)
    tasks = desk.tasks("train", 400, 1)
    return sum(graded(task, messages)[0] for task, messages in zip(tasks, conversations, strict=True)) / 400


def test_the_clerks_are_as_careful_as_their_share() -> None:
    # 400 draws at 0.35: standard error 0.024.
    assert log_scores() == pytest.approx(desk.CAREFUL_SHARE, abs=0.07)
    assert log_scores(careful_share=0.0) == 0.0
    assert log_scores(careful_share=1.0) == 1.0


def test_the_log_is_not_about_the_tasks_to_train_on() -> None:
    logged = {messages[1]["content"] + messages[3]["content"] for messages in desk.clerk_log(100)}
    trained = {
        f"Inspect {task.fields['item']}." + task.fields["world"]["item"][task.fields["item"]]
        for task in desk.train_tasks()
    }
    assert not logged & trained


def copies_everything(task: Task, table: str) -> list[Message]:
    """Call every tool once with what is at hand and report the last grade and name seen."""
    tables, item = task.fields["world"], task.fields["item"]
    _, part, _, by = tables["item"][item].split()
    grade = tables[table][part]
    if part in tables["boss"]:
        grade, _, by = tables["boss"][part].split()
    return [final(part=part, grade=grade, by=by)]


def test_policies_that_do_not_read_do_not_score() -> None:
    tasks = desk.held_out_tasks(256)

    def mean(play_task: Callable[[Task], list[Message]]) -> float:
        return sum(graded(task, play_task(task))[0] for task in tasks) / len(tasks)

    # Copying fails on every replaced part (78 % of tasks). It is right on parts on hold (15 %), where the boss settles
    # the grade whatever the table shows, and with `rough` on rough parts too (7 %). Standard error 0.026.
    assert mean(lambda task: copies_everything(task, "fine")) == pytest.approx(0.15, abs=0.08)
    assert mean(lambda task: copies_everything(task, "rough")) == pytest.approx(0.22, abs=0.08)
    constant = tasks[0].fields["answer"]
    assert mean(lambda task: [final(**constant)]) <= 1.5 / len(tasks)
    assert mean(lambda task: [answer("<final_output>{}</final_output>")]) == 0.0


def test_answering_without_reading_earns_little_reward() -> None:
    tasks = desk.held_out_tasks(128)
    blind = [graded(task, [final(part="P10", grade="red", by="Max")])[1] for task in tasks]
    # The format term, and a lucky field now and then.
    assert sum(blind) / len(blind) < 0.25
