"""Small environments without an expert, each with a line that is wrong and what is right in its place."""

from __future__ import annotations

from dataclasses import dataclass

RECIPE = """
[data]
train = "environment:train_tasks"

[environment]
target = "environment:Desk"
max_turns = {max_turns}

[reward]
reward = "environment:reward"
scorer = "environment:scorer"
"""
HEAD = """
import json
from datetime import date
from typing import Literal

from sparring.environments import Environment, tool
from sparring.types import Task


def asked(name, text, **fields):
    return Task(id=name, messages=({"role": "user", "content": text},), fields=fields)

"""
BY_STATE = """

def scorer(trajectory):
    return float(trajectory.final_state == trajectory.task.fields["wanted"])


reward = scorer
"""
LIFT = (
    HEAD
    + '''
class Desk(Environment):
    def reset(self, task):
        self.floor, self.goal = 0, task.fields["goal"]

    @tool
    def move(self, way: Literal["up", "down"]) -> str:
        """Move the lift by one floor."""
        self.floor += 1 if way == "up" else -1
        return "moved"

    @property
    def is_done(self):
        return self.floor == self.goal

    def final_state(self):
        return {"there": self.is_done}


def scorer(trajectory):
    return float(trajectory.final_state == {"there": True})


reward = scorer


def train_tasks():
    return [asked(f"t{n}", f"Go to floor {4 + n % 2}.", goal=4 + n % 2) for n in range(8)]
'''
)


@dataclass(frozen=True, slots=True)
class Case:
    """An environment, what is wrong in it and what is right there, the rule that names it, and a part of its symptom."""

    source: str
    wrong: str
    right: str
    rule: str
    symptom: str


