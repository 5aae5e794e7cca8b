"""Bank desk: carry out standing orders in an SQLite ledger."""

from __future__ import annotations

import random
from typing import Annotated

from sparring.environments import Bounded, StatefulEnvironment, tool
from sparring.scorers import state_difference
from sparring.types import Task, Trajectory

OWNERS = ["Abel", "Bea", "Carlo", "Dunya", "Emil", "Fatma", "Gero", "Hilde", "Ismo", "Jana", "Karim", "Lotte"]
INSTRUCTIONS = (
    "You carry out transfers at a bank. `balance` says what somebody has, `transfer` moves money. Where the payer has less than "
    "is to be paid, transfer nothing. Say done at the end."
)


class BankDesk(StatefulEnvironment):
    def reset(self, task: Task) -> None:
        super().reset(task)
        database = self.state.database
        # In cents, as money should be.
        database.execute("CREATE TABLE accounts (owner TEXT PRIMARY KEY, cents INTEGER)")
        database.executemany("INSERT INTO accounts VALUES (?, ?)", sorted(task.fields["accounts"].items()))

    @tool
    def balance(self, owner: str) -> str:
        """What somebody has."""
        row = self._cents(owner)
        return "no account" if row is None else f"{row // 100}.{row % 100:02} EUR"

    @tool
    def transfer(self, payer: str, payee: str, amount: Annotated[int, Bounded(ge=1)]) -> str:
        """Move money from one account to another.

        Args:
            payer: who pays
            payee: who gets it
            amount: how much, in whole euros
        """
        available = self._cents(payer)
        if available is None or self._cents(payee) is None or payer == payee:
            return "no such accounts"
        if available < amount:
            return "not enough money"
        self.state.database.execute("UPDATE accounts SET cents = cents - ? WHERE owner = ?", (amount, payer))
        self.state.database.execute("UPDATE accounts SET cents = cents + ? WHERE owner = ?", (amount, payee))
        return "transferred"

    def _cents(self, owner: str) -> int | None:
        row = self.state.database.execute("SELECT cents FROM accounts WHERE owner = ?", (owner,)).fetchone()
        return None if row is None else int(row[0])

    def final_state(self) -> dict[str, int]:
        return dict(self.state.database.execute("SELECT owner, cents FROM accounts ORDER BY owner"))


def reward(trajectory: Trajectory) -> float:
    """1 when all accounts have what they should have."""
    wanted = trajectory.task.fields["state"]
    return float(
        trajectory.final_state is not None and sorted(trajectory.final_state.items()) == sorted(wanted.items())
    )


scorer = state_difference("state")


def train_tasks() -> list[Task]:
    return _tasks()[:38]


def held_out_tasks() -> list[Task]:
    return _tasks()[38:]


def _tasks() -> list[Task]:
    rng = random.Random("bank")
    tasks: dict[str, Task] = {}
    while len(tasks) < 50:
        owners = rng.sample(OWNERS, 4)
        accounts = {owner: rng.randint(20_000, 90_000) for owner in owners}
        state, orders = dict(accounts), []
        for index in range(2):
            payer, payee = rng.sample(owners, 2)
            # The second order is sometimes more than there is.
            euros = rng.randint(5, 150) if index == 0 or rng.random() < 0.6 else rng.randint(1200, 2000)
            orders.append({"payer": payer, "payee": payee, "euros": euros})
            if state[payer] >= 100 * euros:
                state[payer] -= 100 * euros
                state[payee] += 100 * euros
        text = "; then ".join(f"{order['payer']} pays {order['payee']} {order['euros']} EUR" for order in orders)
        if text not in tasks:
            tasks[text] = Task(
                id=f"bank-{len(tasks)}",
                messages=({"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": f"{text}."}),
                fields={"accounts": accounts, "orders": orders, "state": dict(sorted(state.items()))},
            )
    return list(tasks.values())
