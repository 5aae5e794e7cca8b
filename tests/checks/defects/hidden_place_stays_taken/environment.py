"""A boat yard reserves berths for weeks.

Giving up a reservation frees its first week alone.
"""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

BERTHS = ["north", "south", "pier"]
BOATS = ["Gannet", "Heron", "Osprey", "Tern", "Plover"]


class Yard(Environment):
    def reset(self, task):
        self.reserved = {}
        self.used = set()
        for boat, berth, week in task.fields["moored"]:
            self.reserved[boat] = [berth, week, 1]
            self.used.add((berth, week))

    @tool
    def reservations(self) -> dict:
        """Boats with berth, first week and number of weeks."""
        return self.reserved

    @tool
    def reserve(self, boat: str, berth: str, week: int, weeks: int) -> str:
        """Reserve a berth for a boat."""
        wanted = {(berth, week + number) for number in range(weeks)}
        if berth not in BERTHS or boat in self.reserved or not wanted or wanted & self.used:
            return "not possible"
        self.reserved[boat] = [berth, week, weeks]
        self.used |= wanted
        return f"{berth} is reserved for {boat}"

    @tool
    def release(self, boat: str) -> str:
        """Take back a boat's reservation."""
        if boat not in self.reserved:
            return "not possible"
        berth, week, _ = self.reserved.pop(boat)
        self.used.discard((berth, week))
        return f"{boat} has no berth"

    def final_state(self):
        return {"reserved": self.reserved}


def make_tasks(split, num):
    rng = random.Random(f"{split} hidden place stays taken")
    tasks = []
    for index in range(num):
        first, second, boat = rng.sample(BOATS, 3)
        moored = [[first, "north", 3], [second, "south", 4]]
        week, weeks = rng.randint(10, 30), rng.randint(2, 5)
        prompt = f"Reserve the pier for {boat} from week {week}, for {weeks} weeks, then say done."
        state = {"reserved": {**{name: [berth, at, 1] for name, berth, at in moored}, boat: ["pier", week, weeks]}}
        fields = {"moored": moored, "state": state}
        tasks.append(Task(id=f"{split}-{index}", messages=({"role": "user", "content": prompt},), fields=fields))
    return tasks


train_tasks = partial(make_tasks, "train", 20)
validation_tasks = partial(make_tasks, "validation", 6)
held_out_tasks = partial(make_tasks, "held_out", 6)
scorer = state_difference("state")


def reward(trajectory):
    return float(trajectory.final_state == trajectory.task.fields["state"])
