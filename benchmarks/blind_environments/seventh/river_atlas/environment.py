"""River atlas: questions about rivers, answered from an atlas that is read page by page."""

from __future__ import annotations

import random
import re

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

SYLLABLES = [
    "Ar",
    "Bel",
    "Cor",
    "Dun",
    "Esk",
    "Fal",
    "Gar",
    "Hol",
    "Isk",
    "Jun",
    "Kel",
    "Lor",
    "Mar",
    "Nith",
    "Or",
    "Pel",
]
ENDINGS = ["a", "en", "ow", "ik", "une", "ay"]
INSTRUCTIONS = (
    "You answer questions about rivers. `page` shows a river's page of the atlas; a tributary's page names the river that it "
    "flows into. Follow the rivers down to the sea. End with the name of the sea: <final_output>NAME</final_output>."
)
SEAS = ["Amber Sea", "Bay of Glass", "Cold Gulf", "Dragon Sound", "Eastern Ocean", "Fog Sea", "Gull Bight", "Harp Sea"]


class Atlas(Environment):
    def reset(self, task: Task) -> None:
        self.pages = task.fields["pages"]

    @tool
    def page(self, river: str) -> str:
        """The page of a river: its length, and what it flows into.

        Args:
            river: the river's name
        """
        if river not in self.pages:
            return f"The atlas has no page on {river}."
        entry = self.pages[river]
        return f"{river}, {entry['length']} km, flows into the {entry['into']}."


def reward(trajectory: Trajectory) -> float:
    """1 when the sea is named, 0 otherwise."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant":
        return 0.0
    given = re.findall(r"<final_output>\s*(.*?)\s*</final_output>", last.get("content") or "", re.DOTALL)
    return float(trajectory.task.fields["answer"] in given)


scorer = exact_match("final_output", "answer")


def train_tasks() -> list[Task]:
    return _tasks()[:40]


def held_out_tasks() -> list[Task]:
    return _tasks()[40:]


def _tasks() -> list[Task]:
    rng = random.Random("rivers")
    names = rng.sample([first + last for first in SYLLABLES for last in ENDINGS], 84)
    starts, rest = names[:54], names[54:]
    return [_task(index, start, rest, rng) for index, start in enumerate(starts)]


def _task(index: int, start: str, others: list[str], rng: random.Random) -> Task:
    chain = [start, *rng.sample(others, rng.randint(1, 3))]
    sea, *wrong = rng.sample(SEAS, 3)
    pages = {}
    for river, into in zip(chain, [*chain[1:], sea], strict=True):
        pages[river] = {"length": rng.randint(20, 900), "into": into}
    for river in rng.sample([name for name in others if name not in chain], 3):
        pages[river] = {"length": rng.randint(20, 900), "into": rng.choice(wrong)}
    question = f"Into which sea does the water of the {start} flow in the end?"
    return Task(
        id=f"river-{index}",
        messages=({"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": question}),
        fields={"pages": pages, "start": start, "answer": sea},
    )
