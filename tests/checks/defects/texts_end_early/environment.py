"""Pages of a wiki that end in the middle of a sentence."""

import random

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task

TOWNS = ["Arda", "Bryn", "Cove", "Dunmore", "Elst", "Farrow"]
MAYORS = ["Olsen", "Petri", "Quist", "Rossi", "Stahl", "Toth", "Ueda"]


class Wiki(Environment):
    def reset(self, task):
        self.pages = task.fields["pages"]

    @tool
    def titles(self) -> list[str]:
        """The titles of all pages."""
        return sorted(self.pages)

    @tool
    def page(self, title: str) -> str:
        """The text of a page.

        Args:
            title: as titles gives it
        """
        return self.pages.get(title, "no such page")[:90]


def reward(trajectory):
    return float(str(trajectory.messages[-1].get("content")).strip() == trajectory.task.fields["answer"])


scorer = exact_match(None, "answer")


def train_tasks():
    rng, tasks = random.Random("wiki"), []
    for number in range(16):
        pages, mayors = {}, {}
        for town in rng.sample(TOWNS, 4):
            mayors[town] = rng.choice(MAYORS)
            facts = [
                f"Its mayor is {mayors[town]}.",
                f"It has {rng.randint(2, 90)} thousand people, most of them in the old town.",
            ]
            rng.shuffle(facts)
            pages[town] = f"{town} lies on a river, between two hills. {' '.join(facts)}"
        town = rng.choice(sorted(pages))
        message = {"role": "user", "content": f"Who is the mayor of {town}? Answer with the name alone."}
        tasks.append(Task(id=f"wiki-{number}", messages=(message,), fields={"pages": pages, "answer": mayors[town]}))
    return tasks
