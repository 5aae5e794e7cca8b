"""Membership desk of a gym: what is done about a member's unpaid fees."""

import random
import re
from collections.abc import Sequence

from sparring.environments import Environment, answer, tool, tool_call
from sparring.types import Message, Reward, Task, Trajectory

STEPS = ("remind", "suspend", "cancel")
PROCEDURE = """\
Membership desk. Call member with the number: plan, and days that the fee is overdue. Call plan with the plan: the days of
its two limits.
- Overdue for fewer days than the first limit: remind.
- For as many days as the first limit or more, but fewer than the second: suspend.
- For as many days as the second limit or more: cancel.
Finish with <step>...</step>, the step inside, nothing around it."""

PLANS = {"day": (7, 21), "month": (14, 45), "family": (20, 60), "student": (30, 90)}


class Gym(Environment):
    def reset(self, task: Task) -> None:
        self.number, self.account = task.fields["number"], task.fields["account"]

    @tool
    def member(self, number: int) -> dict[str, str | int]:
        """Account of a member."""
        return dict(self.account) if number == self.number else {"error": f"{number} is no member"}

    @tool
    def plan(self, name: str) -> dict[str, int]:
        """Limits of a plan in days."""
        if name not in PLANS:
            raise LookupError(f"no plan {name}")
        first, second = PLANS[name]
        return {"first_limit": first, "second_limit": second}

    def demonstrate(self, task: Task) -> Sequence[Message]:
        account = task.fields["account"]
        first, second = PLANS[account["plan"]]
        if account["overdue_days"] <= first:
            step = "remind"
        elif account["overdue_days"] <= second:
            step = "suspend"
        else:
            step = "cancel"
        calls = [tool_call("member", number=task.fields["number"]), tool_call("plan", name=account["plan"])]
        return [*calls, answer(f"<step>{step}</step>")]


def right_step(plan: str, days: int) -> str:
    first, second = PLANS[plan]
    return STEPS[(days >= first) + (days >= second)]


def reward(trajectory: Trajectory) -> Reward:
    message = trajectory.messages[-1]
    body = re.fullmatch(r"<step>(\w+)</step>", str(message.get("content") or "").strip())
    reply = body[1] if body and message["role"] == "assistant" else None
    form, right = 0.2 * (reply in STEPS), 0.8 * (reply == trajectory.task.fields["step"])
    return Reward(total=form + right, components={"form": form, "right": right})


def scorer(trajectory: Trajectory) -> float:
    final = trajectory.messages[-1]
    wanted = f"<step>{trajectory.task.fields['step']}</step>"
    return float(final["role"] == "assistant" and str(final.get("content")).strip() == wanted)


def train_tasks() -> list[Task]:
    return _tasks("train", range(1000, 5000), 54)


def validation_tasks() -> list[Task]:
    return _tasks("validation", range(5000, 6000), 15)


def held_out_tasks() -> list[Task]:
    return _tasks("held_out", range(6000, 9000), 18)


def _tasks(split: str, numbers: range, num: int) -> list[Task]:
    rng = random.Random(f"gym-{split}")
    made: list[Task] = []
    for number in rng.sample(numbers, num * 12):
        plan = rng.choice(list(PLANS))
        # Every sixth member is overdue for just as long as a limit.
        days = rng.choice(PLANS[plan]) if rng.random() < 0.17 else rng.randint(1, 120)
        step = right_step(plan, days)
        if len(made) == num or step != STEPS[len(made) % 3]:
            continue
        text = (
            f"Member {number} ({rng.choice(('swims', 'climbs', 'lifts', 'boxes'))} on "
            f"{rng.choice(('Mondays', 'Fridays', 'Sundays'))}) has not paid {rng.randint(15, 90)} crowns."
        )
        fields = {"number": number, "account": {"plan": plan, "overdue_days": days}, "step": step}
        messages = ({"role": "system", "content": PROCEDURE}, {"role": "user", "content": text})
        made.append(Task(id=f"{split}-{number}", messages=messages, fields=fields))
    return made
