"""What a reward pays for instead of the task, learned from the episodes: what separates paid wrong ones from the others.

An alarm says that wrong episodes are paid. This says for what, or that nothing separates them, and then shows three of them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import final

from sparring.detectors.contrast import Contrast, Separation
from sparring.detectors.evidence import Episode, Estimate, Windows, are_judged, latest, named, score, shown, slope
from sparring.detectors.registry import detector
from sparring.detectors.rewards import component_takes_over, paid_for_wrong, rises_alone
from sparring.detectors.traits import OUTERMOST, traits_of
from sparring.detectors.trend import LIKELY, SURE, trend
from sparring.findings import Finding, Severity
from sparring.history import History
from sparring.types import Json

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
"""A trait that explains this share of what the best one explains cannot be told apart from it."""
NEAR = 0.75
"""One that explains less than this share of what the best one explains is not named in its place, however definite."""
DEFINITE, AMOUNT, ABSENT, SIZE = 1.0, 0.97, 0.8, 0.6
"""What a trait explains counts for, the vaguer the less: something done or said; an amount; something not done; a size, which
differs whenever texts do."""
CHANCE = 0.005
"""Of a trait that explains as much without having anything to do with the reward, over all that were tried."""
COVERED = 0.5
"""Share of the paid wrong episodes of the last steps that must have it."""
APART = 0.2
"""By so much more of it must paid wrong episodes have than right ones, of 1 for all of it: what right ones have is no hack."""
PAID = 0.25
"""What a trait must be worth to be named without an alarm, as a share of what being right earns."""
EXAMPLES = 3
MOST_TELLING = 9
"""Traits by which typical episodes are chosen."""
MOST_ALIKE = 3
"""Traits that cannot be told apart from the one that is named, to name as well."""

PREFERRED = (
    "call", "argument empty", "argument", "argument given", "argument amount", "state", "state amount", "result", "answer",
    "answer empty", "answer amount", "message", "call after", "call first", "call last", "amount", "end", "answer given",
)  # fmt: skip
"""Which kind is named of traits that explain the same."""
SIZES = ("sampled tokens", "characters in the answer", "lines in the answer")
OVERLAPS = (
    "words of the prompt in the answer", "words of results in the answer",
    "words in the answer that neither prompt nor results have",
)  # fmt: skip
"""Amounts of which only more says something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """A trait that the reward pays for."""

    what: str
    """How a sentence about an episode goes on: `calls save with an empty text`."""
    kind: str
    explained: float
    worth: Estimate
    """Reward with it less reward without it, among siblings; of an amount, with most of it less with least."""
    at_equal_score: bool
    """Whether those siblings are all wrong, of equal score; else right ones are among them."""
    shares: dict[str, float]
    """How much of it paid wrong, other wrong and right episodes have, of 1."""
    alike: tuple[str, ...]
    """Other traits that cannot be told apart from it."""
    growth: Estimate
    """How much more of it episodes have in the last third of the steps than in the first."""
    steps: tuple[int, int]
    """The first and the last of those that were compared."""
    num_tried: int
    chance: float
    carriers: tuple[Episode, ...]
    """Paid wrong episodes that have it, the latest first."""


@detector("reward.mechanism")
def what_is_paid(history: History) -> Iterable[Finding]:
    """Which trait of episodes the reward pays for instead of the task: while an alarm says that it pays for something else, or
    where such a trait grows and the score does not follow. Tried are words, calls, arguments, results, the final state, how
    episodes end, and amounts. Named is one that explains half of the differences in reward among siblings, that paid wrong
    episodes have and right ones have less, beyond what the best of all traits explains by chance. During an alarm, and where
    nothing is that sure, a note says that the mechanism is unknown and shows three paid wrong episodes."""
    episodes = latest(history, len(history.steps))
    wrong = [one for one in episodes if are_judged([one]) and score(one.digest) < history.success_threshold]
    if len(wrong) < FEWEST_PAID or not are_judged(episodes):
        return
    alarms = (one for rule in (paid_for_wrong, rises_alone, component_takes_over) for one in rule(history))
    if next(iter(alarms), None) is not None:
        found = mechanism(episodes, history.success_threshold)
        yield _unknown(history, episodes) if found is None else _named(history, found)
        return
    seen = trend(history)
    if seen is None or seen.is_explained or (seen.scores is not None and seen.scores.exceeds(LIKELY)):
        return
    found = mechanism(episodes, history.success_threshold, only_latest=True)
    if found is not None and found.growth.exceeds(SURE) and found.worth.value >= PAID * seen.scale:
        yield _named(history, found)


