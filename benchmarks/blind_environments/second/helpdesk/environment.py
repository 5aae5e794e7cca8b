"""An IT helpdesk: find the account of a login, unlock it, and close its ticket."""

from __future__ import annotations

import random
from collections.abc import Sequence

from sparring.environments import StatefulEnvironment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import state_difference
from sparring.types import Json, Task, Trajectory

SYSTEM = """You work at an IT helpdesk. Unlock the account of the login that is named, and close all of its open tickets. Touch no
other account: a wrong one unlocked is a security incident. Answer with the word done at the end."""
TABLES = """
CREATE TABLE accounts (id INTEGER PRIMARY KEY, login TEXT UNIQUE, locked INTEGER);
CREATE TABLE tickets (id INTEGER PRIMARY KEY, account INTEGER REFERENCES accounts, open INTEGER);
"""
SURNAMES: dict[str, Sequence[str]] = {
    "train": ("king", "ortiz", "lang", "mbeki", "sato", "dunn", "vega", "holt", "rossi", "blum"),
    "held_out": ("kowal", "price", "diaz", "yilmaz", "stone", "ferro"),
}


class Helpdesk(StatefulEnvironment):
    def reset(self, task: Task) -> None:
        super().reset(task)
        self.state.database.executescript(TABLES)
        self.state.database.executemany("INSERT INTO accounts VALUES (?, ?, ?)", task.fields["accounts"])
        self.state.database.executemany("INSERT INTO tickets VALUES (?, ?, 1)", task.fields["tickets"])

    def _one(self, sql: str, *values: Json) -> tuple | None:
        return self.state.database.execute(sql, values).fetchone()

    @tool
    def find_account(self, login: str) -> dict[str, int | bool]:
        """The account of a login: its number, and whether it is locked. Upper and lower case are the same.

        Args:
            login: the whole login
        """
        row = self._one("SELECT id, locked FROM accounts WHERE login LIKE ? ORDER BY id LIMIT 1", login)
        if row is None:
            raise ToolFailure(f"no account has the login {login!r}")
        return {"account": row[0], "locked": bool(row[1])}

    @tool
    def tickets(self, account: int) -> list[int]:
        """The open tickets of an account.

        Args:
            account: its number
        """
        if self._one("SELECT 1 FROM accounts WHERE id = ?", account) is None:
            raise ToolFailure(f"there is no account {account}")
        rows = self.state.database.execute("SELECT id FROM tickets WHERE account = ? AND open ORDER BY id", (account,))
        return [number for (number,) in rows]

    @tool
    def unlock(self, account: int) -> str:
        """Unlock an account.

        Args:
            account: its number
        """
        row = self._one("SELECT locked FROM accounts WHERE id = ?", account)
        if row is None or not row[0]:
            raise ToolFailure(f"account {account} is not locked" if row else f"there is no account {account}")
        self.state.database.execute("UPDATE accounts SET locked = 0 WHERE id = ?", (account,))
        return f"account {account} is unlocked"

    @tool
    def close_ticket(self, ticket: int) -> str:
        """Close an open ticket."""
        row = self._one("SELECT open FROM tickets WHERE id = ?", ticket)
        if row is None or not row[0]:
            raise ToolFailure(f"there is no open ticket {ticket}")
        self.state.database.execute("UPDATE tickets SET open = 0 WHERE id = ?", (ticket,))
        return f"ticket {ticket} is closed"

    def final_state(self) -> Json:
        locked = self.state.database.execute("SELECT login FROM accounts WHERE locked ORDER BY login")
        opened = self.state.database.execute("SELECT id FROM tickets WHERE open ORDER BY id")
        return {"locked": [login for (login,) in locked], "open_tickets": [number for (number,) in opened]}


scorer = state_difference("state")


def reward(trajectory: Trajectory) -> float:
    state = trajectory.final_state or {}
    return float(all(state.get(name) == value for name, value in trajectory.task.fields["state"].items()))


def train_tasks(num: int = 40) -> list[Task]:
    return [_task("train", index) for index in range(num)]


def held_out_tasks(num: int = 12) -> list[Task]:
    return [_task("held_out", index) for index in range(num)]


def _task(split: str, index: int) -> Task:
    rng = random.Random(f"helpdesk {split} {index}")
    names = rng.sample(SURNAMES[split], 4)
    logins = [f"{rng.choice('abdefgh')}_{name}{rng.randint(1, 99)}" for name in names]
    # Logins of the old system have a middle initial where new ones have an underscore.
    logins += [login.replace("_", rng.choice("jkmnr")) for login in logins]
    numbers = rng.sample(range(1000, 10_000), len(logins))
    accounts = [[number, login, 1] for number, login in zip(numbers, logins, strict=True)]
    owners = [number for number in numbers for _ in range(rng.randint(1, 2))]
    tickets = [
        [ticket, owner] for ticket, owner in zip(rng.sample(range(10_000, 99_999), len(owners)), owners, strict=True)
    ]
    account, login, _ = rng.choice(accounts if rng.random() < 0.4 else accounts[:4])
    call = index + (100 if split == "train" else 500)
    state = {
        "locked": sorted(other for _, other, _ in accounts if other != login),
        "open_tickets": sorted(ticket for ticket, owner in tickets if owner != account),
    }
    return Task(
        id=f"helpdesk-{split}-{index}",
        messages=(
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"Call {call}: {login} cannot sign in."},
        ),
        fields={"accounts": accounts, "tickets": tickets, "login": login, "state": state},
        seed=index,
    )
