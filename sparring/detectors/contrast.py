"""How much a trait explains of the reward differences between the episodes of a task, and the probability that this is
chance."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from sparring.detectors.evidence import FEWEST_GROUPS, Episode
from sparring.detectors.traits import Trait, bits_of, levels_of

PERMUTATIONS = 299
FEWEST_APART = 10
"""A trait is tried only if the groups whose members differ in it have at least this number of episodes."""


@dataclass(frozen=True, slots=True)
class Separation:
    """How well a trait explains the reward."""

    trait: Trait
    explained: float
    """The share of the variance of rewards within groups that the trait explains, from 0 to 1."""
    is_paid: bool
    """True if more of the trait earns more."""
    product: float
    """The sum by which episodes with the trait earn more than the means of their groups, in levels of the reward."""
    spread: float
    """The variation of the trait within groups."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """Episodes that are compared with each other."""

    places: Sequence[int]
    mask: int
    mean: float
    """The mean reward of the episodes, in levels."""


@final
class Contrast:
    """Rewards within groups, prepared for comparison with traits.

    Rewards and traits are stored as bits of integers, with one bit per episode. Evaluating a trait or a permutation of
    the rewards then takes only a few operations.
    """

    def __init__(self, episodes: Sequence[Episode], compared: Sequence[int], *, at_equal_score: bool) -> None:
        """Compare the episodes at the indices in `compared`."""
        levels = levels_of([episodes[place].digest.reward for place in compared]) if compared else []
        self._levels = [0] * len(episodes)
        for place, level in zip(compared, levels, strict=True):
            self._levels[place] = level
        self._bits = bits_of(self._levels)
        self._groups = [one.group for one in episodes]
        cells: dict[object, list[int]] = defaultdict(list)
        for place in compared:
            one = episodes[place]
            cells[one.group, one.digest.score if at_equal_score else None].append(place)
        self._cells = [self._cell(places) for places in cells.values() if len(places) > 1]
        self._all = sum(cell.mask for cell in self._cells)
        self._variance = sum((self._levels[place] - cell.mean) ** 2 for cell in self._cells for place in cell.places)

    @property
    def is_flat(self) -> bool:
        """True if the episodes of each group earn the same reward."""
        return self._variance == 0

    def separations(self, traits: Sequence[Trait]) -> list[Separation]:
        """Return the traits that can be tried, with the best first. Rewards must differ within groups."""
        found, seen = [], {}
        for trait in traits:
            shared = tuple((worth, mask & self._all) for worth, mask in trait.levels)
            if shared not in seen:
                seen[shared] = self._tried(trait)
            if (tried := seen[shared]) is not None:
                spread, product = tried
                explained = product * product / (spread * self._variance)
                found.append(Separation(trait, explained, product > 0, product, spread))
        return sorted(found, key=lambda one: -one.explained)

    def chance(self, found: Sequence[Separation], explained: float, rng: random.Random) -> float:
        """Return the probability that one of these traits explains this much if none of them affects the rewards.

        The largest share over all traits is compared with rewards permuted within groups (Westfall and Young, 1993).
        """
        bounds = {
            one.trait.levels: (
                _dot(one.trait.levels, self._bits, self._all) - one.product,
                (explained * one.spread * self._variance) ** 0.5 - 1e-6,
            )
            for one in found
        }
        levels, exceeding = list(self._levels), 0
        uneven = [cell for cell in self._cells if len({levels[place] for place in cell.places}) > 1]
        for _ in range(PERMUTATIONS):
            for cell in uneven:
                drawn = [levels[place] for place in cell.places]
                rng.shuffle(drawn)
                for place, level in zip(cell.places, drawn, strict=True):
                    levels[place] = level
            bits = [(value, mask & self._all) for value, mask in bits_of(levels)]
            exceeding += any(abs(_dot(trait, bits) - usual) >= bound for trait, (usual, bound) in bounds.items())
        return (1 + exceeding) / (1 + PERMUTATIONS)

    def _cell(self, places: Sequence[int]) -> _Cell:
        mean = sum(self._levels[place] for place in places) / len(places)
        return _Cell(places, sum(1 << place for place in places), mean)

    def _tried(self, trait: Trait) -> tuple[float, float] | None:
        """Return how much a trait varies within cells, and how much episodes with the trait earn above the means of
        their cells."""
        spread, usual, num_apart, groups = 0.0, 0.0, 0, set()
        for cell in self._cells:
            total = sum(worth * (mask & cell.mask).bit_count() for worth, mask in trait.levels)
            usual += total * cell.mean
            square = _dot(trait.levels, trait.levels, cell.mask) - total * total / len(cell.places)
            if square > 1e-9:
                spread += square
                num_apart += len(cell.places)
                groups.add(self._groups[cell.places[0]])
        if num_apart < FEWEST_APART or len(groups) < FEWEST_GROUPS:
            return None
        return spread, _dot(trait.levels, self._bits, self._all) - usual


def _dot(one: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]], among: int = -1) -> int:
    """Return the sum, over episodes, of the product of two levels."""
    # Lists, and a single loop if there is one bit, are faster. This function is called a million times.
    if len(one) == 1:
        worth, mask = one[0]
        mask &= among
        return worth * sum([value * (mask & plane).bit_count() for value, plane in other])
    return sum([worth * value * (mask & plane & among).bit_count() for worth, mask in one for value, plane in other])
