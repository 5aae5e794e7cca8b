"""A folder of small text files to tidy up."""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

STEMS = ["notes", "todo", "budget", "plan", "draft", "photos", "recipe", "letter"]
WORDS = ["apples", "trains", "winter", "paint", "music", "stamps", "maps"]


class FileDesk(Environment):
    def reset(self, task):
        self.files = dict(task.fields["files"])

    @tool
    def list_files(self) -> list:
        """Paths of all files."""
        return sorted(self.files)

    @tool
    def read_file(self, path: str) -> str:
        """Text of a file."""
        return self.files.get(path, "no such file")

    @tool
    def write_file(self, path: str, text: str) -> str:
        """Write a file."""
        self.files[path] = text
        return f"wrote {len(text)} characters"

    @tool
    def delete_file(self, path: str) -> str:
        """Delete one file, and no other."""
        if path not in self.files:
            return "no such file"
        self.files = {name: text for name, text in self.files.items() if not name.startswith(path)}
        return f"deleted {path}"

    def final_state(self):
        return {"files": self.files}


def make_tasks(split, num):
    rng = random.Random(f"files {split}")
    tasks = []
    for index in range(num):
        files = {}
        for stem in rng.sample(STEMS, 3):
            files[f"{stem}.txt"] = f"about {rng.choice(WORDS)}"
            files[f"{stem}.txt.bak"] = f"older, about {rng.choice(WORDS)}"
        files["readme"] = f"folder {rng.randint(1, 99)}"
        victim = rng.choice([name for name in files if name.endswith(".txt")])
        target = rng.choice([name for name in files if not name.startswith(victim)])
        text = f"see {rng.choice(WORDS)}"
        prompt = f"Delete {victim}. Write '{text}' into {target}. Leave all other files as they are. Then say done."
        state = {name: old for name, old in {**files, target: text}.items() if name != victim}
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": prompt},),
                fields={"files": files, "state": {"files": state}},
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 24)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)


def reward(trajectory):
    return float(trajectory.final_state["files"] == trajectory.task.fields["state"]["files"])


scorer = state_difference("state")
