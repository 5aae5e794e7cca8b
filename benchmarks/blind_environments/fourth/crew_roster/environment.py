"""A roster for a day: each shift needs somebody who knows the work and is there."""

import random

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

SYSTEM = """\
You make the roster of a harbor for one day. Every shift gets one person who knows its work and is not away; exactly one person fits.
It does not matter which shift you fill first. An assignment cannot be undone. Say done when every shift is filled."""

SHIFTS = ("dawn", "day", "dusk", "night", "relief")
WORK = ("crane", "pilot", "radio", "tug")
PEOPLE = ("Ines", "Jonas", "Kaya", "Lars", "Mina", "Nils", "Olga", "Pavel", "Rosa", "Sven")


class Roster(Environment):
    def reset(self, task):
        self.people = task.fields["people"]
        self.shifts = task.fields["shifts"]
        self.roster = []

    @tool
    def who_knows(self, work: str) -> list[str]:
        """People who know a kind of work."""
        return [name for name, person in self.people.items() if person["work"] == work]

    @tool
    def is_away(self, name: str) -> str:
        """Whether a person is away that day."""
        if name not in self.people:
            return "nobody of that name"
        return "away" if self.people[name]["away"] else "here"

    @tool
    def assign(self, shift: str, name: str) -> str:
        """Put a person on a shift."""
        if shift not in self.shifts or name not in self.people:
            return "refused: no such shift or person"
        if any(shift == filled for filled, _ in self.roster):
            return "refused: the shift is filled"
        self.roster.append([shift, name])
        return "assigned"

    def final_state(self):
        return {"roster": [list(pair) for pair in self.roster]}


def _task(split, index, rng):
    shifts = rng.sample(SHIFTS, 3)
    work = rng.sample(WORK, 3)
    names = iter(rng.sample(PEOPLE, 8))
    people, expected = {}, []
    for shift, kind in zip(shifts, work, strict=True):
        right = next(names)
        people[right] = {"work": kind, "away": False}
        people[next(names)] = {"work": kind, "away": True}
        expected.append([shift, right])
    needed = ", ".join(f"{shift} ({kind})" for shift, kind in zip(shifts, work, strict=True))
    order = rng.sample(sorted(people), len(people))
    return Task(
        id=f"{split}-{index}",
        messages=(
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"Please fill: {needed}."},
        ),
        fields={
            "people": {name: people[name] for name in order},
            "shifts": sorted(shifts),
            "state": {"roster": sorted(expected)},
        },
    )


def train_tasks():
    rng = random.Random(501)
    return [_task("train", index, rng) for index in range(40)]


def held_out_tasks():
    rng = random.Random(502)
    return [_task("held-out", index, rng) for index in range(20)]


def reward(trajectory):
    """Share of the shifts that are filled rightly."""
    expected = dict(map(tuple, trajectory.task.fields["state"]["roster"]))
    filled = dict(map(tuple, (trajectory.final_state or {}).get("roster", [])))
    return sum(filled.get(shift) == name for shift, name in expected.items()) / len(expected)


scorer = state_difference("state")
