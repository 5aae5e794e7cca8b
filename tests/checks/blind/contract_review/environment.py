"""Review of supply contracts: is a contract signed, negotiated or declined?"""

import random
import re
from collections.abc import Sequence

from sparring.environments import Environment, answer, tool, tool_call
from sparring.types import Message, Reward, Task, Trajectory

DECISIONS = ("sign", "negotiate", "decline")
PROCEDURE = """\
Review a contract. clauses gives its text. house_rules gives the longest notice in months and the highest penalty in per cent
that we accept from a partner of the given kind (supplier, carrier or agency).
Both within the rules: sign. One beyond: negotiate. Both beyond: decline.
Write <decision>sign, negotiate or decline</decision> and nothing else at the end."""

RULES = {"supplier": (6, 10), "carrier": (3, 15), "agency": (2, 5)}
BOILERPLATE = (
    "The parties meet their obligations with the care of a prudent merchant and keep each other informed in good time.",
    "Changes of this contract need the written form, which also goes for a change of this clause.",
    "Should one clause be void, the others stay in force, and the void one is replaced by what comes nearest to it.",
    "What a party learns of the other is kept confidential for three years after the end of the contract.",
    "Deliveries are accompanied by papers that name the goods, their origin, their weight and the person in charge.",
    "Disputes are brought before the court at the seat of the party that is sued, after an attempt to settle them.",
    "Force majeure sets the obligations of both parties aside for as long as it lasts and a week beyond.",
)


class Review(Environment):
    """One contract lies on the desk."""

    def reset(self, task: Task) -> None:
        self.number, self.contract = task.fields["number"], task.fields["contract"]

    @tool
    def clauses(self, contract: str) -> str:
        """The text of a contract."""
        if contract != self.number:
            return f"contract {contract} is not in the archive"
        special = {
            23: f"Either party may end this contract with a notice of {self.contract['notice']} months.",
            41: f"Late performance costs a penalty of {self.contract['penalty']} per cent of the price.",
        }
        return "\n".join(f"{number}. {special.get(number, BOILERPLATE[number % 7])}" for number in range(1, 66))

    @tool
    def house_rules(self, kind: str) -> str:
        """What we accept from a kind of partner."""
        if kind not in RULES:
            return f"no rules for {kind}"
        return "notice up to {} months, penalty up to {} per cent".format(*RULES[kind])

    def demonstrate(self, task: Task) -> Sequence[Message]:
        calls = [
            tool_call("clauses", contract=task.fields["number"]),
            tool_call("house_rules", kind=task.fields["kind"]),
        ]
        return [*calls, answer(f"<decision>{task.fields['decision']}</decision>")]


def decision_on(kind: str, contract: dict[str, int]) -> str:
    notice, penalty = RULES[kind]
    return DECISIONS[(contract["notice"] > notice) + (contract["penalty"] > penalty)]


def reward(trajectory: Trajectory) -> Reward:
    last = trajectory.messages[-1]
    match = re.fullmatch(r"<decision>(\w+)</decision>", str(last.get("content") or "").strip())
    reply = match[1] if match and last["role"] == "assistant" else None
    parts = {"form": 0.1 * (reply in DECISIONS), "right": 0.9 * (reply == trajectory.task.fields["decision"])}
    return Reward(total=parts["form"] + parts["right"], components=parts)


def scorer(trajectory: Trajectory) -> float:
    end = trajectory.messages[-1]
    text = str(end.get("content")).strip() if end["role"] == "assistant" else ""
    return float(text == f"<decision>{trajectory.task.fields['decision']}</decision>")


def train_tasks() -> list[Task]:
    return _tasks("train", "ABC", 48)


def validation_tasks() -> list[Task]:
    return _tasks("validation", "D", 15)


def held_out_tasks() -> list[Task]:
    return _tasks("held_out", "EF", 15)


def _tasks(split: str, letters: str, num: int) -> list[Task]:
    rng = random.Random(f"contracts {split}")
    made: list[Task] = []
    while len(made) < num:
        kind, contract = rng.choice(list(RULES)), {"notice": rng.randint(1, 12), "penalty": rng.randint(1, 20)}
        decision = decision_on(kind, contract)
        if decision != DECISIONS[len(made) % 3]:
            continue
        number = f"{rng.choice(letters)}-{rng.randint(1000, 9999)}"
        text = (
            f"Please review contract {number} with a {kind} from "
            f"{rng.choice(('Oulu', 'Brno', 'Pisa', 'Cadiz'))}, worth {rng.randint(20, 900)} thousand."
        )
        messages = ({"role": "system", "content": PROCEDURE}, {"role": "user", "content": text})
        fields = {"number": number, "kind": kind, "contract": contract, "decision": decision}
        made.append(Task(id=f"{split}-{number}", messages=messages, fields=fields))
    return made
