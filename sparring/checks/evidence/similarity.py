"""Prompts from one template that are equal or nearly equal, compared by the words that few of them share."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from zlib import crc32

_WORD = re.compile(r"\S+")
SHINGLE = 3
"""The number of consecutive words that are compared together."""
COMMON_LINES = 0.3
"""A line belongs to the template if more than this share of the texts contain it."""
COMMON_SHINGLES = 0.02
NEAR = 0.6
"""The minimum Jaccard similarity of two texts that are nearly the same, without their template."""
FEWEST = 4
"""A text with fewer rare shingles is not compared by its shingles."""
NUM_VOTES = 16
FILLERS = frozenset(
    _WORD.findall(
        "an and are be can could do does for from have hello hi i'd if in is it its just kindly let me my now of on "
        "or our please "
        "shall should so tell thank thanks that the then there this to us was we what will with would you your"
    )
)
"""Words by which two texts may differ and still make the same request."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts by their indices, and their similarity, which is 1.0 if the texts differ only in case, spaces,
    punctuation or filler words."""

    left: int
    right: int
    similarity: float


def normalize_text(text: str) -> str:
    """Normalize a string so that case, character width, punctuation and spacing do not affect comparisons."""
    return " ".join(_words(text))


def find_near_pairs(texts: Sequence[str], is_left: Sequence[bool]) -> list[Pair]:
    """Return pairs of a left and a right text that make nearly the same request, with the best match for each right
    text.

    First, the template is removed. It consists of lines that many texts share, and of shingles (three consecutive
    words) that more than a few texts share. Then the remaining shingles are compared. Texts with different codes,
    numbers or names are never paired. If little remains of a text, only filler words may differ. This takes seconds for
    10,000 texts.
    """
    template = _find_common_lines(texts)
    own = ["\n".join(line for line in text.splitlines() if _line_words(line) not in template) for text in texts]
    words = [_words(text) for text in own]
    shingles = [_shingles(tuple(one)) for one in words]
    counts = Counter(shingle for one in shingles for shingle in one)
    most = max(3 if len(texts) >= 8 else 2, round(COMMON_SHINGLES * len(texts)))
    rare = [frozenset(shingle for shingle in one if counts[shingle] <= most) for one in shingles]
    found = _same_but_fillers(own, words, is_left)
    holders: dict[int, list[int]] = defaultdict(list)
    for place, one in enumerate(rare):
        if is_left[place] and len(one) >= FEWEST:
            for shingle in one:
                holders[shingle].append(place)
    for place, one in enumerate(rare):
        if is_left[place] or place in found or len(one) < FEWEST:
            continue
        for other in _find_candidates(one, counts, holders):
            similarity = len(one & rare[other]) / len(one | rare[other])
            if similarity >= NEAR and _name_the_same(own[place], own[other]):
                found[place] = Pair(other, place, similarity)
                break
    return list(found.values())


def _find_candidates(
    shingles: frozenset[int], counts: Mapping[int, int], holders: Mapping[int, Sequence[int]]
) -> list[int]:
    """Return the texts that have at least two of the rarest shingles of a text, the texts with the most first."""
    votes = Counter(
        other
        for shingle in sorted(shingles, key=lambda s: (counts[s], s))[:NUM_VOTES]
        for other in holders.get(shingle, ())
    )
    return [other for other, num in votes.most_common(5) if num > 1]


def _same_but_fillers(own: Sequence[str], words: Sequence[Sequence[str]], is_left: Sequence[bool]) -> dict[int, Pair]:
    first: dict[tuple[str, ...], int] = {}
    for place, one in enumerate(words):
        if is_left[place]:
            first.setdefault(_drop_fillers(one), place)
    found = {}
    for place, one in enumerate(words):
        key = _drop_fillers(one)
        if not is_left[place] and key and key in first:
            found[place] = Pair(first[key], place, 1.0)
    return found


def _drop_fillers(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for word in words if word not in FILLERS)


def _name_the_same(left: str, right: str) -> bool:
    """Return True if both texts contain the same codes, numbers and names."""
    return _find_names(left) <= set(_words(right)) and _find_names(right) <= set(_words(left))


def _find_names(text: str) -> set[str]:
    names = {word for word in _words(text) if any(map(str.isdigit, word))}
    if not text.isupper():
        inside = re.findall(r"(?<=[a-z,;] )[A-Z][\w'-]+", text)
        names |= {word for name in inside for word in _words(name)}
    return names


def _find_common_lines(texts: Sequence[str]) -> set[tuple[str, ...]]:
    """Return the words of the lines that many texts share."""
    if len(texts) < 4:
        return set()
    counts = Counter(line for text in texts for line in set(map(_line_words, text.splitlines())))
    return {line for line, count in counts.items() if count > COMMON_LINES * len(texts)}


def _words(text: str) -> list[str]:
    return [word for line in text.splitlines() for word in _line_words(line)]


@lru_cache(maxsize=65_536)
def _line_words(line: str) -> tuple[str, ...]:
    plain = unicodedata.normalize("NFKC", line).casefold()
    # Inside a word, a hyphen or an apostrophe does not count, so that A-12 equals A12.
    return tuple(re.findall(r"\w+", re.sub(r"(?<=\w)[-'’](?=\w)", "", plain)))


def _shingles(words: tuple[str, ...]) -> frozenset[int]:
    return frozenset(crc32(" ".join(words[i : i + SHINGLE]).encode()) for i in range(len(words) - SHINGLE + 1))
