"""Word ladder: change one letter at a time until the word is the target."""

from __future__ import annotations

import random
from collections import deque

from sparring.environments import Environment, tool
from sparring.types import Task, Trajectory

WORDS = (
    "cat cot cog dog dot hot hat bat bet bit big bag bog fog fig pig peg leg log lot let net nut hut hug mug mud mad man can "
    "car bar bad bed red rod rot pot pit pin fin fan pan pen ten tin tip top hop hip rip rap map mop"
).split()
INSTRUCTIONS = (
    "Word ladder. `step` replaces your word by one that differs from it in one letter and is in the list: "
    f"{' '.join(WORDS)}. Reach the target in as few steps as you can; the game ends there."
)


class WordLadder(Environment):
    def reset(self, task: Task) -> None:
        self.word, self.target = task.fields["start"], task.fields["target"]

    @tool
    def step(self, word: str) -> str:
        """Go to a word that differs in one letter."""
        if word not in WORDS:
            return f"{word} is not in the list; you are at {self.word}"
        if _distance(word, self.word) != 1:
            return f"{word} is not one letter away; you are at {self.word}"
        self.word = word
        return "reached the target" if self.is_done else f"you are at {word}"

    @property
    def is_done(self) -> bool:
        return self.word == self.target


def reward(trajectory: Trajectory) -> float:
    """1 for the target, and a little for each good step on the way, so that there is something to learn from early."""
    fields, total, word = trajectory.task.fields, 0.0, trajectory.task.fields["start"]
    for transition in trajectory.transitions:
        result = str(transition["result"])
        if result == "reached the target":
            return total + 1.0
        if result.startswith("you are at "):
            new = result.removeprefix("you are at ")
            if _distance(new, fields["target"]) < _distance(word, fields["target"]):
                total += 0.2
            word = new
    return total


def scorer(trajectory: Trajectory) -> float:
    """1 when the steps that were taken lead from the start to the target."""
    at = trajectory.task.fields["start"]
    for transition in trajectory.transitions:
        to = (transition["arguments"] or {}).get("word") if isinstance(transition["arguments"], dict) else None
        if transition["error"] is None and to in WORDS and sum(a != b for a, b in zip(at, to, strict=True)) == 1:
            at = to
    return float(at == trajectory.task.fields["target"])


def train_tasks() -> list[Task]:
    return _tasks()[:45]


def held_out_tasks() -> list[Task]:
    return _tasks()[45:]


def _tasks() -> list[Task]:
    rng = random.Random("ladder")
    pairs = [(start, target) for start in WORDS for target, num in _steps(start).items() if 3 <= num <= 5]
    return [
        Task(
            id=f"ladder-{index}",
            messages=(
                {"role": "system", "content": INSTRUCTIONS},
                {"role": "user", "content": f"From {start} to {target}."},
            ),
            fields={"start": start, "target": target},
        )
        for index, (start, target) in enumerate(rng.sample(pairs, 60))
    ]


def _distance(first: str, second: str) -> int:
    return sum(a != b for a, b in zip(first, second, strict=True))


def _steps(start: str) -> dict[str, int]:
    """How many steps each word is away from the start."""
    seen, queue = {start: 0}, deque([start])
    while queue:
        at = queue.popleft()
        for word in WORDS:
            if word not in seen and _distance(word, at) == 1:
                seen[word] = seen[at] + 1
                queue.append(word)
    return seen
