"""Lending desk of a village library: lend a copy, or put the reader on the waiting list."""

import random
from dataclasses import dataclass

from sparring.environments import StatefulEnvironment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import state_difference
from sparring.types import Task, Trajectory

SYSTEM = (
    "You work at the lending desk of a library. For each title that a reader asks for: lend a copy where one is on the shelf, "
    "otherwise put the reader on the waiting list for it. Look first, and do nothing else. Answer with the word done at the end."
)


@dataclass
class Book:
    title: str
    copies: int
    """Copies on the shelf."""


ADJECTIVES = ["Silent", "Golden", "Broken", "Distant", "Crooked", "Hidden"]
NOUNS = ["Harbor", "Orchard", "Lantern", "Compass", "Meadow"]
TITLES = [f"The {adjective} {noun}" for adjective in ADJECTIVES for noun in NOUNS]
CATALOG = {title: Book(title, random.Random(title).choice((0, 1, 1, 2))) for title in TITLES}


class Library(StatefulEnvironment):
    """The catalog is the same in every episode; loans and waiting lists are the episode's own."""

    def reset(self, task):
        super().reset(task)
        self.catalog = dict(CATALOG)
        self.loans = []
        self.waiting = []

    def _book(self, title):
        if title not in self.catalog:
            raise ToolFailure(f"the library has no book {title!r}; give the whole title")
        return self.catalog[title]

    @tool
    def shelf(self, title: str) -> dict:
        """How many copies of a title are on the shelf now."""
        return {"title": title, "copies": self._book(title).copies}

    @tool
    def lend(self, title: str, reader: str) -> str:
        """Lend a copy to a reader. Refused when none is on the shelf."""
        book = self._book(title)
        if book.copies == 0:
            raise ToolFailure(f"no copy of {title} is on the shelf")
        book.copies -= 1
        self.loans.append([title, reader])
        return f"{title} is lent to {reader}"

    @tool
    def wait(self, title: str, reader: str) -> str:
        """Put a reader on the waiting list of a title, once at most."""
        self._book(title)
        if [title, reader] in self.waiting:
            raise ToolFailure(f"{reader} is already waiting for {title}")
        self.waiting.append([title, reader])
        return f"{reader} waits for {title}"

    def final_state(self):
        return {"loans": sorted(self.loans), "waiting": sorted(self.waiting)}


scorer = state_difference("state")


def reward(trajectory: Trajectory) -> float:
    state, wanted = trajectory.final_state, trajectory.task.fields["state"]
    if not state:
        return 0.0
    same = [sorted(map(tuple, state[name])) == sorted(map(tuple, wanted[name])) for name in ("loans", "waiting")]
    return 1.0 if all(same) else 0.0


def train_tasks(num=40):
    return make("train", num, TITLES[:20], range(100, 500))


def held_out_tasks(num=12):
    return make("held-out", num, TITLES[20:], range(500, 900))


COPIES = {title: book.copies for title, book in CATALOG.items()}


def make(split, num, titles, numbers):
    tasks = []
    for index in range(num):
        rng = random.Random(f"library:{split}:{index}")
        wanted, reader = rng.sample(titles, 2), f"reader {rng.choice(numbers)}"
        state = {"loans": [], "waiting": []}
        for title in sorted(wanted):
            state["loans" if COPIES[title] else "waiting"].append([title, reader])
        user = f"{reader.capitalize()} asks for {wanted[0]} and {wanted[1]}. (Write the reader as: {reader})"
        messages = ({"role": "system", "content": SYSTEM}, {"role": "user", "content": user})
        tasks.append(Task(id=f"library-{split}-{index}", messages=messages, fields={"state": state}, seed=index))
    return tasks