PARKING = '''
class Desk(Environment):
    def reset(self, task):
        self.places = dict.fromkeys("ABCDEF") | task.fields["cars"]

    @tool
    def places_now(self) -> dict[str, str]:
        """Which car is parked in which place."""
        return {place: car or "free" for place, car in self.places.items()}

    @tool
    def relocate(self, car: str, place: str) -> str:
        """Relocate a parked car to a free place."""
        old = next((one for one, there in self.places.items() if there == car), None)
        if old is None or place not in self.places or self.places[place]:
            return "error: there is no such car, or the place is not free"
        self.places[old], self.places[place] = car, car
        return "parked"

    def final_state(self):
        return dict(self.places)


def train_tasks():
    made = []
    for n in range(8):
        cars = {"ABCDEF"[n % 6]: f"Volvo{n}", "ABCDEF"[(n + 1) % 6]: f"Saab{n}"}
        goal = "ABCDEF"[(n + 3) % 6]
        wanted = dict.fromkeys("ABCDEF") | {"ABCDEF"[(n + 1) % 6]: f"Saab{n}", goal: f"Volvo{n}"}
        made.append(asked(f"t{n}", f"Relocate the car Volvo{n} to place {goal}.", cars=cars, wanted=wanted))
    return made
'''
LETTERS = '''
class Desk(Environment):
    def reset(self, task):
        self.word, self.tried, self.lives = task.fields["word"], set(), 5

    @tool
    def guess(self, letter: str) -> str:
        """Guess a single letter of the word."""
        if not letter.isalpha():
            return "error: no letter"
        self.tried |= set(letter)
        self.lives -= not set(letter) & set(self.word)
        return " ".join(one if one in self.tried else "_" for one in self.word)

    @property
    def is_done(self):
        return set(self.word) <= self.tried or self.lives == 0

    def final_state(self):
        return {"lives": self.lives}


def scorer(trajectory):
    return float(trajectory.messages[-1].get("content") == trajectory.task.fields["word"])


reward = scorer


def train_tasks():
    return [asked(f"t{n}", "Guess the word.", word=word) for n, word in enumerate(["bridge", "candle", "magnet", "pearl"])]
'''
TERMS = '''
class Desk(Environment):
    def reset(self, task):
        self.terms = {}

    @tool
    def sign(self, member: str, start: str, months: int) -> str:
        """Sign a member up from a day, as YYYY-MM-DD, for some months."""
        if months < 1 or months > 12:
            raise ValueError("1 to 12 months")
        day = date.fromisoformat(start)
        end = day.replace(month=day.month + months)
        self.terms[member] = end.isoformat()
        return "signed"

    def final_state(self):
        return dict(self.terms)


def train_tasks():
    made = []
    for n in range(24):
        first, months = 1 + n % 12, 1 + n % 4
        last = first + months
        end = f"{2025 + (last > 12)}-{(last - 1) % 12 + 1:02d}-07"
        member = ["Alma", "Bruno", "Carla", "Dirk", "Edda"][n % 5]
        text = f"Sign {member} up from 2025-{first:02d}-07 for {months} months."
        start = f"2025-{first:02d}-07"
        made.append(asked(f"t{n}", text, member=member, start=start, months=months, end=end, wanted={member: end}))
    return made
'''
KITCHEN = '''
class Desk(Environment):
    def reset(self, task):
        self.stock, self.served = task.fields["stock"], None

    @tool
    def stock_of(self, item: str) -> int:
        """How many of an item are left."""
        return self.stock.get(item, 0)

    @tool
    def serve(self, dish: Literal["soup", "salad"]) -> str:
        """Serve a dish; this is the last step."""
        self.served = dish
        return "served"

    @property
    def is_done(self):
        return self.served is not None

    def final_state(self):
        return {"served": self.served}


def scorer(trajectory):
    return float((trajectory.final_state or {}).get("served") == trajectory.task.fields["dish"])


def reward(trajectory):
    looked = [one["arguments"]["item"] for one in trajectory.transitions if one["tool"] == "stock_of"]
    known = trajectory.task.fields["stock"]
    return 0.5 * scorer(trajectory) + 0.02 * len([one for one in looked if one in known])


def train_tasks():
    return [
        asked(f"t{n}", "Serve what there is most of: leeks or tomatoes?", stock={"leeks": n, "tomatoes": 5},
              dish="soup" if n > 5 else "salad")
        for n in range(1, 10) if n != 5
    ]
'''
TESTS = '''
class Desk(Environment):
    def reset(self, task):
        self.passed, self.cases = [], task.fields["cases"]

    @tool
    def submit(self, factor: int) -> str:
        """Hand in the factor by which every number is multiplied."""
        self.passed = [number * factor == result for number, result in self.cases]
        return "handed in"

    def final_state(self):
        return {"passed": self.passed}


def scorer(trajectory):
    passed = (trajectory.final_state or {}).get("passed")
    return float(bool(passed) and all(passed))


def reward(trajectory):
    return float(all(trajectory.final_state["passed"]))


def train_tasks():
    return [asked(f"t{n}", "Find the factor.", cases=[[2, 2 * n], [3, 3 * n]], factor=n) for n in range(2, 10)]
'''
FILES = '''
class Desk(Environment):
    def reset(self, task):
        fields = task.fields
        self.files = {"hours.txt": fields["hours"], "about.txt": "A list of the opening hours of all shops, checked in May."}
        self.files["case.json"] = json.dumps(dict(fields))

    @tool
    def list_files(self) -> list[str]:
        """The names of the files."""
        return sorted(self.files)

    @tool
    def read_file(self, name: str) -> str:
        """The text of a file."""
        return self.files.get(name, "error: no such file")


def scorer(trajectory):
    return float(trajectory.messages[-1].get("content") == trajectory.task.fields["solution"])


reward = scorer


def train_tasks():
    shops = ["Baker", "Butcher", "Grocer", "Florist", "Tailor", "Chemist", "Barber", "Cobbler"]
    return [
        asked(f"t{n}", f"When does the {shop} open, and until when? Answer like: 7:00 to 9:00",
              hours=f"The {shop} is open from {6 + n % 4} in the morning, {3 + n % 5} hours long.", shop=shop,
              solution=f"{6 + n % 4}:00 to {9 + n % 4 + n % 5}:00")
        for n, shop in enumerate(shops)
    ]
'''
CASES = {
    "a car stands in two places": Case(
        HEAD + PARKING + BY_STATE,
        "self.places[place] = car, car",
        "self.places[place] = None, car",
        "environment.amounts",
        "is in two places",
    ),
    "several letters at once": Case(
        HEAD + LETTERS,
        "if not letter.isalpha()",
        "if len(letter) != 1 or not letter.isalpha()",
        "environment.limits",
        "guess accepts several characters at once as letter, although the description states 'a single letter'",
    ),
    "a date behind December": Case(
        HEAD + TERMS + BY_STATE,
        "day.replace(month=day.month + months)",
        "date(day.year + (day.month + months > 12), (day.month + months - 1) % 12 + 1, day.day)",
        "data.unreachable",
        "`sign` fails in its own code, although it does not in other tasks",
    ),
    "the same look is paid again": Case(
        HEAD + KITCHEN,
        "len([one for one in looked if one in known])",
        "len({one for one in looked if one in known})",
        "reward.order",
        "Repeated calls of stock_of earn more",
    ),
    "no test has run": Case(
        HEAD + TESTS,
        'float(all(trajectory.final_state["passed"]))',
        "scorer(trajectory)",
        "reward.agreement",
        "earn 1 while the scorer gives 0, with the policies ",
    ),
    "the solution lies among the files": Case(
        HEAD + FILES,
        "json.dumps(dict(fields))",
        '"{}"',
        "data.leak_in_results",
        "read_file shows the reference answer of a task, under the name 'solution'",
    ),
}
