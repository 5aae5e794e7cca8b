"""Comparisons of the first steps with the last steps, and of episodes of one task with each other.

Episodes of one task in one step are not independent, so standard errors are computed over such groups (clusters). With
few groups, only larger differences count.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Literal, TypeAlias, final

from sparring.run_folders.history import Digest, History, StepRecord
from sparring.types import Json

Measure: TypeAlias = Callable[[Digest], float]
Cell: TypeAlias = tuple[tuple[int, str], object]
"""A group, and the value that its compared episodes have in common."""

MOST_STEPS = 5
"""The largest number of steps of a window."""
FEWEST_EPISODES = 24
"""The smallest number of episodes of a window for a comparison."""
FEWEST_GROUPS = 5
"""The smallest number of groups in which a cause must differ for an estimate of its effect."""
EXAMPLES = 5
"""The largest number of trajectories that a finding names."""
OFFERED = {f"rollout/{what}/mean": f"rollout/{what}/offered_mean" for what in ("reward", "score")}
"""The metrics of the offered tasks, by the metrics of the selected ones. They are missing where both are equal."""


@dataclass(frozen=True, slots=True)
class Episode:
    """A digest and its cluster, which consists of the step and the task."""

    group: tuple[int, str]
    digest: Digest


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its standard error and degrees of freedom."""

    value: float
    error: float
    freedom: int

    def exceeds(self, sigmas: float, over: float = 0.0) -> bool:
        """Return whether the value exceeds `over` by this many standard errors, adjusted for small numbers of
        groups."""
        return self.value - over > self._quantile(sigmas) * self.error + 1e-12

    def interval(self, sigmas: float = 1.96) -> tuple[float, float]:
        """Return the confidence interval whose level corresponds to this many standard errors of a normal
        distribution."""
        off = self._quantile(sigmas) * self.error
        return self.value - off, self.value + off

    def _quantile(self, sigmas: float) -> float:
        """Return the quantile of Student's t distribution that corresponds to a normal quantile, using the first term
        of the Cornish-Fisher expansion."""
        return sigmas * (1 + (sigmas**2 + 1) / (4 * max(1, self.freedom)))

    def times(self, factor: float) -> Estimate:
        return Estimate(factor * self.value, abs(factor) * self.error, self.freedom)

    def minus(self, other: Estimate) -> Estimate:
        """Return the difference from an independent estimate, with the degrees of freedom of Welch (1947)."""
        squares = self.error**2, other.error**2
        total = sum(squares)
        parts = [square**2 / max(1, one.freedom) for square, one in zip(squares, (self, other), strict=True)]
        freedom = int(total**2 / sum(parts)) if 0 < total < math.inf else min(self.freedom, other.freedom)
        return Estimate(self.value - other.value, math.sqrt(total), freedom)

    def __neg__(self) -> Estimate:
        return Estimate(-self.value, self.error, self.freedom)


@dataclass(frozen=True, slots=True)
class Windows:
    """The episodes of the first steps and of the last steps."""

    before: Sequence[Episode]
    now: Sequence[Episode]

    @property
    def all(self) -> list[Episode]:
        return [*self.before, *self.now]

    def change(self, measure: Measure) -> Estimate:
        """Return the current mean minus the earlier mean."""
        before, now = (mean(episodes, measure) for episodes in (self.before, self.now))
        return Estimate(now.value - before.value, math.hypot(before.error, now.error), before.freedom + now.freedom)

    def means(self, measure: Measure) -> tuple[float, float]:
        """Return the earlier and the current mean."""
        return fmean(measure(one.digest) for one in self.before), fmean(measure(one.digest) for one in self.now)


def windows(history: History) -> Windows | None:
    """Return the first and the last third of the steps, with at most five steps each, or five of each kind if a step has
    tasks of one kind. Both windows have as many steps of each kind.

    Return None if there are fewer than three steps, or too few episodes.
    """
    steps = [one for one in history.steps if one.train]
    if not steps:
        return None
    third = (steps[-1].step - steps[0].step + 1) // 3
    first = [one for one in steps if one.step < steps[0].step + third]
    last = [one for one in reversed(steps) if one.step > steps[-1].step - third]
    common = Counter(map(kind_of, first)) & Counter(map(kind_of, last))
    before, now = (
        [Episode((one.step, digest.task_id), digest) for one in part for digest in one.train]
        for part in (_choose(first, common), _choose(last, common)[::-1])
    )
    return Windows(before, now) if min(len(before), len(now)) >= FEWEST_EPISODES else None


