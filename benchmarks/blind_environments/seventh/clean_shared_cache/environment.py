"""Number desk: sums of prime factors. Factoring is remembered for all episodes, since it is the same for all."""

from __future__ import annotations

import random
import re
from typing import Annotated, ClassVar

from sparring.environments import Bounded, StatefulEnvironment, tool
from sparring.types import Task, Trajectory

INSTRUCTIONS = (
    "`factors` lists the prime factors of a number, each as often as it divides. Add up all prime factors of both numbers and answer "
    "with the sum: <final_output>41</final_output>"
)


class NumberDesk(StatefulEnvironment):
    persists = ("cache",)
    cache: ClassVar[dict[int, tuple[int, ...]]] = {}
    """What a number's factors are depends on nothing else."""

    @tool
    def factors(self, number: Annotated[int, Bounded(ge=2, le=99_999)]) -> list[int]:
        """The prime factors of a number, in order.

        Args:
            number: 2 to 99999
        """
        if number not in self.cache:
            self.cache[number] = tuple(_factors(number))
        return list(self.cache[number])


def _factors(number: int) -> list[int]:
    found, divisor = [], 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            found.append(divisor)
            number //= divisor
        divisor += 1
    return [*found, number] if number > 1 else found


def reward(trajectory: Trajectory) -> float:
    """1 for the sum."""
    last = trajectory.messages[-1]
    text = last.get("content") or ""
    sums = re.findall(r"<final_output>\s*(.*?)\s*</final_output>", text)
    if text.count("<final_output>") != 1:
        return 0.0
    return float(last["role"] == "assistant" and sums == [str(trajectory.task.fields["answer"])])


def scorer(trajectory: Trajectory) -> float:
    """1 for the sum, counted down anew from the numbers."""
    total = 0
    for number in trajectory.task.fields["numbers"]:
        rest, prime = number, 2
        while rest > 1:
            if rest % prime:
                prime += 1
            else:
                total, rest = total + prime, rest // prime
    content = str(trajectory.messages[-1].get("content"))
    answered = re.fullmatch(r"[^<]*<final_output>\s*(\d+)\s*</final_output>[^<]*", content)
    return 1.0 if trajectory.messages[-1]["role"] == "assistant" and answered and answered[1] == str(total) else 0.0


def train_tasks() -> list[Task]:
    return _tasks()[:50]


def held_out_tasks() -> list[Task]:
    return _tasks()[50:]


def _tasks() -> list[Task]:
    rng = random.Random("numbers")
    pairs = [tuple(rng.sample(range(2000, 60000), 2)) for _ in range(64)]
    return [
        Task(
            id=f"sum-{first}-{second}",
            messages=(
                {"role": "system", "content": INSTRUCTIONS},
                {"role": "user", "content": f"The numbers are {first} and {second}."},
            ),
            fields={"numbers": [first, second], "answer": sum(_factors(first) + _factors(second))},
        )
        for first, second in pairs
    ]
