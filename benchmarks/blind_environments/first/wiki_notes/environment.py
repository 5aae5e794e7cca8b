"""A small wiki: write down what you are told, under the right title."""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

WHO = ["The night guard", "The new intern", "Our landlord", "The baker next door", "The plumber"]
WHAT = ["keeps the spare keys", "knows the alarm code", "wants to be called first", "has the list of all visitors"]
WHERE = ["in the grey cabinet behind the second stairs", "at the desk beside the loading ramp", "on the third floor"]
LIMIT = 48


class Wiki(Environment):
    def reset(self, task):
        self.pages = dict(task.fields["pages"])

    @tool
    def titles(self) -> list:
        """Titles of all pages."""
        return sorted(self.pages)

    @tool
    def read_page(self, title: str) -> str:
        """Text of a page."""
        return self.pages.get(title, "no such page")

    @tool
    def write_page(self, title: str, text: str) -> str:
        """Write a page; a page of that title is replaced.

        Args:
            title: of the page
            text: all of its text
        """
        self.pages[title.strip()] = text[:LIMIT]
        return f"saved '{title}'"

    def final_state(self):
        return {"pages": self.pages}


def make_tasks(split, num):
    rng = random.Random(f"wiki/{split}")
    tasks = []
    for index in range(num):
        number = rng.randint(100, 999)
        pages = {"Rules": "Be brief.", f"Memo {number}": "Empty."}
        text = f"{rng.choice(WHO)} {rng.choice(WHAT)} {rng.choice(WHERE)}."
        title = f"Memo {number}"
        prompt = f"Replace the page '{title}' of the wiki. Its new text: {text}\nThen say done."
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": prompt},),
                fields={"pages": pages, "state": {"pages": {**pages, title: text}}},
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 24)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)


def reward(trajectory):
    wanted, found = trajectory.task.fields["state"]["pages"], trajectory.final_state["pages"]
    return float(wanted == found)


scorer = state_difference("state")
