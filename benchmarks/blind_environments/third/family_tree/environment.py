"""A parish register: who is whose mother?"""

import random
import re
from itertools import pairwise

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task

SYLLABLES = ["ma", "ri", "lo", "ta", "ne", "su", "vi", "ka", "do", "be"]


class Registry(Environment):
    def reset(self, task):
        self._mothers = task.fields["mothers"]

    @tool
    def mother(self, name: str) -> str:
        """Mother of a person.

        Args:
            name: one name
        """
        return self._mothers.get(name, "not recorded")

    @tool
    def children(self, name: str) -> list[str]:
        """Children of a woman, in the order of the alphabet.

        Args:
            name: one name
        """
        return sorted(child for child, mother in self._mothers.items() if mother == name)


def reward(trajectory):
    last = trajectory.messages[-1]
    given = re.findall(r"<final_output>\s*(\w+)\s*</final_output>", last.get("content") or "")
    return 1.0 if last["role"] == "assistant" and given == [trajectory.task.fields["answer"]] else 0.0


scorer = exact_match()

PROMPT = """The register answers for one person at a time. Follow the mothers upwards from {start}, up to the woman who is {steps} \
generations before {start}. Who is she? Answer with her name alone: <final_output>Name</final_output>"""


def _tasks(split, num):
    rng = random.Random(f"register of {split}")
    for number in range(num):
        names = set()
        while len(names) < 22:
            names.add("".join(rng.choices(SYLLABLES, k=3)).capitalize())
        names = sorted(names)
        rng.shuffle(names)
        line, others = names[:10], names[10:]
        mothers = dict(pairwise(line))
        for child in others:
            mothers[child] = rng.choice(line[1:])
        steps = 3 + number % 6
        prompt = PROMPT.format(start=line[0], steps=steps)
        yield Task(
            id=f"{split}-{number}",
            messages=({"role": "user", "content": prompt},),
            fields={"mothers": mothers, "start": line[0], "steps": steps, "answer": line[steps]},
        )


def train_tasks():
    return list(_tasks("train", 36))


def held_out_tasks():
    return list(_tasks("held-out", 18))
