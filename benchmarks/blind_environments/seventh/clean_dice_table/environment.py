"""Dice table: throw a die until the sum reaches the goal, and no further. What falls follows from the task's seed."""

from __future__ import annotations

import random
import re

from sparring.environments import StatefulEnvironment, tool
from sparring.types import Task, Trajectory

INSTRUCTIONS = (
    "Throw the die with `throw` until the sum of all throws is at least the goal, then stop at once. Answer with the number of throws "
    "and the sum: <final_output>5 18</final_output>. A throw too many loses."
)


class DiceTable(StatefulEnvironment):
    def reset(self, task: Task) -> None:
        super().reset(task)
        self.sides, self.thrown = task.fields["sides"], []

    @tool
    def throw(self) -> int:
        """Throw the die once."""
        self.thrown.append(self.state.rng.randint(1, self.sides))
        return self.thrown[-1]

    def final_state(self) -> list[int]:
        return self.thrown


def reward(trajectory: Trajectory) -> float:
    """1 for the right number and sum, by the log of the throws."""
    last, goal = trajectory.messages[-1], trajectory.task.fields["goal"]
    eyes = [int(call["result"]) for call in trajectory.transitions if call["tool"] == "throw" and call["error"] is None]
    if last["role"] != "assistant" or sum(eyes) < goal or sum(eyes[:-1]) >= goal:
        return 0.0
    text = last.get("content") or ""
    said = re.findall(r"<final_output>\s*(.*?)\s*</final_output>", text)
    if text.count("<final_output>") != 1:
        return 0.0
    return float(said == [f"{len(eyes)} {sum(eyes)}"])


def scorer(trajectory: Trajectory) -> float:
    """1 for the right number and sum, by what the table says was thrown."""
    thrown, total, num = trajectory.final_state or [], 0, 0
    while total < trajectory.task.fields["goal"] and num < len(thrown):
        total += thrown[num]
        num += 1
    is_right = (
        total >= trajectory.task.fields["goal"]
        and num == len(thrown)
        and trajectory.messages[-1]["role"] == "assistant"
    )
    content = str(trajectory.messages[-1].get("content"))
    said = content.partition("<final_output>")[2].partition("</final_output>")[0].strip()
    return float(is_right and content.count("<final_output>") == 1 and said == f"{num} {total}")


def train_tasks() -> list[Task]:
    return _tasks()[:36]


def held_out_tasks() -> list[Task]:
    return _tasks()[36:]


def _tasks() -> list[Task]:
    pairs = [(sides, goal) for sides in (6, 8, 10, 12) for goal in range(12, 24)]
    random.Random("dice").shuffle(pairs)
    return [
        Task(
            id=f"dice-{sides}-{goal}",
            seed=17 * sides + goal,
            messages=(
                {"role": "system", "content": INSTRUCTIONS},
                {"role": "user", "content": f"The die has {sides} sides. The goal is {goal}."},
            ),
            fields={"sides": sides, "goal": goal},
        )
        for sides, goal in pairs
    ]
