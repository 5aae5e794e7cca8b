"""A choir keeps the voices of its members.

The register is a constant of the class, which is filled anew and never copied.
"""

import random
from functools import partial
from typing import ClassVar

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

NAMES = ["Asta", "Bruno", "Clara", "David", "Emil", "Frida"]


class Choir(Environment):
    VOICES: ClassVar = {name: "alto" if index % 2 else "bass" for index, name in enumerate(NAMES)}

    @tool
    def members(self) -> list:
        """Names of the members."""
        return sorted(self.VOICES)

    @tool
    def voice_of(self, name: str) -> str:
        """Voice of a member."""
        return self.VOICES.get(name, "no such member")

    @tool
    def set_voice(self, name: str, voice: str) -> str:
        """Write down the voice of a member."""
        if name not in self.VOICES:
            return "no such member"
        self.VOICES[name] = voice
        return "written down"

    def final_state(self):
        return dict(self.VOICES)


def make_tasks(split, num):
    rng = random.Random(f"{split} members are kept")
    tasks = []
    for index in range(num):
        fields: dict = {}
        name, voice = rng.choice(NAMES), rng.choice(["soprano", "tenor"])
        prompt = f"{name} sings {voice} now. Write it down, then say done. (Letter {rng.randint(1, 10**6)})"
        state = {**{one: "alto" if index % 2 else "bass" for index, one in enumerate(NAMES)}, name: voice}
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
