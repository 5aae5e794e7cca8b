"""The reception of a laboratory: a sample is booked in and accepted, or refused for one of two reasons."""

import random
import re
import uuid
from collections.abc import Sequence

from sparring.environments import Environment, answer, tool, tool_call
from sparring.types import Message, Reward, Task, Trajectory

VERDICTS = ("accept", "wrong_tube", "too_warm")
PROCEDURE = """\
Reception of samples.
1. book_in with the barcode: registers the sample and returns its tube and the temperature it came with.
2. requirements with the test: the tube that the test needs, and the highest temperature in degrees Celsius.
3. Another tube than needed: wrong_tube. Else, if the sample came warmer than allowed: too_warm. Else: accept.
The last message is nothing but <verdict>...</verdict> with one of accept, wrong_tube, too_warm inside."""

TESTS = {
    "lactate": ("grey", 8),
    "ammonia": ("lilac", 4),
    "potassium": ("green", 25),
    "coagulation": ("blue", 24),
    "glucose": ("grey", 20),
    "troponin": ("green", 12),
}


class Reception(Environment):
    """One sample waits at the desk."""

    def reset(self, task: Task) -> None:
        self.samples = {task.fields["barcode"]: task.fields["sample"]}

    @tool
    def book_in(self, barcode: str) -> dict[str, str | int]:
        """Register a sample that has arrived.

        Args:
            barcode: as printed on the tube
        """
        if barcode not in self.samples:
            return {"error": f"no sample with barcode {barcode} has arrived"}
        return {"accession": f"ACC-{uuid.uuid4().hex[:8].upper()}", **self.samples[barcode]}

    @tool
    def requirements(self, test: str) -> dict[str, str | int]:
        """What a test asks of its sample."""
        if test not in TESTS:
            return {"error": f"no test is called {test}"}
        tube, warmest = TESTS[test]
        return {"tube": tube, "highest_temperature": warmest}

    def demonstrate(self, task: Task) -> Sequence[Message]:
        fields = task.fields
        calls = [tool_call("book_in", barcode=fields["barcode"]), tool_call("requirements", test=fields["test"])]
        return [*calls, answer(f"<verdict>{fields['verdict']}</verdict>")]


def reward(trajectory: Trajectory) -> Reward:
    """0.1 for a verdict in its form, 0.9 more for the right one."""
    last = trajectory.messages[-1]
    found = re.fullmatch(r"\s*<verdict>(\w+)</verdict>\s*", str(last.get("content") or ""))
    reply = found[1] if found and last["role"] == "assistant" else None
    parts = {"form": 0.1 * (reply in VERDICTS), "right": 0.9 * (reply == trajectory.task.fields["verdict"])}
    return Reward(total=sum(parts.values()), components=parts)


def scorer(trajectory: Trajectory) -> float:
    message, verdict = trajectory.messages[-1], trajectory.task.fields["verdict"]
    return float(
        message["role"] == "assistant" and (message["content"] or "").strip() == f"<verdict>{verdict}</verdict>"
    )


def decide(test: str, tube: str, temperature: int) -> str:
    needed, warmest = TESTS[test]
    if tube != needed:
        return "wrong_tube"
    return "too_warm" if temperature > warmest else "accept"


def train_tasks() -> list[Task]:
    return _tasks(range(1000, 5000), 48)


def validation_tasks() -> list[Task]:
    return _tasks(range(5000, 6000), 15)


def held_out_tasks() -> list[Task]:
    return _tasks(range(6000, 8000), 18)


def _tasks(barcodes: range, num: int) -> list[Task]:
    rng = random.Random(barcodes.start)
    made: list[Task] = []
    for barcode in rng.sample(barcodes, len(barcodes)):
        test, tube = rng.choice(list(TESTS)), rng.choice(("grey", "lilac", "green", "blue"))
        temperature = rng.randint(1, 30)
        verdict = decide(test, tube, temperature)
        if len(made) < num and verdict == VERDICTS[len(made) % 3]:
            sample = {"tube": tube, "temperature": temperature}
            text = f"A courier from ward {rng.randint(1, 40)} brings tube S{barcode} and asks for {test}."
            fields = {"barcode": f"S{barcode}", "sample": sample, "test": test, "verdict": verdict}
            messages = ({"role": "system", "content": PROCEDURE}, {"role": "user", "content": text})
            made.append(Task(id=f"S{barcode}", messages=messages, fields=fields))
    return made
