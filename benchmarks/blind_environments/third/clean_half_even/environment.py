"""An exchange office that buys at one rate, sells at another, and rounds half to even: so its terms say."""

from __future__ import annotations

import random
import re
from decimal import ROUND_HALF_EVEN, Decimal

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match
from sparring.types import Task

TERMS = """\
Exchange office. The customer who brings foreign money sells it to us, at our 'buy' rate; the customer who wants foreign money
pays our 'sell' rate for it. Rates are euros for one unit of foreign money. Amounts are rounded to cents, half a cent to the even
cent (0.125 becomes 0.12, 0.135 becomes 0.14). Answer with the amount in euros, always with two digits after the point:
<final_output>10.00</final_output>"""


class Exchange(Environment):
    def reset(self, task: Task) -> None:
        self.rates = {code: (Decimal(buy), Decimal(sell)) for code, (buy, sell) in task.fields["rates"].items()}

    @tool
    def rate(self, currency: str) -> dict[str, str]:
        """Rates for a currency in euros.

        Args:
            currency: three letters
        """
        if currency not in self.rates:
            raise ToolFailure(f"we do not trade {currency}")
        buy, sell = self.rates[currency]
        return {"sell": str(sell), "buy": str(buy)}

    @tool
    def times(self, amount: int, rate: str) -> str:
        """An amount at a rate, in euros and cents, rounded half to even.

        Args:
            amount: whole units of foreign money
            rate: as the tool rate writes it, for example "0.125"
        """
        if not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", rate):
            raise ToolFailure(f"{rate!r} is no rate")
        return str((amount * Decimal(rate)).quantize(Decimal("0.01"), rounding=ROUND_HALF_EVEN))


def reward(trajectory) -> float:
    last = trajectory.messages[-1]
    found = re.findall(r"<final_output>\s*(\d+\.\d\d)\s*</final_output>", last.get("content") or "")
    if last["role"] != "assistant" or len(found) != 1:
        return 0.0
    return float(Decimal(found[0]) == Decimal(trajectory.task.fields["answer"]))


scorer = exact_match()


def _task(split: str, index: int) -> Task:
    rng = random.Random(f"exchange {split} {index}")
    rates = {}
    for code in rng.sample(["USD", "GBP", "CHF", "SEK", "PLN", "CZK", "DKK", "NOK"], 4):
        thousandths = rng.randrange(60, 1400)
        rates[code] = (str(Decimal(thousandths) / 1000), str(Decimal(thousandths + rng.randint(5, 40)) / 1000))
    code, amount = rng.choice(sorted(rates)), rng.randrange(5, 900, 5)
    brings = index % 2 == 0
    cents, half = divmod(int(Decimal(rates[code][0 if brings else 1]) * 1000) * amount, 10)
    cents += half > 5 or (half == 5 and cents % 2)
    slip = rng.randint(10_000, 99_999)
    user = (
        f"Slip {slip}. A customer brings {amount} {code}. What do we pay out?"
        if brings
        else f"Slip {slip}. A customer wants {amount} {code}. What is to be paid?"
    )
    return Task(
        id=f"{split}-{index}",
        messages=({"role": "system", "content": TERMS}, {"role": "user", "content": user}),
        fields={
            "rates": {name: list(pair) for name, pair in rates.items()},
            "code": code,
            "amount": amount,
            "brings": brings,
            "answer": f"{cents // 100}.{cents % 100:02}",
        },
    )


def train_tasks() -> list[Task]:
    return [_task("train", index) for index in range(40)]


def held_out_tasks() -> list[Task]:
    return [_task("held", index) for index in range(14)]
