"""The time budget of a check, which its rules share. A rule without enough time uses fewer episodes."""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

TOTAL_SECONDS = 55.0
"""The seconds for a check without a model, per minute of `--minutes`."""
START_SECONDS = 20.0
"""The seconds for the first start and reset of an environment, per minute of the check."""
CALL_SECONDS = 5.0
"""The seconds for one call of user code, per minute of the check. The limit is higher if the environment starts
slowly."""
VERDICT_SECONDS = 30.0
"""The seconds for a verdict of an LLM judge, per minute of the check. All verdicts of an episode are requested at
once."""
VERDICTS_SECONDS = 180.0
"""The maximum number of additional seconds for a check with an LLM judge, per minute of the check."""
REVIEW_SECONDS = 2400.0
"""The additional seconds for a check with a model that reviews the recipe."""
SLOWER_THAN_START = 5.0
"""A call may take this many times as long as the environment needs to start and reset."""
MOST_PATIENT = 10.0
"""The largest factor by which a time limit grows on a busy machine."""
MOST_STRETCHED = 3.0
"""The largest factor by which the time of the whole check grows on a busy machine. Beyond it, rules use fewer
episodes."""
_SHARES = 8
"""A rule gets the remaining time divided by this number."""
_NUM_PROCESSORS = os.cpu_count() or 1
"""The number of processors. It is read once, because counting is slow and the limit of every call depends on it."""


class UndecidedError(Exception):
    """A rule could not gather its evidence. The message states the reason."""


class TimedOutError(UndecidedError):
    """A call to the environment did not return in time, so its result is unknown."""


class OutOfTimeError(UndecidedError):
    """The time for a rule was used up before it could be decided. Nothing is wrong with the recipe."""


def load_of_machine() -> float:
    """Return the factor by which work takes longer than on an idle machine, from 1 to MOST_PATIENT."""
    try:
        ratio = os.getloadavg()[0] / _NUM_PROCESSORS
    except OSError:
        return 1.0
    return min(MOST_PATIENT, max(1.0, ratio))


def processor_time() -> float:
    """Return the CPU time of this process and its terminated children, in seconds."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


@final
class Deadline:
    """The end of a search. CPU time limits the search, so that the result is the same on a busy machine. Wall-clock
    time also limits it, for environments that wait."""

    def __init__(self, seconds: float) -> None:
        self._processor = time.process_time() + seconds
        self._clock = time.monotonic() + 2 * seconds * load_of_machine()

    @property
    def is_over(self) -> bool:
        return time.process_time() > self._processor or time.monotonic() > self._clock


@final
class Timing:
    """Shares the remaining time among the rules, and measures how long an episode takes."""

    def __init__(
        self,
        *,
        seconds: float = math.inf,
        processor_seconds: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the budget. `processor_seconds` limits the CPU time of this process and its terminated children, in
        seconds."""
        self._clock = clock
        self._ends = self._rule_ends = clock() + seconds
        self._processor_ends = processor_time() + processor_seconds
        self.rule = ""
        self.episode_seconds = 0.0
        """The mean time of an episode, from the start of its environment until it is closed."""
        self._num_episodes, self._num_in_rule = 0, 0
        self.cut: list[str] = []
        """The rules that were decided on fewer episodes than usual."""

    def begin(self, rule: str, *, weight: float = 1.0) -> None:
        """Start a rule. `weight` is the number of regular shares that it gets. Each share has time for at least one
        episode."""
        left = min(self._ends - self._clock(), self._processor_ends - processor_time())
        share = max(weight * left / _SHARES, 1.5 * self.episode_seconds)
        self.rule, self._num_in_rule, self._rule_ends = rule, 0, self._clock() + min(left, share)

    @property
    def left(self) -> float:
        """The remaining time of the rule, in seconds."""
        return min(self._rule_ends - self._clock(), self._processor_ends - processor_time())

    def has_time_for(self, num: int) -> bool:
        """Return True if `num` more episodes are expected to fit."""
        return self.left >= num * self.episode_seconds

    def need(self, num: int = 1) -> None:
        """Raise OutOfTimeError unless `num` more episodes are expected to fit."""
        if self.left <= 0 or not self.has_time_for(num):
            reason = (
                f": an episode takes {self.episode_seconds:.1f} s on this machine"
                if self.episode_seconds >= 0.05
                else ""
            )
            raise OutOfTimeError(f"no time was left for the rule{reason}")

    def count_episode(self, seconds: float) -> None:
        """Count an episode that took `seconds`."""
        self._num_episodes += 1
        self._num_in_rule += 1
        self.episode_seconds += (seconds - self.episode_seconds) / self._num_episodes

    @contextmanager
    def as_far_as_it_goes(self) -> Iterator[None]:
        """Let a block end early if the time is used up after at least one episode. The rule is then added to `cut`."""
        try:
            yield
        except OutOfTimeError:
            if not self._num_in_rule:
                raise
            self.cut_short()

    def cut_short(self) -> None:
        """Record that the rule is decided on fewer episodes than usual."""
        if self.rule not in self.cut:
            self.cut.append(self.rule)
