"""Who sits where: the directory of a company."""

import random

from sparring.environments import Environment, tool
from sparring.types import Task

SYSTEM = """\
You answer questions about the staff with the directory. Every person is in it once. Answer with the number of the office alone,
for example: 214"""

FIRST = ("Ana", "Boris", "Chiara", "Dmitri", "Elin", "Farid")
LAST = ("Berg", "Costa", "Duval", "Engel", "Fonseca", "Grau")
NAMES = [f"{first} {last}" for first in FIRST for last in LAST]


class Directory(Environment):
    def reset(self, task):
        self.people = {row["name"]: row for row in task.fields["rows"]}

    @tool
    def office(self, name: str) -> str:
        """Number of a person's office.

        Args:
            name: first and last name
        """
        return str(self.people[name]["office"]) if name in self.people else "nobody of that name"

    @tool
    def manager(self, name: str) -> str:
        """Name of a person's manager."""
        return self.people[name]["manager"] if name in self.people else "nobody of that name"

    @tool
    def search(self, last_name: str) -> list[str]:
        """Full names of the people with a last name."""
        return sorted(name for name in self.people if name.split()[1] == last_name)


def _task(split, index, rng):
    names = rng.choices(NAMES, k=8)
    offices = rng.sample(range(101, 499), len(names))
    rows = []
    for place, (name, office) in enumerate(zip(names, offices, strict=True)):
        boss = rng.choice([other for other in range(len(names)) if other != place])
        rows.append({"name": name, "office": office, "manager": names[boss], "boss": boss})
    asked, boss = rows[0], rows[rows[0]["boss"]]
    if index % 2:
        question, answer = f"In which office is {asked['name']}?", asked["office"]
    else:
        question, answer = f"In which office is the manager of {asked['name']}?", boss["office"]
    return Task(
        id=f"{split}-{index}",
        messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": question}),
        fields={"rows": rows, "answer": str(answer)},
    )


def train_tasks():
    rng = random.Random("staff")
    return [_task("train", index, rng) for index in range(56)]


def held_out_tasks():
    rng = random.Random("new staff")
    return [_task("held-out", index, rng) for index in range(28)]


def reward(trajectory):
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return 0.0
    return 1.0 if (last.get("content") or "").strip() == trajectory.task.fields["answer"] else 0.0


def scorer(trajectory):
    ending = trajectory.messages[-1]
    text = ending.get("content") or ""
    is_right = text.split() == [trajectory.task.fields["answer"]]
    return float(is_right and ending["role"] == "assistant" and not ending.get("tool_calls"))
