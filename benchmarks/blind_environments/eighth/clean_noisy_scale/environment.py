"""Assay office: what does a sample weigh? The scale trembles, and four readings in a row average its trembling out."""

from __future__ import annotations

import random
import re
from fractions import Fraction

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import numeric_match
from sparring.types import Task, Trajectory

METALS = ["gold", "silver", "copper", "nickel", "tin", "zinc", "cobalt", "iron"]
TREMBLING = [-7, -2, 3, 6]


class Scale(Environment):
    """Of four readings in a row, each of the four disturbances is in one; their order follows from the task's seed."""

    def reset(self, task: Task) -> None:
        self._samples: dict[str, dict] = task.fields["samples"]
        self._rng = random.Random(f"scale {task.id} {task.seed}")
        self._disturbances: dict[str, list[int]] = {}

    @tool
    def list_samples(self, metal: str) -> list[str]:
        """Labels of the samples of a metal.

        Args:
            metal: as in "tin"
        """
        return [label for label, sample in self._samples.items() if sample["metal"] == metal]

    @tool
    def weigh(self, label: str) -> int:
        """Put a sample on the scale and read it once, in milligrams. Readings differ by a few milligrams each time; the mean of
        the first four readings of a sample is exact.

        Args:
            label: label of the sample
        """
        if label not in self._samples:
            raise ToolFailure(f"there is no sample {label}")
        queue = self._disturbances.setdefault(label, [])
        if not queue:
            queue.extend(self._rng.sample(TREMBLING, 4))
        return self._samples[label]["milligrams"] + queue.pop()


CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)


def tagged(trajectory: Trajectory) -> str | None:
    """What stands in the one answer tag of the last message; code does not count."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return None
    text = CODE.sub("", last.get("content") or "")
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return found[0].strip() if len(found) == text.count("<answer>") == text.count("</answer>") == 1 else None


def reward(trajectory: Trajectory) -> float:
    """1 for the weight to half a milligram."""
    said = tagged(trajectory) or ""
    if not re.fullmatch(r"(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d\d?)?", said):
        return 0.0
    return float(abs(Fraction(said) - trajectory.task.fields["answer"]) <= Fraction(1, 2))


scorer = numeric_match("answer", tolerance=0.5)


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"assay-{split}-{number}")
    samples = {}
    for metal, key in zip(rng.sample(METALS, 4), rng.sample(range(1000, 9999), 4), strict=True):
        samples[f"{metal[0].upper()}{key}"] = {"metal": metal, "milligrams": rng.randint(150, 900)}
    label = rng.choice(list(samples))
    prompt = (
        f"What does the {samples[label]['metal']} sample of lot {rng.randint(1000, 9999)} weigh? Weigh it four times and take the "
        "mean. End with the milligrams, as in <answer>412</answer>."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": prompt},),
        fields={"samples": samples, "label": label, "answer": samples[label]["milligrams"]},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(40)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
