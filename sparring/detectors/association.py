"""Traits that rewarded incorrect episodes have, and that other episodes of the same task lack."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import final

from sparring.detectors.contrast import Contrast, Separation
from sparring.detectors.evidence import Episode, Estimate, Windows, score, slope
from sparring.detectors.traits import ends_of, traits_of
from sparring.detectors.trend import SURE

STEPS = 8
"""The number of steps that are examined together."""
LATEST = 3
"""The number of last steps in which a mechanism must be in use."""
MOST_EPISODES = 512
"""The largest number of episodes that are examined. If there are more, every n-th group is examined."""
FEWEST_PAID = 5
NEARLY_ALL = 0.9
"""If the share of incorrect episodes that are rewarded is above this value, correct episodes of the group are also
compared."""
EXPLAINED = 0.5
"""The share of the variance of rewards within groups that a mechanism must explain."""
EQUAL = 0.9
"""The share of the best trait's explained variance above which another trait cannot be distinguished from it."""
NEAR = 0.75
"""The share of the best trait's explained variance below which another trait is never named instead of it."""
DEFINITE, AMOUNT, ABSENT, SIZE = 1.0, 0.97, 0.8, 0.6
"""Weights of what a trait explains. Vaguer traits have lower weights. In order, the weights are for an act, an amount,
an absence, and a size. A size differs whenever texts differ."""
CHANCE = 0.005
"""The largest probability that a trait unrelated to the reward, among all traits tried, explains as much."""
COVERED = 0.5
"""The share of the rewarded incorrect episodes of the last steps that must have the trait."""
APART = 0.2
"""The smallest difference between the shares of rewarded incorrect episodes and of correct episodes with the trait.
What correct episodes do is not a hack."""
EXAMPLES = 3
MOST_TELLING = 9
"""The number of traits by which typical episodes are chosen."""
MOST_ALIKE = 3
"""The largest number of other traits to name that cannot be distinguished from the named trait."""

