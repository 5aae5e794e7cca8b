"""Write small text functions; they are run in a sandbox against examples."""

from __future__ import annotations

import json
import random
import re

from sparring.environments import Environment, tool
from sparring.types import Task, Trajectory

OPERATIONS = {
    "upper": "turns the text into upper case",
    "reverse": "writes the text backwards",
    "double": "writes the text twice in a row",
    "initial": "keeps the first letter only",
    "length": "gives the number of letters, as text",
    "swap": "swaps upper and lower case",
    "vowels": "keeps the vowels a, e, i, o and u only",
    "sorted": "sorts the letters",
}


def apply(name: str, text: str) -> str:
    return {
        "upper": text.upper,
        "reverse": lambda: text[::-1],
        "double": lambda: text * 2,
        "initial": lambda: text[:1],
        "length": lambda: str(len(text)),
        "swap": text.swapcase,
        "vowels": lambda: "".join(c for c in text if c in "aeiou"),
        "sorted": lambda: "".join(sorted(text)),
    }[name]()


class Pipeline(Environment):
    """The policy writes a pipeline of operations, such as `reverse | upper`, and tries it out."""

    def reset(self, task: Task) -> None:
        self.tries = 0

    @tool
    def operations(self) -> dict[str, str]:
        """All operations and what each of them does."""
        return OPERATIONS

    @tool
    def try_out(self, pipeline: str, text: str) -> str:
        """What a pipeline makes of a text.

        Args:
            pipeline: operations, in order, with | between them
            text: what to put in
        """
        self.tries += 1
        return run(pipeline, text)


def run(pipeline: str, text: str) -> str:
    for name in pipeline.split("|"):
        if name.strip() not in OPERATIONS:
            raise ValueError(f"there is no operation {name.strip()!r}")
        text = apply(name.strip(), text)
    return text


def submitted(trajectory: Trajectory) -> str:
    last = trajectory.messages[-1]
    found = (
        re.search(r"```\n?([a-z |]+)\n?```", str(last.get("content") or "")) if last["role"] == "assistant" else None
    )
    return found[1].strip() if found else ""


def reward(trajectory: Trajectory) -> float:
    """Share of the examples that the pipeline gets right."""
    examples = trajectory.task.fields["examples"]
    right = 0
    for given, wanted in examples:
        try:
            right += run(submitted(trajectory), given) == wanted
        except ValueError:
            continue
        return right / len(examples)
    return 0.0


def scorer(trajectory: Trajectory) -> float:
    """1 when all examples come out right."""
    try:
        made = [run(submitted(trajectory), given) for given, _ in trajectory.task.fields["examples"]]
    except ValueError:
        return 0.0
    return float(json.dumps(made) == json.dumps([wanted for _, wanted in trajectory.task.fields["examples"]]))


def _tasks(split: str, pairs: list[tuple[str, str]]) -> list[Task]:
    rng = random.Random(split)
    tasks = []
    for index, (first, second) in enumerate(pairs):
        texts = ["".join(rng.choices("abcdeiouXYZ", k=rng.randint(4, 7))) for _ in range(4)]
        examples = [[text, apply(second, apply(first, text))] for text in texts]
        shown = "\n".join(f"{given} -> {wanted}" for given, wanted in examples[:2])
        prompt = f"Find a pipeline of operations that does this:\n{shown}\nGive it between ``` and ```, on a line of its own."
        fields = {"examples": examples}
        tasks.append(Task(id=f"{split}-{index}", messages=({"role": "user", "content": prompt},), fields=fields))
    return tasks


PAIRS = random.Random(0).sample([(a, b) for a in OPERATIONS for b in OPERATIONS if a != b], 56)


def train_tasks() -> list[Task]:
    return _tasks("train", PAIRS[:36])


def validation_tasks() -> list[Task]:
    return _tasks("validation", PAIRS[36:46])


def held_out_tasks() -> list[Task]:
    return _tasks("held_out", PAIRS[46:])
