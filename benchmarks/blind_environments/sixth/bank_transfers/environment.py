"""A bank clerk: transfers between accounts, in SQLite."""

from __future__ import annotations

import random
from typing import Annotated

from sparring.environments import Bounded, StatefulEnvironment, tool
from sparring.types import Task, Trajectory

OWNERS = ("Adams", "Baker", "Clark", "Davis", "Evans", "Foster", "Green", "Hill")


class Bank(StatefulEnvironment):
    def reset(self, task: Task) -> None:
        super().reset(task)
        db = self.state.database
        db.execute("CREATE TABLE accounts (owner TEXT PRIMARY KEY, balance INTEGER NOT NULL)")
        db.executemany("INSERT INTO accounts VALUES (?, ?)", list(task.fields["accounts"].items()))

    @tool
    def balance(self, owner: str) -> str:
        """The balance of an account in euros."""
        row = self.state.database.execute("SELECT balance FROM accounts WHERE owner = ?", (owner,)).fetchone()
        return f"{row[0]} euros" if row else f"error: {owner} has no account"

    @tool
    def transfer(self, sender: str, receiver: str, amount: Annotated[int, Bounded(ge=1)]) -> str:
        """Transfer whole euros from one account to another; a refused transfer changes nothing."""
        db = self.state.database
        row = db.execute("SELECT balance FROM accounts WHERE owner = ?", (sender,)).fetchone()
        if row is None:
            return f"error: {sender} has no account"
        if row[0] < amount:
            return f"error: {sender} has {row[0]} euros only"
        db.execute("UPDATE accounts SET balance = balance - ? WHERE owner = ?", (amount, sender))
        if db.execute("SELECT 1 FROM accounts WHERE owner = ?", (receiver,)).fetchone() is None:
            return f"error: {receiver} has no account"
        db.execute("UPDATE accounts SET balance = balance + ? WHERE owner = ?", (amount, receiver))
        return f"transferred {amount} euros from {sender} to {receiver}"

    def final_state(self) -> dict[str, int]:
        return dict(self.state.database.execute("SELECT owner, balance FROM accounts ORDER BY owner").fetchall())


def reward(trajectory: Trajectory) -> float:
    return float(trajectory.final_state == trajectory.task.fields["wanted"])


def scorer(trajectory: Trajectory) -> float:
    wanted, have = trajectory.task.fields["wanted"], trajectory.final_state or {}
    return (
        sum(have.get(owner) == money for owner, money in wanted.items()) / len(wanted)
        if wanted != trajectory.task.fields["accounts"]
        else 0.0
    )


def _task(split: str, number: int, rng: random.Random) -> Task:
    names = rng.sample(OWNERS, 4)
    accounts = {name: rng.randrange(200, 900) for name in names}
    sender, receiver = names[:2]
    amount = rng.randrange(20, 150)
    wanted = dict(accounts)
    wanted[sender] -= amount
    wanted[receiver] += amount
    ask = f"Transfer {amount} euros from {sender} to {receiver}, then confirm in one sentence."
    return Task(
        id=f"bank-{split}-{number}",
        messages=({"role": "user", "content": ask},),
        fields={"accounts": accounts, "wanted": wanted},
    )


def train_tasks() -> list[Task]:
    rng = random.Random(11)
    return [_task("train", n, rng) for n in range(90)]


def held_out_tasks() -> list[Task]:
    rng = random.Random(12)
    return [_task("held", n, rng) for n in range(30)]
