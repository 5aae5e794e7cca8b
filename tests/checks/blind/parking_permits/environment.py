"""Parking permits: is a car that a warden reports allowed to stand where it stands?"""

import json
import random
from collections.abc import Sequence
from datetime import date, timedelta

from sparring.environments import Environment, answer, tool, tool_call
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Message, Task

PROCEDURE = """\
You help parking wardens. Call permit with the plate, then street with the street.
- No permit, or the date of the report is after `expires`: fine is "full".
- The permit is of another zone than the street: fine is "reduced".
- Else fine is "none".
The field `basis` is the number of the permit, or "-" without one.
Answer: <final_output>{"fine":"full, reduced or none","basis":"number of the permit"}</final_output>"""

STREETS = {
    "Mill Lane": "A",
    "High Street": "A",
    "Station Road": "B",
    "Chapel Hill": "B",
    "Quay Street": "C",
    "Orchard Row": "C",
}
TODAY = date.today()


def days_left(expires: str, today: date = TODAY) -> int:
    """Days until a permit ends, 0 when it has ended."""
    return max(0, (date.fromisoformat(expires) - today).days)


class Permits(Environment):
    def reset(self, task: Task) -> None:
        self.permits = task.fields["permits"]

    @tool
    def permit(self, plate: str) -> dict[str, str | int]:
        """The permit of a car."""
        found = self.permits.get(plate)
        if found is None:
            return {"status": f"no permit for {plate}"}
        return {**found, "days_left": days_left(found["expires"])}

    @tool
    def street(self, name: str) -> str:
        """The permit zone of a street."""
        return f"{name} is in zone {STREETS[name]}" if name in STREETS else f"{name} has no permit zone"

    def demonstrate(self, task: Task) -> Sequence[Message]:
        calls = [tool_call("permit", plate=task.fields["plate"]), tool_call("street", name=task.fields["street"])]
        return [*calls, answer(f"<final_output>{json.dumps(task.fields['answer'])}</final_output>")]


reward, scorer = json_fields(), json_exact()


def train_tasks() -> list[Task]:
    return _tasks("train", "BCDFG", 48)


def validation_tasks() -> list[Task]:
    return _tasks("validation", "HJK", 15)


def held_out_tasks() -> list[Task]:
    return _tasks("held_out", "LMN", 15)


def _tasks(split: str, letters: str, num: int) -> list[Task]:
    rng = random.Random(f"permits/{split}")
    return [_task(f"{split}-{index}", rng, letters, ("full", "reduced", "none")[index % 3]) for index in range(num)]


def _task(name: str, rng: random.Random, letters: str, fine: str) -> Task:
    plate = f"{rng.choice(letters)}{rng.choice('AEIOU')}{rng.randint(10, 99)} {rng.choice(letters)}{rng.choice('XYZ')}T"
    street, zone = rng.choice(list(STREETS.items()))
    seen = date(2031, 1, 1) + timedelta(days=rng.randint(0, 700))
    expires = seen + timedelta(days=rng.randint(0, 150))
    if fine == "full":
        expires = seen - timedelta(days=rng.randint(1, 90))
    if fine == "reduced":
        zone = rng.choice([other for other in "ABC" if other != zone])
    number = f"P-{rng.randint(1000, 9999)}"
    permits = {plate: {"number": number, "zone": zone, "expires": expires.isoformat()}}
    if fine == "full" and rng.random() < 0.4:
        permits, number = {}, "-"
    text = f"{seen.isoformat()}, {rng.randint(8, 19)}:{rng.randint(10, 59)}. {plate} stands in {street}."
    return Task(
        id=name,
        messages=({"role": "system", "content": PROCEDURE}, {"role": "user", "content": text}),
        fields={"plate": plate, "street": street, "permits": permits, "answer": {"fine": fine, "basis": number}},
    )
