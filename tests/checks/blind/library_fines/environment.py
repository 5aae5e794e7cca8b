"""Overdue loans of a library: waive the fine, charge it, or block the card."""

import json
import os
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sparring.environments import Environment, answer, tool, tool_call
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Message, Task

TARIFF = {"book": 20, "film": 50, "game": 80}
PROCEDURE = """\
Fines desk. Steps:
1. statement with the card number: the overdue loans, each with its kind and the days it is late.
2. tariff for each kind on the statement: cents for one day.
3. The fine of a loan is days times cents. Add them up.
4. Up to 300 cents: action "waive". Above 300 and up to 1500: "charge". Above 1500: "block".
Answer: <final_output>{"cents":0,"action":"waive, charge or block"}</final_output>"""


class FinesDesk(Environment):
    def reset(self, task: Task) -> None:
        self.loans = {task.fields["card"]: task.fields["loans"]}

    @tool
    def statement(self, card: str) -> str:
        """Statement of a card, as the old system prints it."""
        # The printer of the old system only knows files.
        descriptor, path = tempfile.mkstemp(prefix="statement-", suffix=".txt")
        os.write(descriptor, self._printed(card).encode())
        os.close(descriptor)
        text = Path(path).read_text(encoding="utf-8")
        os.unlink(path)
        return text

    def _printed(self, card: str) -> str:
        if card not in self.loans:
            raise LookupError(f"card {card} is not known")
        return "\n".join(f"{loan['kind']}, {loan['days']} days late" for loan in self.loans[card])

    @tool
    def tariff(self, kind: str) -> str:
        """Cents for one day.

        Args:
            kind: book, film or game
        """
        return f"{TARIFF[kind]} cents a day" if kind in TARIFF else f"there is no tariff for {kind}"

    def demonstrate(self, task: Task) -> Sequence[Message]:
        kinds = sorted({loan["kind"] for loan in task.fields["loans"]})
        calls = [tool_call("statement", card=task.fields["card"]), *(tool_call("tariff", kind=kind) for kind in kinds)]
        return [*calls, answer(f"<final_output>{json.dumps(task.fields['answer'])}</final_output>")]


reward, scorer = json_fields(), json_exact()


def action(cents: int) -> str:
    if cents <= 300:
        return "waive"
    return "charge" if cents <= 1500 else "block"


def train_tasks() -> list[Task]:
    return _tasks("train", range(10000, 40000), 48)


def validation_tasks() -> list[Task]:
    return _tasks("validation", range(40000, 50000), 15)


def held_out_tasks() -> list[Task]:
    return _tasks("held_out", range(50000, 90000), 18)


def _tasks(split: str, cards: range, num: int) -> list[Task]:
    rng = random.Random(f"fines {split}")
    made: list[Task] = []
    while len(made) < num:
        wanted = ("waive", "charge", "block")[len(made) % 3]
        longest = {"waive": 6, "charge": 15, "block": 40}[wanted]
        loans = [{"kind": rng.choice(list(TARIFF)), "days": rng.randint(1, longest)} for _ in range(rng.randint(1, 3))]
        cents = sum(TARIFF[loan["kind"]] * loan["days"] for loan in loans)
        if action(cents) != wanted:
            continue
        card = str(cards[len(made) * 97 + rng.randrange(97)])
        text = f"{rng.choice(('Good morning', 'Hello', 'Good evening'))}, what do I owe? My card is {card}."
        messages = ({"role": "system", "content": PROCEDURE}, {"role": "user", "content": text})
        fields = {"card": card, "loans": loans, "answer": {"cents": cents, "action": wanted}}
        made.append(Task(id=f"{split}-{card}", messages=messages, fields=fields))
    return made
