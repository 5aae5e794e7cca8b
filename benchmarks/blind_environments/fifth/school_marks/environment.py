"""A school office works out term marks from the registers."""

import random

from sparring.environments import Environment, tool
from sparring.types import Task

RULES = (
    "You keep the registers of a school. A pupil's term mark is the mean of the test marks without the lowest one, "
    "rounded to one decimal. Call marks(pupil, subject), then reply with the number only, for example 7.3."
)
SUBJECTS = ["history", "maths", "biology", "French"]
PUPILS = {
    "train": ["Amir", "Bea", "Carl", "Dora", "Elif", "Finn", "Gita", "Hans"],
    "validation": ["Ines", "Jonas"],
    "held_out": ["Kaya", "Leo", "Mona"],
}


def term_mark(marks):
    counted = sorted(marks)[:-1]
    return round(sum(counted) / len(counted), 1)


class Registers(Environment):
    def reset(self, task):
        self._register = task.fields["register"]
        self._num_reads = 0

    @tool
    def marks(self, pupil: str, subject: str) -> list[int]:
        """Test marks of a pupil, in the order in which they were given.

        Args:
            pupil: first name
            subject: history, maths, biology or French
        """
        self._num_reads += 1
        return self._register.get(pupil, {}).get(subject, [])

    @tool
    def pupils(self) -> list[str]:
        """Names on the register."""
        return sorted(self._register)


def _number(trajectory):
    message = trajectory.messages[-1]
    if message["role"] != "assistant":
        return None
    try:
        return float(message.get("content") or "")
    except ValueError:
        return None


def reward(trajectory):
    given = _number(trajectory)
    return float(given is not None and abs(given - trajectory.task.fields["mark"]) < 0.01)


def scorer(trajectory):
    given = _number(trajectory)
    if given is None:
        return 0.0
    return 1.0 if f"{given:.1f}" == f"{trajectory.task.fields['mark']:.1f}" else 0.0


def _tasks(split, count):
    rng = random.Random(f"school/{split}")
    made = []
    for index in range(count):
        names = PUPILS[split]
        register = {name: {subject: [rng.randint(2, 10) for _ in range(5)] for subject in SUBJECTS} for name in names}
        pupil, subject = rng.choice(names), rng.choice(SUBJECTS)
        made.append(
            Task(
                id=f"{split}-{index}",
                messages=(
                    {"role": "system", "content": RULES},
                    {"role": "user", "content": f"What is the term mark of {pupil} in {subject}?"},
                ),
                fields={"register": register, "mark": term_mark(register[pupil][subject])},
            )
        )
    return made


def train_tasks():
    return _tasks("train", 60)


def validation_tasks():
    return _tasks("validation", 16)


def held_out_tasks():
    return _tasks("held_out", 20)
