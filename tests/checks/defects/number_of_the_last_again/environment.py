"""A repair shop opens slips and cancels them.

A slip's number is one more than the greatest that is there, which a cancelled slip may have had.
"""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

FAULTS = ["flat tyre", "bent rim", "loose chain", "worn brake", "dead lamp", "torn seat"]


class RepairShop(Environment):
    def reset(self, task):
        self.slips = {f"S-{100 + index}": fault for index, fault in enumerate(task.fields["faults"])}

    @tool
    def slips_open(self) -> list:
        """All open slips with their faults."""
        return [{"slip": slip, "fault": fault} for slip, fault in self.slips.items()]

    @tool
    def open_slip(self, fault: str) -> str:
        """Open a slip for a fault."""
        slip = f"S-{max(int(one[2:]) for one in self.slips) + 1}"
        self.slips[slip] = fault
        return f"opened {slip}"

    @tool
    def cancel_slip(self, slip: str) -> str:
        """Cancel a slip."""
        if self.slips.pop(slip, None) is None:
            return "no such slip"
        return "cancelled"

    def final_state(self):
        return {"open": sorted(self.slips.values())}


def make_tasks(split, num):
    rng = random.Random(f"{split} number of the last again")
    tasks = []
    for index in range(num):
        *faults, new = rng.sample(FAULTS, 4)
        fields = {"faults": faults}
        old = rng.choice(faults)
        prompt = f"Cancel the slip for the {old}, then open one for a {new}. Then say done."
        state = {"open": sorted({*faults, new} - {old})}
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
