"""A cloakroom whose tickets differ in upper and lower case, which the look-up does not look at."""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match
from sparring.types import Task


class Lockers(Environment):
    def reset(self, task):
        self.tickets = task.fields["tickets"]

    @tool
    def locker(self, ticket: str) -> dict:
        """Locker and key of a ticket."""
        found = next((one for one in self.tickets if one["ticket"].lower() == ticket.lower()), None)
        if found is None:
            raise ToolFailure(f"there is no ticket {ticket}")
        return {"locker": found["locker"], "key": found["key"]}


def make_tasks(split, num):
    rng = random.Random(f"lockers {split}")
    tasks = []
    for index in range(num):
        codes = [f"{rng.choice('abcd')}{rng.choice('kmnp')}{number}" for number in rng.sample(range(100, 999), 6)]
        codes += [codes[0].upper(), codes[1].title()]
        rng.shuffle(codes)
        places = rng.sample(range(1000, 9999), 16)
        tickets = [{"ticket": code, "locker": places[2 * i], "key": places[2 * i + 1]} for i, code in enumerate(codes)]
        wanted = rng.choice(tickets)
        message = {
            "role": "user",
            "content": f"Which locker has the ticket {wanted['ticket']}? Answer with its number alone.",
        }
        fields = {"tickets": tickets, "answer": str(wanted["locker"])}
        tasks.append(Task(id=f"{split}-{index}", messages=(message,), fields=fields))
    return tasks


train_tasks = partial(make_tasks, "train", 24)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)


def reward(trajectory):
    return float(str(trajectory.messages[-1].get("content")).strip() == trajectory.task.fields["answer"])


scorer = exact_match(None, "answer")
