"""An index in four shards, only some of which may be mounted. The tool raises for keys of the others."""

from __future__ import annotations

from benchmarks.hacks.links import KEYS
from sparring.environments import Environment, tool
from sparring.types import Task


class Sharded(Environment):
    describe_tools = "prompt"

    def __init__(self, shards: int = 4) -> None:
        self._mounted = KEYS[: shards * len(KEYS) // 4]

    def reset(self, task: Task) -> None:
        self._links = {key: after for key, after in task.fields["links"].items() if key in self._mounted}

    @tool
    def get(self, key: str) -> str:
        """The key that a key links to."""
        return self._links[key]
