"""A blood bank sends bags to hospitals.

A delivery to a hospital that it does not know is refused, and the bags are off the shelf.
"""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

GROUPS = ["A+", "A-", "B+", "0-", "AB+"]
HOSPITALS = ["St. Anna", "Westend", "Charity", "Hill Clinic"]


class BloodBank(Environment):
    def reset(self, task):
        self.bags = dict(task.fields["bags"])
        self.sent = dict.fromkeys(task.fields["hospitals"], 0)

    @tool
    def hospitals(self) -> list:
        """Hospitals that are delivered to."""
        return sorted(self.sent)

    @tool
    def on_shelf(self, group: str) -> dict:
        """How many bags of a group there are."""
        return {"bags": self.bags[group]} if group in self.bags else {"error": "no such group"}

    @tool
    def deliver(self, group: str, bags: int, hospital: str) -> dict:
        """Send bags of a group to a hospital."""
        if bags < 1 or self.bags.get(group, 0) < bags:
            return {"error": "not so many bags"}
        self.bags[group] -= bags
        if hospital not in self.sent:
            return {"error": f"no hospital is called {hospital}"}
        self.sent[hospital] += bags
        return {"sent": bags, "to": hospital}

    def final_state(self):
        return {"bags": self.bags, "sent": self.sent}


def make_tasks(split, num):
    rng = random.Random(f"{split} takes before it looks")
    tasks = []
    for index in range(num):
        groups, hospitals = rng.sample(GROUPS, 3), rng.sample(HOSPITALS, 3)
        bags = {group: rng.randint(10, 40) for group in groups}
        fields = {"bags": bags, "hospitals": hospitals}
        num = rng.randint(2, 6)
        prompt = f"Send {num} bags of {groups[0]} to {hospitals[0]}, then say done."
        state = {
            "bags": {**bags, groups[0]: bags[groups[0]] - num},
            "sent": {hospital: num if hospital == hospitals[0] else 0 for hospital in hospitals},
        }
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": prompt},),
                fields={**fields, "state": state},
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 20)
validation_tasks = partial(make_tasks, "validation", 6)
held_out_tasks = partial(make_tasks, "held_out", 6)
scorer = state_difference("state")


def reward(trajectory):
    return float(trajectory.final_state == trajectory.task.fields["state"])
