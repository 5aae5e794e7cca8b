"""Agreement between reward and scorer on the same episodes: where the two disagree, and which components cause it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import correlation, median
from typing import Any, Literal, TypeAlias

from sparring.run_folders.digests import tags_of
from sparring.types import Outcome, Trajectory

Kind: TypeAlias = Literal["paid_wrong", "unpaid_right"]
"""`paid_wrong` episodes are correct according to the reward and incorrect according to the scorer; `unpaid_right` is
the reverse."""

_CONDUCT = frozenset({"completion", "budget_exhausted", "tool_use"})
"""The sub-scores about conduct. They are not part of the answer, so a reward cannot misread them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """One episode on which reward and scorer disagree."""

    kind: Kind
    trajectory_id: str
    task_id: str
    reward: float
    score: float
    components: Mapping[str, float]
    score_parts: Mapping[str, float]
    culprits: tuple[str, ...]
    """The components, sub-scores and tags that explain the disagreement, as far as their names show: `component grade`,
    `tag final_response`."""
    fault: str
    """The explanation as a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The agreement of reward and scorer on the same episodes, measured at the success threshold and by rank
    correlation."""

    both_right: int
    both_wrong: int
    paid_wrong: int
    """The number of episodes that are rewarded like a correct answer, but are incorrect according to the scorer."""
    unpaid_right: int
    """The number of episodes that are correct according to the scorer, but are rewarded no better than some incorrect
    answer."""
    paid_from: float
    """The lowest reward at which an episode counts as rewarded like a correct one."""
    rank_correlation: float | None
    """Spearman's correlation of rewards and scores over all episodes, or None if one of them is constant."""
    num_pairs: int
    """The number of pairs of episodes of one task with different scores. These pairs determine a group's advantages."""
    num_inverted: int
    """The number of such pairs in which the worse episode earned at least as much as the better one."""
    disagreements: tuple[Disagreement, ...]
    """The disagreements. Incorrect episodes that were rewarded come first, in descending order of their reward."""

    @property
    def num(self) -> int:
        """The number of episodes with both a reward and a score."""
        return self.both_right + self.both_wrong + self.paid_wrong + self.unpaid_right

    @property
    def share(self) -> float | None:
        """The share of episodes on which reward and scorer agree, or None if there are no episodes."""
        return (self.both_right + self.both_wrong) / self.num if self.num else None

    @property
    def culprits(self) -> dict[str, int]:
        """The number of disagreements that each component, sub-score or tag explains, in descending order."""
        return dict(Counter(name for one in self.disagreements for name in one.culprits).most_common())

    def as_json(self) -> dict[str, Any]:
        """Return the content as JSON data."""
        return {
            "num": self.num,
            "share": self.share,
            "both_right": self.both_right,
            "both_wrong": self.both_wrong,
            "paid_wrong": self.paid_wrong,
            "unpaid_right": self.unpaid_right,
            "paid_from": self.paid_from,
            "rank_correlation": self.rank_correlation,
            "num_pairs": self.num_pairs,
            "num_inverted": self.num_inverted,
            "culprits": self.culprits,
            "disagreements": [asdict(one) for one in self.disagreements],
        }

    def metrics(self) -> dict[str, float]:
        """Return the shares to plot. The result is empty if no episode has both a reward and a score."""
        if self.share is None:
            return {}
        found = {
            "share": self.share,
            "paid_wrong": self.paid_wrong / self.num,
            "unpaid_right": self.unpaid_right / self.num,
        }
        if self.num_pairs:
            found["inverted_pairs"] = self.num_inverted / self.num_pairs
        if self.rank_correlation is not None:
            found["rank_correlation"] = self.rank_correlation
        return found

    def summary(self) -> str:
        """Return a one-line summary to print below a table."""
        if self.share is None:
            return "no episode has both a reward and a score, so it is unknown whether they agree"
        inverted = f"; {self.num_inverted} of {self.num_pairs} pairs inverted" if self.num_pairs else ""
        return (
            f"reward and scorer agree on {self.both_right + self.both_wrong} of {self.num} episodes "
            f"({self.share:.0%}): {self.paid_wrong} wrong but paid, {self.unpaid_right} right but unpaid{inverted}"
        )


