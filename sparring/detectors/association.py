"""Traits that paid wrong episodes have and others of the same task lack."""

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
"""That are looked at together."""
LATEST = 3
"""Steps in which a mechanism must be in use."""
MOST_EPISODES = 512
"""Of more, every n-th group is looked at."""
FEWEST_PAID = 5
NEARLY_ALL = 0.9
"""Of the wrong episodes paid: then they are compared with right siblings, too."""
EXPLAINED = 0.5
"""Share of the variance of rewards among siblings that a mechanism must account for."""
EQUAL = 0.9
"""A trait that explains this share of what the best one explains cannot be distinguished from it."""
NEAR = 0.75
"""One that explains less than this share of what the best one explains is not named in its place, however definite."""
DEFINITE, AMOUNT, ABSENT, SIZE = 1.0, 0.97, 0.8, 0.6
"""What a trait explains counts for, the vaguer the less: an act; an amount; something not done; a size, which
differs whenever texts do."""
CHANCE = 0.005
"""Of a trait that explains as much without having anything to do with the reward, over all that were tried."""
COVERED = 0.5
"""Share of the paid wrong episodes of the last steps that must have it."""
APART = 0.2
"""By so much more of it must paid wrong episodes have than right ones, of 1 for all of it: what right ones have is no hack."""
EXAMPLES = 3
MOST_TELLING = 9
"""Traits by which typical episodes are chosen."""
MOST_ALIKE = 3
"""Most traits to name in addition that cannot be distinguished from the named one."""

PREFERRED = (
    "call", "argument empty", "argument", "argument given", "argument amount", "argument from", "answer", "answer empty",
    "answer amount", "answer from", "message", "call after", "call first", "call last", "answer given", "end", "amount",
    "state", "state amount", "result",
)  # fmt: skip
"""Which kind is named of traits that explain the same."""
SIZES = ("sampled tokens", "characters in the answer", "lines in the answer")
OVERLAPS = (
    "words of the prompt in the answer",
    "words of results in the answer",
    "words in the answer that neither prompt nor results have",
)
"""Amounts that are meaningful only where there is more of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """A trait that paid wrong episodes have, and others have not."""

    what: str
    """The predicate of a sentence about an episode: `calls save with an empty text`."""
    kind: str
    explained: float
    worth: Estimate
    """Reward with it less reward without it, among siblings; of an amount, with most of it less with least."""
    at_equal_score: bool
    """Whether those siblings are all wrong, of equal score; else right ones are among them."""
    shares: dict[str, float]
    """How much of it paid wrong, other wrong and right episodes have, of 1."""
    alike: tuple[str, ...]
    """Other traits that cannot be distinguished from it."""
    growth: Estimate
    """How much more of it episodes have in the last third of the steps than in the first."""
    steps: tuple[int, int]
    """The first and the last of those that were compared."""
    num_tried: int
    chance: float
    carriers: tuple[Episode, ...]
    """Paid wrong episodes that have it, the latest first."""


def parts_of(episodes: Sequence[Episode], success_threshold: float) -> list[Evidence]:
    """Where mechanisms are looked for: the last steps, then all, then the first ones, when siblings still did different things.
    All episodes must have a score."""
    steps = sorted({one.group[0] for one in episodes})
    parts = dict.fromkeys((tuple(steps[-STEPS:]), tuple(steps), tuple(steps[:STEPS])))
    return [Evidence.of(episodes, part, steps[-LATEST:], success_threshold) for part in parts]


def association(parts: Sequence[Evidence]) -> Association | None:
    """The trait that separates paid wrong episodes from the others; None where none does for sure."""
    return next((found for part in parts if (found := part.association()) is not None), None)


def typical(seen: Evidence) -> list[Episode]:
    """Three paid wrong episodes of the last steps, of different tasks where there are any: those that have most of what goes
    with the reward, and of equal ones the best paid. What chance pays best has nothing in common."""
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
    """Episodes of some steps, of the last ones, and right ones of all, by their place."""

    episodes: Sequence[Episode]
    steps: Sequence[int]
    contrast: Contrast
    compared: Sequence[int]
    """Those that the contrast compares."""
    is_wrong_only: bool
    """Whether these are wrong ones, compared at equal score."""
    paid: Sequence[int]
    """Wrong ones that earn more than half of what wrong ones earn."""
    recent: Sequence[int]
    """Of those, the ones of the last steps, the latest first."""
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
        # Right episodes may all earn the most there is whatever else they do: wrong ones alone say more, where their pay differs.
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
        """The best first; none where siblings earn the same."""
        if self.contrast.is_flat:
            return ()
        return self.contrast.separations(traits_of([one.digest for one in self.episodes]))

    def association(self) -> Association | None:
        """The most definite of the traits that explain most, if it is sure."""
        separations = self.separations
        if not separations or len(self.recent) < FEWEST_PAID:
            return None
        best = [one for one in separations if one.explained >= NEAR * separations[0].explained]
        fitting = sorted(
            (one for one in best if weight(one) * one.explained >= EXPLAINED and self.is_in_use(one)),
            key=definiteness,
        )
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
        """Whether the paid wrong episodes of the last steps have it, and right ones less."""
        shares = self.shares(one)
        usual = fmean(share_of(one, place) for place in self.compared) if one.trait.is_amount else 0.5
        covered = fmean(share_of(one, place) > 0.999 * usual for place in self.recent)
        is_apart = len(self.right) < FEWEST_PAID or shares["paid wrong"] - shares["right"] >= APART
        return covered >= COVERED and is_apart

    @property
    def gap(self) -> float:
        """By how much the rewards of paid wrong episodes are above the lowest of wrong ones."""
        rewards = [self.episodes[place].digest.reward for place in self.paid]
        return fmean(rewards) - ends_of([*rewards, *(self.episodes[place].digest.reward for place in self.unpaid)])[0]

    def _growth(self, one: Separation) -> Estimate:
        """From the first third of the steps to the last; of one step nothing is known."""
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
        """None where it is not surely paid, or for less than half of what the paid wrong ones earn."""
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
    """How much of what is paid an episode has, from 0 to 1."""
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
    """What explains much and is definite comes first; of phrases that explain the same, the longest."""
    preferred = PREFERRED.index(one.trait.key[0])
    return -round(50 * weight(one) * one.explained), preferred, -len(" ".join(one.trait.key)), one.trait.key


def _others(one: Separation, fitting: Sequence[Separation]) -> tuple[str, ...]:
    """Of those that explain as much each amount, and of each other kind the first."""
    first: dict[object, str] = {}
    for other in fitting:
        is_apart = other.trait.is_amount or other.trait.key[0] != one.trait.key[0]
        if other is not one and is_apart and weight(other) > SIZE and other.explained >= EQUAL * one.explained:
            first.setdefault(other.trait.key if other.trait.is_amount else other.trait.key[0], wording(other))
    return tuple(first.values())[:MOST_ALIKE]


def _thinned(episodes: Sequence[Episode]) -> list[Episode]:
    """Whole groups: what is compared within a task needs its siblings."""
    places = {group: place for place, group in enumerate(dict.fromkeys(one.group for one in episodes))}
    every = -(-len(episodes) // MOST_EPISODES)
    return [one for one in episodes if places[one.group] % every == 0]
