"""Recycling help line: which bin does a thing go into?"""

import random

from sparring.environments import Environment, tool
from sparring.types import Task

SYSTEM = """You run the help line of a town's recycling service.
Find out what a thing is made of with `material`, and which rule holds with `rule`.
Reply with one word, the bin: blue, green, brown or grey."""

MATERIALS = {
    "newspaper": "paper",
    "egg box": "paper",
    "wine bottle": "glass",
    "jam jar": "glass",
    "apple core": "food",
    "tea bag": "food",
    "milk carton": "packaging",
    "crisp packet": "packaging",
    "nappy": "residual",
    "vacuum bag": "residual",
    "envelope": "paper",
    "coffee grounds": "food",
    "yoghurt pot": "packaging",
    "perfume bottle": "glass",
    "cat litter": "residual",
    "magazine": "paper",
    "banana skin": "food",
    "tin can": "packaging",
}
RULES = {
    "paper": "Paper and card: the blue bin.",
    "glass": "Glass of any colour: the green bin.",
    "food": "Kitchen waste: the brown bin.",
    "packaging": "Packaging of plastic, metal or compound: the yellow bin.",
    "residual": "What nothing else takes: the grey bin.",
}
BINS = {"paper": "blue", "glass": "green", "food": "brown", "packaging": "yellow", "residual": "grey"}


class HelpLine(Environment):
    def reset(self, task):
        self.asked = 0

    @tool
    def material(self, thing: str) -> str:
        """What a thing counts as.

        Args:
            thing: in the singular
        """
        self.asked += 1
        return MATERIALS.get(thing.lower(), "not listed")

    @tool
    def rule(self, material: str) -> str:
        """Rule for a material.

        Args:
            material: as `material` names it
        """
        self.asked += 1
        return RULES.get(material, "There is no such rule.")


def _word(trajectory):
    last = trajectory.messages[-1]
    return (last.get("content") or "").strip().rstrip(".").lower() if last["role"] == "assistant" else ""


def reward(trajectory):
    return 1.0 if _word(trajectory) == trajectory.task.fields["bin"] else 0.0


def scorer(trajectory):
    return float(BINS[MATERIALS[trajectory.task.fields["thing"]]] == _word(trajectory))


def tasks_of(split):
    things = random.Random("bins").sample(sorted(MATERIALS), len(MATERIALS))
    chosen = {"train": things[:10], "validation": things[10:14], "held_out": things[14:]}[split]
    return [
        Task(
            id=f"{split}-{index}",
            messages=(
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"Hello, where does my {thing} go?"},
            ),
            fields={"thing": thing, "bin": BINS[MATERIALS[thing]]},
        )
        for index, thing in enumerate(chosen)
    ]


def train_tasks():
    return tasks_of("train")


def validation_tasks():
    return tasks_of("validation")


def held_out_tasks():
    return tasks_of("held_out")
