"""Mail triage: say which team gets a mail and how urgent it is, by the sender's plan."""

from __future__ import annotations

import random

from sparring.environments import Environment, tool
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Task

TOPICS = {
    "My card was charged twice": "billing",
    "I cannot sign in since this morning": "access",
    "The parcel never came": "delivery",
    "The app closes when I open a photo": "product",
    "I want to change the name on my invoice": "billing",
    "The code for my phone does not arrive": "access",
    "My parcel went to the neighbours": "delivery",
}
PLANS = {"free": "low", "plus": "normal", "business": "high"}
PEOPLE = ["Ana", "Boris", "Chloe", "Dev", "Eva", "Farid", "Gita", "Hugo", "Ines", "Jonas", "Kim", "Lev"]
INSTRUCTIONS = (
    "You sort mail. Teams: billing (payments and invoices), access (signing in), delivery (parcels), product (faults of the app). "
    "Urgency goes by the sender's plan, which `account` says: free is low, plus is normal, business is high. "
    'Answer: <final_output>{"team": "billing", "urgency": "low"}</final_output>'
)


class MailDesk(Environment):
    def reset(self, task: Task) -> None:
        self.sender, self.plan = task.fields["sender"], task.fields["plan"]

    @tool
    def account(self, sender: str) -> str:
        """The plan of a sender.

        Args:
            sender: the name in the mail
        """
        return self.plan if sender == self.sender else "no such account"


reward = json_fields("final_output")
scorer = json_exact("final_output")


def train_tasks() -> list[Task]:
    return _tasks("train", 48)


def held_out_tasks() -> list[Task]:
    return _tasks("held_out", 16)


def _tasks(split: str, num: int) -> list[Task]:
    # A seed of its own for each split.
    rng = random.Random(f"mail-{split}")
    pool = [(person, text) for person in PEOPLE for text in TOPICS]
    return [_task(f"{split}-{index}", *case) for index, case in enumerate(rng.sample(pool, num))]


def _task(task_id: str, sender: str, text: str) -> Task:
    plan = random.Random(f"{sender}: {text}").choice(sorted(PLANS))
    return Task(
        id=task_id,
        messages=(
            {"role": "system", "content": INSTRUCTIONS},
            {"role": "user", "content": f"From: {sender}\n\n{text}."},
        ),
        fields={"sender": sender, "plan": plan, "answer": {"team": TOPICS[text], "urgency": PLANS[plan]}},
    )
