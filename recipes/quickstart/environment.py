"""The inspection desk: look up an item, follow the standard operating procedure, and report the result as JSON.

A hasty clerk makes mistakes in three places of the procedure: a part that was replaced, the grading table of the part's
class, and a grade on hold that only the boss can decide. Results are replayed from the task's own records.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from sparring import Environment, Message, Task, Trajectory, answer, record_demonstration, tool, tool_call
from sparring.rewards import json_fields
from sparring.scorers import json_exact

Split: TypeAlias = Literal["train", "validation", "held_out"]
Check: TypeAlias = Literal["replaced", "table", "hold"]
"""A step that some tasks need and hasty clerks skip."""

# The prompt is short (170 tokens of SmolLM2) because it lists the tools without JSON schemas; see `describe_tools`
# below.
PROCEDURE = """\
Inspection desk. Tools: item, part, fine, rough, boss. Call one at a time:
<tool_call>{"name":"item","arguments":{"id":"A1"}}</tool_call>
1. item: gives part and inspector.
2. part: gives class, fine or rough. If it says "now X", the part is replaced: call part with X, use only X.
3. Call fine or rough, by class, with the part: gives grade.
4. If grade is hold, call boss with the part: gives grade and who signs. Else the inspector signs.
5. Answer:
<final_output>{"part":"","grade":"","by":""}</final_output>"""

ITEM_LETTERS, PART_LETTERS = "ABCDEFGHJKLM", "NPQRSTUVWXYZ"
NAMES = [
    "Adam",
    "Alex",
    "Alice",
    "Anna",
    "Anne",
    "Arthur",
    "Ben",
    "Bob",
    "Carl",
    "Charles",
    "Chris",
    "Dan",
    "David",
    "Emily",
    "Frank",
    "Fred",
    "George",
    "Henry",
    "Jack",
    "James",
    "Jane",
    "Jean",
    "Jim",
    "John",
    "Lee",
    "Louis",
    "Luke",
    "Maria",
    "Mark",
    "Martin",
    "Mary",
    "Max",
    "Michael",
    "Neil",
    "Nick",
    "Paul",
    "Peter",
    "Ray",
    "Richard",
    "Robert",
    "Rose",
    "Sam",
    "Sarah",
    "Scott",
    "Simon",
    "Thomas",
    "Tim",
    "Tom",
    "Victor",
    "William",
]
GRADES = ("red", "blue", "green", "gold", "gray", "black", "white", "brown")
SHARES: Mapping[Split, tuple[float, float]] = {
    "train": (0.0, 0.64),
    "validation": (0.64, 0.76),
    "held_out": (0.76, 1.0),
}
"""The part of every shuffled list of entities that belongs to each split."""

CASES: Mapping[tuple[Check, ...], int] = {
    ("replaced",): 30,
    ("replaced", "hold"): 22,
    ("replaced", "table"): 18,
    ("replaced", "table", "hold"): 8,
    ("hold",): 9,
    ("table", "hold"): 6,
    ("table",): 7,
}
"""Percentages of tasks that need these checks. Each task needs at least one, so a hasty clerk is never right."""

CAREFUL_SHARE = 0.35
"""Share of the clerks' episodes that follow the whole procedure, which is the score of a perfect imitator."""
SKIP_ONE_SHARE = 0.4
"""Share of the other episodes with at least two checks that skip one check. The rest skip two."""


class InspectionDesk(Environment):
    """Read-only tools over the records of one task."""

    describe_tools = "prompt"

    def reset(self, task: Task) -> None:
        self._tables: Mapping[str, Mapping[str, str]] = task.fields["world"]

    @tool
    def item(self, id: str) -> str:
        """Part and inspector of an item."""
        return self._tables["item"].get(id, "unknown")

    @tool
    def part(self, id: str) -> str:
        """Class of a part, and the part that replaced it."""
        return self._tables["part"].get(id, "unknown")

    @tool
    def fine(self, id: str) -> str:
        """Grade of a part of class fine."""
        return self._tables["fine"].get(id, "unknown")

    @tool
    def rough(self, id: str) -> str:
        """Grade of a part of class rough."""
        return self._tables["rough"].get(id, "unknown")

    @tool
    def boss(self, id: str) -> str:
        """Grade of a part on hold, and who signs."""
        return self._tables["boss"].get(id, "no case")

    def demonstrate(self, task: Task) -> Sequence[Message]:
        return clerk(task, skipped=frozenset())


reward = json_fields("final_output")
scorer = json_exact("final_output")


def train_tasks(num: int = 512, seed: int = 0) -> list[Task]:
    return tasks("train", num, seed)


def validation_tasks(num: int = 64, seed: int = 0) -> list[Task]:
    return tasks("validation", num, seed)