@dataclass(frozen=True, slots=True)
class _GradedEpisode:
    """A trajectory that has both a reward and a score, together with these two numbers."""

    trajectory: Trajectory
    reward: float
    score: float
    components: Mapping[str, float]


def agreement(trajectories: Iterable[Trajectory], *, success_threshold: float) -> Agreement:
    """Compare the rewards and scores of trajectories. Trajectories that lack either of the two are left out.

    An episode is correct if its score reaches `success_threshold`; otherwise, it is incorrect. An incorrect episode
    counts as rewarded (`paid_wrong`) if its reward also reaches the threshold. A reward may have its own scale, for
    example because of a step cost. It may happen that no correct episode earns the threshold, although the best correct
    episode earns more than most incorrect ones. In that case, the highest reward of a correct episode replaces the
    threshold.

    A correct episode counts as not rewarded (`unpaid_right`) if it earns less than the threshold and no more than an
    incorrect episode. The incorrect episode must be of the same task if that task has any. If no episode is incorrect,
    a correct episode counts as not rewarded if it earns nothing. Therefore, neither partial credit for an incorrect
    answer nor a cost for a correct answer is a disagreement.
    """
    graded = list(_graded(trajectories))
    right = [one for one in graded if one.score >= success_threshold]
    wrong = [one for one in graded if one.score < success_threshold]
    paid_from = _paid_from(right, wrong, success_threshold)
    paid = [one for one in wrong if one.reward >= paid_from]
    unpaid = [one for one in right if one.reward < paid_from and _earns_no_more_than_wrong(one, wrong)]
    pairs = list(_pairs(graded))
    return Agreement(
        both_right=len(right) - len(unpaid),
        both_wrong=len(wrong) - len(paid),
        paid_wrong=len(paid),
        unpaid_right=len(unpaid),
        paid_from=paid_from,
        rank_correlation=_spearman([one.reward for one in graded], [one.score for one in graded]),
        num_pairs=len(pairs),
        num_inverted=sum((a.reward - b.reward) * (a.score - b.score) <= 0 for a, b in pairs),
        disagreements=(*_paid_first(paid), *_unpaid_first(unpaid, wrong)),
    )


def _graded(trajectories: Iterable[Trajectory]) -> Iterator[_GradedEpisode]:
    for one in trajectories:
        if one.reward is not None and one.score is not None:
            yield _GradedEpisode(one, one.reward.total, one.score, one.reward.components)


def _pairs(graded: Sequence[_GradedEpisode]) -> Iterator[tuple[_GradedEpisode, _GradedEpisode]]:
    """Yield the pairs of episodes of the same task whose scores differ."""
    tasks: dict[str, list[_GradedEpisode]] = {}
    for one in graded:
        tasks.setdefault(one.trajectory.task.id, []).append(one)
    for members in tasks.values():
        yield from (pair for pair in combinations(members, 2) if pair[0].score != pair[1].score)


def _paid_from(right: Sequence[_GradedEpisode], wrong: Sequence[_GradedEpisode], success_threshold: float) -> float:
    if not right:
        return success_threshold
    best = max(one.reward for one in right)
    orders_them = best > (median(one.reward for one in wrong) if wrong else 0)
    return best if best < success_threshold and orders_them else success_threshold


def _rival(one: _GradedEpisode, wrong: Sequence[_GradedEpisode]) -> _GradedEpisode | None:
    """Return the incorrect episode with the highest reward, if it earned at least as much as `one`. Only episodes of
    the same task are considered if that task has incorrect episodes."""
    siblings = [other for other in wrong if other.trajectory.task.id == one.trajectory.task.id] or wrong
    best = max(siblings, key=lambda other: other.reward, default=None)
    return best if best is not None and best.reward >= one.reward else None


def _earns_no_more_than_wrong(one: _GradedEpisode, wrong: Sequence[_GradedEpisode]) -> bool:
    """Return whether a correct episode earns no more than an incorrect one. If there are no incorrect episodes, the
    function compares with a reward of 0."""
    return _rival(one, wrong) is not None if wrong else one.reward <= 0


