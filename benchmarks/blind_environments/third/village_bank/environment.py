"""A village bank: transfers between accounts."""

from dataclasses import dataclass
import random

from sparring.environments import StatefulEnvironment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import state_difference
from sparring.types import Outcome, Task

NAMES = ["Amos", "Berta", "Cyril", "Dinah", "Enoch", "Flora", "Gideon", "Hester", "Isaac", "Judith"]


@dataclass
class Account:
    owner: str
    balance: int
    is_closed: bool = False

    def withdraw(self, amount):
        if amount > self.balance:
            raise ToolFailure(f"{self.owner} has only {self.balance}")
        self.balance -= amount

    def deposit(self, amount):
        if self.is_closed:
            raise ToolFailure(f"the account of {self.owner} is closed")
        self.balance += amount


class Bank(StatefulEnvironment):
    def reset(self, task):
        super().reset(task)
        self.accounts = {name: Account(name, balance) for name, balance in task.fields["balances"].items()}
        for name in task.fields["closed"]:
            self.accounts[name].is_closed = True

    def _account(self, name):
        if name not in self.accounts:
            raise ToolFailure(f"{name} has no account here")
        return self.accounts[name]

    @tool
    def balance(self, name: str) -> int:
        """Money on an account.

        Args:
            name: the owner's
        """
        return self._account(name).balance

    @tool
    def transfer(self, sender: str, receiver: str, amount: int) -> str:
        """Move money from one account to another. When it is refused, nothing has changed.

        Args:
            sender: owner of the account that pays
            receiver: owner of the account that is paid
            amount: whole coins, at least 1
        """
        if amount < 1:
            raise ToolFailure("transfer at least 1")
        source, target = self._account(sender), self._account(receiver)
        source.withdraw(amount)
        target.deposit(amount)
        return f"{amount} went from {sender} to {receiver}"

    def final_state(self):
        return {name: account.balance for name, account in self.accounts.items()}


scorer = state_difference("after")


def reward(trajectory):
    if trajectory.outcome is not Outcome.FINISHED:
        return 0.0
    after = trajectory.task.fields["after"]
    return float(all(trajectory.final_state.get(name) == after[name] for name in after))


def _tasks(split, seeds):
    for seed in seeds:
        rng = random.Random(seed)
        payer, first, second, other = rng.sample(NAMES, 4)
        balances = {name: rng.randint(20, 300) for name in (payer, first, second, other)}
        amount = rng.randint(5, balances[payer] - 5)
        closed = [first] if rng.random() < 0.45 else [other] if rng.random() < 0.5 else []
        paid = second if first in closed else first
        after = {**balances, payer: balances[payer] - amount, paid: balances[paid] + amount}
        text = (
            f"Transfer {amount} coins from {payer} to {first}. If the account of {first} is closed, the money goes to {second} "
            "instead. Answer 'paid' when that is done."
        )
        yield Task(
            id=f"{split}-{seed}",
            seed=seed,
            messages=({"role": "user", "content": text},),
            fields={"balances": balances, "closed": closed, "after": after, "order": [payer, first, second, amount]},
        )


def train_tasks():
    return [*_tasks("train", range(30))]


def held_out_tasks():
    return [*_tasks("held-out", range(900, 912))]
