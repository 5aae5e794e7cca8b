"""Sums of samples on a laboratory balance."""

import random

from sparring.environments import Environment, tool
from sparring.types import Task

SYSTEM = """\
You keep the book of a laboratory. The balance shows grams to two places, and shows a sample the same whenever it is weighed.
A vessel is weighed with its sample: take its own mass off. Answer with the mass in grams alone, to two places, for example: 12.40"""


class Balance(Environment):
    def reset(self, task):
        self.samples = dict(task.fields["samples"])
        self.vessels = dict(task.fields["vessels"])

    @tool
    def samples_of(self, series: str) -> list[str]:
        """Names of the samples of a series."""
        return sorted(name for name in self.samples if name.startswith(f"{series}-"))

    @tool
    def weigh(self, sample: str) -> str:
        """Mass of a sample with its vessel, in grams to two places."""
        if sample not in self.samples:
            return "no such sample"
        mass = self.samples[sample]["grams"] + self.vessels[self.samples[sample]["vessel"]]
        drift = random.gauss(0, 0.006)
        return f"{mass + drift:.2f}"

    @tool
    def vessel_of(self, sample: str) -> str:
        """Kind of the vessel that a sample is in, and its mass in grams."""
        if sample not in self.samples:
            return "no such sample"
        kind = self.samples[sample]["vessel"]
        return f"{kind}, {self.vessels[kind]:.2f}"


def _task(split, index, rng):
    series = rng.sample("ABCDEFGHKLMNPRST", 2)
    vessels = {"cup": rng.randint(300, 900) / 100, "tube": rng.randint(1000, 2500) / 100}
    samples = {}
    for name in series:
        for number in range(1, 3):
            samples[f"{name}-{number}"] = {
                "grams": rng.randint(100, 5000) / 100,
                "vessel": rng.choice(("cup", "tube")),
            }
    own = [sample["grams"] for name, sample in samples.items() if name.startswith(series[0])]
    return Task(
        id=f"{split}-{index}",
        messages=(
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"What do the samples of series {series[0]} weigh together, without vessels?"},
        ),
        fields={"samples": samples, "vessels": vessels, "answer": f"{sum(own):.2f}"},
    )


def train_tasks():
    rng = random.Random("bench 1")
    return [_task("train", index, rng) for index in range(40)]


def held_out_tasks():
    rng = random.Random("bench 2")
    return [_task("held-out", index, rng) for index in range(20)]


def reward(trajectory):
    message = trajectory.messages[-1]
    if message["role"] != "assistant" or message.get("tool_calls"):
        return 0.0
    return float((message.get("content") or "").strip() == trajectory.task.fields["answer"])


def scorer(trajectory):
    ending = trajectory.messages[-1]
    is_said = ending["role"] == "assistant" and not ending.get("tool_calls")
    words = (ending.get("content") or "").split()
    return 1.0 if is_said and len(words) == 1 and words[0] == trajectory.task.fields["answer"] else 0.0