def _disagreement(one: _GradedEpisode, kind: Kind, rival: _GradedEpisode | None) -> Disagreement:
    culprits, reasons = _faults(one, kind)
    if rival is not None:
        reasons = [f"{rival.trajectory.id}, which is wrong, earned {rival.reward:g}", *reasons]
    return Disagreement(
        kind=kind,
        trajectory_id=one.trajectory.id,
        task_id=one.trajectory.task.id,
        reward=one.reward,
        score=one.score,
        components=dict(one.components),
        score_parts=dict(one.trajectory.score_parts),
        culprits=tuple(culprits),
        fault="; ".join(reasons),
    )


def _faults(one: _GradedEpisode, kind: Kind) -> tuple[list[str], list[str]]:
    """Return the components that explain a disagreement, both as names and as sentences."""
    parts = {name: value for name, value in one.trajectory.score_parts.items() if name not in _CONDUCT}
    culprits, reasons = _overpaid(one, parts) if kind == "paid_wrong" else _withheld(one)
    last = one.trajectory.messages[-1] if one.trajectory.messages else {}
    if tags := Counter(tags_of(last)):
        if parts.get("format", 1) < 1 or not culprits:
            culprits += [f"tag {tag}" for tag in tags]
        reasons.append("the answer's tags: " + ", ".join(f"<{tag}> x{count}" for tag, count in tags.items()))
    if last.get("role") != "assistant":
        reasons.append(f"the last message is {last.get('role') or 'no role'}'s")
    if one.trajectory.outcome is not Outcome.FINISHED:
        reasons.append(f"the episode ended as {one.trajectory.outcome}")
    if not parts and not one.components:
        reasons.append("neither has parts; return a Reward with components and a Score with parts to see the cause")
    return culprits, reasons


def _paid_first(paid: Iterable[_GradedEpisode]) -> Iterator[Disagreement]:
    for one in sorted(paid, key=lambda one: -one.reward):
        yield _disagreement(one, "paid_wrong", None)


def _unpaid_first(unpaid: Iterable[_GradedEpisode], wrong: Sequence[_GradedEpisode]) -> Iterator[Disagreement]:
    for one in sorted(unpaid, key=lambda one: one.reward):
        yield _disagreement(one, "unpaid_right", _rival(one, wrong))


def _overpaid(one: _GradedEpisode, parts: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """Return the components that reward what the scorer rejects, and the sub-scores that reject it."""
    culprits: list[str] = []
    reasons: list[str] = []
    denied = [name for name, value in parts.items() if value < 1]
    named = {name.rpartition("/")[2] for name in denied}
    paid = [name for name, value in one.components.items() if value > 0 and name.rpartition("/")[2] in named]
    if paid:
        culprits += [f"component {name}" for name in paid]
        reasons.append("the reward pays for " + ", ".join(f"{name} ({one.components[name]:g})" for name in paid))
    if denied:
        # A sub-score with the same name as a component is listed once.
        met = {name.rpartition("/")[2] for name in paid}
        culprits += [f"part {name}" for name in denied if name.rpartition("/")[2] not in met]
        reasons.append("the scorer denies " + ", ".join(f"{name} ({parts[name]:g})" for name in denied))
    return culprits, reasons


def _withheld(one: _GradedEpisode) -> tuple[list[str], list[str]]:
    """Return the components that give no reward."""
    names = [name for name, value in one.components.items() if value <= 0]
    reasons = ["the reward gives nothing for " + ", ".join(names)] if names else []
    return [f"component {name}" for name in names], reasons


def _spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Pearson's correlation of the ranks, with ties at their mean rank (Spearman 1904), or None if it is
    undefined."""
    if len(set(first)) < 2 or len(set(second)) < 2:
        return None
    return correlation(_ranks(first), _ranks(second))


def _ranks(values: Sequence[float]) -> list[float]:
    places: dict[float, list[int]] = {}
    for place, value in enumerate(sorted(values)):
        places.setdefault(value, []).append(place)
    return [sum(places[value]) / len(places[value]) for value in values]
