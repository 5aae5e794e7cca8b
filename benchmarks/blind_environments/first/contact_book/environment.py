"""A contact book: find somebody and write down the new phone number."""

import random
import sqlite3
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

FIRST = ["Mary", "Ron", "Lena", "Otto", "Sean", "Ruth", "Yara", "Carl"]
LAST = ["McDonald", "O'Neil", "van Dyk", "Fischer", "DeLuca", "Larsen", "Novak", "Singh"]


class Contacts(Environment):
    def reset(self, task):
        self.database = sqlite3.connect(":memory:")
        self.database.execute("CREATE TABLE contacts (name TEXT, phone TEXT)")
        rows = [(row["name"], row["phone"]) for row in task.fields["contacts"]]
        self.database.executemany("INSERT INTO contacts VALUES (?, ?)", rows)

    @tool
    def search(self, text: str) -> list:
        """Names of the contacts that contain a text; upper and lower case are the same."""
        rows = self.database.execute("SELECT name FROM contacts ORDER BY name")
        names = [name.lower() for (name,) in rows]
        return [name for name in names if text.lower() in name]

    @tool
    def phone(self, name: str) -> str:
        """The phone number of a contact.

        Args:
            name: as search gives it
        """
        rows = self.database.execute("SELECT phone FROM contacts WHERE lower(name) = ?", (name.lower(),)).fetchall()
        return rows[0][0] if rows else "no such contact"

    @tool
    def set_phone(self, name: str, phone: str) -> str:
        """Change the phone number of a contact.

        Args:
            name: as search gives it
            phone: the new number
        """
        self.database.execute("UPDATE contacts SET phone = ? WHERE name = ?", (phone, name))
        return "ok"

    def final_state(self):
        rows = self.database.execute("SELECT name, phone FROM contacts ORDER BY name").fetchall()
        return {"contacts": [list(row) for row in rows]}

    def close(self):
        self.database.close()


def make_tasks(split, num):
    rng = random.Random(f"contacts {split}")
    tasks = []
    for index in range(num):
        lasts = rng.sample(LAST, 5)
        contacts = [
            {"name": f"{rng.choice(FIRST)} {last}", "phone": f"555-{rng.randint(1000, 9999)}"} for last in lasts
        ]
        wanted, number = rng.choice(contacts), f"555-{rng.randint(1000, 9999)}"
        last = wanted["name"].split(" ", 1)[1]
        prompt = f"The contact with the family name {last.upper()} has the new number {number}. Write it down, then say done."
        state = sorted([row["name"], number if row is wanted else row["phone"]] for row in contacts)
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": prompt},),
                fields={"contacts": contacts, "state": {"contacts": state}},
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 24)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)


def reward(trajectory):
    return float(trajectory.final_state == trajectory.task.fields["state"])


scorer = state_difference("state")