def held_out_tasks(num: int = 128, seed: int = 0) -> list[Task]:
    return tasks("held_out", num, seed)


def tasks(split: Split, num: int, seed: int) -> list[Task]:
    """Return generated tasks. Tasks of different splits share no item, part or person."""
    rng = random.Random(f"{split}-{seed}")
    cases = rng.choices(list(CASES), weights=list(CASES.values()), k=num)
    return [_task(split, index, frozenset(checks), rng) for index, checks in enumerate(cases)]


def _task(split: Split, index: int, checks: frozenset[Check], rng: random.Random) -> Task:
    item = rng.choice(_entities(_codes(ITEM_LETTERS), split))
    part, old_part = rng.sample(_entities(_codes(PART_LETTERS), split), 2)
    inspector, signer = rng.sample(_entities(NAMES, split), 2)
    grade, *other_grades = rng.sample(GRADES, 4)
    wrong = iter(other_grades)
    kind, other_kind = ("rough", "fine") if "table" in checks else ("fine", "rough")
    first = old_part if "replaced" in checks else part
    tables: dict[str, dict[str, str]] = {
        "item": {item: f"part {first} by {inspector}"},
        "part": {part: kind},
        kind: {part: "hold" if "hold" in checks else grade},
        other_kind: {part: next(wrong)},
        "boss": {part: f"{grade} by {signer}"} if "hold" in checks else {},
    }
    if "replaced" in checks:
        tables["part"][old_part] = f"{rng.choice(('fine', 'rough'))} now {part}"
        tables["fine"][old_part], tables["rough"][old_part] = next(wrong), next(wrong)
    return Task(
        id=f"{split}-{index}",
        messages=({"role": "system", "content": PROCEDURE}, {"role": "user", "content": f"Inspect {item}."}),
        fields={
            "world": tables,
            "item": item,
            "checks": sorted(checks),
            "answer": {"part": part, "grade": grade, "by": signer if "hold" in checks else inspector},
        },
    )


def _codes(letters: str) -> list[str]:
    return [f"{letter}{number}" for letter in letters for number in range(10, 100)]


def _entities(everything: Sequence[str], split: Split) -> list[str]:
    """Return the split's part of a list, which is the same in every call."""
    shuffled = random.Random("entities").sample(everything, len(everything))
    begin, end = SHARES[split]
    return shuffled[round(begin * len(shuffled)) : round(end * len(shuffled))]


def clerk(task: Task, skipped: frozenset[Check]) -> list[Message]:
    """Return the messages of a clerk who skips some checks. The answer is correct if the clerk skips no check of the
    task.

    A clerk who skips "replaced" continues with the old part, one who skips "table" calls `fine` for every class, and
    one who skips "hold" reports the hold.
    """
    tables, item = task.fields["world"], task.fields["item"]
    _, part, _, signer = tables["item"][item].split()
    messages = [tool_call("item", id=item), tool_call("part", id=part)]
    kind, _, successor = tables["part"][part].partition(" now ")
    if successor and "replaced" not in skipped:
        part, kind = successor, tables["part"][successor]
        messages.append(tool_call("part", id=part))
    table = "fine" if "table" in skipped else kind
    grade = tables[table][part]
    messages.append(tool_call(table, id=part))
    if grade == "hold" and "hold" not in skipped:
        grade, _, signer = tables["boss"][part].split()
        messages.append(tool_call("boss", id=part))
    report = json.dumps({"part": part, "grade": grade, "by": signer}, separators=(",", ":"))
    return [*messages, answer(f"<final_output>{report}</final_output>")]


def clerk_log(
    num: int = 160, seed: int = 0, careful_share: float = CAREFUL_SHARE, skip_one_share: float = SKIP_ONE_SHARE
) -> list[list[Message]]:
    """Return conversations of clerks of mixed diligence on training tasks. A share of `careful_share` has a correct
    answer."""
    rng = random.Random(f"clerks-{seed}")
    log = []
    # The tasks have another seed than the training tasks.
    for task in tasks("train", num, seed + 1):
        skipped = frozenset[Check]()
        if rng.random() >= careful_share:
            checks: list[Check] = task.fields["checks"]
            num_skipped = 1 if rng.random() < skip_one_share else 2
            skipped = frozenset(rng.sample(checks, min(num_skipped, len(checks))))
        log.append(record_demonstration(InspectionDesk, task, clerk(task, skipped)))
    return log


def shuffled_reward(trajectory: Trajectory) -> float:
    """As a control, return a random reward that depends only on the episode's id. RL with this reward must not improve
    the policy."""
    return random.Random(trajectory.id).choice((0.1, 0.4, 0.7, 1.0))
