"""A log that is read with a cursor, as a terminal shows it."""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task

SERVICES = ["auth", "mail", "cart", "search"]
LEVELS = ["INFO", "INFO", "WARN", "ERROR"]


class LogReader(Environment):
    def reset(self, task):
        self.lines = task.fields["lines"]
        self.position = 0

    @tool
    def next_lines(self) -> list:
        """The next six lines of the log; the cursor moves on. An empty list at the end."""
        lines = self.lines[self.position : self.position + 6]
        self.position += len(lines)
        return lines

    @tool
    def rewind(self) -> str:
        """Put the cursor back to the first line."""
        self.position = 0
        return "at the first line"


def make_tasks(split, num):
    rng = random.Random(f"log {split}")
    tasks = []
    for index in range(num):
        second, lines = 0, []
        for _ in range(rng.randint(12, 21)):
            second += rng.randint(1, 90)
            clock = f"{8 + second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
            lines.append(f"{clock} {rng.choice(SERVICES)} {rng.choice(LEVELS)}")
        at = rng.randrange(len(lines))
        lines[at] = f"{lines[at][:8]} {rng.choice(SERVICES)} ERROR"
        service = rng.choice([line.split()[1] for line in lines if line.endswith("ERROR")])
        errors = [line[:8] for line in lines if line.endswith(f"{service} ERROR")]
        prompt = f"When was the last error of {service} on day {rng.randint(1, 10**4)}? Answer with the time alone, as 08:00:00."
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": prompt},),
                fields={"lines": lines, "answer": errors[-1]},
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 40)
validation_tasks = partial(make_tasks, "validation", 10)
held_out_tasks = partial(make_tasks, "held_out", 10)


def reward(trajectory):
    last = trajectory.messages[-1]
    return float(last["role"] == "assistant" and str(last["content"]).strip() == trajectory.task.fields["answer"])


scorer = exact_match(None, "answer")
