"""How many people live in a street, from a register that is read page by page."""

import random

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.types import Task

SYSTEM = """\
You count the people of a street in a register of households. The register has no order; read every page. A row is a household,
and two rows that read the same are two households. Answer with the number of people alone, for example: 17"""

STREETS = ("Elm Row", "Mill Lane", "Dock Road", "Rose Walk")
NAMES = ("Hill", "Lund", "Moss", "Nash", "Page", "Reed")
ROWS_A_PAGE = 5


class Register(Environment):
    def reset(self, task):
        self.rows = task.fields["rows"]
        self.num_pages = -(-len(self.rows) // ROWS_A_PAGE)

    @tool
    def page(self, number: int = 1) -> dict:
        """A page of the register: its rows, and how many pages there are.

        Args:
            number: the first page is 1
        """
        if not 1 <= number <= self.num_pages:
            raise ToolFailure(f"the register has the pages 1 to {self.num_pages}")
        begin = ROWS_A_PAGE * (number - 1)
        return {"rows": self.rows[begin : begin + ROWS_A_PAGE], "pages": self.num_pages}


def _task(split, index, rng):
    num_rows = rng.randint(11, 31)
    rows = [f"{rng.choice(NAMES)}, {rng.choice(STREETS)}, {rng.randint(1, 6)}" for _ in range(num_rows)]
    street = rng.choice(STREETS)
    total = sum(int(row.split(", ")[2]) for row in rows if row.split(", ")[1] == street)
    return Task(
        id=f"{split}-{index}",
        messages=(
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"How many people live in {street}?"},
        ),
        fields={"rows": rows, "answer": str(total)},
    )


def train_tasks():
    rng = random.Random("census")
    return [_task("train", index, rng) for index in range(48)]


def held_out_tasks():
    rng = random.Random("next census")
    return [_task("held-out", index, rng) for index in range(24)]


def reward(trajectory):
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return 0.0
    return 1.0 if (last.get("content") or "").strip() == trajectory.task.fields["answer"] else 0.0


def scorer(trajectory):
    end = trajectory.messages[-1]
    if end["role"] != "assistant" or end.get("tool_calls"):
        return 0.0
    return float((end.get("content") or "").split() == [trajectory.task.fields["answer"]])
