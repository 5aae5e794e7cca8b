"""Splits that depend only on each task's id, so that adding tasks does not move any existing task to a different
split."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
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
