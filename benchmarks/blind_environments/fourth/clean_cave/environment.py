"""A text game: out of a dark cave before the torch burns down. It ends with a move and not with an answer."""

import random
from typing import Literal

from sparring.environments import StatefulEnvironment, tool
from sparring.types import Task

TORCH = 24
PROMPT = (
    f"You are in a cave of twelve chambers and look for daylight. Your torch lasts for {TORCH} moves; running into rock takes "
    "one, too. You may act 30 times, and looking around is an act. To say something without acting is to give up."
)
STEPS = {"north": (0, -1), "south": (0, 1), "east": (1, 0), "west": (-1, 0)}
NOISES = ("Water drips.", "A bat flies up.", "It is silent.", "Pebbles roll.", "The torch flickers.")


class Cave(StatefulEnvironment):
    def reset(self, task):
        super().reset(task)
        self.open_ways = task.fields["ways"]
        self.place = task.fields["start"]
        self.exit = task.fields["exit"]
        self.num_moves = 0

    def _view(self):
        return f"{self.state.rng.choice(NOISES)} Ways: {', '.join(self.open_ways[self.place])}."

    @tool
    def look(self) -> str:
        """Look around; takes no move."""
        return self._view()

    @tool
    def go(self, direction: Literal["north", "south", "east", "west"]) -> str:
        """Go to the next chamber."""
        if self.is_done:
            return "The game is over."
        if self.is_done:
            return "The game is over."
        self.num_moves += 1
        if direction not in self.open_ways[self.place]:
            return f"Rock. {self._view()}"
        across, down = STEPS[direction]
        column, row = map(int, self.place.split(","))
        self.place = f"{column + across},{row + down}"
        return "Daylight!" if self.place == self.exit else self._view()

    @property
    def is_done(self):
        return self.place == self.exit or self.num_moves >= TORCH

    def final_state(self):
        return {"place": self.place, "moves": self.num_moves}


def _task(split, index, rng):
    cells = [(column, row) for column in range(4) for row in range(3)]
    start = rng.choice(cells)
    ways, reached, stack = {cell: [] for cell in cells}, {start}, [start]
    while stack:
        column, row = stack[-1]
        new = [
            (name, back, (column + STEPS[name][0], row + STEPS[name][1]))
            for name, back in (("north", "south"), ("south", "north"), ("east", "west"), ("west", "east"))
            if (column + STEPS[name][0], row + STEPS[name][1]) in ways
            and (column + STEPS[name][0], row + STEPS[name][1]) not in reached
        ]
        if not new:
            stack.pop()
            continue
        name, back, cell = rng.choice(new)
        ways[column, row].append(name)
        ways[cell].append(back)
        reached.add(cell)
        stack.append(cell)
    far = [cell for cell in cells if abs(cell[0] - start[0]) + abs(cell[1] - start[1]) >= 2]
    return Task(
        id=f"{split}-{index}",
        messages=({"role": "user", "content": PROMPT},),
        fields={
            "ways": {f"{column},{row}": sorted(names) for (column, row), names in ways.items()},
            "start": "{},{}".format(*start),
            "exit": "{},{}".format(*rng.choice(far)),
        },
        seed=rng.randrange(10**6),
    )


def train_tasks():
    rng = random.Random("caves")
    return [_task("train", index, rng) for index in range(40)]


def held_out_tasks():
    rng = random.Random("other caves")
    return [_task("held-out", index, rng) for index in range(20)]


def reward(trajectory):
    seen = [step["result"] for step in trajectory.transitions if step["tool"] == "go" and step["error"] is None]
    return 1.0 if "Daylight!" in seen else 0.0


def scorer(trajectory):
    return float((trajectory.final_state or {}).get("place") == trajectory.task.fields["exit"])
