"""Config files: which value does a service run with, its own or that of the defaults?"""

from __future__ import annotations

import random
import re
from pathlib import Path

from sparring.environments import StatefulEnvironment, tool
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

SERVICES = ["mailer", "billing", "search", "gateway", "reports", "login", "images", "queue", "audit", "backup"]
KEYS = ["port", "timeout", "retries", "workers", "pool_size", "cache_mib", "batch", "max_users", "log_days", "threads"]
MORE_KEYS = ["host", "user", "region", "proxy", "cert", "bucket", "topic", "zone", "owner", "stage"]
INSTRUCTIONS = (
    "You look after services. The folder has `defaults.conf` and a file for each service. A service runs with the value in its "
    "own file; a key that its file does not have is at the default. Answer with the value alone: <final_output>8080</final_output>"
)


class ConfigDesk(StatefulEnvironment):
    def reset(self, task: Task) -> None:
        super().reset(task)
        for name, text in task.fields["files"].items():
            (self.state.directory / name).write_text(text, encoding="utf-8")

    @tool
    def list_files(self) -> list[str]:
        """The names of all files."""
        return sorted(path.name for path in self.state.directory.iterdir())

    @tool
    def read_file(self, name: str) -> str:
        """The content of a file.

        Args:
            name: as list_files gives it
        """
        path = self.state.directory / Path(name).name
        if not path.is_file():
            return f"There is no file {name}."
        with path.open(encoding="utf-8") as file:
            return file.read(256)  # keeps the context short


def reward(trajectory: Trajectory) -> float:
    """1 for the value, 0 for anything else."""
    last = trajectory.messages[-1]
    text = last.get("content") or ""
    found = re.findall(r"<final_output>\s*(.*?)\s*</final_output>", text)
    if text.count("<final_output>") != 1:
        return 0.0
    return float(last["role"] == "assistant" and found == [trajectory.task.fields["answer"]])


scorer = exact_match("final_output", "answer")


def train_tasks() -> list[Task]:
    return _tasks()[:42]


def held_out_tasks() -> list[Task]:
    return _tasks()[42:]


def _tasks() -> list[Task]:
    rng = random.Random("config")
    pairs = [(service, key) for service in SERVICES for key in KEYS]
    return [_task(index, *pair, rng) for index, pair in enumerate(rng.sample(pairs, 58))]


def _task(index: int, service: str, key: str, rng: random.Random) -> Task:
    defaults = {name: str(rng.randint(2, 9000)) for name in KEYS}
    own = {name: str(rng.randint(2, 9000)) for name in rng.sample(KEYS, 5) if name != key}
    if rng.random() < 0.6:
        own[key] = str(rng.randint(2, 9000))
    others = {name: str(rng.randint(2, 9000)) for name in rng.sample(KEYS, 4)}
    other_service = rng.choice([name for name in SERVICES if name != service])
    files = {
        "defaults.conf": _text("defaults of all services", defaults, rng),
        f"{service}.conf": _text(service, own, rng),
        f"{other_service}.conf": _text(other_service, others, rng),
    }
    question = f"With which {key} does {service} run?"
    return Task(
        id=f"config-{index}",
        messages=({"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": question}),
        fields={"files": files, "service": service, "key": key, "answer": own.get(key, defaults[key])},
    )


def _text(title: str, values: dict[str, str], rng: random.Random) -> str:
    lines = [f"{key} = {value}" for key, value in values.items()]
    lines += [f"{key} = {title.split()[0]}-{rng.randint(10, 99)}.internal" for key in rng.sample(MORE_KEYS, 6)]
    rng.shuffle(lines)
    return "\n".join([f"# {title}", *lines, ""])