def _named(history: History, found: Mechanism) -> Finding:
    low, high = found.worth.interval()
    sibling = "sibling of equal score" if found.at_equal_score else "sibling"
    alike = f" (nothing tells this apart from: {'; '.join(found.alike)})" if found.alike else ""
    return Finding(
        rule="reward.mechanism",
        severity=Severity.WARNING,
        symptom=f"steps {found.steps[0]} to {found.steps[1]}: an episode that {found.what} earns {found.worth.value:.2f} "
        f"[{low:.2f}, {high:.2f}] more than a {sibling} that does not{alike}.",
        evidence={
            "subject": found.kind, "what": found.what, "alike": list(found.alike), "steps": list(found.steps),
            "explained": round(found.explained, 3), "worth": [round(one, 4) for one in (found.worth.value, low, high)],
            "shares": {name: round(share, 3) for name, share in found.shares.items()},
            "components": _components(found.carriers), "traits_tried": found.num_tried, "chance": found.chance,
            "examples": shown(found.carriers),
        },
        change=f"Find the part of the reward that pays an episode that {found.what}, and make it ask for the task itself.",
        confirm="Scored with the new reward, stored episodes that do it earn no more than others of equal score.",
        step=history.last_step,
        trajectories=named(found.carriers),
    )  # fmt: skip


def _unknown(history: History, episodes: Sequence[Episode]) -> Finding:
    examples = typical(episodes, history.success_threshold)
    steps = sorted({one.group[0] for one in examples})
    return Finding(
        rule="reward.mechanism",
        severity=Severity.NOTE,
        symptom="the mechanism is unknown: no word, call, argument, result, state or amount separates the paid wrong episodes "
        f"from the others for sure. Read these three of steps {steps[0]} to {steps[-1]}: {', '.join(named(examples))}.",
        evidence={
            "subject": "unknown", "steps": [steps[0], steps[-1]], "components": _components(examples),
            "examples": shown(examples),
        },
        change="Read the three episodes, and take out of the reward what they were paid for.",
        confirm="Scored with the new reward, these episodes earn what other wrong ones earn.",
        step=history.last_step,
        trajectories=named(examples),
    )  # fmt: skip


def _components(episodes: Sequence[Episode]) -> dict[str, Json]:
    """What these episodes earn by each component, on average."""
    names = sorted({name for one in episodes for name in one.digest.components})
    return {name: round(fmean(one.digest.components.get(name, 0.0) for one in episodes), 4) for name in names}


def mechanism(episodes: Sequence[Episode], success_threshold: float, *, only_latest: bool = False) -> Mechanism | None:
    """The trait that separates paid wrong episodes from the others; None where none does for sure. All must have a score.
    Looked at are the last steps, then all, then the first ones, when siblings still did different things."""
    steps = sorted({one.group[0] for one in episodes})
    parts = dict.fromkeys((tuple(steps[-STEPS:]), tuple(steps), tuple(steps[:STEPS])))
    for part in list(parts)[: 1 if only_latest else None]:
        found = _Evidence.of(episodes, part, steps[-LATEST:], success_threshold).mechanism()
        if found is not None:
            return found
    return None


def typical(episodes: Sequence[Episode], success_threshold: float) -> list[Episode]:
    """Three paid wrong episodes of the last steps, of different tasks where there are any: those that have most of what goes
    with the reward, and of equal ones the best paid. What chance pays best has nothing in common."""
    steps = sorted({one.group[0] for one in episodes})
    seen = _Evidence.of(episodes, steps[-STEPS:], steps[-LATEST:], success_threshold)
    best = seen.separations[:MOST_TELLING]

    def has(place: int) -> float:
        return sum(one.explained * _share(one, place) for one in best)

    ordered = sorted(seen.recent or seen.paid, key=lambda place: (-has(place), -seen.episodes[place].digest.reward))
    first: dict[str, int] = {}
    for place in ordered:
        first.setdefault(seen.episodes[place].digest.task_id, place)
    chosen = [*first.values(), *(place for place in ordered if place not in set(first.values()))]
    return [seen.episodes[place] for place in chosen[:EXAMPLES]]


