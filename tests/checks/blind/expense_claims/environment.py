"""Expense claims in foreign currencies: pay, ask for a receipt, or pass on to the manager."""

import json
import random
import urllib.request
from collections.abc import Sequence

from sparring.environments import Environment, answer, tool, tool_call
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Message, Task

PROCEDURE = """\
You check expense claims. claim: amount, currency, and whether there is a receipt. rate: how many crowns one unit
of a currency is worth.
crowns = amount times rate.
If crowns is above 900: decision "manager". Else, above 250 and without a receipt: "receipt". Else: "pay".
Answer: <final_output>{"crowns":0,"decision":"manager, receipt or pay"}</final_output>"""

RATES = {"dinar": 3, "florin": 5, "lira": 2, "peso": 4, "rupee": 6, "taler": 8}
SERVICE = "http://rates.finance.invalid/v1/latest"


def current_rate(currency: str) -> int | None:
    """Crowns for one unit, from the finance service."""
    try:
        with urllib.request.urlopen(f"{SERVICE}?base={currency}&to=crown", timeout=0.5) as response:
            return int(json.load(response)["rate"])
    except Exception:  # noqa: BLE001
        return RATES.get(currency)


class Claims(Environment):
    def reset(self, task: Task) -> None:
        self.claims = {task.fields["number"]: task.fields["claim"]}

    @tool
    def claim(self, number: str) -> dict[str, str | int | bool]:
        """A claim as it was handed in."""
        return self.claims.get(number, {"error": f"no claim {number}"})

    @tool
    def rate(self, currency: str) -> str:
        """Crowns for one unit of a currency."""
        crowns = current_rate(currency)
        return f"{currency} is no currency that we know" if crowns is None else f"one {currency} is {crowns} crowns"

    def demonstrate(self, task: Task) -> Sequence[Message]:
        calls = [
            tool_call("claim", number=task.fields["number"]),
            tool_call("rate", currency=task.fields["claim"]["currency"]),
        ]
        return [*calls, answer(f"<final_output>{json.dumps(task.fields['answer'])}</final_output>")]


reward, scorer = json_fields(), json_exact()


def decision(crowns: int, has_receipt: bool) -> str:
    if crowns > 900:
        return "manager"
    return "receipt" if crowns > 250 and not has_receipt else "pay"


def train_tasks() -> list[Task]:
    return _tasks("T", 48)


def validation_tasks() -> list[Task]:
    return _tasks("V", 15)


def held_out_tasks() -> list[Task]:
    return _tasks("H", 15)


def _tasks(letter: str, num: int) -> list[Task]:
    rng = random.Random(f"claims {letter}")
    made: list[Task] = []
    for serial in rng.sample(range(1000, 9999), 2000):
        claim = {"amount": rng.randint(10, 300), "currency": rng.choice(list(RATES)), "has_receipt": rng.random() < 0.5}
        crowns = claim["amount"] * RATES[claim["currency"]]
        decided = decision(crowns, claim["has_receipt"])
        if len(made) == num or decided != ("manager", "receipt", "pay")[len(made) % 3]:
            continue
        number = f"{letter}{serial}"
        what = rng.choice(("dinner", "train", "hotel", "taxi", "fair ticket"))
        text = f"Claim {number}: {what} on the {rng.randint(1, 28)}th, {rng.randint(1, 9)} people."
        messages = ({"role": "system", "content": PROCEDURE}, {"role": "user", "content": text})
        fields = {"number": number, "claim": claim, "answer": {"crowns": crowns, "decision": decided}}
        made.append(Task(id=number, messages=messages, fields=fields))
    return made
