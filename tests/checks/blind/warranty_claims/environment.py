"""Warranty claims of a bicycle maker."""

import random
import re
from collections.abc import Sequence

from sparring.environments import Environment, answer, tool, tool_call
from sparring.types import Message, Reward, Task, Trajectory

RULINGS = ("valid", "invalid", "partly valid")
PROCEDURE = """\
Rule on a warranty claim.
a) bicycle (frame number): age in months and use, `private` or `rental`.
b) part (name of the part): warranty in months, and whether it wears.
If the bicycle is older than the warranty, the claim is invalid. If not, it is partly valid when the part wears or the use is
rental, and valid when neither is so.
The last message is one line: <ruling>valid, invalid or partly valid</ruling>"""

PARTS = {
    "frame": (60, False),
    "fork": (36, False),
    "chain": (12, True),
    "brake pads": (6, True),
    "motor": (24, False),
    "battery": (24, True),
    "saddle": (18, False),
}


class Workshop(Environment):
    """Frame numbers are unique."""

    def reset(self, task: Task) -> None:
        self.frames = {task.fields["frame"]: f"{task.fields['months']} months, {task.fields['use']}"}

    @tool
    def bicycle(self, frame: str) -> str:
        """Age and use of a bicycle."""
        return self.frames.get(frame, f"no bicycle has the frame number {frame}")

    @tool
    def part(self, name: str) -> str:
        """Warranty of a part.

        Args:
            name: as in the list of parts, in small letters
        """
        if name not in PARTS:
            return f"{name} is in no list; there are {', '.join(PARTS)}"
        months, wears = PARTS[name]
        return f"{months} months, {'wears' if wears else 'does not wear'}"

    def demonstrate(self, task: Task) -> Sequence[Message]:
        calls = [tool_call("bicycle", frame=task.fields["frame"]), tool_call("part", name=task.fields["part"])]
        return [*calls, answer(f"<ruling>{task.fields['ruling']}</ruling>")]


def ruled(part: str, months: int, use: str) -> str:
    warranty, wears = PARTS[part]
    if months > warranty:
        return "invalid"
    return "partly valid" if wears or use == "rental" else "valid"


def reward(trajectory: Trajectory) -> Reward:
    last = trajectory.messages[-1]
    found = re.fullmatch("<ruling>([a-z ]+)</ruling>", str(last.get("content") or "").strip())
    reply = found[1] if found and last["role"] == "assistant" else ""
    parts = {"form": 0.1 * (reply in RULINGS), "right": 0.9 * (reply == trajectory.task.fields["ruling"])}
    return Reward(total=sum(parts.values()), components=parts)


def scorer(trajectory: Trajectory) -> float:
    """1 when the ruling of the last message is the expected one."""
    last = trajectory.messages[-1]
    reply = str(last.get("content") or "").partition("<ruling>")[2].partition("</ruling>")[0]
    return float(last["role"] == "assistant" and trajectory.task.fields["ruling"] in reply)


def train_tasks() -> list[Task]:
    return _tasks("train", "FG", 48)


def validation_tasks() -> list[Task]:
    return _tasks("validation", "HJ", 15)


def held_out_tasks() -> list[Task]:
    return _tasks("held_out", "KL", 18)


def _tasks(split: str, letters: str, num: int) -> list[Task]:
    rng = random.Random(f"bikes {split}")
    made: list[Task] = []
    while len(made) < num:
        part, months, use = rng.choice(list(PARTS)), rng.randint(1, 40), rng.choice(("private", "rental"))
        ruling = ruled(part, months, use)
        if ruling != RULINGS[len(made) % 3]:
            continue
        frame = f"{rng.choice(letters)}{rng.randint(10000, 99999)}{rng.choice('RSTUV')}"
        text = (
            f"The {part} of my bicycle gave up after {rng.randint(50, 9000)} km. Frame number {frame}, "
            f"bought in {rng.choice(('Lund', 'Graz', 'Gent', 'Porto'))}."
        )
        fields = {"frame": frame, "part": part, "months": months, "use": use, "ruling": ruling}
        messages = ({"role": "system", "content": PROCEDURE}, {"role": "user", "content": text})
        made.append(Task(id=frame, messages=messages, fields=fields))
    return made
