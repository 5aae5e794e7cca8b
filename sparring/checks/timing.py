"""How long the rules of a check may take: the minute that was promised, shared out, and kept by looking at less."""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

TOTAL_SECONDS = 55.0
"""What a check without a model may take for each minute that it is given."""
START_SECONDS = 20.0
"""What the first start and reset of an environment may take, for each minute of the check."""
CALL_SECONDS = 5.0
"""What one call of user code may take, for each minute of the check; more where the environment starts slowly."""
VERDICT_SECONDS = 30.0
"""What a verdict of a model that judges may take, for each minute of the check; all of an episode's are asked for at once."""
VERDICTS_SECONDS = 180.0
"""What a check takes longer at most where a model judges, for each minute that it is given."""
SLOWER_THAN_START = 5.0
"""A call may take this many times as long as the environment needs to start and reset."""
MOST_PATIENT = 10.0
"""Times as long a call may take on a busy machine."""
MOST_STRETCHED = 3.0
"""Times as long the whole check may take there: beyond that it looks at less."""
_SHARES = 8
"""A rule gets this part of the time that is left."""


class UndecidedError(Exception):
    """A rule could not be decided: what it needed to see did not happen. The text says what happened instead."""


class TimedOutError(UndecidedError):
    """A call of the environment did not return in time; that says nothing about what it would have returned."""


class OutOfTimeError(UndecidedError):
    """The time for a rule was used up before it could be decided. Nothing is wrong with the recipe."""


def load_of_machine() -> float:
    """How many times longer work takes now than on an idle machine, at least 1 and at most MOST_PATIENT."""
    try:
        ratio = os.getloadavg()[0] / (os.cpu_count() or 1)
    except OSError:
        return 1.0
    return min(MOST_PATIENT, max(1.0, ratio))


def processor_time() -> float:
    """Seconds of processor time of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


@final
class Deadline:
    """When a search ends: by processor time, so that it finds the same on a busy machine, and by the clock where an environment
    waits for something else."""

    def __init__(self, seconds: float) -> None:
        self._processor = time.process_time() + seconds
        self._clock = time.monotonic() + 2 * seconds * load_of_machine()

    @property
    def is_over(self) -> bool:
        return time.process_time() > self._processor or time.monotonic() > self._clock


@final
class Timing:
    """Shares the time that is left among the rules, and knows how long an episode takes in this environment."""

    def __init__(
        self,
        *,
        seconds: float = math.inf,
        processor_seconds: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`processor_seconds` bounds the work of this process and of those that it has ended, however busy the machine is."""
        self._clock = clock
        self._ends = self._rule_ends = clock() + seconds
        self._processor_ends = processor_time() + processor_seconds
        self.rule = ""
        self.episode_seconds = 0.0
        """How long an episode took on the average, from the start of its environment until it was closed."""
        self._num_episodes, self._num_in_rule = 0, 0
        self.cut: list[str] = []
        """Rules that were decided on fewer episodes than they ask for."""

    def begin(self, rule: str, *, weight: float = 1.0) -> None:
        """A rule begins. `weight` is how many usual shares it needs; each has time for one episode."""
        left = min(self._ends - self._clock(), self._processor_ends - processor_time())
        share = max(weight * left / _SHARES, 1.5 * self.episode_seconds)
        self.rule, self._num_in_rule, self._rule_ends = rule, 0, self._clock() + min(left, share)

    @property
    def left(self) -> float:
        """Seconds that the rule still has."""
        return min(self._rule_ends - self._clock(), self._processor_ends - processor_time())

    def has_time_for(self, num: int) -> bool:
        """Whether so many episodes more can be expected to fit."""
        return self.left >= num * self.episode_seconds

    def need(self, num: int = 1) -> None:
        """Raises OutOfTimeError unless so many episodes more can be expected to fit."""
        if self.left <= 0 or not self.has_time_for(num):
            raise OutOfTimeError(f"no time was left for it: an episode takes {self.episode_seconds:.1f} s here")

    def played(self, seconds: float) -> None:
        """An episode is over, and took so long."""
        self._num_episodes += 1
        self._num_in_rule += 1
        self.episode_seconds += (seconds - self.episode_seconds) / self._num_episodes

    @contextmanager
    def as_far_as_it_goes(self) -> Iterator[None]:
        """A block that may end early when the time is used up, if it saw one episode at least; noted in `cut`."""
        try:
            yield
        except OutOfTimeError:
            if not self._num_in_rule:
                raise
            self.cut_short()

    def cut_short(self) -> None:
        """The rule is decided on fewer episodes than it asks for."""
        if self.rule not in self.cut:
            self.cut.append(self.rule)
