import random
from sparring.environments import Environment, tool
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Task

FIRST = ["José", "Zoë", "André", "Łukasz", "Søren", "Anna", "Peter", "Maria", "Tom", "Ruth", "Karl", "Nina"]
LAST = ["Núñez", "Müller", "Larsen", "Kovač", "Smith", "Dvořák", "Brown", "Weber", "Rossi", "Çelik"]
TEAMS = ["sales", "legal", "tooling", "support", "finance"]

"""
The staff directory of an international company. People are looked up by their full name; upper and lower case do not matter.
"""


class StaffDirectory(Environment):
    """An index by name, made once an episode."""

    def reset(self, task):
        self.index = {}
        for person in task.fields["people"]:
            self.index[self.key(person["name"])] = person

    @staticmethod
    def key(name):
        return name.casefold().encode("ascii", "ignore").decode()

    @tool
    def lookup(self, name: str) -> dict[str, str] | None:
        """Team and extension of a person; null when nobody has this name.

        Args:
            name: first and family name, in any case
        """
        person = self.index.get(name.casefold())
        return None if person is None else {"team": person["team"], "extension": person["extension"]}

    @tool
    def head(self, team: str) -> str:
        """Name of the head of a team.

        Args:
            team: its name
        """
        for person in self.index.values():
            if person["team"] == team and person["is_head"]:
                return person["name"]
        return "vacant"


reward = json_fields("final_output")
scorer = json_exact("final_output")

PROMPT = 'Which team is {} in, and what is the extension there? Answer <final_output>{{"team": "sales", "extension": "123"}}</final_output>'
BOSS = 'Which extension has the head of {}? Answer <final_output>{{"team": "sales", "extension": "123"}}</final_output> with the team of the head.'


def tasks(split, num, rng):
    made = []
    while len(made) < num:
        names = rng.sample([f"{first} {last}" for first in FIRST for last in LAST], 12)
        people = [
            {"name": name, "team": team, "extension": str(rng.randint(100, 999)), "is_head": number < 5}
            for number, (name, team) in enumerate(zip(names, TEAMS + [rng.choice(TEAMS) for _ in range(7)]))
        ]
        wanted = rng.choice(people)
        ask_head = wanted["is_head"]
        content = BOSS.format(wanted["team"]) if ask_head else PROMPT.format(wanted["name"])
        rng.shuffle(people)
        content = f"Caller {rng.randint(100, 999)}-{len(made)}: {content}"
        made.append(
            Task(
                id=f"{split}-{len(made)}",
                messages=({"role": "user", "content": content},),
                fields={
                    "people": people,
                    "ask": wanted["team"] if ask_head else None,
                    "name": wanted["name"],
                    "answer": {"team": wanted["team"], "extension": wanted["extension"]},
                },
            )
        )
    return made


def train_tasks():
    return tasks("staff", 40, random.Random("staff"))


def held_out_tasks():
    return tasks("staff-held-out", 15, random.Random("staff, held out"))
