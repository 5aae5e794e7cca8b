"""The tasks of all splits with their rows, and what identifies a task."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sparring.checks.evidence.answer_forms import canonical, get_text
from sparring.checks.evidence.scripted_episodes import clip
from sparring.checks.evidence.similarity import normalize_text
from sparring.checks.evidence.subject import Subject
from sparring.data import read_tasks
from sparring.types import Json, Task

EVALUATED = ("validation", "held_out")
SPLITS = ("train", *EVALUATED)
ALIKE = 0.1
"""Seeds distinguish tasks, as in a game, if at most this share of the tasks have different prompts and fields."""
ROW_COLUMNS = re.compile(r"(?i)^(id|uid|uuid|index|idx|row|row_?id|number|split|source|file|name|.*_id)$")


@dataclass(frozen=True, slots=True)
class Placed:
    """A task and its location: its split, and its row in its file or list, counted from 1."""

    split: str
    row: int
    task: Task

    @property
    def shown(self) -> dict[str, Json]:
        return {
            "split": self.split,
            "row": self.row,
            "task": self.task.id,
            "prompt": clip(get_prompt_text(self.task), 160),
        }


def place_tasks(subject: Subject) -> list[Placed]:
    """Return every task of every split with its location."""
    rows: dict[str, dict[str, int]] = {}
    for split in SPLITS:
        # A recipe that only evaluates has no training tasks: it neither names any nor splits any off.
        source = getattr(subject.config.data, split) or subject.config.data.train or ""
        if source and ":" not in source and source not in rows:
            path = subject.folder / Path(source)
            rows[source] = {
                task.id: row for row, task in enumerate(read_tasks(path, subject.config.data.columns), start=1)
            }
        rows[split] = rows.get(source, {})
    return [
        Placed(split, rows[split].get(task.id, number), task)
        for split in SPLITS
        for number, task in enumerate(getattr(subject.tasks, split), start=1)
    ]


def get_prompt_text(task: Task) -> str:
    """Return the task's prompt, or its fields if the environment writes the prompt from them."""
    return "\n".join(map(get_text, task.messages)) or canonical(dict(task.fields))


def differ_by_seed(subject: Subject) -> bool:
    """Return True if tasks differ only in their seeds, from which the environment derives the differences."""
    train = subject.tasks.train
    kinds = {identify(task, by_prompt=False) for task in train}
    return subject.environment_class is not None and len(kinds) <= ALIKE * len(train) and len(train) > 1 / ALIKE


def identify(task: Task, by_prompt: bool) -> str:
    """Return a string that is the same for two equal tasks: the prompt, plus the fields if the prompt does not
    distinguish tasks. A field that copies the seed is left out. A task without fields is identified by its seed."""
    prompt = f"{normalize_text(get_prompt_text(task))}\n{get_seed(task)}"
    if by_prompt:
        return prompt
    fields = {
        name: value
        for name, value in task.fields.items()
        if not (ROW_COLUMNS.match(str(name)) and is_scalar(value)) and (name, value) != ("seed", task.seed)
    }
    return f"{prompt}\n{canonical(fields)}"


def get_seed(task: Task) -> int | None:
    """Return the seed from which the environment creates the task, or None if the task contains anything else."""
    return None if task.fields else task.seed


def is_scalar(value: Json) -> bool:
    return value is None or isinstance(value, str | int | float)
