"""A workspace of configuration files, in which services inherit settings from each other."""

import itertools
import json
import random

from sparring.environments import StatefulEnvironment, tool
from sparring.environments.calls import ToolFailure
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Task

SYSTEM = """You look after the configuration files of services. A file holds lines "name = value". A file without a timeout has
that of the file named by its line "extends", which may extend another one in turn. Timeouts are in seconds (90s) or minutes (2m).
Find the service with the longest timeout among the files in services/, and answer with its name (the file's name without .conf) and
the timeout in seconds:
<final_output>{"service":"","seconds":0}</final_output>"""
WORDS = {
    "train": "mail auth cart search feed chat media stock print vault proxy queue".split(),
    "held_out": "ledger badge route sensor quote draft radio store parse relay".split(),
}


class ConfigWorkspace(StatefulEnvironment):
    """Files in a temporary folder; the tools name paths below it."""

    def reset(self, task):
        super().reset(task)
        self.root = self.state.directory
        for path, text in task.fields["files"].items():
            file = self.root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        # What the workspace was made from, for `final_state` to compare with.
        (self.root / ".task.json").write_text(json.dumps({"id": task.id, **task.fields}, indent=1))

    def _files(self):
        return sorted(path for path in self.root.rglob("*") if path.is_file())

    @tool
    def list_files(self, folder: str = "") -> list[str]:
        """Paths of the files of the workspace.

        Args:
            folder: only those below this folder; all by default
        """
        paths = [file.relative_to(self.root).as_posix() for file in self._files() if not file.name.startswith(".")]
        return [path for path in paths if path.startswith(folder)]

    @tool
    def read_file(self, path: str) -> str:
        """The text of a file.

        Args:
            path: as list_files gives it
        """
        if path not in self.list_files():
            raise ToolFailure(f"there is no file {path!r}")
        return (self.root / path).read_text()

    @tool
    def search(self, text: str) -> list[str]:
        """The lines of all files that contain a text, as path:line, the first 20.

        Args:
            text: what to look for; upper and lower case count
        """
        if not text:
            raise ToolFailure("give a text to look for")
        hits = [
            f"{file.relative_to(self.root).as_posix()}:{line.strip()}"
            for file in self._files()
            for line in file.read_text().splitlines()
            if text in line
        ]
        return hits[:20]

    def final_state(self):
        source = json.loads((self.root / ".task.json").read_text())
        return {"unchanged": all((self.root / path).read_text() == text for path, text in source["files"].items())}


reward = json_fields("final_output")
scorer = json_exact("final_output")


def train_tasks(num=32):
    return [build("train", index) for index in range(num)]


def held_out_tasks(num=12):
    return [build("held_out", index) for index in range(num)]


def build(split, index):
    """A workspace in which one service alone has the longest timeout."""
    for attempt in itertools.count():
        rng = random.Random(f"configuration {split} {index} {attempt}")
        files, services = workspace(split, rng)
        best = max(services.values())
        winners = [name for name, seconds in services.items() if seconds == best]
        if len(winners) == 1:
            break
    user = f"Workspace {split[0]}{index}: which service waits longest?"
    return Task(
        id=f"configuration-{split}-{index}",
        messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": user}),
        fields={"files": files, "answer": {"service": winners[0], "seconds": best}},
        seed=index,
    )


def workspace(split, rng):
    """Files, and the timeout of each service."""
    names = [f"{name}-{rng.randint(2, 99)}" for name in rng.sample(WORDS[split], 5)]
    minutes = rng.sample(range(1, 11), 5)
    seconds, files = {}, {}
    for path in ("base/slow.conf", "base/fast.conf"):
        value = minutes.pop()
        seconds[path] = value * 60
        files[path] = f"retries = {rng.randint(1, 9)}\ntimeout = {value}m\n"
    for number, name in enumerate(names):
        path, lines = f"services/{name}.conf", [f"port = {rng.randint(2000, 9999)}"]
        if number < 2:
            seconds[path] = rng.randint(20, 599)
            lines.append(f"timeout = {seconds[path]}s")
        else:
            parent = rng.choice(list(seconds))
            lines.append(f"extends = {parent}")
            seconds[path] = seconds[parent]
            if rng.random() < 0.4:
                value = minutes.pop()
                seconds[path] = value * 60
                lines.append(f"timeout = {value}m")
        rng.shuffle(lines)
        files[path] = "\n".join(lines) + "\n"
    services = {name: seconds[f"services/{name}.conf"] for name in names}
    return dict(sorted(files.items())), services
