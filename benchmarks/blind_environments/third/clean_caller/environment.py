"""A ticket counter: the customer's first message lacks something, which the customer gives when asked."""

import random
import re

from sparring.environments import StatefulEnvironment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import state_difference
from sparring.types import Outcome, Task

SHOWS = ["Hamlet", "Medea", "Tosca", "Faust", "Carmen", "Peer Gynt", "Cats", "Nora"]
SYSTEM = (
    "You sell theatre tickets. Never guess: ask the customer for what you do not know (how many seats, or which evening), in one message "
    "without tool calls. Reserve once. Once that is done, confirm it: your confirmation ends the conversation."
)


class Counter(StatefulEnvironment):
    def reset(self, task):
        super().reset(task)
        self.details = task.fields["details"]
        self.seats = dict(task.fields["seats"])
        self.reserved = []
        self.num_asked = 0

    def reply(self, messages, session):
        """The customer answers two questions at most, and ends the conversation as soon as there is a reservation."""
        if self.reserved or self.num_asked == 2:
            return None
        self.num_asked += 1
        return f"{self.details['num']} seats, on {self.details['evening']}, please."

    @tool
    def free_seats(self, show: str, evening: str) -> int:
        """Free seats of a show on an evening.

        Args:
            show: its title
            evening: a day of the week, for example Friday
        """
        return self.seats.get(f"{show}/{evening}", 0)

    @tool
    def reserve(self, show: str, evening: str, num: int) -> str:
        """Reserve seats. Reservations cannot be changed here.

        Args:
            show: its title
            evening: a day of the week, for example Friday
            num: of seats, 1 or more
        """
        place = f"{show}/{evening}"
        if num < 1 or num > self.seats.get(place, 0):
            raise ToolFailure(f"{num} seats cannot be reserved; {self.seats.get(place, 0)} are free")
        self.seats[place] -= num
        self.reserved.append(f"{num} x {place}")
        return "reserved"

    def final_state(self):
        return {"reserved": self.reserved}


scorer = state_difference("state")


def reward(trajectory):
    """1 for the one reservation that was wanted; asking is free, what was reserved wrongly costs."""
    if trajectory.outcome is not Outcome.FINISHED or not trajectory.final_state["reserved"]:
        return 0.0
    made = [re.fullmatch(r"(\d+) x (.+)/(\w+)", line) for line in trajectory.final_state["reserved"]]
    wanted = trajectory.task.fields["details"]
    is_right = [(int(m[1]), m[2], m[3]) == (wanted["num"], wanted["show"], wanted["evening"]) for m in made]
    return 1.0 if is_right == [True] else -0.2


def tasks(split, num):
    rng = random.Random(f"counter/{split}")
    for n in range(num):
        days = rng.sample(["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"], 3)
        shows = rng.sample(SHOWS, 3)
        details = {"show": shows[0], "evening": rng.choice(days), "num": rng.randint(2, 7)}
        seats = {f"{show}/{day}": rng.randint(8, 40) for show in shows for day in days}
        said = f"on {details['evening']}" if n % 2 else f"for {details['num']} people"
        opening = f"{rng.choice(['Hello', 'Good evening', 'Hi'])}, I would like to see {shows[0]} {said}. My number is {rng.randint(10000, 99999)}."
        yield Task(
            id=f"{split}-{n}",
            seed=n,
            messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": opening}),
            fields={
                "details": details,
                "seats": seats,
                "state": {"reserved": [f"{details['num']} x {shows[0]}/{details['evening']}"]},
            },
        )


def train_tasks():
    return list(tasks("train", 30))


def held_out_tasks():
    return list(tasks("held-out", 12))
