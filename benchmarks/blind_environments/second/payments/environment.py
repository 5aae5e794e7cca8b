"""A payments desk. Accounts are rows of a database, amounts are whole cents."""

import random
import sqlite3

from sparring.environments import StatefulEnvironment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import state_difference
from sparring.types import Task, Trajectory

SYSTEM = """You carry out payment orders. Amounts are in cents. When a receiving account is closed, pay into its successor instead, which the
account's record names. An order that the source cannot cover in full is not carried out at all. Make no other payments. Answer with the
word done at the end."""


class Payments(StatefulEnvironment):
    def reset(self, task):
        super().reset(task)
        self.db: sqlite3.Connection = self.state.database
        self.db.execute("CREATE TABLE account (number TEXT PRIMARY KEY, cents INTEGER, successor TEXT)")
        self.db.executemany("INSERT INTO account VALUES (?, ?, ?)", task.fields["accounts"])

    def row(self, number):
        found = self.db.execute("SELECT number, cents, successor FROM account WHERE number = ?", (number,)).fetchone()
        if found is None:
            raise ToolFailure(f"there is no account {number!r}")
        return found

    @tool
    def account(self, number: str) -> dict:
        """An account's record: balance in cents, and the successor of one that is closed."""
        number, cents, successor = self.row(number)
        record = {"number": number, "cents": cents, "status": "closed" if successor else "open"}
        return record | ({"successor": successor} if successor else {})

    @tool
    def pay(self, source: str, target: str, cents: int) -> str:
        """Pay from one account to another. A payment that is refused changes nothing.

        Args:
            source: account that pays
            target: account that receives, which has to be open
            cents: amount, more than 0
        """
        if cents <= 0:
            raise ToolFailure("the amount has to be more than 0")
        if source == target:
            raise ToolFailure("source and target are the same account")
        self._withdraw(source, cents)
        self._deposit(target, cents)
        return f"{cents} paid from {source} to {target}"

    def _withdraw(self, number, cents):
        _, balance, successor = self.row(number)
        if successor:
            raise ToolFailure(f"account {number} is closed")
        if balance < cents:
            raise ToolFailure(f"account {number} has too little money")
        self.db.execute("UPDATE account SET cents = cents - ? WHERE number = ?", (cents, number))

    def _deposit(self, number, cents):
        _, _, successor = self.row(number)
        if successor:
            raise ToolFailure(f"account {number} is closed")
        self.db.execute("UPDATE account SET cents = cents + ? WHERE number = ?", (cents, number))

    def final_state(self):
        return {"balances": dict(self.db.execute("SELECT number, cents FROM account ORDER BY number").fetchall())}


scorer = state_difference("state")


def reward(trajectory: Trajectory) -> float:
    if trajectory.final_state is None:
        return 0.0
    found = trajectory.final_state["balances"]
    wanted = trajectory.task.fields["state"]["balances"]
    return 1.0 if found.keys() == wanted.keys() and all(found[key] == wanted[key] for key in wanted) else 0.0


def train_tasks(num=36):
    return [_task("train", index) for index in range(num)]


def held_out_tasks(num=12):
    return [_task("held-out", index) for index in range(num)]


def _task(split, index):
    rng = random.Random(f"payments {split} {index}")
    letters = "ACEGJLN" if split == "train" else "BDFHKMP"
    numbers = [f"{rng.choice(letters)}{number}" for number in rng.sample(range(100, 1000), 5)]
    source, *others = numbers
    balances = {number: rng.randint(1_000, 90_000) for number in numbers}
    closed, successor = others[0], others[1]
    balances[closed] = 0
    balances[source] = rng.randint(40_000, 90_000)
    orders = []
    for target in rng.sample([closed, others[2], others[3]], 2):
        orders.append((target, rng.randint(500, 35_000)))
    after = dict(balances)
    for target, cents in orders:
        if after[source] >= cents:
            after[source] -= cents
            after[successor if target == closed else target] += cents
    told = " and ".join(f"{cents} cents to {target}" for target, cents in orders)
    return Task(
        id=f"payments-{split}-{index}",
        messages=(
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"Pay from account {source}: {told}, in this order."},
        ),
        fields={
            "accounts": [[number, balances[number], successor if number == closed else None] for number in numbers],
            "orders": [list(order) for order in orders],
            "state": {"balances": dict(sorted(after.items()))},
        },
        seed=index,
    )
