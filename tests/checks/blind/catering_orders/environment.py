"""Catering: choose a menu that suits all guests, and say how many waiters come along."""

import json
import random
from collections.abc import Sequence

from sparring.environments import Environment, answer, tool, tool_call
from sparring.scorers import json_exact
from sparring.types import Message, Task, Trajectory

PROCEDURE = """\
Plan a party. guests gives the number of guests and what some of them cannot eat. dishes gives what a menu contains.
Menus: forest, coast, meadow, market. Exactly one contains nothing that a guest cannot eat; choose it.
waiters: one for each 12 guests begun (12 guests need 1, 13 need 2).
Answer: <final_output>{"menu":"name of the menu","waiters":0}</final_output>"""

MENUS = ("forest", "coast", "meadow", "market")
FOODS = ("nuts", "fish", "milk", "wheat", "eggs", "celery", "soy", "sesame")


class Catering(Environment):
    def reset(self, task: Task) -> None:
        self.order = task.fields["order"]
        self.menus = task.fields["menus"]
        self.party = task.fields["party"]

    @tool
    def guests(self, order: int) -> dict[str, int | list[str]]:
        """Who comes to the party of an order."""
        if order != self.order:
            raise LookupError(f"no order {order}")
        return {"guests": self.party["guests"], "cannot_eat": list(self.party["cannot_eat"])}

    @tool
    def dishes(self, menu: str) -> str:
        """What a menu of this season contains."""
        return ", ".join(self.menus[menu]) if menu in self.menus else f"there is no menu {menu}"

    def demonstrate(self, task: Task) -> Sequence[Message]:
        calls = [tool_call("guests", order=task.fields["order"]), *(tool_call("dishes", menu=menu) for menu in MENUS)]
        return [*calls, answer(f"<final_output>{json.dumps(task.fields['answer'])}</final_output>")]


def _reject_repeated_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise ValueError("twice the same key")
    return dict(pairs)


def reward(trajectory: Trajectory) -> tuple[float, dict[str, float]]:
    """What is left of 1 after half a point off for each mistake."""
    last, expected = trajectory.messages[-1], trajectory.task.fields["answer"]
    text = str(last.get("content") or "") if last["role"] == "assistant" else ""
    head, opening, rest = text.partition("<final_output>")
    body, closing, tail = rest.partition("</final_output>")
    if not opening or not closing or "final_output>" in head + body + tail:
        return 0.0, {"mistakes": 2.0}
    try:
        given = json.loads(body, object_pairs_hook=_reject_repeated_keys)
    except ValueError:
        return 0.0, {"mistakes": 2.0}
    if not isinstance(given, dict):
        return 0.0, {"mistakes": 2.0}
    mistakes = sum(
        name not in expected or json.dumps(value) != json.dumps(expected[name]) for name, value in given.items()
    )
    return max(0.0, 1.0 - 0.5 * mistakes), {"mistakes": float(mistakes)}


scorer = json_exact()


def train_tasks() -> list[Task]:
    return _tasks("train", range(100, 500), 48)


def validation_tasks() -> list[Task]:
    return _tasks("validation", range(500, 600), 16)


def held_out_tasks() -> list[Task]:
    return _tasks("held_out", range(600, 900), 16)


def _tasks(split: str, orders: range, num: int) -> list[Task]:
    rng = random.Random(f"catering {split}")
    made = []
    for index, order in enumerate(rng.sample(orders, num)):
        chosen, bad = MENUS[index % 4], rng.sample(FOODS, 2)
        fine = [food for food in FOODS if food not in bad]
        menus = {menu: rng.sample(fine, 3) for menu in MENUS}
        for menu in MENUS:
            if menu != chosen:
                menus[menu][rng.randrange(3)] = rng.choice(bad)
        guests = rng.randint(5, 70)
        text = (
            f"Order {order}: a {rng.choice(('wedding', 'birthday', 'jubilee', 'farewell'))} on the "
            f"{rng.randint(1, 28)}th of {rng.choice(('May', 'July', 'October'))}."
        )
        fields = {
            "order": order,
            "menus": menus,
            "party": {"guests": guests, "cannot_eat": bad},
            "answer": {"menu": chosen, "waiters": -(-guests // 12)},
        }
        messages = ({"role": "system", "content": PROCEDURE}, {"role": "user", "content": text})
        made.append(Task(id=f"order-{order}", messages=messages, fields=fields))
    return made
