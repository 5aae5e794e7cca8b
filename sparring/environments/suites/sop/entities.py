"""The people and things in generated tasks: pools of names and codes. Each split has its own part of every pool."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar, final, get_args

Split: TypeAlias = Literal["train", "validation", "held_out"]
SPLITS: tuple[Split, ...] = get_args(Split)

Choice = TypeVar("Choice")

_SHARES: Mapping[Split, tuple[float, float]] = {
    "train": (0.0, 0.64),
    "validation": (0.64, 0.76),
    "held_out": (0.76, 1.0),
}
"""The part of every shuffled pool that belongs to each split."""


def codes(letters: str, first: int = 10, last: int = 99) -> tuple[str, ...]:
    """Return the codes of each letter, by default from A10 to A99 for the letter A."""
    return tuple(f"{letter}{number}" for letter, number in itertools.product(letters, range(first, last + 1)))


@final
class Pool:
    """Entities of one kind, divided among the splits so that no entity is in two splits."""

    def __init__(self, entities: Sequence[str]) -> None:
        shuffled = random.Random("sop").sample(entities, len(entities))
        self.of: Mapping[Split, tuple[str, ...]] = {
            split: tuple(shuffled[round(begin * len(shuffled)) : round(end * len(shuffled))])
            for split, (begin, end) in _SHARES.items()
        }


PEOPLE = Pool((
    "Abel", "Ada", "Agnes", "Alma", "Amos", "Anton", "Arlo", "Astrid", "Basil", "Bela", "Bruno", "Carla", "Cecil", "Clara",
    "Cyrus", "Dario", "Della", "Dora", "Edgar", "Edith", "Elias", "Elsa", "Emil", "Enid", "Enzo", "Erwin", "Esther", "Etta",
    "Felix", "Fiona", "Flora", "Floyd", "Freya", "Gavin", "Gilda", "Greta", "Gus", "Hanna", "Hazel", "Hector", "Helga",
    "Hugo", "Ida", "Igor", "Ines", "Iris", "Isaac", "Ivan", "Ivy", "Jasper", "Joel", "Jonas", "Jude", "Julia", "Kai",
    "Karin", "Kira", "Klaus", "Lars", "Laura", "Leo", "Lena", "Linus", "Lola", "Lydia", "Mabel", "Magda", "Marco", "Milo",
    "Mira", "Moses", "Nadia", "Nell", "Nico", "Nina", "Noah", "Nora", "Olga", "Olive", "Omar", "Oscar", "Otto", "Pablo",
    "Paula", "Petra", "Piet", "Quinn", "Ralph", "Rhea", "Rita", "Roman", "Rosa", "Rufus", "Ruth", "Saul", "Selma", "Silas",
    "Sofia", "Stella", "Sven", "Tania", "Thea", "Theo", "Tilda", "Toby", "Ursula", "Vera", "Vince", "Walter", "Wanda",
    "Wendy", "Willa", "Xavier", "Yara", "Yves", "Zelda", "Zora",
))  # fmt: skip
"""A pool of first names."""


@final
class Draw:
    """The source from which one task is drawn: a seeded generator, and the entities of the task's split, each at most
    once."""

    def __init__(self, rng: random.Random, split: Split) -> None:
        self.rng = rng
        self._split: Split = split
        self.entities: list[str] = []
        """The entities that were drawn so far, in order."""

    def entity(self, pool: Pool) -> str:
        """Return an entity that this task has not drawn yet."""
        choices = pool.of[self._split]
        while (found := self.rng.choice(choices)) in self.entities:
            pass
        self.entities.append(found)
        return found

    def pick(self, choices: Sequence[Choice]) -> Choice:
        """Return one of these choices at random, each with the same probability."""
        return self.rng.choice(choices)

    def between(self, least: int, most: int) -> int:
        """Return an integer between `least` and `most`, inclusive."""
        return self.rng.randint(least, most)
