"""A signal box sets trains on tracks 1 to 14.

Track 14 is refused.
"""

import random
from functools import partial
from typing import Annotated

from sparring.environments import Bounded, Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

TRAINS = ["IC 201", "RE 17", "S 4", "EC 88", "NJ 40"]


class SignalBox(Environment):
    def reset(self, task):
        self.tracks = dict(task.fields["tracks"])

    @tool
    def track_of(self, train: str) -> int:
        """Track of a train."""
        return self.tracks[train]

    @tool
    def set_track(self, train: str, track: Annotated[int, Bounded(ge=1, le=14)]) -> str:
        """Set a train on a track."""
        if train not in self.tracks or track not in range(1, 14):
            return "refused"
        self.tracks[train] = track
        return f"{train} runs on track {track}"

    def final_state(self):
        return self.tracks


def make_tasks(split, num):
    rng = random.Random(f"{split} last track is refused")
    tasks = []
    for index in range(num):
        fields = {"tracks": {train: rng.randint(1, 6) for train in rng.sample(TRAINS, 3)}}
        train, track = rng.choice(sorted(fields["tracks"])), rng.randint(7, 14)
        prompt = f"Set {train} on track {track}, then say done."
        state = {**fields["tracks"], train: track}
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
