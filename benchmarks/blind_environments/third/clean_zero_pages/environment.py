"""An archive whose pages count from 0; the last page may be short or, after a full one, empty."""

import random

from sparring.environments import Environment, tool
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Task

SIZE = 5
TOPICS = ["harbour", "mill", "railway", "school", "market"]
SYSTEM = """You search the archive of a town. Pages of a topic count from 0 and have five letters each; a page with fewer than five \
(it may have none) is the last. Letters on a page are in the order in which they came in, not by date.
Answer like <final_output>{"letters": 3, "earliest": "L12"}</final_output>."""


class Archive(Environment):
    # Made once: the same ten thousand shelf marks for every episode, never changed.
    MARKS = tuple(f"shelf {number // 100}/{number % 100}" for number in range(10_000))

    def reset(self, task):
        self.letters = task.fields["letters"]

    @tool
    def page(self, topic: str, number: int) -> list[list]:
        """Letters of a page of a topic, each with its year.

        Args:
            topic: one of harbour, mill, railway, school, market
            number: of the page, from 0
        """
        if number < 0:
            return []
        mine = [[name, year] for name, kind, year in self.letters if kind == topic]
        return mine[number * SIZE : (number + 1) * SIZE]

    @tool
    def shelf(self, letter: str) -> str:
        """Where a letter stands.

        Args:
            letter: for example L12
        """
        return (
            self.MARKS[int(letter.removeprefix("L"))]
            if any(letter == name for name, _, _ in self.letters)
            else "nowhere"
        )


reward = json_fields()
scorer = json_exact()


def _task(split, index):
    rng = random.Random(f"{index} of {split}")
    count = rng.randint(14, 30)
    numbers, years = rng.sample(range(1, 10_000), count), rng.sample(range(1800, 1990), count)
    topic = rng.choice(TOPICS)
    letters = [
        [f"L{number}", topic if rng.random() < 0.45 else rng.choice(TOPICS), year]
        for number, year in zip(numbers, years)
    ]
    mine = [(year, name) for name, kind, year in letters if kind == topic]
    if len(mine) < 2:
        return _task(split, index + 1000)
    desk = f"Request {rng.randint(1000, 9999)}. "
    question = f"How many letters about the {topic} are there, and which is the earliest?"
    if index % 2:
        question = f"Count the letters about the {topic}; name the one with the lowest year as well."
    return Task(
        id=f"{split}-{index}",
        messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": desk + question}),
        fields={"letters": letters, "topic": topic, "answer": {"letters": len(mine), "earliest": min(mine)[1]}},
    )


def train_tasks():
    return [_task("train", index) for index in range(32)]


def held_out_tasks():
    return [_task("held-out", index) for index in range(12)]
