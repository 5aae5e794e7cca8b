"""The logged conversations for the warm start, and copies of them with other identifiers.

A small model that reads a few hundred conversations many times memorizes their identifiers instead of copying them. Each
copy therefore has other digits in the words that have letters and digits and that few conversations share, such as K47.
"""

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
IDENTIFIER = re.compile(r"\w*(?:\d[A-Za-z]|[A-Za-z]\d)\w*")
SHARE = 0.05
"""Words that a larger share of the conversations has, such as tier2, may have a meaning, and are kept."""


def varied(number: int, seed: int) -> list[list[dict]]:
    """Return this number of conversations: the logged ones, and then copies of them with other identifiers."""
    lines = (HERE / "demonstrations.jsonl").read_text("utf-8").splitlines()
    logged = [json.loads(line)["messages"] for line in lines]
    num_with = Counter(word for line in lines for word in set(IDENTIFIER.findall(line)))
    kept = {word for word, num in num_with.items() if num > max(1, SHARE * len(lines))}
    rng = random.Random(seed)
    copies = [with_other_identifiers(logged[place % len(logged)], kept, rng) for place in range(len(logged), number)]
    return [*logged, *copies][:number]


def with_other_identifiers(messages: list[dict], kept: set[str], rng: random.Random) -> list[dict]:
    """Return messages in which each identifier has other digits, the same ones at each place."""
    others: dict[str, str] = {}

    def other(match: re.Match) -> str:
        word: str = match[0]
        if word not in kept and word not in others:
            new = re.sub(r"\d", lambda _: rng.choice("0123456789"), word)
            others[word] = word if new in others.values() else new
        return others.get(word, word)

    return [_replaced(message, partial(IDENTIFIER.sub, other)) for message in messages]


def _replaced(message: dict, text: Callable[[str], str]) -> dict:
    """Return a message with its content and the arguments of its calls replaced."""
    message = {**message, "content": text(message["content"])}
    if "tool_calls" in message:
        message["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _values(call["function"]["arguments"], text)}}
            for call in message["tool_calls"]
        ]
    return message


def _values(value: Any, text: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {name: _values(one, text) for name, one in value.items()}
    if isinstance(value, list):
        return [_values(one, text) for one in value]
    return text(value) if isinstance(value, str) else value
