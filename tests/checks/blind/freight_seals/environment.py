"""A freight gate: containers pass, or are held for a reason."""

import json
import random
import re
from collections.abc import Sequence

from sparring.environments import Environment, answer, tool, tool_call
from sparring.scorers import json_exact
from sparring.types import Message, Reward, Task, Trajectory

PROCEDURE = """\
Gate of a container port. seal gives the number of the seal on a container; booking gives the number that it should have,
and whether the papers are complete.
hold is "seal" if the numbers differ; else "papers" if the papers are not complete; else null, and the container passes.
Answer: <final_output>{"hold":"seal, papers or null"}</final_output>"""


class Gate(Environment):
    def reset(self, task: Task) -> None:
        self.container, self.record = task.fields["container"], task.fields["record"]

    @tool
    def seal(self, container: str) -> str:
        """Number of the seal on a container."""
        return self.record["seal"] if container == self.container else f"{container} is not at the gate"

    @tool
    def booking(self, container: str) -> str:
        """What was booked for a container."""
        if container != self.container:
            return f"nothing is booked for {container}"
        return f"seal {self.record['booked']}, papers {'complete' if self.record['papers'] else 'not complete'}"

    def demonstrate(self, task: Task) -> Sequence[Message]:
        container = task.fields["container"]
        calls = [tool_call("seal", container=container), tool_call("booking", container=container)]
        return [*calls, answer(f"<final_output>{json.dumps(task.fields['answer'])}</final_output>")]


def parsed(trajectory: Trajectory) -> dict:
    """The object in the answer's only tag; empty when there is none."""
    last = trajectory.messages[-1]
    text = str(last.get("content") or "") if last["role"] == "assistant" else ""
    found = re.findall("<final_output>(.*?)</final_output>", text, flags=re.DOTALL)
    if len(found) != 1 or text.count("<final_output>") != 1 or text.count("</final_output>") != 1:
        return {}
    try:
        value = json.loads(found[0], object_pairs_hook=_unique)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _unique(pairs: list) -> dict:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)


def reward(trajectory: Trajectory) -> Reward:
    """1 for the right hold, 0.1 less when anything else stands next to it."""
    given, expected = parsed(trajectory), trajectory.task.fields["answer"]
    right = 0.9 * (given.get("hold") == expected["hold"])
    alone = 0.1 * (right > 0 and len(given) <= 1)
    return Reward(total=right + alone, components={"right": right, "alone": alone})


scorer = json_exact()


def train_tasks() -> list[Task]:
    return _tasks("ABCD", 48)


def validation_tasks() -> list[Task]:
    return _tasks("EF", 15)


def held_out_tasks() -> list[Task]:
    return _tasks("GH", 18)


def _tasks(letters: str, num: int) -> list[Task]:
    rng = random.Random(f"gate {letters}")
    made = []
    for index in range(num):
        hold = ("seal", "papers", None)[index % 3]
        container = f"{rng.choice(letters)}{rng.choice('KLMNO')}{rng.choice('PQRS')}U {rng.randint(100000, 999999)}"
        booked, other = (str(number) for number in rng.sample(range(10000, 99999), 2))
        record = {
            "seal": other if hold == "seal" else booked,
            "booked": booked,
            "papers": rng.random() < 0.5 if hold == "seal" else hold is None,
        }
        text = (
            f"Lorry {rng.randint(100, 999)} at lane {rng.randint(1, 12)} with container {container}, "
            f"{rng.randint(3, 30)} tonnes."
        )
        fields = {"container": container, "record": record, "answer": {"hold": hold}}
        messages = ({"role": "system", "content": PROCEDURE}, {"role": "user", "content": text})
        made.append(Task(id=container, messages=messages, fields=fields))
    return made
