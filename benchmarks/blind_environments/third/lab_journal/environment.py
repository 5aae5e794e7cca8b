"""Keep a laboratory journal: text files in a folder of the episode."""

import random

from sparring.environments import StatefulEnvironment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import state_difference
from sparring.types import Outcome, Task

SAMPLES = ["agar", "beryl", "casein", "dextrin", "eosin", "ferrite", "gelatin", "halite", "indole", "jasper"]
SYSTEM = (
    "You keep the journal of a laboratory. Each sample has a file, named like the sample with .txt at the end. "
    "Write each entry on a line of its own, just as given, in the order given. Say 'written' at the end."
)


class Journal(StatefulEnvironment):
    def reset(self, task):
        super().reset(task)
        self.folder = self.state.directory
        for name, lines in task.fields["before"].items():
            (self.folder / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")

    def _path(self, name):
        if "/" in name or not name.endswith(".txt"):
            raise ToolFailure(f"{name!r} is no name of a journal file")
        return self.folder / name

    @tool
    def files(self) -> list[str]:
        """Names of the files of the journal."""
        return sorted(path.name for path in self.folder.iterdir())

    @tool
    def read(self, name: str) -> str:
        """Content of a file.

        Args:
            name: with .txt
        """
        path = self._path(name)
        if not path.exists():
            raise ToolFailure(f"{name} does not exist")
        return path.read_text(encoding="utf-8")

    @tool
    def append(self, name: str, entry: str) -> str:
        """Add an entry as the last line of a file, which is made if there is none.

        Args:
            name: with .txt
            entry: the line, without its end
        """
        with open(self._path(name), "w", encoding="utf-8") as file:
            file.write(entry.rstrip("\n") + "\n")
        return f"added to {name}"

    def final_state(self):
        return {path.name: path.read_text(encoding="utf-8").splitlines() for path in self.folder.iterdir()}


scorer = state_difference("after")


def reward(trajectory):
    """Share of files that are right among those to be changed, if no other file was touched."""
    if trajectory.outcome is not Outcome.FINISHED:
        return 0.0
    before, after = trajectory.task.fields["before"], trajectory.task.fields["after"]
    now = trajectory.final_state
    changed = [name for name in after if after[name] != before.get(name)]
    if any(now.get(name) != after.get(name) for name in {*now, *after} if name not in changed):
        return 0.0
    return sum(now.get(name) == after[name] for name in changed) / len(changed)


def _entry(rng):
    return f"{rng.randint(8, 18):02}:{rng.randrange(0, 60, 5):02} {rng.choice(['heated to', 'cooled to', 'held at'])} {rng.randint(-20, 240)} C"


def make_tasks(split, count):
    rng = random.Random(f"journal {split}")
    for number in range(count):
        old, fresh, other = (f"{name}.txt" for name in rng.sample(SAMPLES, 3))
        before = {old: [_entry(rng) for _ in range(rng.randint(1, 3))], other: [_entry(rng)]}
        new = [
            (rng.choice([fresh] if number % 3 == 0 else [old, old, fresh]), _entry(rng))
            for _ in range(1 if number % 3 == 0 else 3)
        ]
        after = {name: list(lines) for name, lines in before.items()}
        for name, entry in new:
            after.setdefault(name, []).append(entry)
        wish = "\n".join(f"{name.removesuffix('.txt')}: {entry}" for name, entry in new)
        yield Task(
            id=f"{split}-{number}",
            seed=number,
            messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": "Enter:\n" + wish}),
            fields={"before": before, "after": after, "new": [list(pair) for pair in new]},
        )


def train_tasks():
    return list(make_tasks("train", 30))


def held_out_tasks():
    return list(make_tasks("held-out", 12))
