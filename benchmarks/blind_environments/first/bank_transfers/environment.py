"""A bank clerk's desk: money moves from one account to another."""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

OWNERS = ["Ames", "Brook", "Cole", "Dean", "Ekman", "Frost", "Gale", "Hart"]


class Bank(Environment):
    def reset(self, task):
        self.balances = dict(task.fields["balances"])
        self.owners = task.fields["owners"]

    @tool
    def accounts_of(self, owner: str) -> list:
        """Numbers of the accounts of a person."""
        return [number for number, name in self.owners.items() if name == owner]

    @tool
    def balance(self, account: str) -> int:
        """Balance of an account in euros."""
        return self.balances[account]

    @tool
    def transfer(self, source: str, target: str, euros: int) -> str:
        """Move money between two accounts. A transfer that fails moves nothing.

        Args:
            source: number of the account that pays
            target: number of the account that is paid
            euros: how much, more than 0
        """
        if euros <= 0 or self.balances[source] < euros:
            raise ValueError("the amount is not available")
        self.balances[source] -= euros
        self.balances[target] += euros
        return f"moved {euros} from {source} to {target}"

    def final_state(self):
        return self.balances


def make_tasks(split, num):
    rng = random.Random(f"bank {split}")
    tasks = []
    for index in range(num):
        owners = dict(zip(map(str, rng.sample(range(10000, 99999), 4)), rng.sample(OWNERS, 4), strict=True))
        balances = {number: rng.randint(100, 900) for number in owners}
        source, target = rng.sample(sorted(owners), 2)
        euros = rng.randint(10, 90)
        prompt = f"Transfer {euros} euros from {owners[source]} to {owners[target]}. Then say done."
        state = {**balances, source: balances[source] - euros, target: balances[target] + euros}
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": prompt},),
                fields={"owners": owners, "balances": balances, "state": state},
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 24)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)


def reward(trajectory):
    return float(trajectory.final_state == trajectory.task.fields["state"])


scorer = state_difference("state")
