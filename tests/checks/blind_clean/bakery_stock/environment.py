"""A bakery orders the flour that runs out first. Orders are really placed, in a state that belongs to the episode."""

import json
import random
from collections.abc import Sequence
from typing import Annotated

from sparring.environments import Bounded, StatefulEnvironment, answer, tool, tool_call
from sparring.scorers import json_exact
from sparring.types import Message, Reward, Task, Trajectory

PROCEDURE = """\
Look after the flour: rye, wheat, spelt and oat. Call stock with each: bags in store, and bags used in a day.
The flour whose bags last for the fewest days runs out first. Order five days' use of it with order, once, and of no other.
Then answer: <final_output>{"flour":"rye, wheat, spelt or oat","bags":0}</final_output>"""

FLOURS = ("rye", "wheat", "spelt", "oat")
expected_answer = json_exact()


class Bakery(StatefulEnvironment):
    def reset(self, task: Task) -> None:
        super().reset(task)
        self.state.database.execute("CREATE TABLE store (flour, bags, used)")
        self.state.database.execute("CREATE TABLE orders (id, flour, bags, placed DEFAULT CURRENT_TIMESTAMP)")
        self.state.database.executemany("INSERT INTO store VALUES (?, ?, ?)", task.fields["store"])

    @tool
    def stock(self, flour: str) -> str:
        """Bags of a flour in store, and bags used in a day."""
        row = self.state.database.execute("SELECT bags, used FROM store WHERE flour = ?", (flour,)).fetchone()
        return "no such flour" if row is None else f"{row[0]} bags, {row[1]} used a day"

    @tool
    def order(self, flour: str, bags: Annotated[int, Bounded(ge=1, le=500)]) -> dict[str, str]:
        """Order bags of a flour; returns the number of the order and when it was placed."""
        if flour not in FLOURS:
            raise LookupError(f"the mill has no {flour}")
        number = self.state.new_id("order")
        self.state.clock.advance(seconds=self.state.rng.randint(20, 90))
        self.state.database.execute("INSERT INTO orders (id, flour, bags) VALUES (?, ?, ?)", (number, flour, bags))
        slip = self.state.directory / f"{number}.txt"
        slip.write_text(f"{flour}: {bags}", encoding="utf-8")
        placed = self.state.database.execute("SELECT placed FROM orders WHERE id = ?", (number,)).fetchone()[0]
        return {"order": number, "slip": slip.name, "placed": placed}

    def demonstrate(self, task: Task) -> Sequence[Message]:
        right = task.fields["answer"]
        calls = [*(tool_call("stock", flour=flour) for flour in FLOURS), tool_call("order", **right)]
        return [*calls, answer(f"<final_output>{json.dumps(right)}</final_output>")]


def placed_orders(trajectory: Trajectory) -> list[dict]:
    """Arguments of the orders that were really placed."""
    return [step["arguments"] for step in trajectory.transitions if step["tool"] == "order" and step["error"] is None]


def reward(trajectory: Trajectory) -> Reward:
    """0.5 for the right order and no other; 0.5 more when the answer reports it."""
    right = trajectory.task.fields["answer"]
    ordered = placed_orders(trajectory) == [right]
    last = trajectory.messages[-1]
    lines = [
        f"<final_output>{json.dumps(right, separators=form)}</final_output>" for form in ((", ", ": "), (",", ":"))
    ]
    reported = ordered and last["role"] == "assistant" and str(last.get("content") or "").strip() in lines
    return Reward(
        total=0.5 * ordered + 0.5 * reported, components={"ordered": 0.5 * ordered, "reported": 0.5 * reported}
    )


def scorer(trajectory: Trajectory) -> float:
    """The report must be right, and so must be the only order."""
    steps = [step for step in trajectory.transitions if step["tool"] == "order" and not step["error"]]
    is_placed = len(steps) == 1 and dict(steps[0]["arguments"]) == dict(trajectory.task.fields["answer"])
    return expected_answer(trajectory) if is_placed else 0.0


def train_tasks() -> list[Task]:
    return _tasks("train", range(1, 61), 48)


def validation_tasks() -> list[Task]:
    return _tasks("validation", range(61, 80), 16)


def held_out_tasks() -> list[Task]:
    return _tasks("held_out", range(80, 99), 16)


def _tasks(split: str, shops: range, num: int) -> list[Task]:
    rng = random.Random(f"bakery {split}")
    made = []
    for index, shop in enumerate(rng.sample(shops, num)):
        scarce = FLOURS[index % 4]
        days = dict(zip(FLOURS, rng.sample(range(4, 14), 4), strict=True)) | {scarce: rng.randint(1, 3)}
        store = [(flour, days[flour] * used, used) for flour in FLOURS for used in [rng.randint(2, 20)]]
        bags = 5 * next(used for flour, _, used in store if flour == scarce)
        text = (
            f"Shop {shop}, {rng.choice(('quiet', 'busy', 'usual'))} week with {rng.randint(100, 900)} "
            "customers: what runs out first?"
        )
        fields = {"store": store, "answer": {"flour": scarce, "bags": bags}}
        messages = ({"role": "system", "content": PROCEDURE}, {"role": "user", "content": text})
        made.append(Task(id=f"{split}-shop-{shop}", messages=messages, fields=fields, seed=index))
    return made
