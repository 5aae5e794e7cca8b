"""Loans of a museum: a request may name several objects, and each is looked up on its own."""

import json
import random
from collections.abc import Sequence

from sparring.environments import Environment, answer, tool, tool_call
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Message, Task

PROCEDURE = """\
Decide a loan request. Call borrower with the borrower, then object with each object of the request, one after the other.
- borrower: "trusted" or "new", and the humidity in per cent of its rooms.
- object: the humidity in per cent that it stands, and its value in thousands.
An object can travel when the rooms are not more humid than it stands. To new borrowers only objects worth up to 50 travel.
travel: how many objects can travel. verdict: "all", "some" or "nothing".
Answer: <final_output>{"travel":0,"verdict":"all, some or nothing"}</final_output>"""


class Registrar(Environment):
    """Tools over one request."""

    def reset(self, task: Task) -> None:
        self.request = task.fields

    @tool
    def borrower(self, name: str) -> str:
        """What is known of a borrower."""
        if name != self.request["borrower"]:
            return f"{name} has never borrowed anything"
        return f"{self.request['status']}, {self.request['humidity']} per cent"

    @tool
    def object(self, number: str) -> dict[str, int]:
        """Needs and value of an object."""
        if number not in self.request["objects"]:
            raise LookupError(f"object {number} is not in the collection")
        return dict(self.request["objects"][number])

    def demonstrate(self, task: Task) -> Sequence[Message]:
        calls = [tool_call("borrower", name=task.fields["borrower"])]
        calls += [tool_call("object", number=number) for number in task.fields["objects"]]
        return [*calls, answer(f"<final_output>{json.dumps(task.fields['answer'])}</final_output>")]


reward, scorer = json_fields(), json_exact()


def decided(status: str, humidity: int, objects: dict[str, dict[str, int]]) -> dict[str, int | str]:
    able = [
        one for one in objects.values() if humidity <= one["stands"] and (status == "trusted" or one["value"] <= 50)
    ]
    verdict = "all" if len(able) == len(objects) else ("some" if able else "nothing")
    return {"travel": len(able), "verdict": verdict}


def train_tasks() -> list[Task]:
    return _tasks("train", ("Aalen", "Bern", "Cork", "Delft", "Evora", "Faro", "Genoa"), 48)


def validation_tasks() -> list[Task]:
    return _tasks("validation", ("Hull", "Imola"), 15)


def held_out_tasks() -> list[Task]:
    return _tasks("held_out", ("Jena", "Kiel", "Liege"), 18)


def _tasks(split: str, towns: Sequence[str], num: int) -> list[Task]:
    rng = random.Random(f"museum/{split}")
    made: list[Task] = []
    while len(made) < num:
        status, humidity = rng.choice(("trusted", "new")), rng.randint(40, 70)
        numbers = [f"{rng.choice('MNP')}{rng.randint(100, 999)}" for _ in range(rng.randint(2, 6))]
        objects = {number: {"stands": rng.randint(40, 75), "value": rng.randint(5, 110)} for number in numbers}
        result = decided(status, humidity, objects)
        if result["verdict"] != ("all", "some", "nothing")[len(made) % 3]:
            continue
        borrower = f"{rng.choice(('Town', 'Art', 'Sea', 'Folk'))} Museum {rng.choice(towns)}"
        text = (
            f"The {borrower} asks for {', '.join(objects)} from "
            f"{rng.choice(('March', 'June', 'September'))} on, for {rng.randint(2, 12)} weeks."
        )
        fields = {"borrower": borrower, "status": status, "humidity": humidity, "objects": objects, "answer": result}
        messages = ({"role": "system", "content": PROCEDURE}, {"role": "user", "content": text})
        made.append(Task(id=f"{split}-{len(made)}", messages=messages, fields=fields))
    return made
