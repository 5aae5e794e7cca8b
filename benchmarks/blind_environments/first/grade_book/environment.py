"""A teacher's grade book: who is best in class?"""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task

STUDENTS = ["Amir", "Beth", "Chen", "Dora", "Emil", "Faye", "Gus", "Hana", "Ivan", "Joy", "Kim", "Leo"]


class GradeBook(Environment):
    def reset(self, task):
        self.points = task.fields["points"]

    @tool
    def students(self) -> list:
        """Who is in the class."""
        return sorted(self.points)

    @tool
    def average(self, student: str) -> str:
        """Average points of a student over all tests."""
        if student not in self.points:
            return "no such student"
        points = self.points[student]
        return f"{sum(points) / len(points):.0f}"


def make_tasks(split, num):
    rng = random.Random(f"grades-{split}")
    tasks = []
    for index in range(num):
        names = rng.sample(STUDENTS, 4)
        base = rng.randint(20, 26)
        points = {name: [rng.randint(8, base - 6) for _ in range(5)] for name in names[2:]}
        points[names[0]] = [base] * 5
        points[names[1]] = [base, base, base, base, base + rng.choice((1, 2))]
        prompt = "Which student of this class has the highest average? Answer with the name alone."
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": prompt},),
                fields={"points": dict(sorted(points.items())), "answer": names[1]},
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 24)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)


def reward(trajectory):
    last = trajectory.messages[-1]
    return float(last["role"] == "assistant" and str(last["content"]).strip() == trajectory.task.fields["answer"])


scorer = exact_match(None, "answer")
