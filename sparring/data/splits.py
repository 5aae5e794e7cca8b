"""Splits that depend only on each task's id, so that adding tasks does not move any existing task to a different
split, and splits that share no entity."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate

from sparring.errors import UsageError
from sparring.types import Task


def split_tasks(tasks: Sequence[Task], fractions: Mapping[str, float], *, seed: int) -> dict[str, list[Task]]:
    """Return the split `train` and one split for each name in `fractions`. Each named split has about that fraction of
    the tasks, in their original order.

    A hash of the task's id and the seed determines its split. Raises UsageError when the fractions leave no task to
    train on.
    """
    bounds = list(accumulate(fractions.values()))
    if any(fraction < 0 for fraction in fractions.values()) or (bounds and bounds[-1] >= 1):
        raise UsageError(
            f"the fractions {dict(fractions)} leave nothing to train on; make each at least 0 and their sum less than "
            "1."
        )
    splits: dict[str, list[Task]] = {"train": [], **{name: [] for name in fractions}}
    for task in tasks:
        place = _place(task.id, seed)
        name = next((name for name, bound in zip(fractions, bounds, strict=True) if place < bound), "train")
        splits[name].append(task)
    return splits


def _place(task_id: str, seed: int) -> float:
    """Return a number in [0, 1) that looks random but depends only on the id and the seed."""
    digest = hashlib.sha256(f"{seed}/{task_id}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:7]) / 2**56


def split_apart(
    tasks: Sequence[Task], entities: Mapping[str, Collection[str]], fractions: Mapping[str, float], *, seed: int
) -> tuple[dict[str, list[Task]], frozenset[str]]:
    """Return the split `train` and one split for each name in `fractions`, and the entities that several splits share.

    `entities` has the entities of each task, by its id. Tasks that share an entity are in the same split. If that would
    leave more than half of the tasks in one group, the entities that occur most often are ignored until it does not.
    Each named split gets whole groups, in an order that depends on the seed, until it has its fraction of the tasks; one
    group is always left for `train`. Raises UsageError when the fractions leave no task to train on.
    """
    split_tasks((), fractions, seed=seed)  # checks the fractions
    counts = Counter(entity for task in tasks for entity in set(entities[task.id]))
    common = [entity for entity, count in sorted(counts.items(), key=lambda one: (-one[1], one[0])) if count > 1]
    ignored: set[str] = set()
    groups = _groups(tasks, entities, ignored)
    while common and max(map(len, groups), default=0) > max(1, len(tasks) / 2):
        # A tenth at a time, so that a log with thousands of values does not take thousands of passes.
        num = max(1, len(common) // 10)
        ignored |= set(common[:num])
        common = common[num:]
        groups = _groups(tasks, entities, ignored)
    groups.sort(key=lambda group: _place(min(task.id for task in group), seed))
    splits: dict[str, list[Task]] = {"train": [], **{name: [] for name in fractions}}
    wanted = {name: round(fraction * len(tasks)) or int(fraction > 0) for name, fraction in fractions.items()}
    for group in groups[:-1]:
        open_splits = [name for name, num in wanted.items() if len(splits[name]) + len(group) <= num]
        splits[open_splits[0] if open_splits else "train"] += group
    splits["train"] += groups[-1] if groups else []
    places: dict[str, set[str]] = {}
    for name, members in splits.items():
        for task in members:
            for entity in entities[task.id]:
                places.setdefault(entity, set()).add(name)
    order = {task.id: index for index, task in enumerate(tasks)}
    ordered = {name: sorted(members, key=lambda task: order[task.id]) for name, members in splits.items()}
    return ordered, frozenset(entity for entity, names in places.items() if len(names) > 1)


def _groups(
    tasks: Sequence[Task], entities: Mapping[str, Collection[str]], ignored: Collection[str]
) -> list[list[Task]]:
    """Return the tasks in groups that share no entity with one another."""
    parent = list(range(len(tasks)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    first: dict[str, int] = {}
    for index, task in enumerate(tasks):
        for entity in entities[task.id]:
            if entity not in ignored:
                parent[root(index)] = root(first.setdefault(entity, index))
    groups: dict[int, list[Task]] = {}
    for index, task in enumerate(tasks):
        groups.setdefault(root(index), []).append(task)
    return list(groups.values())
