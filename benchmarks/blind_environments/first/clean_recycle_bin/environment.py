"""A folder with a recycle bin: deleting is undone by restoring, and emptying cannot be undone. A mistake costs points."""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

FILES = ["Alpha.doc", "beta.doc", "Gamma.xls", "delta.xls", "Epsilon.ppt", "zeta.ppt", "Eta.txt", "theta.txt"]


class RecycleBin(Environment):
    def reset(self, task):
        self.folder = list(task.fields["folder"])
        self.bin = list(task.fields["bin"])

    @tool
    def show(self) -> dict:
        """Files in the folder and in the recycle bin."""
        return {"folder": sorted(self.folder), "bin": sorted(self.bin)}

    @tool
    def delete(self, file: str) -> str:
        """Move a file of the folder to the recycle bin. Upper and lower case differ."""
        if file in self.bin:
            return "is in the bin already"
        if file not in self.folder:
            return "no such file"
        self.folder.remove(file)
        self.bin.append(file)
        return "moved to the bin"

    @tool
    def restore(self, file: str) -> str:
        """Move a file of the recycle bin back to the folder. Upper and lower case differ."""
        if file not in self.bin:
            return "not in the bin"
        self.bin.remove(file)
        self.folder.append(file)
        return "restored"

    @tool
    def empty_bin(self) -> str:
        """Delete what is in the recycle bin for good."""
        gone = len(self.bin)
        self.bin.clear()
        return f"{gone} files are gone"

    def final_state(self):
        return {"folder": sorted(self.folder), "bin": sorted(self.bin)}


def make_tasks(split, num):
    rng = random.Random(f"bin {split}")
    tasks = []
    for index in range(num):
        files = [f"{rng.randint(10, 99)}-{name}" for name in rng.sample(FILES, 6)]
        folder, recycled = files[:4], files[4:]
        gone, back = rng.choice(folder), rng.choice(recycled)
        prompt = f"Restore {back} and delete {gone} for good; of the bin nothing else is needed. Then say done."
        state = {"folder": sorted([*(file for file in folder if file != gone), back]), "bin": []}
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": prompt},),
                fields={"folder": folder, "bin": recycled, "state": state},
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 24)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)


def reward(trajectory):
    state, expected = trajectory.final_state, trajectory.task.fields["state"]
    wrong = len(set(state["folder"]) ^ set(expected["folder"])) + len(state["bin"])
    return 1.0 if wrong == 0 else -min(wrong, 10) / 10


scorer = state_difference("state")
