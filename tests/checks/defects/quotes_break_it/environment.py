"""A museum writes labels for its pieces.

The text is pasted into the statement of the database, which an apostrophe ends.
"""

import random
import sqlite3
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task


class Museum(Environment):
    def reset(self, task):
        self.database = sqlite3.connect(":memory:")
        self.database.execute("CREATE TABLE labels (piece TEXT PRIMARY KEY, label TEXT)")
        self.database.executemany("INSERT INTO labels VALUES (?, ?)", task.fields["labels"].items())

    @tool
    def label_of(self, piece: str) -> str:
        """Label of a piece."""
        row = self.database.execute("SELECT label FROM labels WHERE piece = ?", (piece,)).fetchone()
        return row[0] if row else "no such piece"

    @tool
    def write_label(self, piece: str, label: str) -> str:
        """Write the label of a piece."""
        done = self.database.execute(f"UPDATE labels SET label = '{label}' WHERE piece = ?", (piece,))
        return "written" if done.rowcount else "no such piece"

    def final_state(self):
        return dict(self.database.execute("SELECT piece, label FROM labels ORDER BY piece").fetchall())

    def close(self):
        self.database.close()


def make_tasks(split, num):
    rng = random.Random(f"{split} quotes break it")
    tasks = []
    for index in range(num):
        pieces = rng.sample(["vase", "mask", "sword", "coin", "harp"], 3)
        fields = {"labels": {piece: f"found in {rng.randint(1800, 1990)}" for piece in sorted(pieces)}}
        label = f"given by the {rng.choice(['Hart', 'Cole', 'Dean'])} family in {rng.randint(1900, 2020)}"
        prompt = f"Write the label '{label}' for the {pieces[0]}. Then say done."
        state = {**fields["labels"], pieces[0]: label}
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": prompt},),
                fields={**fields, "state": state},
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 20)
validation_tasks = partial(make_tasks, "validation", 6)
held_out_tasks = partial(make_tasks, "held_out", 6)
scorer = state_difference("state")


def reward(trajectory):
    return float(trajectory.final_state == trajectory.task.fields["state"])
