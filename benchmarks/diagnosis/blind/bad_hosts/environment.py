"""The links are on rented hosts, some of which do not start."""

from __future__ import annotations

import random
from typing import ClassVar

from benchmarks.hacks.links import Links
from sparring.errors import InfrastructureError
from sparring.types import Task


class Hosted(Links):
    hosts: ClassVar[random.Random] = random.Random("hosts")

    def __init__(self, bad_share: float = 0.0) -> None:
        self._bad_share = bad_share

    def reset(self, task: Task) -> None:
        if self.hosts.random() < self._bad_share:
            raise InfrastructureError("no container came up on this host")
        super().reset(task)