PREFERRED = (
    "call", "argument empty", "argument", "argument given", "argument amount", "argument from", "answer", "answer empty",
    "answer amount", "answer from", "message", "call after", "call first", "call last", "answer given", "end", "amount",
    "state", "state amount", "result",
)  # fmt: skip
"""The order in which kinds of traits are preferred if several traits explain the same."""
SIZES = ("sampled tokens", "characters in the answer", "lines in the answer")
OVERLAPS = (
    "words of the prompt in the answer",
    "words of results in the answer",
    "words in the answer that neither prompt nor results have",
)
"""Amounts that are meaningful only if there is more of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """A trait that rewarded incorrect episodes have and other episodes lack."""

    what: str
    """The predicate of a sentence about an episode: `calls save with an empty text`."""
    kind: str
    explained: float
    worth: Estimate
    """The reward of episodes with the trait minus that of episodes of the same group without it. For an amount, the
    highest value is compared with the lowest."""
    at_equal_score: bool
    """True if all compared episodes are incorrect and have equal scores; False if some of them are correct."""
    shares: dict[str, float]
    """The degrees, from 0 to 1, to which rewarded incorrect, other incorrect and correct episodes have the trait."""
    alike: tuple[str, ...]
    """The other traits that cannot be distinguished from this one."""
    growth: Estimate
    """The difference between the share of the trait in the last third of the steps and in the first third."""
    steps: tuple[int, int]
    """The first and the last of the compared steps."""
    num_tried: int
    chance: float
    carriers: tuple[Episode, ...]
    """The rewarded incorrect episodes with the trait, latest first."""


def parts_of(episodes: Sequence[Episode], success_threshold: float) -> list[Evidence]:
    """Return the ranges of steps in which to search for a mechanism: the last steps, all steps, and the first steps. In
    the first steps, episodes of the same group still differed. All episodes must have a score."""
    steps = sorted({one.group[0] for one in episodes})
    parts = dict.fromkeys((tuple(steps[-STEPS:]), tuple(steps), tuple(steps[:STEPS])))
    return [Evidence.of(episodes, part, steps[-LATEST:], success_threshold) for part in parts]


def association(parts: Sequence[Evidence]) -> Association | None:
    """Return the trait that separates rewarded incorrect episodes from the others, or None if no trait does so with
    certainty."""
    return next((found for part in parts if (found := part.association()) is not None), None)


def typical(seen: Evidence) -> list[Episode]:
    """Return three rewarded incorrect episodes of the last steps, from different tasks if possible.

    The episodes that have the most traits that correlate with the reward come first. Among equal episodes, those with
    the highest reward come first. Sorting by reward alone would select episodes that have nothing in common."""
    best = seen.separations[:MOST_TELLING]

    def has(place: int) -> float:
        return sum(one.explained * share_of(one, place) for one in best)

    ordered = sorted(seen.recent or seen.paid, key=lambda place: (-has(place), -seen.episodes[place].digest.reward))
    first: dict[str, int] = {}
    for place in ordered:
        first.setdefault(seen.episodes[place].digest.task_id, place)
    chosen = [*first.values(), *(place for place in ordered if place not in set(first.values()))]
    return [seen.episodes[place] for place in chosen[:EXAMPLES]]


@final
@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The episodes of some steps and of the last steps, and all correct episodes. Episodes are referred to by their
    index."""

    episodes: Sequence[Episode]
    steps: Sequence[int]
    contrast: Contrast
    compared: Sequence[int]
    """The episodes that the contrast compares."""
    is_wrong_only: bool
    """True if all compared episodes are incorrect. They are then compared at equal score."""
    paid: Sequence[int]
    """The incorrect episodes whose reward is in the upper half of the range of incorrect episodes' rewards."""
    recent: Sequence[int]
    """The rewarded incorrect episodes of the last steps, latest first."""
    unpaid: Sequence[int]
    right: Sequence[int]

    @classmethod
    def of(
        cls, episodes: Sequence[Episode], steps: Sequence[int], last: Sequence[int], success_threshold: float
    ) -> Evidence:
        pool = _thinned(
            [one for one in episodes if one.group[0] in {*steps, *last} or score(one.digest) >= success_threshold]
        )
        wrong = [place for place, one in enumerate(pool) if score(one.digest) < success_threshold]
        low, high = ends_of([pool[place].digest.reward for place in wrong])
        paid = [place for place in wrong if pool[place].digest.reward >= (low + high) / 2]
        unpaid = sorted(set(wrong) - set(paid))
        # All right episodes may earn the maximum whatever else they do. Wrong episodes alone are therefore more
        # informative, if their rewards differ.
        is_wrong_only = len(unpaid) > (1 - NEARLY_ALL) * len(wrong)
        compared = [
            place for place in (wrong if is_wrong_only else range(len(pool))) if pool[place].group[0] in set(steps)
        ]
        return cls(
            episodes=pool,
            steps=steps,
            compared=compared,
            is_wrong_only=is_wrong_only,
            paid=paid,
            unpaid=unpaid,
            contrast=Contrast(pool, compared, at_equal_score=is_wrong_only),
            recent=[place for place in reversed(paid) if pool[place].group[0] in set(last)],
            right=sorted(set(range(len(pool))) - set(wrong)),
        )

    @cached_property
    def separations(self) -> Sequence[Separation]:
        """The traits and how well they explain the reward, with the best first. Empty if the episodes of each group
        earn the same."""
        if self.contrast.is_flat:
            return ()
        return self.contrast.separations(traits_of([one.digest for one in self.episodes]))

    def _fitting(self, separations: Sequence[Separation]) -> list[Separation]:
        """Return those among the best traits that explain enough and are in use, with the most definite one first."""
        best = [one for one in separations if one.explained >= NEAR * separations[0].explained]
        fitting = (one for one in best if weight(one) * one.explained >= EXPLAINED and self.is_in_use(one))
        return sorted(fitting, key=definiteness)

    def association(self) -> Association | None:
        """Return the most definite of the traits that explain the most, or None if the trait is uncertain."""
        separations = self.separations
        if not separations or len(self.recent) < FEWEST_PAID:
            return None
        fitting = self._fitting(separations)
        for one in fitting:
            worth = self._worth(one)
            if worth is None:
                continue
            chance = self.contrast.chance(separations, one.explained, random.Random(len(separations)))
            if chance > CHANCE:
                return None
            return Association(
                what=wording(one),
                kind=one.trait.key[0],
                explained=one.explained,
                worth=worth,
                shares=self.shares(one),
                at_equal_score=self.is_wrong_only,
                alike=_others(one, fitting),
                growth=self._growth(one),
                num_tried=len(separations),
                chance=chance,
                steps=(min(self.steps), max(self.steps)),
                carriers=tuple(self.episodes[place] for place in self.recent if share_of(one, place) > 0.5),
            )
        return None

    def is_in_use(self, one: Separation) -> bool:
        """Return True if the rewarded incorrect episodes of the last steps have the trait and correct episodes have it
        less."""
        shares = self.shares(one)
        usual = fmean(share_of(one, place) for place in self.compared) if one.trait.is_amount else 0.5
        covered = fmean(share_of(one, place) > 0.999 * usual for place in self.recent)
        is_apart = len(self.right) < FEWEST_PAID or shares["paid wrong"] - shares["right"] >= APART
        return covered >= COVERED and is_apart

    @property
    def gap(self) -> float:
        """The difference between the mean reward of rewarded incorrect episodes and the lowest reward of incorrect
        episodes."""
        rewards = [self.episodes[place].digest.reward for place in self.paid]
        return fmean(rewards) - ends_of([*rewards, *(self.episodes[place].digest.reward for place in self.unpaid)])[0]

    def _growth(self, one: Separation) -> Estimate:
        """Return how much more frequent the trait became from the first third of the steps to the last third. This is
        unknown for a single step."""
        count = len(self.steps) // 3
        shares = {self.episodes[place].digest.id: share_of(one, place) for place in self.compared}
        before, now = (
            [self.episodes[place] for place in self.compared if self.episodes[place].group[0] in set(part)]
            for part in (self.steps[:count], self.steps[len(self.steps) - count :])
        )
        if not before or not now:
            return Estimate(0.0, math.inf, 0)
        return Windows(before, now).change(lambda digest: shares[digest.id])

    def _worth(self, one: Separation) -> Estimate | None:
        """Return the reward for the trait, or None if this is uncertain or less than half of what rewarded incorrect
        episodes earn."""
        shares = {self.episodes[place].digest.id: share_of(one, place) for place in self.compared}
        compared = [self.episodes[place] for place in self.compared]
        worth = slope(
            compared,
            lambda digest: shares[digest.id],
            lambda digest: digest.reward,
            at_equal=score if self.is_wrong_only else None,
        )
        low, _ = ends_of([one.digest.reward for one in compared])
        earned = fmean(self.episodes[place].digest.reward for place in self.paid) - low
        return worth if worth is not None and worth.exceeds(SURE) and worth.value >= EXPLAINED * earned else None

    def shares(self, one: Separation) -> dict[str, float]:
        parts = {"paid wrong": self.paid, "other wrong": self.unpaid, "right": self.right}
        return {name: fmean(share_of(one, place) for place in places) for name, places in parts.items() if places}


