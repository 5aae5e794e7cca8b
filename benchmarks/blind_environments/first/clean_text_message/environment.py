"""A phone that sends text messages of at most 40 characters, as it says."""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

PEOPLE = ["Amélie", "Björn", "Chloë", "Dušan", "Eszter", "Françoise", "Günter"]
NEWS = ["back at", "train leaves at", "dinner is at", "doctor can see you at", "parcel comes at"]
LIMIT = 40


class Phone(Environment):
    def reset(self, task):
        self.numbers = task.fields["numbers"]
        self.sent = []

    @tool
    def number_of(self, name: str) -> str:
        """Number of a person; accents count."""
        return self.numbers.get(name, "no such person")

    @tool
    def send(self, number: str, text: str) -> dict:
        """Send a message. It ends after 40 characters: what follows is cut, and the result shows what was sent.

        Args:
            number: of the receiver
            text: what to tell, at most 40 characters
        """
        if number not in self.numbers.values():
            return {"error": "no such number"}
        self.sent.append([number, text[:LIMIT]])
        return {"number": number, "sent": text[:LIMIT], "cut": max(len(text) - LIMIT, 0)}

    def final_state(self):
        return {"sent": self.sent}


def make_tasks(split, num):
    rng = random.Random(f"phone {split}")
    tasks = []
    for index in range(num):
        people = rng.sample(PEOPLE, 3)
        numbers = {name: f"+4{rng.randint(10**6, 10**7 - 1)}" for name in people}
        text = f"{rng.choice(NEWS)} {rng.randint(6, 22)}:{rng.randint(10, 59)}"
        prompt = f"Send {people[0]} exactly this message: {text}\nThen say done."
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": prompt},),
                fields={"numbers": numbers, "state": {"sent": [[numbers[people[0]], text]]}},
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 24)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)


def reward(trajectory):
    return float(trajectory.final_state == trajectory.task.fields["state"])


scorer = state_difference("state")
