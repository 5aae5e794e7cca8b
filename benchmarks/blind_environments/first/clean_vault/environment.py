"""A vault: every tool refuses until the badge was shown."""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task

THINGS = ["ring", "coin", "deed", "pearl", "medal", "watch", "map", "key"]
REFUSED = "refused: show your badge first"


class Vault(Environment):
    def reset(self, task):
        self.boxes = task.fields["boxes"]
        self.badge = task.fields["badge"]
        self.is_open = False

    @tool
    def show_badge(self, number: str) -> str:
        """Show your badge; everything else is refused before.

        Args:
            number: on the badge
        """
        self.is_open = number == self.badge
        return "welcome" if self.is_open else "this badge is not known"

    @tool
    def list_boxes(self) -> str:
        """Numbers of the boxes in the vault."""
        return ", ".join(sorted(self.boxes)) if self.is_open else REFUSED

    @tool
    def open_box(self, box: str) -> str:
        """What lies in a box."""
        if not self.is_open:
            return REFUSED
        return self.boxes.get(box, "no such box")


def make_tasks(split, num):
    rng = random.Random(f"vault {split}")
    tasks = []
    for index in range(num):
        numbers = [f"B{number}" for number in rng.sample(range(10, 100), 3)]
        boxes = dict(zip(numbers, rng.sample(THINGS, 3), strict=True))
        badge, wanted = str(rng.randint(10000, 99999)), rng.choice(numbers)
        prompt = f"Your badge is {badge}. In which box is the {boxes[wanted]}? Answer with the box alone."
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": prompt},),
                fields={"boxes": boxes, "badge": badge, "answer": wanted},
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 24)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)


def reward(trajectory):
    last = trajectory.messages[-1]
    return float(last["role"] == "assistant" and str(last["content"]).strip() == trajectory.task.fields["answer"])


scorer = exact_match(None, "answer")
