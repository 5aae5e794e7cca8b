"""Water the dry beds of a greenhouse to exactly what each needs."""

import random
import shutil
import sqlite3
import tempfile
from pathlib import Path

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

SYSTEM = """\
You look after a greenhouse. A liter raises the moisture of a bed by 5. Bring each bed that is asked for to exactly the moisture that
is asked for, and leave the others alone. Water cannot be taken back. Say done at the end."""

BEDS = ("aster", "basil", "clover", "dill", "endive", "fennel", "garlic", "hyssop")


class Greenhouse(Environment):
    def __init__(self):
        self.folder = None

    def reset(self, task):
        self.folder = Path(tempfile.gettempdir()) / f"greenhouse-{task.id}"
        self.folder.mkdir(exist_ok=True)
        self.database = sqlite3.connect(self.folder / "beds.sqlite", isolation_level=None)
        self.database.executescript(
            "PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY;"
            "DROP TABLE IF EXISTS beds; CREATE TABLE beds (name TEXT PRIMARY KEY, moisture INTEGER)"
        )
        self.database.executemany("INSERT INTO beds VALUES (?, ?)", sorted(task.fields["beds"].items()))

    def close(self):
        if self.folder is not None:
            self.database.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    @tool
    def beds(self) -> list[str]:
        """Names of all beds."""
        return [name for (name,) in self.database.execute("SELECT name FROM beds ORDER BY name")]

    @tool
    def moisture(self, bed: str) -> str:
        """Moisture of a bed now."""
        row = self.database.execute("SELECT moisture FROM beds WHERE name = ?", (bed,)).fetchone()
        return str(row[0]) if row else "no such bed"

    @tool
    def water(self, bed: str, liters: int) -> str:
        """Pour whole liters on a bed."""
        if not 1 <= liters <= 20:
            return "refused: 1 to 20 liters at a time"
        self.database.execute("UPDATE beds SET moisture = moisture + 5 * ? WHERE name = ?", (liters, bed))
        return "poured" if self.database.execute("SELECT changes()").fetchone()[0] else "no such bed"

    def final_state(self):
        return {"beds": dict(self.database.execute("SELECT name, moisture FROM beds ORDER BY name"))}


def _task(split, index, rng):
    names = sorted(rng.sample(BEDS, 5))
    beds = {name: 5 * rng.randint(2, 9) for name in names}
    wanted = {name: beds[name] + 5 * rng.randint(2, 9) for name in rng.sample(names, 2)}
    asked = " and ".join(f"{name} to {moisture}" for name, moisture in wanted.items())
    return Task(
        id=f"{split}-{index}",
        messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Please bring {asked}."}),
        fields={"beds": beds, "state": {"beds": {**beds, **wanted}}},
    )


def train_tasks():
    rng = random.Random(3)
    return [_task("train", index, rng) for index in range(32)]


def held_out_tasks():
    rng = random.Random(4)
    return [_task("held-out", index, rng) for index in range(16)]


def reward(trajectory):
    """Share of the beds that are as they should be; nothing when one was watered too much."""
    expected = trajectory.task.fields["state"]["beds"]
    found = (trajectory.final_state or {}).get("beds", {})
    if set(found) != set(expected) or any(found[name] > expected[name] for name in expected):
        return 0.0
    before = trajectory.task.fields["beds"]
    asked = [name for name in expected if expected[name] != before[name]]
    return sum(found[name] == expected[name] for name in asked) / len(asked)


scorer = state_difference("state")
