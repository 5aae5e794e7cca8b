"""Staffing: who speaks all the languages of a job? Now and then nobody does, and saying so is right."""

from __future__ import annotations

import json
import random
import re

from sparring.environments import Environment, tool
from sparring.scorers import set_match
from sparring.types import Task, Trajectory

LANGUAGES = ["Arabic", "Basque", "Czech", "Dutch", "Estonian", "Farsi", "Greek", "Hindi"]
PEOPLE = ["Ami", "Ben", "Cleo", "Dan", "Elif", "Finn", "Gwen", "Hal", "Ines", "Jo"]
INSTRUCTIONS = (
    "You staff jobs. `speakers` lists who speaks a language. Answer with a JSON array of all people who speak each of the job's "
    'languages, in any order, such as <final_output>["Ben", "Jo"]</final_output>. When nobody does, the array is empty.'
)


class Staffing(Environment):
    def reset(self, task: Task) -> None:
        self.speak = task.fields["speakers"]

    @tool
    def speakers(self, language: str) -> list[str]:
        """Who speaks a language.

        Args:
            language: its English name
        """
        return self.speak.get(language, [])


def reward(trajectory: Trajectory) -> float:
    """1 for just the people who fit."""
    last = trajectory.messages[-1]
    text = last.get("content") or ""
    tags = re.findall(r"<final_output>(.*?)</final_output>", text, re.DOTALL)
    if last["role"] != "assistant" or len(tags) != 1 or text.count("<final_output>") != 1:
        return 0.0
    try:
        people = json.loads(tags[0])
    except ValueError:
        return 0.0
    if not isinstance(people, list) or not all(isinstance(person, str) for person in people):
        return 0.0
    return float(sorted(people) == sorted(trajectory.task.fields["answer"]))


scorer = set_match("final_output", "answer")


def train_tasks() -> list[Task]:
    return _tasks()[:38]


def held_out_tasks() -> list[Task]:
    return _tasks()[38:]


def _tasks() -> list[Task]:
    rng = random.Random("staffing")
    pairs = [(a, b) for a in LANGUAGES for b in LANGUAGES if a < b]
    triples = [(a, b, c) for a, b in pairs for c in LANGUAGES if b < c]
    return [_task(index, job, rng) for index, job in enumerate(rng.sample(pairs + triples, 52))]


def _task(index: int, job: tuple[str, ...], rng: random.Random) -> Task:
    speak = {language: sorted(rng.sample(PEOPLE, rng.randint(4, 7))) for language in LANGUAGES}
    fitting = sorted(person for person in PEOPLE if all(person in speak[language] for language in job))
    if index % 5 == 0:
        # Nobody fits: whoever would, does not speak the last language.
        speak[job[-1]] = [person for person in speak[job[-1]] if person not in fitting]
        fitting = []
    return Task(
        id=f"job-{index}",
        messages=(
            {"role": "system", "content": INSTRUCTIONS},
            {"role": "user", "content": f"The job needs {', '.join(job)}."},
        ),
        fields={"job": list(job), "speakers": speak, "answer": fitting},
    )