def _choose(steps: Iterable[StepRecord], nums: Mapping[str | None, int]) -> list[StepRecord]:
    """Return as many of the steps of each kind as `nums` contains, but no more than MOST_STEPS."""
    chosen: list[StepRecord] = []
    left = {kind: min(num, MOST_STEPS) for kind, num in nums.items()}
    for one in steps:
        kind = kind_of(one)
        if left.get(kind, 0):
            left[kind] -= 1
            chosen.append(one)
    return chosen


def kind_of(step: StepRecord) -> str | None:
    """Return the kind of the tasks of a step, or None if they have several kinds, or if the recipe names no kinds."""
    kinds = _kinds(step.metrics, "rollout/kind/", "/num_groups")
    return kinds[0] if len(kinds) == 1 else None


def has_validated_kinds(steps: Iterable[StepRecord], validation: Mapping[str, float]) -> bool:
    """Return whether training steps can be compared with a validation run: not if each step has tasks of one kind, and some
    of the validated kinds are missing. `validation` contains the metrics of the validation run."""
    kinds = {kind_of(one) for one in steps}
    return None in kinds or kinds >= set(_kinds(validation, "val/kind/", "/success"))


def _kinds(metrics: Iterable[str], prefix: str, suffix: str) -> list[str]:
    return [name[len(prefix) : -len(suffix)] for name in metrics if name.startswith(prefix) and name.endswith(suffix)]


def latest(history: History, num_steps: int) -> list[Episode]:
    """Return the training episodes of the last steps."""
    steps = [one for one in history.steps if one.train][-num_steps:]
    return [Episode((one.step, digest.task_id), digest) for one in steps for digest in one.train]


def steps_of(episodes: Iterable[Episode]) -> list[int]:
    """Return the first and the last step of the episodes. At least one episode is required."""
    steps = [one.group[0] for one in episodes]
    return [min(steps), max(steps)]


def when(episodes: Iterable[Episode]) -> str:
    """Return the steps of the episodes as text: `steps 3 to 5`."""
    first, last = steps_of(episodes)
    return f"step {first}" if first == last else f"steps {first} to {last}"


def mean(episodes: Sequence[Episode], measure: Measure) -> Estimate:
    """Return the mean over at least one episode. Its standard error is infinite if there is only one group."""
    groups: dict[tuple[int, str], list[float]] = defaultdict(list)
    for one in episodes:
        groups[one.group].append(measure(one.digest))
    count = sum(map(len, groups.values()))
    value = sum(sum(values) for values in groups.values()) / count
    if len(groups) < 2:
        return Estimate(value, math.inf, 0)
    squares = sum(sum(one - value for one in values) ** 2 for values in groups.values())
    return Estimate(value, math.sqrt(squares * len(groups) / (len(groups) - 1)) / count, len(groups) - 1)


def value_of_offered(metrics: Mapping[str, float], name: str) -> float | None:
    """Return the value of a metric at a step, or None if the step does not have it. Means of reward and score are those of
    the offered tasks, because the means of selected tasks change with the selection even if the policy does not."""
    return metrics.get(OFFERED.get(name, name), metrics.get(name))


def mean_of_offered(steps: Sequence[StepRecord], what: Literal["reward", "score"]) -> Estimate:
    """Return the mean reward or score of the tasks that were offered in at least one step with episodes. If tasks were
    selected, the standard error is that of the steps' means, and infinite for a single step."""
    name = f"rollout/{what}/mean"
    if not any(OFFERED[name] in one.metrics for one in steps):
        measure = reward if what == "reward" else score
        return mean([Episode((one.step, digest.task_id), digest) for one in steps for digest in one.train], measure)
    values = [found for one in steps if (found := value_of_offered(one.metrics, name)) is not None]
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return Estimate(fmean(values), error, len(values) - 1)


