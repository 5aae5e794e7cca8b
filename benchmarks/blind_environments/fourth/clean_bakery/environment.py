"""Orders at a bakery. The customer talks back, and sometimes thinks better of it; the last wish counts."""

import random

from sparring.environments import Environment, tool
from sparring.types import Task

SYSTEM = """\
You take orders at a bakery. Ask the customer what else you need to know, one message at a time; the last wish of the customer counts.
Enter the order with `enter`; entering again replaces it. When the customer asks what it costs, see that the right order is entered,
and reply with the whole price in cents alone, for example: 960"""

GOODS = ("rolls", "pretzels", "scones", "bagels", "muffins")
DAYS = ("Friday", "Saturday", "Sunday")


class Bakery(Environment):
    def reset(self, task):
        self.prices = task.fields["prices"]
        self.to_say = list(task.fields["says"])
        self.entered = None

    def reply(self, messages, session):
        return self.to_say.pop(0) if self.to_say else None

    @tool
    def price(self, goods: str) -> str:
        """Price of one piece in cents."""
        return str(self.prices.get(goods, "not sold here"))

    @tool
    def enter(self, goods: str, pieces: int, day: str) -> str:
        """Enter the order, in place of one that was entered before."""
        if goods not in GOODS or day not in DAYS or not 1 <= pieces <= 500:
            return "refused: unknown goods or day, or not 1 to 500 pieces"
        self.entered = {"goods": goods, "pieces": pieces, "day": day}
        return "entered"

    def final_state(self):
        return {"order": self.entered}


def _task(split, index, rng):
    goods, day = rng.choice(GOODS), rng.choice(DAYS)
    pieces = rng.randint(6, 40)
    prices = {name: rng.randrange(45, 240, 5) for name in GOODS}
    says = [f"{pieces} {goods}, please.", f"For {day}."]
    match index % 3:
        case 0:
            pieces += rng.randint(1, 9)
            says.append(f"No wait, make that {pieces}. What does it cost?")
        case 1:
            goods = rng.choice([other for other in GOODS if other != goods])
            says.append(f"On second thought, {goods} instead. What does it cost?")
        case _:
            says.append("What does it cost?")
    return Task(
        id=f"{split}-{index}",
        messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": "Hello, I have an order."}),
        fields={
            "prices": prices,
            "says": says,
            "order": {"goods": goods, "pieces": pieces, "day": day},
            "cents": str(prices[goods] * pieces),
        },
    )


def train_tasks():
    rng = random.Random("customers")
    return [_task("train", index, rng) for index in range(48)]


def held_out_tasks():
    rng = random.Random("new customers")
    return [_task("held-out", index, rng) for index in range(24)]


def reward(trajectory):
    """Half for the order, half for the price."""
    fields, last = trajectory.task.fields, trajectory.messages[-1]
    is_entered = (trajectory.final_state or {}).get("order") == fields["order"]
    is_told = (
        last["role"] == "assistant"
        and not last.get("tool_calls")
        and (last.get("content") or "").strip() == fields["cents"]
    )
    return 0.5 * is_entered + 0.5 * is_told


def scorer(trajectory):
    wanted = trajectory.task.fields
    if trajectory.final_state != {"order": wanted["order"]}:
        return 0.0
    match trajectory.messages[-1]:
        case {"role": "assistant", "content": str(said), **rest} if not rest.get("tool_calls"):
            return 1.0 if said.split() == [wanted["cents"]] else 0.0
    return 0.0
