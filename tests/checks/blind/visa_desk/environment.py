"""A visa desk: applications are granted, referred or refused by the country's list and the register."""

import random
from collections.abc import Sequence

from sparring.environments import Environment, answer, tool, tool_call
from sparring.types import Message, Reward, Task, Trajectory

DECISIONS = ("grant", "refer", "refuse")
PROCEDURE = """\
Visa desk. Call register with the file number, and country with the nationality.
- An open ban in the register: refuse.
- No ban, and the country's list is B, or the stay is longer than the country's days: refer.
- Otherwise: grant.
Answer with one line: Decision: grant, refer or refuse"""

COUNTRIES = {
    "Arvonia": ("A", 90),
    "Belmark": ("A", 30),
    "Cadria": ("B", 60),
    "Dorland": ("A", 60),
    "Elvane": ("B", 30),
    "Fenmoor": ("A", 45),
}


class VisaDesk(Environment):
    def reset(self, task: Task) -> None:
        self.register_of = {task.fields["file"]: task.fields["entry"]}

    @tool
    def register(self, file: str) -> str:
        """Entry in the register of bans."""
        return self.register_of.get(file, f"file {file} does not exist")

    @tool
    def country(self, name: str) -> str:
        """List of a country, and the days that its citizens may stay."""
        if name not in COUNTRIES:
            return f"{name} is on no list"
        letter, days = COUNTRIES[name]
        return f"list {letter}, {days} days"

    def demonstrate(self, task: Task) -> Sequence[Message]:
        calls = [tool_call("register", file=task.fields["file"]), tool_call("country", name=task.fields["nationality"])]
        return [*calls, answer(f"Decision: {task.fields['decision']}")]


def decided(nationality: str, days: int, is_banned: bool) -> str:
    letter, longest = COUNTRIES[nationality]
    if is_banned:
        return "refuse"
    return "refer" if letter == "B" or days > longest else "grant"


def reward(trajectory: Trajectory) -> Reward:
    """Form and content apart."""
    message = trajectory.messages[-1]
    head, _, reply = (
        (str(message.get("content") or "") if message["role"] == "assistant" else "").strip().partition(": ")
    )
    form = 0.1 if head == "Decision" and reply in DECISIONS else 0.0
    right = 0.9 if form and reply == trajectory.task.fields["decision"] else 0.0
    return Reward(total=form + right, components={"form": form, "right": right})


def scorer(trajectory: Trajectory) -> float:
    final = trajectory.messages[-1]
    return float(
        final["role"] == "assistant"
        and str(final.get("content")).strip() == f"Decision: {trajectory.task.fields['decision']}"
    )


def train_tasks() -> list[Task]:
    return _tasks("train", 48)


def validation_tasks() -> list[Task]:
    return _tasks("validation", 15)


def held_out_tasks() -> list[Task]:
    return _tasks("held_out", 18)


def _tasks(split: str, num: int) -> list[Task]:
    rng = random.Random(f"visa {split}")
    first = {"train": "123456", "validation": "78", "held_out": "90"}[split]
    made: list[Task] = []
    while len(made) < num:
        nationality, days, is_banned = rng.choice(list(COUNTRIES)), rng.randint(5, 80), rng.random() < 0.33
        decision = decided(nationality, days, is_banned)
        if decision != DECISIONS[len(made) % 3]:
            continue
        number = f"{rng.choice(first)}{rng.randint(1000, 9999)}/{rng.randint(10, 99)}"
        entry = (
            f"ban open since {rng.randint(2010, 2023)}" if is_banned else rng.choice(("no entry", "ban ended in 2019"))
        )
        application = {
            "file": number,
            "nationality": nationality,
            "stay": f"{days} days",
            "purpose": rng.choice(("study", "family", "fair", "tourism")),
            "clerk": rng.choice(("Moss", "Reed", "Thorne")),
            "remark": f"archived as {decision}",
        }
        text = "\n".join(f"{key}: {value}" for key, value in application.items())
        messages = ({"role": "system", "content": PROCEDURE}, {"role": "user", "content": text})
        fields = {"file": number, "nationality": nationality, "entry": entry, "decision": decision}
        made.append(Task(id=f"{split}-{len(made)}", messages=messages, fields=fields))
    return made
