"""A telephone directory in pages that are numbered from 0, with names that are found in upper and lower case alike."""

import random

import pandas as pd

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Task

PER_PAGE = 5
SYSTEM = """You know a company's telephone directory. Its pages are numbered from 0; "next" is the number of the page that follows, and null on
the last one, which may be shorter. Answer with the number of people in the named team, and the extension of the named person as the
directory prints it, zeros in front included:
<final_output>{"people":0,"extension":""}</final_output>"""
FIRST = {"train": ["Ada", "Ben", "Cleo", "Dan", "Eve", "Finn"], "held_out": ["Gus", "Hope", "Ivy", "Jack", "Kim"]}
LAST = {"train": ["Archer", "Boyd", "Cole", "Drake", "Ellis"], "held_out": ["Frost", "Gale", "Hunt", "Irwin"]}
TEAMS = {"train": ["sales", "legal", "plant"], "held_out": ["claims", "travel", "press"]}


class Directory(Environment):
    def reset(self, task):
        people = pd.DataFrame(task.fields["people"], columns=["name", "team", "extension"], dtype="str")
        self.people = people.sort_values("name", ignore_index=True)

    @tool
    def page(self, number: int = 0) -> dict:
        """A page of the directory, by name: name and team of five people, fewer on the last page, and the next page's number.

        Args:
            number: from 0
        """
        begin = number * PER_PAGE
        if not 0 <= begin < len(self.people):
            raise ToolFailure(f"there is no page {number}")
        rows = self.people.iloc[begin : begin + PER_PAGE]
        has_more = begin + PER_PAGE < len(self.people)
        people = [f"{name}, {team}" for name, team in zip(rows["name"], rows["team"], strict=True)]
        return {"people": people, "next": number + 1 if has_more else None}

    @tool
    def extension(self, name: str) -> str:
        """The extension of a person, four digits.

        Args:
            name: first and last name; upper and lower case are the same
        """
        rows = self.people[self.people["name"].str.lower() == name.strip().lower()]
        if rows.empty:
            raise ToolFailure(f"nobody is called {name}")
        return str(rows.iloc[0]["extension"])


reward = json_fields("final_output")
scorer = json_exact("final_output")


def train_tasks(num=40):
    return [make_task("train", index) for index in range(num)]


def held_out_tasks(num=14):
    return [make_task("held_out", index) for index in range(num)]


def make_task(split, index):
    rng = random.Random(f"directory {split} {index}")
    names = rng.sample([f"{first} {last}" for first in FIRST[split] for last in LAST[split]], rng.randint(8, 16))
    extensions = rng.sample(range(20, 5000) if split == "train" else range(5000, 9999), len(names))
    people = [
        [name, rng.choice(TEAMS[split]), f"{extension:04d}"] for name, extension in zip(names, extensions, strict=True)
    ]
    person, team = rng.choice(people), rng.choice(TEAMS[split])
    shown = rng.choice((str, str.upper, str.lower))(person[0])
    answer = {"people": sum(one[1] == team for one in people), "extension": person[2]}
    user = f"Directory {split[0].upper()}{index}: how many people are in the team {team}, and what is the extension of {shown}?"
    return Task(
        id=f"directory-{split}-{index}",
        messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": user}),
        fields={"people": people, "team": team, "person": shown, "answer": answer},
        seed=index,
    )