@final
@dataclass(frozen=True, kw_only=True)
class _Evidence:
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
    ) -> _Evidence:
        pool = _thinned([
            one for one in episodes if one.group[0] in {*steps, *last} or score(one.digest) >= success_threshold
        ])  # fmt: skip
        wrong = [place for place, one in enumerate(pool) if score(one.digest) < success_threshold]
        low, high = _ends([pool[place].digest.reward for place in wrong])
        paid = [place for place in wrong if pool[place].digest.reward >= (low + high) / 2]
        unpaid = sorted(set(wrong) - set(paid))
        # Right episodes may all earn the most there is whatever else they do: wrong ones alone say more, where their pay differs.
        is_wrong_only = len(unpaid) > (1 - NEARLY_ALL) * len(wrong)
        compared = [
            place for place in (wrong if is_wrong_only else range(len(pool))) if pool[place].group[0] in set(steps)
        ]
        return cls(
            episodes=pool, steps=steps, compared=compared, is_wrong_only=is_wrong_only, paid=paid, unpaid=unpaid,
            contrast=Contrast(pool, compared, at_equal_score=is_wrong_only),
            recent=[place for place in reversed(paid) if pool[place].group[0] in set(last)],
            right=sorted(set(range(len(pool))) - set(wrong)),
        )  # fmt: skip

    @cached_property
    def separations(self) -> Sequence[Separation]:
        """The best first; none where siblings earn the same."""
        if self.contrast.is_flat:
            return ()
        return self.contrast.separations(traits_of([one.digest for one in self.episodes]))

    def mechanism(self) -> Mechanism | None:
        """The most definite of the traits that explain most, if it is sure."""
        separations = self.separations
        if not separations or len(self.recent) < FEWEST_PAID:
            return None
        best = [one for one in separations if one.explained >= NEAR * separations[0].explained]
        fitting = sorted(
            (one for one in best if _weight(one) * one.explained >= EXPLAINED and self._is_in_use(one)),
            key=_definiteness,
        )
        for one in fitting:
            worth = self._worth(one)
            if worth is None:
                continue
            chance = self.contrast.chance(separations, one.explained, random.Random(len(separations)))
            if chance > CHANCE:
                return None
            return Mechanism(
                what=_wording(one), kind=one.trait.key[0], explained=one.explained, worth=worth, shares=self._shares(one),
                at_equal_score=self.is_wrong_only,
                alike=_others(one, fitting), growth=self._growth(one), num_tried=len(separations), chance=chance,
                steps=(min(self.steps), max(self.steps)),
                carriers=tuple(self.episodes[place] for place in self.recent if _share(one, place) > 0.5),
            )  # fmt: skip
        return None

    def _is_in_use(self, one: Separation) -> bool:
        """Whether the paid wrong episodes of the last steps have it, and right ones less."""
        shares = self._shares(one)
        usual = fmean(_share(one, place) for place in self.compared) if one.trait.is_amount else 0.5
        covered = fmean(_share(one, place) > 0.999 * usual for place in self.recent)
        is_apart = len(self.right) < FEWEST_PAID or shares["paid wrong"] - shares["right"] >= APART
        return covered >= COVERED and is_apart

    def _growth(self, one: Separation) -> Estimate:
        """From the first third of the steps to the last; of one step nothing is known."""
        count = len(self.steps) // 3
        shares = {self.episodes[place].digest.id: _share(one, place) for place in self.compared}
        before, now = (
            [self.episodes[place] for place in self.compared if self.episodes[place].group[0] in set(part)]
            for part in (self.steps[:count], self.steps[len(self.steps) - count :])
        )
        if not before or not now:
            return Estimate(0.0, math.inf, 0)
        return Windows(before, now).change(lambda digest: shares[digest.id])

    def _worth(self, one: Separation) -> Estimate | None:
        """None where it is not surely paid, or for less than half of what the paid wrong ones earn."""
        shares = {self.episodes[place].digest.id: _share(one, place) for place in self.compared}
        compared = [self.episodes[place] for place in self.compared]
        worth = slope(
            compared, lambda digest: shares[digest.id], lambda digest: digest.reward,
            at_equal=score if self.is_wrong_only else None,
        )  # fmt: skip
        low, _ = _ends([one.digest.reward for one in compared])
        earned = fmean(self.episodes[place].digest.reward for place in self.paid) - low
        return worth if worth is not None and worth.exceeds(SURE) and worth.value >= EXPLAINED * earned else None

    def _shares(self, one: Separation) -> dict[str, float]:
        parts = {"paid wrong": self.paid, "other wrong": self.unpaid, "right": self.right}
        return {name: fmean(_share(one, place) for place in places) for name, places in parts.items() if places}


def _share(one: Separation, place: int) -> float:
    """How much of what is paid an episode has, from 0 to 1."""
    share = one.trait.level(place) / one.trait.most
    return share if one.is_paid else 1 - share


def _wording(one: Separation) -> str:
    return one.trait.wording(has=one.is_paid)


def _weight(one: Separation) -> float:
    what = one.trait.key[-1]
    if not one.trait.is_amount:
        return DEFINITE if one.is_paid else ABSENT
    if what in OVERLAPS and not one.is_paid:
        return 0.0
    return SIZE if what in SIZES else AMOUNT


def _definiteness(one: Separation) -> tuple[object, ...]:
    """What explains much and is definite comes first; of phrases that explain the same, the longest."""
    preferred = PREFERRED.index(one.trait.key[0])
    return -round(50 * _weight(one) * one.explained), preferred, -len(" ".join(one.trait.key)), one.trait.key


def _others(one: Separation, fitting: Sequence[Separation]) -> tuple[str, ...]:
    """Of those that explain as much each amount, and of each other kind the first."""
    first: dict[object, str] = {}
    for other in fitting:
        is_apart = other.trait.is_amount or other.trait.key[0] != one.trait.key[0]
        if other is not one and is_apart and _weight(other) > SIZE and other.explained >= EQUAL * one.explained:
            first.setdefault(other.trait.key if other.trait.is_amount else other.trait.key[0], _wording(other))
    return tuple(first.values())[:MOST_ALIKE]


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """The 5th lowest and the 5th highest."""
    ordered = sorted(values)
    end = min(OUTERMOST, (len(ordered) - 1) // 2)
    return ordered[end], ordered[-1 - end]


def _thinned(episodes: Sequence[Episode]) -> list[Episode]:
    """Whole groups: what is compared within a task needs its siblings."""
    places = {group: place for place, group in enumerate(dict.fromkeys(one.group for one in episodes))}
    every = -(-len(episodes) // MOST_EPISODES)
    return [one for one in episodes if places[one.group] % every == 0]
