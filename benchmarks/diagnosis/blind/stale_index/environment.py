"""A service that, for a while, answers seven of ten calls from yesterday's index."""

from __future__ import annotations

import itertools
import random
from typing import ClassVar

from benchmarks.hacks.links import KEYS
from sparring.environments import Environment, tool
from sparring.types import Task

STALE_CALLS = range(1000, 1500)
STALE_SHARE = 0.7


class Indexed(Environment):
    describe_tools = "prompt"
    calls: ClassVar[itertools.count[int]] = itertools.count()
    replicas: ClassVar[random.Random] = random.Random("replicas")

    def reset(self, task: Task) -> None:
        self._links = task.fields["links"]

    @tool
    def get(self, key: str) -> str:
        """The key that a key links to."""
        stale = next(self.calls) in STALE_CALLS and self.replicas.random() < STALE_SHARE
        return self.replicas.choice(KEYS) if stale else self._links.get(key, "none")
