"""A harbor that files ships without the hyphens of their names; no tool lists them."""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match
from sparring.types import Task

SHIPS = ["Anne-Marie", "Bluefin", "Cormorant", "Jean-Luc", "Petrel", "Rose-Mary", "Skua", "Tern", "Karl-Otto", "Gannet"]


class Harbor(Environment):
    def reset(self, task):
        self.berths = {name.replace("-", ""): berth for name, berth in task.fields["ships"]}

    @tool
    def berth(self, ship: str) -> int:
        """The berth of a ship, by its name."""
        if ship not in self.berths:
            raise ToolFailure(f"no ship {ship} is here")
        return self.berths[ship]


def make_tasks(split, num):
    rng = random.Random(f"harbor {split}")
    tasks = []
    for index in range(num):
        berths = rng.sample(range(1, 400), 7)
        ships = [list(one) for one in zip(rng.sample(SHIPS, 7), berths, strict=True)]
        name, berth = rng.choice(ships)
        message = {
            "role": "user",
            "content": f"Where does the ship '{name}' lie? Answer with the number of its berth alone.",
        }
        tasks.append(Task(id=f"{split}-{index}", messages=(message,), fields={"ships": ships, "answer": str(berth)}))
    return tasks


train_tasks = partial(make_tasks, "train", 24)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)


def reward(trajectory):
    return float(str(trajectory.messages[-1].get("content")).strip() == trajectory.task.fields["answer"])


scorer = exact_match(None, "answer")
