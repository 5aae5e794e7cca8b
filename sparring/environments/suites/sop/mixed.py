"""All domains together: the tasks alternate between domains, and one desk serves the domain of each task.

Tools with the same name in two domains take the same arguments. With `curriculum.kind_field = "domain"`, the domains
have equal shares and are reported separately.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from sparring.environments.base import Environment
from sparring.environments.suites.sop import DOMAINS
from sparring.environments.suites.sop.domain import SopDesk
from sparring.environments.suites.sop.entities import Split
from sparring.environments.tools import tool, tools_of
from sparring.runtime.plugins import call
from sparring.types import Json, Message, Reward, Score, Task, Trajectory


class _AnyDesk(Environment):
    """The desk of the task's domain. The prompt names its tools; calls to tools of other domains fail."""

    describe_tools = "prompt"
    _desk: SopDesk | None = None

    def reset(self, task: Task) -> Sequence[Message] | Awaitable[Sequence[Message] | None] | None:
        self._desk = DOMAINS[task.fields["domain"]].desk()
        return self._desk.reset(task)

    async def close(self) -> None:
        if self._desk is not None:
            await call(self._desk.close)

    def demonstrate(self, task: Task) -> Sequence[Message]:
        return DOMAINS[task.fields["domain"]].desk().demonstrate(task)


def _delegated(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that calls the tool of the same name on the desk of the task's domain."""

    @functools.wraps(method)
    async def answer(self: _AnyDesk, **arguments: Json) -> Json:
        # Only the desk's tools are allowed: another method of the desk may have the same name as another desk's tool.
        if self._desk is None or method.__name__ not in tools_of(type(self._desk)):
            raise LookupError("there is no such tool here; call those that the procedure names")
        return await call(getattr(self._desk, method.__name__), **arguments)

    return tool(answer)


Desk = type(
    "Desk",
    (_AnyDesk,),
    {"__doc__": _AnyDesk.__doc__, "__module__": __name__}
    | {name: _delegated(getattr(domain.desk, name)) for domain in DOMAINS.values() for name in tools_of(domain.desk)},
)


def train_tasks(
    num: int = 960, seed: int = 0, distractors: int = 0, missing: float = 0.0, longer: int = 0
) -> list[Task]:
    return tasks("train", num, seed, distractors=distractors, missing=missing, longer=longer)


def validation_tasks(
    num: int = 96, seed: int = 0, distractors: int = 0, missing: float = 0.0, longer: int = 0
) -> list[Task]:
    return tasks("validation", num, seed, distractors=distractors, missing=missing, longer=longer)


def held_out_tasks(
    num: int = 192, seed: int = 0, distractors: int = 0, missing: float = 0.0, longer: int = 0
) -> list[Task]:
    return tasks("held_out", num, seed, distractors=distractors, missing=missing, longer=longer)


def tasks(
    split: Split, num: int, seed: int, *, distractors: int = 0, missing: float = 0.0, longer: int = 0
) -> list[Task]:
    """Return tasks that alternate between the domains. Raises UsageError for a value that is out of range for one of
    them."""
    each = -(-num // len(DOMAINS))
    by_domain = [
        domain.tasks(split, each, seed, distractors=distractors, missing=missing, longer=longer)
        for domain in DOMAINS.values()
    ]
    return list(itertools.chain.from_iterable(zip(*by_domain, strict=True)))[:num]


def clerk_log(num: int = 384, seed: int = 0, careful_share: float = 0.35) -> list[list[Message]]:
    """Return conversations of clerks that alternate between the domains; see `SopDomain.clerk_log`."""
    each = -(-num // len(DOMAINS))
    logs = [domain.clerk_log(each, seed, careful_share) for domain in DOMAINS.values()]
    return list(itertools.chain.from_iterable(zip(*logs, strict=True)))[:num]


def reward(trajectory: Trajectory) -> Reward:
    """Return the reward from the reward function of the task's domain."""
    return DOMAINS[trajectory.task.fields["domain"]].reward(trajectory)  # type: ignore[return-value]


def scorer(trajectory: Trajectory) -> Score:
    """Return the score from the scorer of the task's domain."""
    return DOMAINS[trajectory.task.fields["domain"]].scorer(trajectory)  # type: ignore[return-value]
