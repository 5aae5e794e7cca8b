"""A folder of programme files: find out on which stage and when a band plays."""

import json
import random

from sparring.environments import StatefulEnvironment, tool
from sparring.types import Task

STAGES = ["Lake", "Meadow", "Tent"]
BANDS = ["Arbor", "Blue Tram", "Cassini", "Dry Ice", "Echo Park", "Fennel", "Gravel", "Hazel"]


class Programme(StatefulEnvironment):
    def reset(self, task):
        super().reset(task)
        folder = self.state.directory
        for stage, slots in task.fields["programme"].items():
            lines = [f"{hour}:00  {band}" for hour, band in slots]
            (folder / f"{stage.lower()}.txt").write_text("\n".join(lines))
        (folder / "changes.txt").write_text("\n".join(task.fields["changes"]) or "no changes")
        # What the clerk has to find out.
        (folder / "task.json").write_text(json.dumps(dict(task.fields)))

    @tool
    def list_files(self) -> list[str]:
        """The files of the programme."""
        return sorted(path.name for path in self.state.directory.iterdir())

    @tool
    def read_file(self, name: str) -> str:
        """The text of a file, such as tent.txt."""
        path = self.state.directory / name
        if "/" in name or not path.is_file():
            return "error: no such file"
        return path.read_text()


def said(trajectory):
    last = trajectory.messages[-1]
    return (last.get("content") or "").strip() if last["role"] == "assistant" else ""


def reward(trajectory):
    return 1.0 if said(trajectory) == trajectory.task.fields["answer"] else 0.0


def scorer(trajectory):
    fields = trajectory.task.fields
    return 1.0 if said(trajectory).split() == fields["answer"].split() else 0.0


def make_tasks(split, num):
    rng = random.Random(split)
    tasks = []
    for index in range(num):
        bands = rng.sample(BANDS, 6)
        programme = {stage: [[18, bands[2 * i]], [20, bands[2 * i + 1]]] for i, stage in enumerate(STAGES)}
        # One band moves to another hour; changes.txt has the last word.
        moved = rng.choice(bands)
        stage = next(s for s in STAGES if moved in [b for _, b in programme[s]])
        changes = [f"{moved}: now at 22:00 on the same stage"]
        wanted = rng.choice([moved, rng.choice(bands)])
        at = next((s, h) for s in STAGES for h, b in programme[s] if b == wanted)
        hour = 22 if wanted == moved else at[1]
        text = f"On which stage and when does {wanted} play? Mind the changes. Answer like: Tent 18:00"
        tasks.append(
            Task(
                id=f"festival-{split}-{index}",
                messages=({"role": "user", "content": text},),
                fields={"programme": programme, "changes": changes, "answer": f"{at[0]} {hour}:00", "stage": stage},
            )
        )
    return tasks


def train_tasks():
    return make_tasks("train", 60)


def held_out_tasks():
    return make_tasks("held_out", 24)
