"""A swimming pool rents lanes to clubs: which lane does a club get, and what does it cost?"""

import json
import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from sparring.environments import Environment, answer, tool, tool_call
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Message, Task

PROCEDURE = """\
You rent out lanes. lanes gives the free lanes of a day with their length in metres, in no particular order.
tariff gives crowns for an hour, by the kind of club (school, sport or firm).
Schools get the free lane with the lowest number, sport clubs the one with the lowest number among those of 50 metres, firms the
one with the highest number. The price is the hours times the tariff.
Answer: <final_output>{"lane":0,"price":0}</final_output>"""

TARIFFS: Mapping[str, int] = MappingProxyType({"school": 12, "sport": 18, "firm": 30})
"""The same for every episode, and never written to."""
CLUBS = {
    "train": ("Otters", "Herons", "Trouts", "Newts", "Swans", "Frogs", "Gulls"),
    "validation": ("Beavers", "Terns"),
    "held_out": ("Seals", "Coots", "Pikes"),
}


class Pool(Environment):
    def reset(self, task: Task) -> None:
        self.day = task.fields["day"]
        # The board at the entrance is in disorder, but always in the same one for a task.
        lanes = list(task.fields["lanes"].items())
        random.Random(task.seed).shuffle(lanes)
        self.board = [f"lane {number}: {length} m" for number, length in lanes]

    @tool
    def lanes(self, day: str) -> list[str]:
        """Free lanes of a day."""
        if day != self.day:
            raise LookupError(f"the board only shows {self.day}")
        return self.board

    @tool
    def tariff(self, kind: str) -> str:
        """Price of one hour.

        Args:
            kind: school, sport or firm
        """
        return f"{TARIFFS[kind]} crowns" if kind in TARIFFS else f"there is no tariff for {kind}"

    def demonstrate(self, task: Task) -> Sequence[Message]:
        calls = [tool_call("lanes", day=task.fields["day"]), tool_call("tariff", kind=task.fields["kind"])]
        return [*calls, answer(f"<final_output>{json.dumps(task.fields['answer'])}</final_output>")]


reward = json_fields()
scorer = json_exact()


def lane_for(kind: str, lanes: Mapping[str, int]) -> int:
    numbers = sorted(int(number) for number in lanes)
    if kind == "sport":
        return min(number for number in numbers if lanes[str(number)] == 50)
    return numbers[0] if kind == "school" else numbers[-1]


def train_tasks() -> list[Task]:
    return _tasks("train", 48)


def validation_tasks() -> list[Task]:
    return _tasks("validation", 15)


def held_out_tasks() -> list[Task]:
    return _tasks("held_out", 18)


def _tasks(split: str, num: int) -> list[Task]:
    rng = random.Random(f"pool {split}")
    made = []
    for index in range(num):
        kind, hours = list(TARIFFS)[index % 3], rng.randint(2, 40)
        lanes = {str(number): rng.choice((25, 50)) for number in rng.sample(range(1, 13), 5)}
        lanes[rng.choice(list(lanes))] = 50
        day = f"{rng.choice(('Monday', 'Tuesday', 'Thursday', 'Saturday'))} {rng.randint(1, 28)} {rng.choice(('May', 'June'))}"
        who = {"school": "school", "sport": "sport club", "firm": "firm"}[kind]
        text = (
            f"The {rng.choice(CLUBS[split])}, a {who}, would like to swim on {day}, {hours} hours for "
            f"{rng.randint(5, 60)} people."
        )
        fields = {
            "kind": kind,
            "day": day,
            "lanes": lanes,
            "answer": {"lane": lane_for(kind, lanes), "price": hours * TARIFFS[kind]},
        }
        messages = ({"role": "system", "content": PROCEDURE}, {"role": "user", "content": text})
        made.append(Task(id=f"{split}-{index}", messages=messages, fields=fields, seed=1000 + index))
    return made
