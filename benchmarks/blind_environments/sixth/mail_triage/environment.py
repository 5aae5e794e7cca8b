"""Mail triage: read a mail and say which of five teams it belongs to."""

from __future__ import annotations

import random

from sparring.environments import Environment, tool
from sparring.types import Task, Trajectory

TEAMS = {
    "billing": ["My invoice {n} has the wrong sum.", "Please refund order {n}, I was charged twice."],
    "delivery": ["Parcel {n} has not come.", "The courier left order {n} at the wrong door."],
    "returns": ["I want to send order {n} back.", "Where do I get a return label for {n}?"],
    "accounts": ["I cannot log in as customer {n}.", "Please change the password of account {n}."],
    "press": ["I write an article about your firm, issue {n}.", "May I print your logo in magazine no. {n}?"],
}


class Inbox(Environment):
    def reset(self, task: Task) -> None:
        self.mails = task.fields["mails"]

    @tool
    def read_mail(self, number: int) -> str:
        """The text of a mail.

        Args:
            number: its place in the inbox, from 1
        """
        if not 1 <= number <= len(self.mails):
            return f"error: there are mails 1 to {len(self.mails)}"
        return self.mails[number - 1]["text"]


def _answer(trajectory: Trajectory) -> str:
    last = trajectory.messages[-1]
    return (last.get("content") or "").lower() if last["role"] == "assistant" else ""


def reward(trajectory: Trajectory) -> float:
    """1 when the answer names the team."""
    return 1.0 if trajectory.task.fields["team"] in _answer(trajectory) else 0.0


def scorer(trajectory: Trajectory) -> float:
    return 1.0 if _answer(trajectory).strip(" .") == trajectory.task.fields["team"] else 0.0


def _mails(rng: random.Random) -> list[dict[str, str]]:
    teams = rng.choices(list(TEAMS), k=3)
    return [{"team": t, "text": rng.choice(TEAMS[t]).format(n=rng.randint(10000, 99999))} for t in teams]


def _split(name: str, num: int) -> list[Task]:
    rng = random.Random(f"inbox {name}")
    result = []
    for index in range(num):
        mails = _mails(rng)
        place = rng.randrange(3)
        text = f"Which team is mail {place + 1} for: {', '.join(TEAMS)}? Answer with one word."
        result.append(
            Task(
                id=f"inbox-{name}-{index}",
                messages=({"role": "user", "content": text},),
                fields={"mails": mails, "team": mails[place]["team"]},
            )
        )
    return result


def train_tasks() -> list[Task]:
    return _split("train", 100)


def held_out_tasks() -> list[Task]:
    return _split("held_out", 50)
