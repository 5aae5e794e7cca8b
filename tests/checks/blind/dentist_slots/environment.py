"""A dentist's front desk: book the earliest slot that is long enough and suits the patient."""

import random
from collections.abc import Sequence

from sparring.environments import Environment, answer, tool, tool_call
from sparring.types import Message, Reward, Task, Trajectory

PROCEDURE = """\
Book an appointment.
- treatment with its name: the minutes it takes.
- slots with the day: free slots of that day, with their code and minutes.
The patient names two days and likes the first better. Take the slot with the smallest number in its code that has at least
the minutes of the treatment on the first day; if there is none, the same on the second day.
Reply with the code in brackets and nothing else, like [Mo-0]"""

MINUTES = {"check": 20, "filling": 40, "crown": 60, "cleaning": 30, "extraction": 50}
DAYS = ("Mo", "Tu", "We", "Th", "Fr")


class FrontDesk(Environment):
    """The book of one week."""

    def reset(self, task: Task) -> None:
        self.week: dict[str, dict[str, int]] = task.fields["week"]

    @tool
    def treatment(self, name: str) -> str:
        """How long a treatment takes."""
        return f"{MINUTES[name]} minutes" if name in MINUTES else f"no dentist here does {name}"

    @tool
    def slots(self, day: str) -> dict[str, int]:
        """Free slots of a day and their minutes."""
        if day not in self.week:
            raise LookupError(f"days are {', '.join(self.week)}")
        return dict(self.week[day])

    def demonstrate(self, task: Task) -> Sequence[Message]:
        fields = task.fields
        days = fields["days"] if fields["slot"].startswith(fields["days"][1]) else fields["days"][:1]
        calls = [tool_call("treatment", name=fields["treatment"]), *(tool_call("slots", day=day) for day in days)]
        return [*calls, answer(f"[{fields['slot']}]")]


def first_fit(week: dict[str, dict[str, int]], days: Sequence[str], minutes: int) -> str | None:
    for day in days:
        fitting = [code for code, free in week[day].items() if free >= minutes]
        if fitting:
            return min(fitting, key=lambda code: int(code.partition("-")[2]))
    return None


def reward(trajectory: Trajectory) -> Reward:
    """Did the patient get the slot? 0.1 is for a reply in brackets."""
    conversation = "\n".join(str(message.get("content") or "") for message in trajectory.messages)
    last = trajectory.messages[-1]
    final = str(last.get("content") or "").strip() if last["role"] == "assistant" else ""
    booked = 0.9 * (trajectory.task.fields["slot"] in conversation)
    form = 0.1 * (final.startswith("[") and final.endswith("]") and len(final) < 9)
    return Reward(total=booked + form, components={"booked": booked, "form": form})


def scorer(trajectory: Trajectory) -> float:
    last = trajectory.messages[-1]
    reply = last.get("content") if last["role"] == "assistant" else None
    return float((reply or "").strip() == f"[{trajectory.task.fields['slot']}]")


def train_tasks() -> list[Task]:
    return _tasks("train", 50)


def validation_tasks() -> list[Task]:
    return _tasks("validation", 15)


def held_out_tasks() -> list[Task]:
    return _tasks("held_out", 20)


def _tasks(split: str, num: int) -> list[Task]:
    rng = random.Random(f"slots {split}")
    names = {
        "train": ("Adler", "Blum", "Conti", "Duval", "Eriksen", "Fabri", "Grau", "Holm"),
        "validation": ("Ivens", "Jansen", "Klee"),
        "held_out": ("Lorca", "Munk", "Novak", "Orban"),
    }[split]
    made: list[Task] = []
    while len(made) < num:
        week = {
            day: {f"{day}-{code}": rng.choice((20, 30, 40, 60)) for code in sorted(rng.sample(range(1, 30), 4))}
            for day in DAYS
        }
        days, treatment = rng.sample(DAYS, 2), rng.choice(list(MINUTES))
        slot = first_fit(week, days, MINUTES[treatment])
        if slot is None or slot.startswith(days[len(made) % 2 == 0]):
            continue
        text = (
            f"{rng.choice(names)} here, born {rng.randint(1940, 2015)}, I need a {treatment}, best on "
            f"{days[0]}, or else on {days[1]}."
        )
        fields = {"week": week, "days": days, "treatment": treatment, "slot": slot}
        messages = ({"role": "system", "content": PROCEDURE}, {"role": "user", "content": text})
        made.append(Task(id=f"{split}-{len(made)}", messages=messages, fields=fields))
    return made
