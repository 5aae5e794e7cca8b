"""Case notes of an insurer: what does the file of an accident say?"""

from __future__ import annotations

import random
import re

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

OPENINGS = [
    "Called the insured in the morning.",
    "Received the form by post.",
    "Visited the place of the accident.",
    "The garage sent its estimate.",
]
DETAILS = [
    "It had rained, and the road was wet.",
    "The lights at the crossing were out of order.",
    "A dog had run across the road, it was said.",
    "Nobody was hurt, and the police did not come.",
    "The left door and the mirror are damaged.",
    "The other driver left before names were exchanged.",
]
NOTE_WIDTH = 160
FIRST_NUMBER = {"train": 1000, "validation": 1300, "held_out": 1600}


class Files(Environment):
    def reset(self, task: Task) -> None:
        self._notes: dict[str, dict[str, str]] = task.fields["notes"]

    @tool
    def list_notes(self, case: str) -> list[dict[str, str]]:
        """Notes of a case: id and date.

        Args:
            case: number of the case, such as K1234
        """
        return [{"note": note, "date": one["date"]} for note, one in self._notes.items() if one["case"] == case]

    @tool
    def read_note(self, note: str) -> str:
        """Text of a note.

        Args:
            note: id of the note
        """
        if note not in self._notes:
            raise ToolFailure(f"there is no note {note}")
        return self._notes[note]["text"][:NOTE_WIDTH]


CODE = re.compile(r"```.*?(?:```|$)|`[^`\n]*`", re.DOTALL)


def final_answer(trajectory: Trajectory) -> str | None:
    """What stands in the one answer tag of the last message. Code does not count."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return None
    text = CODE.sub("", str(last.get("content") or ""))
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return found[0].strip() if len(found) == text.count("<answer>") == text.count("</answer>") == 1 else None


def reward(trajectory: Trajectory) -> float:
    """1 for the right number plate."""
    return float(final_answer(trajectory) == trajectory.task.fields["answer"])


scorer = exact_match("answer", "answer")


def plate(rng: random.Random) -> str:
    return f"{''.join(rng.choices('ABCDEFGHKLMNPRSTW', k=2))}-{rng.randint(100, 999)}"


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"files {split} {number}")
    cases = [f"K{key}" for key in rng.sample(range(1000, 9999), 3)]
    notes = {}
    answer = plate(rng)
    for case in cases:
        days = sorted(rng.sample(range(1, 29), 3))
        witness = rng.randrange(3)
        for place, day in enumerate(days):
            details = rng.sample(DETAILS, rng.randint(2, 5))
            if place == witness:
                seen = answer if case == cases[0] else plate(rng)
                details.insert(rng.randint(0, len(details)), f"A witness noted the plate {seen}.")
            text = " ".join([rng.choice(OPENINGS), *details])
            notes[f"N{rng.randint(10**5, 10**6 - 1)}"] = {"case": case, "date": f"2025-03-{day:02}", "text": text}
    text = (
        f"Query {FIRST_NUMBER[split] + number}: which number plate did the witness in case {cases[0]} note? End with the plate, as in "
        "<answer>XY-012</answer>."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": text},),
        fields={"notes": notes, "case": cases[0], "answer": answer},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
