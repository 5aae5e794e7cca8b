"""What detectors compare: the first steps with the last ones, and episodes of one task with each other.

Episodes of one task in one step share their luck, so that a standard error is taken over such groups (clusters), and few
groups raise what a difference must exceed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TypeAlias, final

from sparring.history import Digest, History
from sparring.types import Json

Measure: TypeAlias = Callable[[Digest], float]
Cell: TypeAlias = tuple[tuple[int, str], object]
"""A group, and what is equal within it."""

MOST_STEPS = 5
"""Of a window."""
FEWEST_EPISODES = 24
"""Of a window, to be compared at all."""
FEWEST_GROUPS = 5
"""Groups in which something differs, to say what it is worth."""
EXAMPLES = 5
"""Trajectories that a finding names."""


@dataclass(frozen=True, slots=True)
class Episode:
    """A digest and its cluster: the step and the task it was played for."""

    group: tuple[int, str]
    digest: Digest


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number, its standard error and degrees of freedom."""

    value: float
    error: float
    freedom: int

    def exceeds(self, sigmas: float, over: float = 0.0) -> bool:
        """Whether it is above `over` by so many standard errors of a normal distribution, few groups allowed for."""
        return self.value - over > self._quantile(sigmas) * self.error + 1e-12

    def interval(self, sigmas: float = 1.96) -> tuple[float, float]:
        """That holds the true number as often as so many standard errors of a normal distribution do."""
        off = self._quantile(sigmas) * self.error
        return self.value - off, self.value + off

    def _quantile(self, sigmas: float) -> float:
        """Of Student's t, from the normal one: first term of the Cornish-Fisher expansion."""
        return sigmas * (1 + (sigmas**2 + 1) / (4 * max(1, self.freedom)))

    def __neg__(self) -> Estimate:
        return Estimate(-self.value, self.error, self.freedom)


@dataclass(frozen=True, slots=True)
class Windows:
    """Episodes of the first steps and of the last ones."""

    before: Sequence[Episode]
    now: Sequence[Episode]

    @property
    def all(self) -> list[Episode]:
        return [*self.before, *self.now]

    def change(self, measure: Measure) -> Estimate:
        """Mean now less mean before."""
        before, now = (mean(episodes, measure) for episodes in (self.before, self.now))
        return Estimate(now.value - before.value, math.hypot(before.error, now.error), before.freedom + now.freedom)

    def means(self, measure: Measure) -> tuple[float, float]:
        """Before, and now."""
        return fmean(measure(one.digest) for one in self.before), fmean(measure(one.digest) for one in self.now)


