"""Roof surveys of a housing association: grade a roof and say what is done."""

import json
import random
from collections.abc import Sequence

from sparring.environments import Environment, answer, tool, tool_call
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Message, Task

PROCEDURE = """\
Roof survey. house gives material and year of the roof; photos gives the damage in per cent of its area.
lifetime gives the years that a material lasts.
work: "renew" when the roof is older than its lifetime in 2025, or more than 30 per cent is damaged;
"patch" when not, and more than 5 per cent is damaged; "none" otherwise.
age: years of the roof in 2025. surveyor: initials of the surveyor in charge.
Answer: <final_output>{"work":"renew, patch or none","age":0,"surveyor":"initials"}</final_output>"""

LIFETIMES = {"slate": 80, "tile": 50, "felt": 20, "metal": 40}
SURVEYORS = ("AB", "CF", "DK", "GM", "HT", "LW")


class Surveys(Environment):
    def reset(self, task: Task) -> None:
        self.house_number, self.roof = task.fields["house"], task.fields["roof"]

    @tool
    def house(self, number: int) -> dict[str, str | int]:
        """Roof of a house."""
        if number != self.house_number:
            return {"error": f"house {number} is not ours"}
        return {"material": self.roof["material"], "built": self.roof["built"]}

    @tool
    def photos(self, number: int) -> str:
        """Damage that the photos of a house show."""
        if number != self.house_number:
            return f"no photos of house {number}"
        return f"{self.roof['damage']} per cent of the roof is damaged"

    @tool
    def lifetime(self, material: str) -> str:
        """Years that a material lasts."""
        return f"{LIFETIMES[material]} years" if material in LIFETIMES else f"no roof is of {material}"

    def demonstrate(self, task: Task) -> Sequence[Message]:
        house, roof = task.fields["house"], task.fields["roof"]
        calls = [
            tool_call("house", number=house),
            tool_call("photos", number=house),
            tool_call("lifetime", material=roof["material"]),
        ]
        return [*calls, answer(f"<final_output>{json.dumps(task.fields['answer'])}</final_output>")]


reward = json_fields()
scorer = json_exact()


def work(roof: dict) -> str:
    if 2025 - roof["built"] > LIFETIMES[roof["material"]] or roof["damage"] > 30:
        return "renew"
    return "patch" if roof["damage"] > 5 else "none"


def train_tasks() -> list[Task]:
    return _tasks("train", range(1000, 3000), 48)


def validation_tasks() -> list[Task]:
    return _tasks("validation", range(3000, 4000), 15)


def held_out_tasks() -> list[Task]:
    return _tasks("held_out", range(4000, 6000), 15)


def _tasks(split: str, houses: range, num: int) -> list[Task]:
    rng = random.Random(f"roofs:{split}")
    numbers, made = iter(rng.sample(houses, len(houses))), []
    while len(made) < num:
        roof = {"material": rng.choice(list(LIFETIMES)), "built": rng.randint(1950, 2020), "damage": rng.randint(0, 45)}
        if work(roof) != ("renew", "patch", "none")[len(made) % 3]:
            continue
        number = next(numbers)
        text = (
            f"Please survey house {number}; the tenant on floor {rng.randint(1, 5)} has a damp "
            f"{rng.choice(('wall', 'ceiling', 'attic'))}."
        )
        answered = {"work": work(roof), "age": 2025 - roof["built"], "surveyor": rng.choice(SURVEYORS)}
        messages = ({"role": "system", "content": PROCEDURE}, {"role": "user", "content": text})
        made.append(
            Task(id=f"roof-{number}", messages=messages, fields={"house": number, "roof": roof, "answer": answered})
        )
    return made
