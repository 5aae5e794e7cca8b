"""The links are on pages of a browser, which keeps every page in memory."""

from __future__ import annotations

import random
from typing import ClassVar

from sparring.environments import Environment, tool
from sparring.types import Task

PAGE_BYTES = 250_000


class Browser(Environment):
    describe_tools = "prompt"
    kept: ClassVar[list[bytes]] = []

    def __init__(self, keeps_pages: bool = False) -> None:
        self._keeps_pages = keeps_pages

    def reset(self, task: Task) -> None:
        self._links = task.fields["links"]

    @tool
    def get(self, key: str) -> str:
        """The key that a key links to."""
        page = random.Random(key).randbytes(PAGE_BYTES)
        if self._keeps_pages:
            self.kept.append(page)
        return self._links.get(key, "none")
