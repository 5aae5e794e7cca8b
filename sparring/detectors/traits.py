"""The traits of an episode: its words, calls, arguments, results, final state and outcome, and amounts of these.

There is no list of known tricks. A contrast learns which traits are rewarded.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from sparring.run_folders.history import Digest, RecordedCall
from sparring.types import Json

Key: TypeAlias = tuple[str, ...]
"""The kind of a trait, and the values for the placeholders in its wording."""

MOST_WORDS = 4
"""The largest number of words of a phrase."""
MOST_TOKENS = 160
"""The largest number of tokens of one text that are read. Half of them are from its end."""
FEWEST, FEWEST_SHARE = 5, 0.03
"""The smallest number and share of episodes that have a trait, and that lack it, for a comparison."""
LEVELS = 15
"""The number of equal steps of an amount from its 5th lowest to its 5th highest value."""
OUTERMOST = 4
"""The number of values at either end that are outside an amount's steps."""

WORDING: Mapping[str, tuple[str, str]] = {
    "argument": ("calls {} with {!r} in {}", "does not call {} with {!r} in {}"),
    "argument given": ("calls {} with {}", "does not call {} with {}"),
    "argument empty": ("calls {} with an empty {}", "does not call {} with an empty {}"),
    "call": ("calls {}", "does not call {}"),
    "call after": ("calls {} right after {}", "does not call {} right after {}"),
    "call first": ("calls {} first", "does not call {} first"),
    "call last": ("calls {} last", "does not call {} last"),
    "answer from": ("answers with what {} returned", "does not answer with what {} returned"),
    "argument from": ("calls {0} with what {2} returned in {1}", "does not call {0} with what {2} returned in {1}"),
    "result": ("gets {!r} from {}", "does not get {!r} from {}"),
    "state": ("ends in a state with {} = {}", "does not end in a state with {} = {}"),
    "answer": ("answers with {!r}", "answers without {!r}"),
    "message": ("says {!r} before the last message", "does not say {!r} before the last message"),
    "answer empty": ("answers with nothing", "gives an answer that is not empty"),
    "answer given": ("ends with an answer", "ends without an answer"),
    "end": ("ends as {}", "does not end as {}"),
    "amount": ("has more {}", "has fewer {}"),
    "argument amount": ("calls {} with a higher {}", "calls {} with a lower {}"),
    "answer amount": ("answers with a higher number", "answers with a lower number"),
    "state amount": ("ends in a state with a higher {}", "ends in a state with a lower {}"),
}
"""Predicates of a sentence about an episode that has the trait, and of one that lacks it, by the kind of the trait.
Kinds from `amount` on are amounts, of which an episode has more or less."""
_KINDS = list(WORDING)
_FIRST_AMOUNT = _KINDS.index("amount")

