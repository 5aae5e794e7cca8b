"""An archive whose pages are read for a number of turns, with a random reward."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from sparring import Environment, Message, Task, Trajectory, answer, tool, tool_call
from sparring.chat import TemplateChat
from sparring.models.small import small_model

NUM_TURNS = 4
"""The turns of an episode. Each one except the last calls the tool."""
NUM_TASKS = 2048
SHELVES = [f"shelf {letter}{number}" for letter in "abcdefgh" for number in range(8)]


class Archive(Environment):
    """One tool that reads a page."""

    describe_tools = "prompt"

    @tool
    def read(self, shelf: str, page: int) -> str:
        """The text of a page."""
        return page_of(shelf, page)


def page_of(shelf: str, page: int) -> str:
    return f"Page {page} of {shelf}: the gauge was read at {page % 24} hours, and its value was within the limits."


def messages_of(turn: int) -> Sequence[Message]:
    """Return the messages that the policy may write in a turn, counted from 0."""
    if turn < NUM_TURNS - 1:
        return [tool_call("read", shelf=shelf, page=page) for page, shelf in enumerate(SHELVES)]
    return [answer(f"The readings of {shelf} are within their limits, so nothing is to be done.") for shelf in SHELVES]


def reward(trajectory: Trajectory) -> float:
    return random.Random(trajectory.id).random()


def scorer(trajectory: Trajectory) -> float:
    return float(len(trajectory.turns) == NUM_TURNS)


def build(seed: int) -> tuple[Any, Any]:
    texts = [[task.messages[0], *messages_of(0)[:8], *messages_of(NUM_TURNS)[:8]] for task in train_tasks(16)]
    return small_model(seed, texts, vocabulary_size=512, width=64, layers=2, max_positions=1024)


def encode_turn() -> list[int]:
    """Return the tokens of a turn that calls the tool."""
    _, tokenizer = build(0)
    return list(TemplateChat(tokenizer).answer(messages_of(0)[0], ()))


def train_tasks(num: int = NUM_TASKS) -> list[Task]:
    return [_task(f"task-{number}", number) for number in range(num)]


def validation_tasks() -> list[Task]:
    return [_task("validation", 0)]


def held_out_tasks() -> list[Task]:
    return [_task("held-out", 0)]


def _task(id: str, number: int) -> Task:
    content = f"Is the gauge of {SHELVES[number % len(SHELVES)]} within its limits? This is inspection {number}."
    return Task(id=id, messages=({"role": "user", "content": content},))
