"""A desk of notes and its shelf, right as `Desk`, and with one tool wrong in each of the others."""

import random
import time

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task


class Desk(Environment):
    def reset(self, task):
        self.notes = dict(task.fields["notes"])
        self.weights = dict(task.fields["weights"])

    @tool
    def write(self, title: str, text: str) -> str:
        """Write a note, in place of the one with that title."""
        self.notes[title] = text
        return "written"

    @tool
    def remove(self, title: str) -> str:
        """Remove a note."""
        del self.notes[title]
        return "removed"

    @tool
    def weigh(self, box: str, kilograms: float) -> str:
        """Note what a box weighs."""
        if box not in self.weights:
            return "it is not on the shelf"
        self.weights[box] = kilograms
        return "noted"

    def final_state(self):
        return {"notes": self.notes, **self.weights}


class WaitingDesk(Desk):
    """Takes its time, as everything does on a busy machine."""

    def reset(self, task):
        time.sleep(0.007)
        super().reset(task)


class CuttingDesk(Desk):
    """Keeps the first 20 characters of a note."""

    @tool
    def write(self, title: str, text: str) -> str:
        """Write a note, in place of the one with that title."""
        self.notes[title] = text[:20]
        return "written"


class RemovingDesk(Desk):
    """Removes all notes whose titles begin alike."""

    @tool
    def remove(self, title: str) -> str:
        """Remove a note."""
        self.notes = {name: text for name, text in self.notes.items() if not name.startswith(title)}
        return "removed"


class RefusingDesk(Desk):
    """Does not know the last box."""

    @tool
    def weigh(self, box: str, kilograms: float) -> str:
        """Note what a box weighs."""
        if box not in sorted(self.weights)[:-1]:
            return "it is not on the shelf"
        self.weights[box] = kilograms
        return "noted"


class NeighbourDesk(Desk):
    """Notes the weight of the next box."""

    @tool
    def weigh(self, box: str, kilograms: float) -> str:
        """Note what a box weighs."""
        boxes = sorted(self.weights)
        self.weights[boxes[(boxes.index(box) + 1) % len(boxes)]] = kilograms
        return "noted"


class AddingDesk(Desk):
    """Adds up what was weighed in floating point."""

    @tool
    def weigh(self, box: str, kilograms: float) -> str:
        """Note what a box weighs."""
        self.weights[box] = kilograms / 3 + kilograms / 3 + kilograms / 3
        return "noted"


def tasks(split, num):
    rng, found = random.Random(f"notes {split}"), []
    for index in range(num):
        titles = [*rng.sample(("bread", "rent", "keys", "paint", "birds"), 3), "plan", "plan b"]
        notes = {title: f"all about {title}" for title in titles}
        weights = {f"box {number}": round(rng.uniform(1, 9), 2) for number in range(1, 5)}
        title, box, kilograms = rng.choice(titles[:3]), rng.choice(sorted(weights)), round(rng.uniform(10, 20), 2)
        text = f"ask the neighbour about the {title} on day {rng.randint(1, 28)}"
        prompt = (
            f'Case {split}-{index}: write "{text}" under {title}, remove the plan, and note {kilograms} kg for {box}.'
        )
        state = {"notes": {**notes, title: text}, **weights, box: kilograms}
        del state["notes"]["plan"]
        fields = {"notes": notes, "weights": weights, "state": state}
        found.append(Task(id=f"{split}-{index}", messages=({"role": "user", "content": prompt},), fields=fields))
    return found


def train_tasks():
    return tasks("train", 40)


def held_out_tasks():
    return tasks("held_out", 10)


def reward(trajectory):
    return float(trajectory.final_state == trajectory.task.fields["state"])


scorer = state_difference("state")
