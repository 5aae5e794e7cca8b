"""Invoices and credit notes. Lines are numbered from 1 in each document, and the series RE and GS count apart, so that RE-104 and GS-104 are
two documents."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from sparring.environments import StatefulEnvironment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import state_difference
from sparring.types import Task, Trajectory

SYSTEM = """You credit goods that customers sent back. Documents are named by series and number: RE-104 is an invoice and GS-104 is a credit
note, which have nothing to do with each other. Lines are numbered from 1 in each document. Credit the line with the named article on
the named invoice, once, unless a credit note of that invoice has it already; then credit nothing. Answer with the word done at the end."""
ARTICLES = {
    "train": ["pump", "hose", "valve", "filter", "gasket", "motor"],
    "held_out": ["sensor", "relay", "fuse", "switch", "cable"],
}


@dataclass
class Document:
    series: str
    number: int
    credits: str | None
    lines: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.series}-{self.number}"


class Invoices(StatefulEnvironment):
    def reset(self, task: Task) -> None:
        super().reset(task)
        documents = [Document(**row) for row in task.fields["documents"]]
        self.documents = {document.name: document for document in documents}
        self.credited: list[dict[str, str | int]] = []

    def _document(self, name: str) -> Document:
        if name not in self.documents:
            raise ToolFailure(f"there is no document {name!r}; names are like RE-104 and GS-104")
        return self.documents[name]

    @tool
    def lines(self, document: str) -> list[dict[str, str | int]]:
        """The lines of an invoice or a credit note, numbered from 1 in each.

        Args:
            document: series and number, as RE-104
        """
        return [
            {"line": line, "article": article} for line, article in enumerate(self._document(document).lines, start=1)
        ]

    @tool
    def credit_notes(self, invoice: str) -> list[str]:
        """The credit notes of an invoice; their numbers are of a series of their own."""
        self._document(invoice)
        return [document.name for document in self.documents.values() if document.credits == invoice]

    @tool
    def credit(self, invoice: str, line: int) -> str:
        """Have a line of an invoice credited. The credit note is written at night, so that credit_notes has it tomorrow.

        Args:
            invoice: series and number, as RE-104
            line: its number in that invoice
        """
        found = self._document(invoice)
        if found.series != "RE":
            raise ToolFailure(f"{invoice} is no invoice")
        if not 1 <= line <= len(found.lines):
            raise ToolFailure(f"{invoice} has lines 1 to {len(found.lines)}")
        self.credited.append({"invoice": invoice, "line": line})
        return f"line {line} of {invoice} is credited"

    def final_state(self) -> dict[str, list]:
        return {"credited": sorted(self.credited, key=lambda one: (one["invoice"], one["line"]))}


scorer = state_difference("state")


def reward(trajectory: Trajectory) -> float:
    """1 for exactly the credits that are due."""
    due = trajectory.task.fields["state"]["credited"]
    credited = (trajectory.final_state or {}).get("credited")
    return float(credited == due)


def train_tasks(num: int = 36) -> list[Task]:
    return [_task("train", index) for index in range(num)]


def held_out_tasks(num: int = 12) -> list[Task]:
    return [_task("held_out", index) for index in range(num)]


def _task(split: str, index: int) -> Task:
    rng = random.Random(f"invoices {split} {index}")
    # Numbers of both series, from the same range.
    numbers = rng.sample(range(100, 500) if split == "train" else range(500, 900), 3)
    documents = [
        {"series": "RE", "number": number, "credits": None, "lines": rng.sample(ARTICLES[split], 4)}
        for number in numbers
    ]
    # The credit note with the number of the first invoice is of the second.
    first, second, _ = documents
    asked = rng.sample([first, second], 2)
    wishes, due = [], []
    note = {"series": "GS", "number": numbers[0], "credits": f"RE-{numbers[1]}", "lines": [rng.choice(second["lines"])]}
    for invoice in asked:
        article = rng.choice(invoice["lines"])
        if invoice is second and rng.random() < 0.6:
            article = note["lines"][0]
        name = f"RE-{invoice['number']}"
        wishes.append(f"the {article} of {name}")
        if not (invoice is second and article in note["lines"]):
            due.append({"invoice": name, "line": invoice["lines"].index(article) + 1})
    due.sort(key=lambda one: (one["invoice"], one["line"]))
    return Task(
        id=f"credit-{split}-{index}",
        messages=(
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"The customer sent back {' and '.join(wishes)}."},
        ),
        fields={"documents": [*documents, note], "state": {"credited": due}},
        seed=index,
    )
