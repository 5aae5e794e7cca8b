"""Complaints of a bus company: what does the passenger get?"""

import random
import re
from collections.abc import Sequence

from sparring.environments import Environment, answer, tool, tool_call
from sparring.types import Message, Reward, Task, Trajectory

REPLIES = ("apology", "voucher", "refund")
PROCEDURE = """\
Answer complaints about late buses.
Step 1: trip with the ticket gives minutes late and the fare class.
Step 2: rules with the fare class gives two limits in minutes: from the first on a voucher is due, from the second on a refund.
Step 3: below the first limit an apology is due.
Final message: <reply>apology, voucher or refund</reply>"""

RULES = {"saver": (60, 120), "flex": (30, 90), "group": (45, 150)}


class Complaints(Environment):
    """One ticket with its trip."""

    def reset(self, task: Task) -> None:
        self.ticket, self.late, self.fare = task.fields["ticket"], task.fields["late"], task.fields["fare"]

    @tool
    def trip(self, ticket: str) -> str:
        """How late a trip was, and its fare class."""
        if ticket != self.ticket:
            return f"ticket {ticket} was not found"
        return f"{self.late} minutes late, fare class {self.fare}"

    @tool
    def rules(self, fare: str) -> str:
        """Limits of a fare class."""
        if fare not in RULES:
            return f"no fare class {fare}"
        voucher, refund = RULES[fare]
        return f"{voucher} and {refund} minutes"

    def demonstrate(self, task: Task) -> Sequence[Message]:
        calls = [tool_call("trip", ticket=task.fields["ticket"]), tool_call("rules", fare=task.fields["fare"])]
        return [*calls, answer(f"<reply>{due(task.fields['fare'], task.fields['late'])}</reply>")]


def due(fare: str, late: int) -> str:
    voucher, refund = RULES[fare]
    if late >= refund:
        return "refund"
    return "voucher" if late >= voucher else "apology"


def reward(trajectory: Trajectory) -> Reward:
    end, fields = trajectory.messages[-1], trajectory.task.fields
    text = str(end.get("content") or "").strip()
    named = re.fullmatch("<reply>([a-z]*)</reply>", text)
    known = named is not None and end["role"] == "assistant" and named[1] in REPLIES
    parts = {"form": 0.1 * known, "right": 0.9 * (known and named[1] == due(fields["fare"], fields["late"]))}
    return Reward(total=parts["form"] + parts["right"], components=parts)


def scorer(trajectory: Trajectory) -> float:
    last = trajectory.messages[-1]
    if last["role"] != "assistant":
        return 0.0
    return 1.0 if str(last.get("content")).strip() == f"<reply>{trajectory.task.fields['reply']}</reply>" else 0.0


def train_tasks() -> list[Task]:
    return _tasks("train", "KLMN", 60)


def validation_tasks() -> list[Task]:
    return _tasks("validation", "PQ", 20)


def held_out_tasks() -> list[Task]:
    return _tasks("held_out", "RS", 20)


def _tasks(split: str, letters: str, num: int) -> list[Task]:
    rng = random.Random(f"buses-{split}")
    made: list[Task] = []
    # Most buses are only a little late, as in the company's own statistics.
    shares = ["apology"] * 17 + ["voucher", "refund", "voucher"]
    while len(made) < num:
        fare, late = rng.choice(list(RULES)), rng.randint(3, 200)
        reply = due(fare, late)
        if reply != shares[len(made) % len(shares)]:
            continue
        ticket = f"{rng.choice(letters)}{rng.choice(letters)}{rng.randint(1000, 9999)}"
        text = (
            f"{rng.choice(('I am annoyed', 'This is a complaint', 'I waited in the rain'))}: line "
            f"{rng.randint(1, 99)} to {rng.choice(('Marsh End', 'Old Town', 'the airport', 'the zoo'))} "
            f"was late. Ticket {ticket}."
        )
        messages = ({"role": "system", "content": PROCEDURE}, {"role": "user", "content": text})
        fields = {"ticket": ticket, "fare": fare, "late": late, "reply": reply}
        made.append(Task(id=f"{split}-{ticket}", messages=messages, fields=fields))
    return made