def windows(history: History) -> Windows | None:
    """A third of the steps each, five at most; None while there are fewer than three, or too few episodes."""
    steps = [one for one in history.steps if one.train]
    num_trained = max((one.step for one in steps), default=0) - min((one.step for one in steps), default=0) + 1
    if num_trained < 3:
        return None
    count = min(MOST_STEPS, num_trained // 3)
    before, now = (
        [Episode((one.step, digest.task_id), digest) for one in part for digest in one.train]
        for part in (steps[:count], steps[-count:])
    )
    return Windows(before, now) if min(len(before), len(now)) >= FEWEST_EPISODES else None


def latest(history: History, num_steps: int) -> list[Episode]:
    """The episodes of the last steps."""
    steps = [one for one in history.steps if one.train][-num_steps:]
    return [Episode((one.step, digest.task_id), digest) for one in steps for digest in one.train]


def steps_of(episodes: Iterable[Episode]) -> list[int]:
    """The first and the last step of some episodes, at least one."""
    steps = [one.group[0] for one in episodes]
    return [min(steps), max(steps)]


def when(episodes: Iterable[Episode]) -> str:
    """Their steps, in words: `steps 3 to 5`."""
    first, last = steps_of(episodes)
    return f"step {first}" if first == last else f"steps {first} to {last}"


def mean(episodes: Sequence[Episode], measure: Measure) -> Estimate:
    """Over at least one episode; its error is infinite over one group."""
    groups: dict[tuple[int, str], list[float]] = defaultdict(list)
    for one in episodes:
        groups[one.group].append(measure(one.digest))
    count = sum(map(len, groups.values()))
    value = sum(sum(values) for values in groups.values()) / count
    if len(groups) < 2:
        return Estimate(value, math.inf, 0)
    squares = sum(sum(one - value for one in values) ** 2 for values in groups.values())
    return Estimate(value, math.sqrt(squares * len(groups) / (len(groups) - 1)) / count, len(groups) - 1)


def reward(digest: Digest) -> float:
    return digest.reward


def score(digest: Digest) -> float:
    """Of an episode that was judged."""
    assert digest.score is not None, "asked of an episode without a score"
    return digest.score


def are_judged(episodes: Iterable[Episode]) -> bool:
    """Whether a scorer said something of each."""
    return all(one.digest.score is not None for one in episodes)


def worth(episodes: Sequence[Episode]) -> float | None:
    """How much reward comes with a score of 1 rather than 0: the slope of rewards on scores. None when all scores are equal."""
    scores, rewards = [score(one.digest) for one in episodes], [one.digest.reward for one in episodes]
    mean_score, mean_reward = fmean(scores), fmean(rewards)
    variance = sum((one - mean_score) ** 2 for one in scores)
    if variance == 0:
        return None
    return sum((s - mean_score) * (r - mean_reward) for s, r in zip(scores, rewards, strict=True)) / variance


def spread(values: Iterable[float]) -> float:
    """From the 5th to the 95th percentile; 0 of nothing."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    return ordered[math.ceil(0.95 * len(ordered)) - 1] - ordered[int(0.05 * len(ordered))]


def slope(
    episodes: Sequence[Episode], cause: Measure, effect: Measure, *, at_equal: Callable[[Digest], object] | None = None
) -> Estimate | None:
    """What one more of `cause` comes with in `effect`, among siblings of one group, and among those of equal `at_equal`.

    None where too few groups have siblings that differ in the cause.
    """
    cells: dict[tuple[object, ...], list[tuple[float, float]]] = defaultdict(list)
    for one in episodes:
        key = (one.group, at_equal(one.digest) if at_equal else None)
        cells[key].append((cause(one.digest), effect(one.digest)))
    centered: dict[object, list[tuple[float, float]]] = defaultdict(list)
    for (group, _), pairs in cells.items():
        mean_cause, mean_effect = fmean(pair[0] for pair in pairs), fmean(pair[1] for pair in pairs)
        if any(pair[0] != mean_cause for pair in pairs):
            centered[group] += [(x - mean_cause, y - mean_effect) for x, y in pairs]
    if len(centered) < FEWEST_GROUPS:
        return None
    total = sum(x * x for pairs in centered.values() for x, _ in pairs)
    value = sum(x * y for pairs in centered.values() for x, y in pairs) / total
    # Clusters are independent, what is in one is not (Liang and Zeger, 1986).
    moments = [sum(x * (y - value * x) for x, y in pairs) for pairs in centered.values()]
    count = len(moments)
    error = math.sqrt(count / (count - 1) * sum(one**2 for one in moments)) / total
    return Estimate(value, error, count - 1)


@final
class Siblings:
    """The same slope for causes that an episode has or has not, of which thousands can be tried: what is compared is worked out
    once."""

    def __init__(
        self, episodes: Sequence[Episode], effect: Measure, *, at_equal: Callable[[Digest], object] | None = None
    ) -> None:
        cells: dict[Cell, list[Episode]] = defaultdict(list)
        for one in episodes:
            cells[(one.group, at_equal(one.digest) if at_equal else None)].append(one)
        self._sizes = {cell: len(members) for cell, members in cells.items()}
        self._places: dict[str, tuple[Cell, float]] = {}
        """Of each episode its cell, and how its effect differs from the cell's mean."""
        for cell, members in cells.items():
            usual = fmean(effect(one.digest) for one in members)
            self._places |= {one.digest.id: (cell, effect(one.digest) - usual) for one in members}

    def worth_of(self, carriers: Iterable[str]) -> Estimate | None:
        """What comes with being one of the carriers, given by their ids. None where too few groups have both kinds."""
        counts: dict[Cell, tuple[int, float]] = {}
        for one in carriers:
            cell, off = self._places[one]
            count, total = counts.get(cell, (0, 0.0))
            counts[cell] = (count + 1, total + off)
        # Centered in its cell, having it is 1 - count / size or -count / size.
        moments: dict[object, tuple[float, float]] = {}
        for cell, (count, product) in counts.items():
            square = count - count * count / self._sizes[cell]
            if square > 0:
                before = moments.get(cell[0], (0.0, 0.0))
                moments[cell[0]] = (before[0] + square, before[1] + product)
        if len(moments) < FEWEST_GROUPS:
            return None
        total = sum(square for square, _ in moments.values())
        value = sum(product for _, product in moments.values()) / total
        num_groups = len(moments)
        squares = sum((product - value * square) ** 2 for square, product in moments.values())
        return Estimate(value, math.sqrt(num_groups / (num_groups - 1) * squares) / total, num_groups - 1)


def paid_for_wrong(history: History, episodes: Sequence[Episode]) -> list[Episode]:
    """Those that the scorer rejects and that earn as much as right ones of their group; where that has none, as the usual right
    one of all steps. None of them while nothing was right yet, and none that earned nothing, or as little as any episode did:
    what is not paid at all is not paid for being wrong. All episodes must be judged."""
    everything = latest(history, len(history.steps))
    right = [
        one for one in everything if one.digest.score is not None and one.digest.score >= history.success_threshold
    ]
    if not right:
        return []
    unpaid = min(0.0, *(one.digest.reward for one in everything))
    usual = median(one.digest.reward for one in right)
    siblings: dict[tuple[int, str], list[float]] = defaultdict(list)
    for one in right:
        siblings[one.group].append(one.digest.reward)
    due = {group: fmean(rewards) for group, rewards in siblings.items()}
    return [
        one
        for one in episodes
        if score(one.digest) < history.success_threshold
        and one.digest.reward > unpaid
        and one.digest.reward >= due.get(one.group, usual) - 1e-9
    ]


def named(episodes: Sequence[Episode]) -> tuple[str, ...]:
    """Ids of the first few."""
    return tuple(one.digest.id for one in episodes[:EXAMPLES])


def shown(episodes: Sequence[Episode]) -> list[Json]:
    """What the first few said, did and got."""
    return [
        {
            "id": one.digest.id, "task_id": one.digest.task_id, "reward": one.digest.reward, "score": one.digest.score,
            "answer": one.digest.answer[:200], "calls": [f"{call.name} {call.arguments}"[:100] for call in one.digest.calls[:8]],
        }
        for one in episodes[:EXAMPLES]
    ]  # fmt: skip
