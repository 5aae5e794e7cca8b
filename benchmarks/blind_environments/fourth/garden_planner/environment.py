"""How many plants a bed takes, set out in rows and columns."""

import random

from sparring.environments import Environment, tool
from sparring.types import Task

SYSTEM = """\
You plan gardens. Plants stand in straight rows: along each side of a bed fit as many as the side divided by the spacing of the plant,
rounded down, and all rows are filled. Answer with the number of plants alone, for example: 48"""

BEDS = ("gate bed", "wall bed", "pond bed", "hill bed", "porch bed")
PLANTS = ("kale", "thyme", "roses", "peas", "tulips", "chard")


def _question(kind, bed, plant):
    match kind:
        case 0:
            return f"How many {plant} fit into the {bed}?"
        case 1:
            return f"I would like to fill the {bed} with {plant}. How many do I need?"
        case 2:
            return "The {bed} is free this year. How many {plant} does it take?"
        case _:
            return f"Please tell me how many {plant} I must buy for the {bed}."


class Garden(Environment):
    def reset(self, task):
        self.beds = task.fields["beds"]
        self.spacings = task.fields["spacings"]

    @tool
    def bed(self, name: str) -> dict[str, int] | str:
        """Length and width of a bed in centimeters.

        Args:
            name: for example gate bed
        """
        return self.beds.get(name, "no such bed")

    @tool
    def spacing(self, plant: str) -> str:
        """How many centimeters a plant needs in each direction."""
        return str(self.spacings.get(plant, "no such plant"))


def _task(split, index, rng):
    beds = {name: {"length": rng.randint(120, 400), "width": rng.randint(60, 160)} for name in BEDS}
    spacings = {plant: rng.choice((12, 15, 18, 20, 25, 30, 35, 40)) for plant in PLANTS}
    bed, plant = rng.choice(BEDS), rng.choice(PLANTS)
    num_plants = (beds[bed]["length"] // spacings[plant]) * (beds[bed]["width"] // spacings[plant])
    return Task(
        id=f"{split}-{index}",
        messages=(
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": _question(rng.randrange(4), bed, plant)},
        ),
        fields={"beds": beds, "spacings": spacings, "answer": str(num_plants)},
    )


def train_tasks():
    rng = random.Random("spring beds")
    return [_task("train", index, rng) for index in range(48)]


def held_out_tasks():
    rng = random.Random("autumn beds")
    return [_task("held-out", index, rng) for index in range(24)]


def reward(trajectory):
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return 0.0
    return 1.0 if (last.get("content") or "").strip() == trajectory.task.fields["answer"] else 0.0


def scorer(trajectory):
    match trajectory.messages[-1]:
        case {"role": "assistant", "tool_calls": [_, *_]}:
            return 0.0
        case {"role": "assistant", "content": str(said)}:
            return float(said.split() == [trajectory.task.fields["answer"]])
    return 0.0
