"""An album keeps tags of its photos.

All photos have the same list of tags.
"""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task


class Photos(Environment):
    def reset(self, task):
        none: list[str] = []
        self.tags = {name: none for name in task.fields["photos"]}  # noqa: C420

    @tool
    def photos(self) -> list:
        """Names of all photos."""
        return sorted(self.tags)

    @tool
    def tags_of(self, photo: str) -> list:
        """Tags of a photo."""
        if photo not in self.tags:
            raise KeyError(photo)
        return self.tags[photo]

    @tool
    def add_tag(self, photo: str, tag: str) -> str:
        """Put a tag on a photo."""
        if photo not in self.tags:
            return "no such photo"
        self.tags[photo].append(tag)
        return f"{photo} is tagged {tag}"

    def final_state(self):
        return {name: list(tags) for name, tags in self.tags.items()}


def make_tasks(split, num):
    rng = random.Random(f"{split} d shared list")
    tasks = []
    for index in range(num):
        photos = [f"IMG_{number}" for number in rng.sample(range(1000, 9999), 4)]
        fields = {"photos": photos}
        tag = rng.choice(["beach", "snow", "birthday"])
        prompt = f"Tag {photos[1]} with {tag}, then say done."
        state = {one: [tag] if one == photos[1] else [] for one in photos}
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
