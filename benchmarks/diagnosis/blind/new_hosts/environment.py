"""The links are on rented hosts. Some attempts fail while the hosts start, and hardly any fail later."""

from __future__ import annotations

import itertools
import random
from typing import ClassVar

from benchmarks.hacks.links import Links
from sparring.errors import InfrastructureError
from sparring.types import Task

NEW_ATTEMPTS = 150
NEW_SHARE = 0.2
RUNNING_SHARE = 0.003
"""Of attempts that fail."""


class Hosted(Links):
    attempts: ClassVar[itertools.count[int]] = itertools.count()
    hosts: ClassVar[random.Random] = random.Random("hosts")

    def reset(self, task: Task) -> None:
        bad_share = NEW_SHARE if next(self.attempts) < NEW_ATTEMPTS else RUNNING_SHARE
        if self.hosts.random() < bad_share:
            raise InfrastructureError("no container came up on this host")
        super().reset(task)
