"""Outage desk of a network operator: cause and next step of a customer's outage."""

import json
import random
from collections.abc import Sequence

from sparring.environments import Environment, answer, tool, tool_call
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Message, Task

PROCEDURE = """\
A customer has no connection. Call line with the line number, then area with the area it names.
- The area has an incident: cause "area", step "wait".
- No incident, and the line's signal is below 40: cause "cable", step "technician".
- Else: cause "router", step "restart".

Close with your finding in this form:
<final_response>{"cause":"the cause","step":"the next step"}</final_response>"""

STEPS = {"area": "wait", "cable": "technician", "router": "restart"}
AREAS = ("north", "south", "harbour", "hills", "centre", "airport")


class OutageDesk(Environment):
    def reset(self, task: Task) -> None:
        self.lines = {task.fields["line"]: task.fields["state"]}
        self.incidents = task.fields["incidents"]

    @tool
    def line(self, number: str) -> str:
        """Area and signal of a line."""
        state = self.lines.get(number)
        return f"no line {number}" if state is None else f"area {state['area']}, signal {state['signal']}"

    @tool
    def area(self, name: str) -> str:
        """Whether an area has an incident."""
        if name not in AREAS:
            return f"there is no area {name}"
        return f"incident in {name}" if name in self.incidents else f"{name} is fine"

    def demonstrate(self, task: Task) -> Sequence[Message]:
        calls = [tool_call("line", number=task.fields["line"]), tool_call("area", name=task.fields["state"]["area"])]
        return [*calls, answer(f"<final_output>{json.dumps(task.fields['answer'])}</final_output>")]


reward = json_fields("final_output")
scorer = json_exact("final_output")


def train_tasks() -> list[Task]:
    return _tasks("train", range(20000, 50000), 48)


def validation_tasks() -> list[Task]:
    return _tasks("validation", range(50000, 60000), 15)


def held_out_tasks() -> list[Task]:
    return _tasks("held_out", range(60000, 80000), 15)


def _tasks(split: str, numbers: range, num: int) -> list[Task]:
    rng = random.Random(f"outage-{split}")
    made = []
    for index, number in enumerate(rng.sample(numbers, num)):
        cause = list(STEPS)[index % 3]
        home, *rest = rng.sample(AREAS, 4)
        signal = (
            rng.randint(3, 39) if cause == "cable" or (cause == "area" and rng.random() < 0.5) else rng.randint(40, 99)
        )
        incidents = [*rest[:2], *([home] if cause == "area" else [])]
        since = f"{rng.randint(1, 23)}:{rng.randint(10, 59)}"
        text = (
            f"Nothing works since {since}, "
            f"{rng.choice(('not even television', 'the lamp is red', 'I need it for work'))}. My number is "
            f"{number}."
        )
        fields = {
            "line": str(number),
            "state": {"area": home, "signal": signal},
            "incidents": incidents,
            "answer": {"cause": cause, "step": STEPS[cause]},
        }
        messages = ({"role": "system", "content": PROCEDURE}, {"role": "user", "content": text})
        made.append(Task(id=f"line-{number}", messages=messages, fields=fields))
    return made
