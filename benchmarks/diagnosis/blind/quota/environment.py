"""A service with one quota for all episodes together. When it is used up, the service refuses every call."""

from __future__ import annotations

import itertools
from typing import ClassVar

from sparring.environments import Environment, tool
from sparring.types import Task


class Metered(Environment):
    describe_tools = "prompt"
    calls: ClassVar[itertools.count[int]] = itertools.count()

    def __init__(self, quota: int) -> None:
        self._quota = quota

    def reset(self, task: Task) -> None:
        self._links = task.fields["links"]

    @tool
    def get(self, key: str) -> str:
        """The key that a key links to."""
        if next(self.calls) >= self._quota:
            raise PermissionError("quota exceeded")
        return self._links.get(key, "none")
