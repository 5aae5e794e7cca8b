"""A folder of notes to put in order: what lies there in the end counts."""

import random

from sparring.environments import StatefulEnvironment, answer, tool, tool_call
from sparring.types import Task

WORDS = ("amber", "birch", "cobalt", "delta", "ember", "fjord", "grove", "heron", "inlet", "juniper")


class Files(StatefulEnvironment):
    def reset(self, task):
        super().reset(task)
        for name, text in task.fields["files"].items():
            (self.state.directory / name).write_text(text, "utf-8")

    @tool
    def list_files(self) -> list[str]:
        """Names of all files."""
        return sorted(path.name for path in self.state.directory.iterdir())

    @tool
    def read_file(self, name: str) -> str:
        """The text of a file."""
        return self._path(name).read_text("utf-8")

    @tool
    def write_file(self, name: str, text: str) -> str:
        """Write a file, or write over it."""
        if "/" in name or not name:
            raise ValueError(f"{name!r} is no file name")
        (self.state.directory / name).write_text(text, "utf-8")
        return "written"

    @tool
    def rename_file(self, name: str, to: str) -> str:
        """Give a file another name."""
        if "/" in to or not to:
            raise ValueError(f"{to!r} is no file name")
        self._path(name).rename(self.state.directory / to)
        return "renamed"

    @tool
    def delete_file(self, name: str) -> str:
        """Delete a file."""
        self._path(name).unlink()
        return "deleted"

    def _path(self, name):
        if name not in self.list_files():
            raise ValueError(f"there is no file {name!r}")
        return self.state.directory / name

    def final_state(self):
        return {name: self.read_file(name) for name in self.list_files()}

    def demonstrate(self, task):
        fields = task.fields
        text = fields["files"][fields["name"]].replace(fields["old"], fields["new"])
        return [
            tool_call("read_file", name=fields["name"]),
            tool_call("write_file", name=fields["name"], text=text),
            tool_call("rename_file", name=fields["name"], to=fields["to"]),
            answer(f"I replaced {fields['old']} and renamed the file."),
        ]


def tasks(split, num):
    rng = random.Random(split)
    return [one(f"{split}-{index}", rng) for index in range(num)]


def one(task_id, rng):
    names = [f"{word}.txt" for word in rng.sample(WORDS, 4)]
    words = rng.sample(WORDS, 5)
    files = {name: f"{words[index]} then {words[4]}" for index, name in enumerate(names[:3])}
    name, to, old, new = names[0], names[3], words[0], words[3]
    return Task(
        id=task_id,
        messages=({"role": "user", "content": f"In {name} replace {old} by {new}, then rename it to {to}."},),
        fields={"files": files, "name": name, "to": to, "old": old, "new": new},
    )


def train_tasks():
    return tasks("train", 40)


def held_out_tasks():
    return tasks("held_out", 10)


def expected(fields):
    files = dict(fields["files"])
    files[fields["to"]] = files.pop(fields["name"]).replace(fields["old"], fields["new"])
    return files


def reward(trajectory):
    state, fields = trajectory.final_state, trajectory.task.fields
    renamed = fields["to"] in state and fields["name"] not in state
    replaced = any(text.startswith(fields["new"]) for text in state.values())
    kept = all(state.get(name) == text for name, text in fields["files"].items() if name != fields["name"])
    total = 0.5 * renamed + 0.5 * replaced if kept and len(state) == len(fields["files"]) else 0.0
    return total if total < 1 or state == expected(fields) else 0.5


def scorer(trajectory):
    fields = trajectory.task.fields
    wanted = {**fields["files"]}
    text = wanted.pop(fields["name"])
    wanted[fields["to"]] = fields["new"] + text[len(fields["old"]) :]
    return float(trajectory.final_state == wanted)