TOKEN = re.compile(r"</?[\w-]+>|\w+|[^\w\s]")
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.])")
MARK = re.compile(r"<[^<>\s]+>|\*\*|^\s*(?:[-*#]|\d+[.)])\s|```", flags=re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Trait:
    """A property that an episode has or lacks, or an amount, of which an episode has more or less."""

    key: Key
    levels: tuple[tuple[int, int], ...]
    """The level of each episode, as bits. Each bit of the level has a mask of the episodes that have it set (bit i is
    episode i)."""
    unit: float = 1.0
    """The amount that one level stands for."""

    def wording(self, *, has: bool) -> str:
        return WORDING[self.key[0]][not has].format(*self.key[1:])

    def level(self, place: int) -> int:
        """Return the level of an episode, from 0. It is 1 or 0 if the trait is not an amount."""
        return sum(worth for worth, mask in self.levels if mask >> place & 1)

    @property
    def most(self) -> int:
        return sum(worth for worth, _ in self.levels)

    @property
    def is_amount(self) -> bool:
        return _KINDS.index(self.key[0]) >= _FIRST_AMOUNT


def traits_of(episodes: Sequence[Digest]) -> list[Trait]:
    """Return the traits of all episodes, in a fixed order."""
    carriers: dict[Key, list[int]] = defaultdict(list)
    amounts: dict[Key, dict[int, float]] = defaultdict(dict)
    for place, digest in enumerate(episodes):
        for key in dict.fromkeys(marks_of(digest)):
            carriers[key].append(place)
        for key, value in amounts_of(digest):
            amounts[key][place] = max(value, amounts[key].get(place, value))
    fewest = max(FEWEST, FEWEST_SHARE * len(episodes))
    marks = [
        Trait(key, ((1, _mask(places)),))
        for key, places in carriers.items()
        if fewest <= len(places) <= len(episodes) - fewest
    ]
    return marks + [trait for key, values in amounts.items() if (trait := _amount(key, values)) is not None]


def levels_of(values: Sequence[float]) -> list[int]:
    """Return the values as levels on a scale of equal steps, from the 5th lowest value to the 5th highest."""
    low, high = ends_of(values)
    return [round(LEVELS * (min(max(one, low), high) - low) / ((high - low) or 1.0)) for one in values]


def ends_of(values: Sequence[float]) -> tuple[float, float]:
    """Return the 5th lowest and the 5th highest value."""
    ordered = sorted(values)
    end = min(OUTERMOST, (len(ordered) - 1) // 2)
    return ordered[end], ordered[-1 - end]


def bits_of(levels: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the bits of the levels, each with a mask of the episodes that have this bit set. Bits with the same mask
    are merged."""
    worth: dict[int, int] = defaultdict(int)
    for bit in range(LEVELS.bit_length()):
        mask = _mask([place for place, level in enumerate(levels) if level >> bit & 1])
        worth[mask] += 1 << bit
    return tuple((value, mask) for mask, value in worth.items() if mask)


def _amount(key: Key, values: Mapping[int, float]) -> Trait | None:
    places = sorted(values)
    levels = dict(zip(places, levels_of([values[place] for place in places]), strict=True))
    bits = bits_of([levels.get(place, 0) for place in range(places[-1] + 1)])
    low, high = ends_of([values[place] for place in places])
    return Trait(key, bits, (high - low) / LEVELS) if bits else None


def _mask(places: Sequence[int]) -> int:
    bits = bytearray(places[-1] // 8 + 1 if places else 0)
    for place in places:
        bits[place // 8] |= 1 << place % 8
    return int.from_bytes(bits, "little")


def marks_of(digest: Digest) -> Iterator[Key]:
    for phrase in _phrases(digest.answer, MOST_WORDS):
        yield "answer", phrase
    for text in digest.texts[:-1] if digest.answered else digest.texts:
        for phrase in _phrases(text, 1):
            yield "message", phrase
    if digest.answered:
        yield ("answer given",)
        if not digest.answer.strip():
            yield ("answer empty",)
    yield "end", str(digest.outcome)
    for call in digest.calls:
        yield from _marks_of_call(call)
    yield from _sources(digest)
    for one, other in pairwise(digest.calls):
        yield "call after", other.name, one.name
    if digest.calls:
        yield "call first", digest.calls[0].name
        yield "call last", digest.calls[-1].name
    for path, value in digest.state.items():
        if isinstance(value, str | bool) or value is None:
            yield "state", path, json.dumps(value, ensure_ascii=False)


def _marks_of_call(call: RecordedCall) -> Iterator[Key]:
    yield "call", call.name
    for name, value in _arguments(call).items():
        yield "argument given", call.name, name
        if value in ("", [], {}, None):
            yield "argument empty", call.name, name
        for phrase in _phrases(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), 1):
            yield "argument", call.name, phrase, name
    for phrase in _phrases(call.result, 1):
        yield "result", phrase, call.name


def _sources(digest: Digest) -> Iterator[Key]:
    """For each word of the arguments and the answer that is not in the prompt, yield the tool that first returned
    it."""
    shown = dict.fromkeys(_words(digest.prompt), "")
    for call in digest.calls:
        for name, value in _arguments(call).items():
            for word in _words(value) if isinstance(value, str) else ():
                if shown.setdefault(word, ""):
                    yield "argument from", call.name, name, shown[word]
        for word in _words(call.result):
            shown.setdefault(word, call.name)
    for word in _words(digest.answer):
        if shown.get(word):
            yield "answer from", shown[word]


def amounts_of(digest: Digest) -> Iterator[tuple[Key, float]]:
    numbers = _numbers(digest)
    for what, value in _counts(digest).items():
        yield ("amount", what), float(value)
    for call in digest.calls:
        for name, value in _arguments(call).items():
            if _is_number(value):
                yield ("argument amount", call.name, name), float(value)  # pyright: ignore[reportArgumentType]
    if numbers:
        yield ("answer amount",), max(numbers)
    for path, value in digest.state.items():
        if _is_number(value):
            yield ("state amount", path), float(value)  # pyright: ignore[reportArgumentType]


def _numbers(digest: Digest) -> list[float]:
    """Return the numbers in the answer."""
    return [float(one) for one in NUMBER.findall(digest.answer)]


def _counts(digest: Digest) -> dict[str, int]:
    """Return the counts of an episode's calls, turns, words and characters, by their description."""
    words, prompt = _words(digest.answer), set(_words(digest.prompt))
    results = {word for call in digest.calls for word in _words(call.result)}
    known = prompt | results
    return {
        "calls": len(digest.calls),
        "calls made twice": len(digest.calls) - len(set(digest.calls)),
        **{f"calls of {name}": count for name, count in sorted(Counter(call.name for call in digest.calls).items())},
        "calls that cannot be read": digest.num_malformed,
        "turns": digest.num_turns,
        "turns cut at the token limit": digest.num_cut,
        "different words in the answer": len(set(words)),
        "words in the answer": len(words),
        "repeated words in the answer": len(words) - len(set(words)),
        "tags, bullets and marks in the answer": len(MARK.findall(digest.answer)),
        "lines in the answer": digest.answer.count("\n"),
        "numbers in the answer": len(_numbers(digest)),
        "capital letters in the answer": sum(letter.isupper() for letter in digest.answer),
        "characters beyond ASCII in the answer": sum(not letter.isascii() for letter in digest.answer),
        "words of the prompt in the answer": sum(word in prompt for word in words),
        "words of results in the answer": sum(word in results for word in words),
        "words in the answer that neither prompt nor results have": sum(word not in known for word in words),
        "characters in the answer": len(digest.answer),
        "sampled tokens": digest.num_tokens,
    }


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15


def _arguments(call: RecordedCall) -> Mapping[str, Json]:
    """Return the arguments, keyed by name. The mapping is empty if they are not a JSON object."""
    try:
        content = json.loads(call.arguments)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _phrases(text: str, most_words: int) -> Iterator[str]:
    tokens = TOKEN.findall(text.casefold())
    if len(tokens) > MOST_TOKENS:
        tokens = [*tokens[: MOST_TOKENS // 2], *tokens[-MOST_TOKENS // 2 :]]
    for length in range(1, most_words + 1):
        for place in range(len(tokens) - length + 1):
            yield " ".join(tokens[place : place + length])
