"""A repair desk that looks devices up in a database file of its own, written anew for every customer."""

import os
import random
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Sequence

from sparring.environments import Environment, answer, tool, tool_call
from sparring.types import Message, Reward, Task, Trajectory

OUTCOMES = ("free", "quote", "recycle")
PROCEDURE = """\
Repair desk. device gives model and age in months of a serial number; model gives warranty (months) and spares (yes or no).
If the device is not older than the warranty: free. Otherwise, with spares: quote. Otherwise: recycle.
End with <repair>free, quote or recycle</repair> and write nothing else there."""


class RepairDesk(Environment):
    """Tools over two tables."""

    def reset(self, task: Task) -> None:
        self._in_call = False
        self._folder = tempfile.mkdtemp(prefix="repairs-")
        self._database = sqlite3.connect(os.path.join(self._folder, "desk.sqlite"), check_same_thread=False)
        self._database.execute("CREATE TABLE devices (serial, model, months)")
        self._database.execute("CREATE TABLE models (name, warranty, spares)")
        self._database.executemany("INSERT INTO devices VALUES (?, ?, ?)", task.fields["devices"])
        self._database.executemany("INSERT INTO models VALUES (?, ?, ?)", task.fields["models"])
        self._database.commit()

    def close(self) -> None:
        if self._in_call:  # the call still needs the tables
            return
        self._database.close()
        shutil.rmtree(self._folder)

    def _one(self, query: str, key: str) -> tuple:
        self._in_call = True
        row = self._database.execute(query, (key,)).fetchone()
        if row is None:
            raise LookupError(f"{key} is not in the database")
        self._in_call = False
        return row

    @tool
    def device(self, serial: str) -> str:
        """Model and age of a device."""
        model, months = self._one("SELECT model, months FROM devices WHERE serial = ?", serial)
        return f"model {model}, {months} months old"

    @tool
    def model(self, name: str) -> str:
        """Warranty in months of a model, and whether there are spares."""
        warranty, spares = self._one("SELECT warranty, spares FROM models WHERE name = ?", name)
        return f"warranty {warranty}, spares {spares}"

    def demonstrate(self, task: Task) -> Sequence[Message]:
        serial, model, _ = next(row for row in task.fields["devices"] if row[0] == task.fields["serial"])
        return [
            tool_call("device", serial=serial),
            tool_call("model", name=model),
            answer(f"<repair>{task.fields['outcome']}</repair>"),
        ]


def reward(trajectory: Trajectory) -> Reward:
    last = trajectory.messages[-1]
    text = str(last.get("content") or "").strip() if last["role"] == "assistant" else ""
    inside = re.fullmatch("<repair>([a-z]+)</repair>", text)
    form = 0.1 * bool(inside and inside[1] in OUTCOMES)
    right = 0.9 * bool(inside and inside[1] == trajectory.task.fields["outcome"])
    return Reward(total=form + right, components={"form": form, "right": right})


def scorer(trajectory: Trajectory) -> float:
    end = trajectory.messages[-1]
    expected = "<repair>" + trajectory.task.fields["outcome"] + "</repair>"
    return float(end["role"] == "assistant" and (end.get("content") or "").strip() == expected)


def train_tasks() -> list[Task]:
    return _tasks("AB", 48)


def validation_tasks() -> list[Task]:
    return _tasks("C", 15)


def held_out_tasks() -> list[Task]:
    return _tasks("D", 15)


def _tasks(prefixes: str, num: int) -> list[Task]:
    rng = random.Random(f"repairs-{prefixes}")
    models = [f"{kind}-{number}" for kind in ("Kettle", "Mixer", "Toaster", "Iron") for number in (100, 200, 300)]
    serials = rng.sample(range(10000, 99999), 3 * num)
    made = []
    for index in range(num):
        outcome, mine = OUTCOMES[index % 3], f"{rng.choice(prefixes)}{serials[index]}"
        chosen = rng.sample(models, 3)
        table = [(name, rng.choice((12, 24, 36)), rng.choice(("yes", "no"))) for name in chosen]
        spares = {"free": table[0][2], "quote": "yes", "recycle": "no"}[outcome]
        table[0] = (chosen[0], table[0][1], spares)
        months = rng.randint(1, table[0][1]) if outcome == "free" else rng.randint(table[0][1] + 1, 72)
        others = [
            (f"{rng.choice(prefixes)}{serials[num + 2 * index + k]}", chosen[1 + k], rng.randint(1, 70)) for k in (0, 1)
        ]
        text = (
            f"My appliance makes a {rng.choice(('humming', 'clicking', 'burning'))} noise since "
            f"{rng.randint(2, 30)} days, serial {mine}."
        )
        fields = {"serial": mine, "devices": [(mine, chosen[0], months), *others], "models": table, "outcome": outcome}
        messages = ({"role": "system", "content": PROCEDURE}, {"role": "user", "content": text})
        made.append(Task(id=f"repair-{mine}", messages=messages, fields=fields))
    return made
