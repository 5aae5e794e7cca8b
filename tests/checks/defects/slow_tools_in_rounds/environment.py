"""A library desk: find a book's shelf, look up the floor of that shelf, report both.

A tool takes seconds, and all episodes of a round wait for it.
"""

import asyncio
import json

from sparring.environments import Environment, answer, tool, tool_call
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Task

RULES = """You run the desk of a library. Find the shelf of the book with find, then the floor of that shelf with floor.
End with <final_output>{"shelf": "...", "floor": 0}</final_output>, filled in."""
TITLES = ["Emma", "Ivanhoe", "Dracula", "Walden", "Ulysses", "Persuasion", "Kim", "Middlemarch", "Villette", "Rob Roy"]


class Desk(Environment):
    def reset(self, task: Task) -> None:
        self.task = task

    @tool
    async def find(self, title: str) -> str:
        """Shelf of a book."""
        await asyncio.sleep(1.1)
        return self.task.fields["shelves"].get(title, "no such book")

    @tool
    def floor(self, shelf: str) -> dict[str, int | None]:
        """Floor of a shelf."""
        return {"floor": self.task.fields["floors"].get(shelf)}

    def demonstrate(self, task: Task):
        right = task.fields["answer"]
        reply = answer(f"<final_output>{json.dumps(right)}</final_output>")
        return [tool_call("find", title=task.fields["title"]), tool_call("floor", shelf=right["shelf"]), reply]


reward = json_fields("final_output")
scorer = json_exact("final_output")


def book(split: str, index: int) -> Task:
    number = {"train": 0, "validation": 40, "held_out": 60}[split] + index
    title = f"{TITLES[number % 10]} {1 + number // 10}"
    shelf, level = f"{'ABCDEFG'[number % 7]}{10 + number}", number * 5 % 4 + 1
    return Task(
        id=f"{split}-{index}",
        messages=({"role": "system", "content": RULES}, {"role": "user", "content": f"Where is {title}?"}),
        fields={
            "title": title,
            "shelves": {title: shelf, "Atlas 9": "Z1"},
            "floors": {shelf: level, "Z1": 9},
            "answer": {"shelf": shelf, "floor": level},
        },
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [book("train", index) for index in range(40)]


def validation_tasks() -> list[Task]:
    return [book("validation", index) for index in range(10)]


def held_out_tasks() -> list[Task]:
    return [book("held_out", index) for index in range(10)]
