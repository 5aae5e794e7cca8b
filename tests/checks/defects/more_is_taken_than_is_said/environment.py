"""A car park sells tickets for at most 8 hours.

Nine are sold, too.
"""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task


class CarPark(Environment):
    def reset(self, task):
        self.hours = dict(task.fields["hours"])

    @tool
    def hours_of(self, plate: str) -> int:
        """Hours for which a car has paid."""
        return self.hours[plate]

    @tool
    def extend(self, plate: str, hours: int) -> str:
        """Set for how long a car has paid.

        Args:
            plate: of the car
            hours: in all, at most 8
        """
        if plate not in self.hours or not 0 < hours <= 9:
            return "refused"
        self.hours[plate] = hours
        return f"{hours} hours"

    def final_state(self):
        return self.hours


def make_tasks(split, num):
    rng = random.Random(f"{split} takes more than stated")
    tasks = []
    for index in range(num):
        fields = {"hours": {f"{rng.choice('ABC')}-{rng.randint(100, 999)}": rng.randint(1, 2) for _ in range(3)}}
        plate, hours = rng.choice(sorted(fields["hours"])), rng.randint(4, 8)
        prompt = f"The car {plate} stays {hours} hours. Write it down, then say done."
        state = {**fields["hours"], plate: hours}
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
