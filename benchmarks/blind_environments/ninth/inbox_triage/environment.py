"""Shared inbox of an office: put each mail into the right folder."""

from __future__ import annotations

import random
from typing import Literal

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import state_difference
from sparring.types import Task, Trajectory

SUBJECTS = {
    "billing": ["Invoice {n} is wrong", "When is bill {n} due?", "Paid {n} twice", "Receipt for {n}, please"],
    "support": ["Printer {n} does not start", "Password of account {n}", "Screen {n} is black", "Error {n} again"],
    "people": ["Application for post {n}", "Leave in week {n}", "Contract {n} to sign", "Training {n}: sign me up"],
}
FIRST_NUMBER = {"train": 200, "validation": 500, "held_out": 800}
SYSTEM = (
    "You sort the shared inbox of an office. Mails about invoices, bills, payments and receipts go to the folder billing; mails about "
    "computers, printers, screens, passwords and errors to support; mails about applications, contracts, leave and training to people."
)


class Inbox(Environment):
    def reset(self, task: Task) -> None:
        self._mails: dict[str, str] = task.fields["mails"]
        self._folders: dict[str, str] = dict.fromkeys(self._mails, "inbox")

    @tool
    def list_mails(self) -> list[dict[str, str]]:
        """All mails, with id, subject, and the folder in which they are now."""
        return [
            {"mail": mail, "subject": subject, "folder": self._folders[mail]} for mail, subject in self._mails.items()
        ]

    @tool
    def move(self, mail: str, folder: Literal["billing", "support", "people"]) -> str:
        """Move a mail into a folder.

        Args:
            mail: id of the mail
            folder: where it belongs
        """
        if mail not in self._folders:
            raise ToolFailure(f"there is no mail {mail}")
        self._folders[mail] = folder
        return f"{mail} is in {folder}"

    def final_state(self) -> dict[str, str]:
        return self._folders


def reward(trajectory: Trajectory) -> float:
    """Share of the mails that were moved to the right folder."""
    wanted = trajectory.task.fields["state"]
    moves = [one["arguments"] for one in trajectory.transitions if one["tool"] == "move" and one["error"] is None]
    right = sum(wanted[move["mail"]] == move["folder"] for move in moves)
    return min(1.0, right / len(wanted))


scorer = state_difference("state")


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"inbox {split} {number}")
    folders = [*SUBJECTS, *rng.choices(sorted(SUBJECTS), k=rng.randint(1, 3))]
    rng.shuffle(folders)
    keys = rng.sample(range(1000, 9999), len(folders))
    mails = {
        f"m{key}": rng.choice(SUBJECTS[folder]).format(n=rng.randint(10, 99))
        for key, folder in zip(keys, folders, strict=True)
    }
    text = f"Shift {FIRST_NUMBER[split] + number}: please sort everything that is in the inbox now, and tell me when it is done."
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": text}),
        fields={"mails": mails, "state": dict(zip(mails, folders, strict=True))},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
