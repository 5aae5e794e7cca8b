"""A laboratory notebook: entries are appended and never changed or removed. A mistake is corrected by a further entry."""

from __future__ import annotations

import random
from typing import Annotated

from sparring.environments import Bounded, StatefulEnvironment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import state_difference
from sparring.types import Json, Task, Trajectory

SYSTEM = """You keep a laboratory notebook. Entries are numbered from 1 and stay as they are for good; a wrong reading is corrected by a further
entry that names the one it corrects. The last correction of an entry counts. Do what is asked with one new entry: a correction names
the number of the first entry of that sample, not that of an earlier correction. Answer with the word done."""


class Notebook(StatefulEnvironment):
    def reset(self, task: Task) -> None:
        super().reset(task)
        self.log: list[dict[str, Json]] = list(task.fields["log"])

    @tool
    def entries(self, first: Annotated[int, Bounded(ge=1)] = 1) -> list[dict[str, Json]]:
        """All entries from a number on, corrected ones and corrections among them.

        Args:
            first: number of the first entry to show
        """
        return [{"number": number, **entry} for number, entry in enumerate(self.log, start=1) if number >= first]

    @tool
    def note(self, sample: str, reading: int) -> int:
        """Append the reading of a sample that has none, and return the entry's number."""
        if any(entry.get("sample") == sample for entry in self.log):
            raise ToolFailure(f"{sample} has a reading already; correct it")
        self.log.append({"sample": sample, "reading": reading})
        return len(self.log)

    @tool
    def correct(self, entry: int, reading: int) -> int:
        """Append a correction of an entry, which itself stays, and return the number of the correction.

        Args:
            entry: number of the entry with the wrong reading
            reading: the right one
        """
        if not 1 <= entry <= len(self.log):
            raise ToolFailure(f"there is no entry {entry}")
        if "corrects" in self.log[entry - 1]:
            raise ToolFailure(f"entry {entry} is a correction; correct the entry that it names")
        self.log.append({"corrects": entry, "reading": reading})
        return len(self.log)

    def final_state(self) -> Json:
        return {"log": self.log}


scorer = state_difference("state")


def reward(trajectory: Trajectory) -> float:
    log = (trajectory.final_state or {}).get("log", [])
    wanted = trajectory.task.fields["state"]["log"]
    return float(len(log) == len(wanted) and log[-1] == wanted[-1])


def train_tasks(num: int = 40) -> list[Task]:
    return [_task("train", index) for index in range(num)]


def held_out_tasks(num: int = 12) -> list[Task]:
    return [_task("held_out", index) for index in range(num)]


def _task(split: str, index: int) -> Task:
    rng = random.Random(f"notebook {split} {index}")
    codes = rng.sample(range(10, 500) if split == "train" else range(500, 990), 6)
    samples = [f"S{code}" for code in codes]
    log: list[dict[str, Json]] = [{"sample": sample, "reading": rng.randint(5, 95)} for sample in samples[:5]]
    for _ in range(rng.randint(1, 3)):
        log.append({"corrects": rng.randint(1, 5), "reading": rng.randint(5, 95)})
    right = rng.randint(100, 180)
    if rng.random() < 0.7:
        number = rng.randint(1, 5)
        added, text = (
            {"corrects": number, "reading": right},
            f"The reading of {samples[number - 1]} is wrong: {right} is right.",
        )
    else:
        added, text = {"sample": samples[5], "reading": right}, f"We have measured {samples[5]}, too: {right}."
    return Task(
        id=f"notebook-{split}-{index}",
        messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": text}),
        fields={"log": log, "state": {"log": [*log, added]}},
        seed=index,
    )