def share_of(one: Separation, place: int) -> float:
    """Return the degree, from 0 to 1, to which an episode has what is rewarded: the trait, or its absence."""
    share = one.trait.level(place) / one.trait.most
    return share if one.is_paid else 1 - share


def wording(one: Separation) -> str:
    return one.trait.wording(has=one.is_paid)


def weight(one: Separation) -> float:
    what = one.trait.key[-1]
    if not one.trait.is_amount:
        return DEFINITE if one.is_paid else ABSENT
    if what in OVERLAPS and not one.is_paid:
        return 0.0
    return SIZE if what in SIZES else AMOUNT


def definiteness(one: Separation) -> tuple[object, ...]:
    """Return a sort key. Definite traits that explain much come first. Among phrases that explain equally much, the
    longest comes first."""
    preferred = PREFERRED.index(one.trait.key[0])
    return -round(50 * weight(one) * one.explained), preferred, -len(" ".join(one.trait.key)), one.trait.key


def _others(one: Separation, fitting: Sequence[Separation]) -> tuple[str, ...]:
    """Return the wording of other traits that explain as much: each amount, and the first trait of each other kind."""
    first: dict[object, str] = {}
    for other in fitting:
        is_apart = other.trait.is_amount or other.trait.key[0] != one.trait.key[0]
        if other is not one and is_apart and weight(other) > SIZE and other.explained >= EQUAL * one.explained:
            first.setdefault(other.trait.key if other.trait.is_amount else other.trait.key[0], wording(other))
    return tuple(first.values())[:MOST_ALIKE]


def _thinned(episodes: Sequence[Episode]) -> list[Episode]:
    """Return every n-th group. Groups are kept complete, because episodes are compared with the others of their
    group."""
    places = {group: place for place, group in enumerate(dict.fromkeys(one.group for one in episodes))}
    every = -(-len(episodes) // MOST_EPISODES)
    return [one for one in episodes if places[one.group] % every == 0]
