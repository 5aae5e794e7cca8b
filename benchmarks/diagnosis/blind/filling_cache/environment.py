"""The links are on pages that are cached as long as there is room for them."""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import ClassVar

from sparring.environments import Environment, tool
from sparring.types import Task

PAGE_BYTES = 2_000_000
MOST_PAGES = 160
"""About seven steps of training fill it."""


class Cached(Environment):
    describe_tools = "prompt"
    pages: ClassVar[OrderedDict[tuple[str, str], bytes]] = OrderedDict()

    def reset(self, task: Task) -> None:
        self._task = task

    @tool
    def get(self, key: str) -> str:
        """The key that a key links to."""
        place = (self._task.id, key)
        if place not in self.pages:
            self.pages[place] = random.Random(key).randbytes(PAGE_BYTES)
        self.pages.move_to_end(place)
        if len(self.pages) > MOST_PAGES:
            self.pages.popitem(last=False)
        return self._task.fields["links"].get(key, "none")
