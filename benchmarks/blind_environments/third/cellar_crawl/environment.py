# A tiny text adventure. Rooms are on a 3 x 3 grid; one thing must be carried from one room to another.
import random

from sparring.environments import Environment, tool
from sparring.types import Outcome, Task

ROOMS = ["pantry", "well", "forge", "crypt", "stair", "kiln", "vault", "cistern", "coal hole"]
THINGS = ["lamp", "rope", "goblet", "ledger", "bell", "sickle", "mirror", "drum"]
STEPS = {"north": (0, -1), "south": (0, 1), "west": (-1, 0), "east": (1, 0)}


class Game(Environment):
    """Moving about."""

    here = 0

    def look_text(self):
        lying = ", ".join(thing for thing, room in self.things.items() if room == self.here) or "nothing"
        return f"You are in the {self.rooms[self.here]}. On the floor: {lying}."

    @tool
    def go(self, direction: str) -> str:
        """Go north, south, west or east.

        Args:
            direction: where to
        """
        if direction not in STEPS:
            return "That is no direction."
        x, y = self.here % 3 + STEPS[direction][0], self.here // 3 + STEPS[direction][1]
        if not (0 <= x < 3 and 0 <= y < 3):
            return "A wall."
        self.here = 3 * y + x
        return self.look_text()


class Cellar(Game):
    """Moving about and carrying things."""

    bag: list = []

    def reset(self, task):
        self.rooms, self.things = task.fields["rooms"], dict(task.fields["things"])
        self.here = task.fields["begin"]
        self.goal, self.target = task.fields["thing"], task.fields["target"]
        self.is_won = False
        return [
            *task.messages[:-1],
            {"role": "user", "content": task.messages[-1]["content"] + "\n" + self.look_text()},
        ]

    @tool
    def take(self, thing: str) -> str:
        """Pick up a thing. You can carry three at most.

        Args:
            thing: what to pick up
        """
        if self.things.get(thing) != self.here:
            return f"There is no {thing} here."
        if len(self.bag) >= 3:
            return "Your bag is full."
        self.bag.append(thing)
        self.things[thing] = None
        return f"You carry: {', '.join(self.bag)}."

    @tool
    def drop(self, thing: str) -> str:
        """Put down a thing that you carry.

        Args:
            thing: what to put down
        """
        if thing not in self.bag:
            return f"You carry no {thing}."
        self.bag.remove(thing)
        self.things[thing] = self.here
        self.is_won = thing == self.goal and self.here == self.target
        return self.look_text()

    @property
    def is_done(self):
        return self.is_won

    def final_state(self):
        return {"lies": self.things[self.goal], "done": self.is_won}


def reward(trajectory):
    """1 for the errand, less a little for each call."""
    state = trajectory.final_state or {}
    return max(0.0, 1.0 - 0.02 * len(trajectory.transitions)) if state.get("done") else 0.0


def scorer(trajectory):
    wins = trajectory.outcome is Outcome.FINISHED and trajectory.final_state["lies"] == trajectory.task.fields["target"]
    return float(wins)


def _tasks(split, num):
    rng, tasks = random.Random(split), []
    for n in range(num):
        rooms, things = rng.sample(ROOMS, 9), rng.sample(THINGS, 4)
        lies = {thing: rng.randrange(9) for thing in things}
        begin = rng.randrange(9)
        target = rng.choice([room for room in range(9) if room not in (begin, lies[things[0]])])
        plan = "\n".join(" | ".join(rooms[row * 3 : row * 3 + 3]) for row in range(3))
        text = f"Bring the {things[0]} from the {rooms[lies[things[0]]]} to the {rooms[target]} and drop it there. The cellar, north is up:\n{plan}"
        tasks.append(
            Task(
                id=f"{split}-{n}",
                messages=({"role": "user", "content": text},),
                fields={"rooms": rooms, "things": lies, "begin": begin, "thing": things[0], "target": target},
            )
        )
    return tasks


def train():
    return _tasks("train", 30)


def test():
    return _tasks("test", 12)
