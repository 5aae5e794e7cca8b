"""A library's loans in SQLite: lend, take back, look up."""

from __future__ import annotations

import random

from sparring.environments import StatefulEnvironment, tool
from sparring.types import Task, Trajectory

TITLES = [
    "Middlemarch", "Charlotte's Web", "Ulysses", "Gulliver's Travels", "Emma", "Finnegan's Wake", "Dubliners",
    "Angela's Ashes", "Persuasion", "Sophie's World", "Hard Times", "Rosemary's Baby",
]  # fmt: skip
READERS = ["Ada", "Ben", "Cleo", "Dan"]


class Loans(StatefulEnvironment):
    def reset(self, task: Task) -> None:
        super().reset(task)
        self.db = self.state.database
        self.db.execute("CREATE TABLE loans (title TEXT, reader TEXT)")
        for title, reader in task.fields["loans"].items():
            self.db.execute("INSERT INTO loans VALUES (?, ?)", (title, reader))

    @tool
    def who_has(self, title: str) -> str:
        """The reader who has a book, or "in the library"."""
        row = self.db.execute("SELECT reader FROM loans WHERE title = ?", (title,)).fetchone()
        return row[0] if row else "in the library"

    @tool
    def take_back(self, title: str) -> str:
        """Take a book back from its reader."""
        count = self.db.execute(f"DELETE FROM loans WHERE title = '{title}'").rowcount
        return "taken back" if count else "error: that book is not lent"

    @tool
    def lend(self, title: str, reader: str) -> str:
        """Lend a book that is in the library."""
        if self.db.execute("SELECT 1 FROM loans WHERE title = ?", (title,)).fetchone():
            return "error: that book is lent"
        self.db.execute("INSERT INTO loans VALUES (?, ?)", (title, reader))
        return f"lent to {reader}"

    def final_state(self) -> dict[str, str]:
        return dict(self.db.execute("SELECT title, reader FROM loans").fetchall())


def reward(trajectory: Trajectory) -> float:
    return 1.0 if trajectory.final_state == trajectory.task.fields["after"] else 0.0


def scorer(trajectory: Trajectory) -> float:
    return float(trajectory.final_state == trajectory.task.fields["after"])


def tasks_of(split: str, num: int) -> list[Task]:
    rng = random.Random(f"loans:{split}")
    result = []
    for index in range(num):
        titles = rng.sample(TITLES, 4)
        loans = {title: rng.choice(READERS) for title in titles}
        book = rng.choice(titles)
        other = rng.choice([reader for reader in READERS if reader != loans[book]])
        text = f'{loans[book]} brings back "{book}", and {other} takes it home. Enter both, then say done.'
        result.append(
            Task(
                id=f"loans-{split}-{index}",
                messages=({"role": "user", "content": text},),
                fields={"loans": loans, "after": {**loans, book: other}},
            )
        )
    return result


def train_tasks() -> list[Task]:
    return tasks_of("train", 60)


def held_out_tasks() -> list[Task]:
    return tasks_of("held_out", 24)
