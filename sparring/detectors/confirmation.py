"""A test of whether a trait is a cause: remove it from rewarded incorrect episodes, add it to unrewarded ones, and
grade them again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import final

from sparring.detectors.edits import WORD, with_trait
from sparring.detectors.evidence import Episode
from sparring.detectors.traits import Key, amounts_of, marks_of
from sparring.run_folders.history import Digest, Regrader
from sparring.types import Trajectory

MOST_TRIED = 6
"""The largest number of episodes from which a trait is removed, and to which it is added."""
FEWEST_FALLS, FALLS = 3, 0.6
"""The smallest number and share of tried episodes whose reward must fall without the trait if it is a cause."""
RISES = 0.4
"""The smallest share of the episodes whose reward must rise with the trait if it is an absence or an amount. An edit of
that kind may merely spoil an episode."""
HALF = 0.5
"""An edit counts only if it changes the reward by at least this share of the difference that the trait makes among
episodes of the same group."""
APART = 0.1
"""An edit counts only if it changes the reward by at least this share of the difference between rewarded and unrewarded
incorrect episodes."""
MOST_DONORS = 3
"""The largest number of group members that are tried as the example for an edit."""


@dataclass(frozen=True, slots=True)
class Edit:
    """The rewards of an episode before and after a trait was removed from it or added to it."""

    id: str
    before: float
    after: float
    counts: bool
    """True if the reward changed as expected of a trait that is rewarded."""
    components: Mapping[str, float]
    """The difference that the trait makes to each component."""


@dataclass(frozen=True, slots=True)
class Proof:
    """The edits of one trait and their effect on the reward."""

    without: tuple[Edit, ...]
    """The edits that removed the trait from rewarded incorrect episodes. The reward should fall."""
    added: tuple[Edit, ...]
    """The edits that added the trait to unrewarded incorrect episodes. The reward should rise."""
    is_done: bool
    """True if the trait is an act, not an absence or an amount."""

    @property
    def falls(self) -> int:
        return sum(one.counts for one in self.without)

    @property
    def rises(self) -> int:
        return sum(one.counts for one in self.added)

    @property
    def is_cause(self) -> bool:
        """True if the trait is a cause. An act that is rewarded only together with another act also counts."""
        falls = self.falls >= max(FEWEST_FALLS, FALLS * len(self.without))
        if self.is_done:
            return falls and (self.rises > 0 or len(self.added) < FEWEST_FALLS)
        return falls and self.rises >= max(2, RISES * len(self.added))


@final
class Ground:
    """The episodes to edit, and the episodes that serve as examples."""

    def __init__(
        self,
        trials: Regrader,
        kept: Mapping[str, Trajectory],
        *,
        paid: Sequence[Episode],
        unpaid: Sequence[Episode],
        right: Sequence[Episode],
        gap: float,
        success_threshold: float,
    ) -> None:
        """`paid` and `unpaid` are rewarded and unrewarded incorrect episodes, in the order in which they are tried.
        `gap` is the difference between the mean rewards of the two."""
        self.trials, self._kept, self._gap, self._threshold = trials, kept, gap, success_threshold
        self._paid = [one for one in paid if one.digest.id in kept]
        self._unpaid = [one for one in unpaid if one.digest.id in kept]
        self._others = _by_task([*self._unpaid, *(one for one in right if one.digest.id in kept)])
        self._carriers = _by_task(self._paid)
        self._known: dict[tuple[str, Key], float] = {}

    def prove(self, key: Key, has: bool, worth: float) -> Proof:
        """Edit episodes and return the result.

        `has` is True if the trait is rewarded, and False if its absence is. `worth` is the reward, within groups, for
        one unit more of the trait.
        """
        without = self._edits(self._paid, self._others, key, not has, -abs(worth))
        added = (
            self._edits(self._unpaid, self._carriers, key, has, abs(worth))
            if any(one.counts for one in without)
            else []
        )
        return Proof(tuple(without), tuple(added), has and not is_amount(key))

    def refutes(self, key: Key, has: bool, worth: float) -> bool:
        """Return whether trials refute that the trait is rewarded: none of three rewarded incorrect episodes earns less
        without it, and no unrewarded one earns more with it.

        At least one unrewarded episode is required.
        """
        without = self._edits(self._paid, self._others, key, not has, -abs(worth), most=FEWEST_FALLS)
        if len(without) < FEWEST_FALLS or any(one.counts for one in without):
            return False
        added = self._edits(self._unpaid, self._carriers, key, has, abs(worth), most=FEWEST_FALLS)
        return bool(added) and not any(one.counts for one in added)

    def _edits(
        self,
        episodes: Sequence[Episode],
        donors: Mapping[str, Sequence[Episode]],
        key: Key,
        to: bool,
        worth: float,
        *,
        most: int = MOST_TRIED,
    ) -> list[Edit]:
        """Edit episodes toward or away from the trait, and return the edits that could be made. `worth` is negative if
        the trait is removed. After three edits without effect, the remaining episodes are not tried."""
        found: list[Edit] = []
        for one in episodes:
            is_hopeless = len(found) == FEWEST_FALLS and not any(edit.counts for edit in found)
            if len(found) >= most or is_hopeless or self.trials.is_over:
                break
            level = self._level(key, one)
            examples = [
                other
                for other in donors.get(one.digest.task_id, ())
                if _is_more(self._level(key, other), level, to) and (other.digest.answered or not one.digest.answered)
            ]
            examples.sort(key=lambda other: (self._is_right(other), _unlike(one, other)))
            edits = (self._edit(one, other, key, to, worth) for other in examples[:MOST_DONORS])
            found += [edit for edit in edits if edit is not None][:1]
        return found

    def _edit(self, one: Episode, other: Episode, key: Key, to: bool, worth: float) -> Edit | None:
        trajectory, example = self._kept[one.digest.id], self._kept[other.digest.id]
        own, others = ([turn.message for turn in of.turns] for of in (trajectory, example))
        script = with_trait(key, to, tuple(own), tuple(others), one.digest, self.trials.max_turns)
        if script is None or not self.trials.is_repeatable(trajectory):
            return None
        after = self.trials.regrade(trajectory, script)
        if after is None or after.reward is None or (after.score is not None and after.score >= self._threshold):
            return None
        digest = Digest.of(after)
        before, now = self._level(key, one), 0.0 if digest is None else level_of(key, digest)
        if not _is_more(now, before, to):
            return None
        sign = 1 if worth > 0 else -1
        needed = max(HALF * abs(worth * (now - before)), APART * self._gap)
        parts, parts_after = one.digest.components, after.reward.components
        return Edit(
            one.digest.id,
            one.digest.reward,
            after.reward.total,
            counts=sign * (after.reward.total - one.digest.reward) >= needed - 1e-9,
            components={
                name: sign * (parts_after.get(name, 0.0) - parts.get(name, 0.0)) for name in {*parts, *parts_after}
            },
        )

    def _level(self, key: Key, one: Episode) -> float:
        if (one.digest.id, key) not in self._known:
            self._known[one.digest.id, key] = level_of(key, one.digest)
        return self._known[one.digest.id, key]

    def _is_right(self, one: Episode) -> bool:
        return one.digest.score is not None and one.digest.score >= self._threshold


def is_amount(key: Key) -> bool:
    return key[0].endswith("amount")


def level_of(key: Key, digest: Digest) -> float:
    """Return how much of a trait an episode has. For traits that are not amounts, this is 1 or 0."""
    if is_amount(key):
        return max((value for other, value in amounts_of(digest) if other == key), default=0.0)
    return float(key in marks_of(digest))


def _by_task(episodes: Sequence[Episode]) -> Mapping[str, Sequence[Episode]]:
    tasks: dict[str, list[Episode]] = defaultdict(list)
    for one in episodes:
        tasks[one.digest.task_id].append(one)
    return tasks


def _is_more(level: float, than: float, to: bool) -> bool:
    return level > than if to else level < than


def _unlike(one: Episode, other: Episode) -> float:
    """Return how much two episodes differ in their words and calls. An edit is more informative if the episodes are
    more alike."""
    return 1 - SequenceMatcher(None, _words(one.digest), _words(other.digest), autojunk=False).quick_ratio()


def _words(digest: Digest) -> list[str]:
    return WORD.findall(" ".join([*(f"{call.name} {call.arguments}" for call in digest.calls), digest.answer]))
