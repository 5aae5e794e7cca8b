"""Splits share no task, are about as large as asked, and do not move when tasks are appended."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.data import split_apart, split_tasks
from sparring.errors import UsageError
from sparring.types import Task

TASKS = [Task(id=f"task-{number}", messages=()) for number in range(1000)]
FRACTIONS = {"validation": 0.1, "held_out": 0.2}


def ids(tasks: list[Task]) -> list[str]:
    return [task.id for task in tasks]


def test_every_task_is_in_one_split_and_sizes_are_about_as_asked() -> None:
    splits = split_tasks(TASKS, FRACTIONS, seed=0)
    assert list(splits) == ["train", "validation", "held_out"]
    assert sorted(ids([task for split in splits.values() for task in split])) == sorted(ids(TASKS))
    # 1000 draws: three standard deviations of a share of 0.1 and 0.2 are 28 and 38.
    assert abs(len(splits["validation"]) - 100) <= 28
    assert abs(len(splits["held_out"]) - 200) <= 38


@given(st.integers(0, 1000), st.integers(0, 2**32))
def test_appending_tasks_moves_none_to_another_split(num: int, seed: int) -> None:
    before, after = split_tasks(TASKS[:num], FRACTIONS, seed=seed), split_tasks(TASKS, FRACTIONS, seed=seed)
    for name, tasks in before.items():
        assert ids(after[name])[: len(tasks)] == ids(tasks)


def test_another_seed_splits_otherwise() -> None:
    first, second = split_tasks(TASKS, FRACTIONS, seed=0), split_tasks(TASKS, FRACTIONS, seed=1)
    assert ids(first["held_out"]) != ids(second["held_out"])


def test_a_fraction_of_zero_leaves_its_split_empty() -> None:
    splits = split_tasks(TASKS, {"validation": 0.0, "held_out": 0.0}, seed=0)
    assert (len(splits["train"]), splits["validation"], splits["held_out"]) == (1000, [], [])


@pytest.mark.parametrize("fractions", [{"validation": 0.5, "held_out": 0.5}, {"validation": -0.1}])
def test_fractions_that_leave_nothing_to_train_on_are_refused(fractions: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="leave nothing to train on"):
        split_tasks(TASKS, fractions, seed=0)


@given(st.lists(st.frozensets(st.integers(0, 60).map(str), max_size=3), max_size=80), st.integers(0, 2**32))
def test_tasks_with_a_common_entity_are_in_one_split_unless_it_is_named(owned: list[frozenset[str]], seed: int) -> None:
    tasks = TASKS[: len(owned)]
    entities = {task.id: one for task, one in zip(tasks, owned, strict=True)}
    splits, shared = split_apart(tasks, entities, FRACTIONS, seed=seed)
    assert sorted(ids([task for split in splits.values() for task in split])) == sorted(ids(tasks))
    owners: dict[str, set[str]] = {}
    for name, members in splits.items():
        assert ids(members) == sorted(ids(members), key=lambda one: int(one.removeprefix("task-")))
        for task in members:
            for entity in entities[task.id]:
                owners.setdefault(entity, set()).add(name)
    assert {entity for entity, names in owners.items() if len(names) > 1} == shared
    assert not tasks or splits["train"]


def test_separate_groups_keep_their_entities_apart_and_splits_have_their_size() -> None:
    entities = {task.id: {f"customer-{number % 250}"} for number, task in enumerate(TASKS)}
    splits, shared = split_apart(TASKS, entities, FRACTIONS, seed=0)
    assert shared == frozenset()
    assert (len(splits["validation"]), len(splits["held_out"])) == (100, 200)


def test_an_entity_of_most_tasks_is_ignored() -> None:
    entities = {task.id: {"everyone", task.id} for task in TASKS}
    splits, shared = split_apart(TASKS, entities, FRACTIONS, seed=0)
    assert shared == {"everyone"}
    assert len(splits["held_out"]) == 200
