"""Faults of lifts: who is sent, and how soon, follows from the controller's codes."""

import json
import random
import threading
import time
from collections.abc import Sequence

from sparring.environments import Environment, answer, tool, tool_call
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Message, Task

PROCEDURE = """\
A tenant reports a lift. Call status with the lift's number: its code and whether a passenger is inside.
Call code with the code: the trade that repairs it.
crew: the trade, `electrician`, `mechanic` or `locksmith`.
hours: 1 if a passenger is inside, else 4 for an electrician, 8 for a mechanic, 24 for a locksmith.
Answer: <final_output>{"crew":"the trade","hours":0}</final_output>"""

CODES = {
    "E1": "electrician",
    "E4": "electrician",
    "M2": "mechanic",
    "M7": "mechanic",
    "D3": "locksmith",
    "D9": "locksmith",
    "X5": "mechanic",
    "X6": "electrician",
}
HOURS = {"electrician": 4, "mechanic": 8, "locksmith": 24}


class LiftDesk(Environment):
    """A controller answers as long as it hears from the desk, so a heartbeat is sent from a thread."""

    def reset(self, task: Task) -> None:
        self.lift, self.state = task.fields["lift"], task.fields["state"]
        self.beats = 0
        self.online = True
        threading.Thread(target=self._heartbeat, daemon=True).start()

    def _heartbeat(self) -> None:
        while True:
            self.beats += 1
            time.sleep(0.5)

    def close(self) -> None:
        self.online = False

    @tool
    def status(self, lift: int) -> dict[str, str | bool]:
        """What the controller of a lift reports."""
        if lift != self.lift or not self.online:
            return {"error": f"no controller answers for lift {lift}"}
        return {"code": self.state["code"], "passenger_inside": self.state["inside"]}

    @tool
    def code(self, code: str) -> str:
        """The trade that repairs what a code stands for."""
        return CODES.get(code, f"{code} is not in the manual")

    def demonstrate(self, task: Task) -> Sequence[Message]:
        calls = [tool_call("status", lift=task.fields["lift"]), tool_call("code", code=task.fields["state"]["code"])]
        return [*calls, answer(f"<final_output>{json.dumps(task.fields['answer'])}</final_output>")]


reward = json_fields(format_weight=0.1)
scorer = json_exact()


def train_tasks() -> list[Task]:
    return _tasks("train", range(100, 400), 48)


def validation_tasks() -> list[Task]:
    return _tasks("validation", range(400, 500), 16)


def held_out_tasks() -> list[Task]:
    return _tasks("held_out", range(500, 700), 16)


def _tasks(split: str, lifts: range, num: int) -> list[Task]:
    rng = random.Random(f"lifts {split}")
    made = []
    for index, lift in enumerate(rng.sample(lifts, num)):
        crew, inside = list(HOURS)[index % 3], index % 4 == 1
        code = rng.choice([code for code, trade in CODES.items() if trade == crew])
        text = (
            f"Lift {lift} in {rng.randint(1, 80)} {rng.choice(('Park', 'Lake', 'Church', 'School'))} Road "
            f"does not move, I am on floor {rng.randint(1, 12)}."
        )
        fields = {
            "lift": lift,
            "state": {"code": code, "inside": inside},
            "answer": {"crew": crew, "hours": 1 if inside else HOURS[crew]},
        }
        messages = ({"role": "system", "content": PROCEDURE}, {"role": "user", "content": text})
        made.append(Task(id=f"{split}-{lift}", messages=messages, fields=fields, seed=index))
    return made