def reward(digest: Digest) -> float:
    return digest.reward


def score(digest: Digest) -> float:
    """Return the score of an episode, which must have one."""
    assert digest.score is not None, "the episode has no score"
    return digest.score


def are_scored(episodes: Iterable[Episode]) -> bool:
    """Return whether every episode has a score."""
    return all(one.digest.score is not None for one in episodes)


def worth(episodes: Sequence[Episode]) -> float | None:
    """Return the regression slope of rewards on scores, which is the reward for a score of 1 instead of 0. Return None
    if all scores are equal."""
    scores, rewards = [score(one.digest) for one in episodes], [one.digest.reward for one in episodes]
    mean_score, mean_reward = fmean(scores), fmean(rewards)
    variance = sum((one - mean_score) ** 2 for one in scores)
    if variance == 0:
        return None
    return sum((s - mean_score) * (r - mean_reward) for s, r in zip(scores, rewards, strict=True)) / variance


def spread(values: Iterable[float]) -> float:
    """Return the distance from the 5th to the 95th percentile, or 0 without values."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    return ordered[math.ceil(0.95 * len(ordered)) - 1] - ordered[int(0.05 * len(ordered))]


def slope(
    episodes: Sequence[Episode], cause: Measure, effect: Measure, *, at_equal: Callable[[Digest], object] | None = None
) -> Estimate | None:
    """Return the regression slope of `effect` on `cause` within groups, among episodes with the same value of
    `at_equal`.

    Return None if the cause varies in too few groups.
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
    # Clusters are independent; episodes within a cluster are not (Liang and Zeger, 1986).
    moments = [sum(x * (y - value * x) for x, y in pairs) for pairs in centered.values()]
    count = len(moments)
    error = math.sqrt(count / (count - 1) * sum(one**2 for one in moments)) / total
    return Estimate(value, error, count - 1)


@final
class Siblings:
    """The same slope as `slope`, for causes that an episode either has or lacks. It is prepared once, so that thousands
    of causes can be tried."""

    def __init__(
        self, episodes: Sequence[Episode], effect: Measure, *, at_equal: Callable[[Digest], object] | None = None
    ) -> None:
        cells: dict[Cell, list[Episode]] = defaultdict(list)
        for one in episodes:
            cells[(one.group, at_equal(one.digest) if at_equal else None)].append(one)
        self._sizes = {cell: len(members) for cell, members in cells.items()}
        self._places: dict[str, tuple[Cell, float]] = {}
        """For each episode id, the cell and the difference of the effect from the cell's mean."""
        for cell, members in cells.items():
            usual = fmean(effect(one.digest) for one in members)
            self._places |= {one.digest.id: (cell, effect(one.digest) - usual) for one in members}

    def worth_of(self, carriers: Iterable[str]) -> Estimate | None:
        """Return the effect of being one of the carriers (given by episode id), or None if too few groups contain both
        carriers and other episodes."""
        counts: dict[Cell, tuple[int, float]] = {}
        for one in carriers:
            cell, off = self._places[one]
            count, total = counts.get(cell, (0, 0.0))
            counts[cell] = (count + 1, total + off)
        # Centered within its cell, the value of an episode is 1 - count / size with the cause, and -count / size
        # without it.
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
    """Return the episodes that the scorer rejects but that earn at least as much as correct episodes of their group.

    If the group has no correct episode, the episodes are compared with the median correct episode of all steps. An
    episode that earned nothing, or the smallest reward of all episodes, never counts. The result is empty if no episode
    is correct. All episodes must have a score.
    """
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
    """Return the ids of the first few episodes."""
    return tuple(one.digest.id for one in episodes[:EXAMPLES])


def shown(episodes: Sequence[Episode]) -> list[Json]:
    """Return the answers, calls, rewards and scores of the first few episodes."""
    return [
        {
            "id": one.digest.id,
            "task_id": one.digest.task_id,
            "reward": one.digest.reward,
            "score": one.digest.score,
            "answer": one.digest.answer[:200],
            "calls": [f"{call.name} {call.arguments}"[:100] for call in one.digest.calls[:8]],
        }
        for one in episodes[:EXAMPLES]
    ]
