"""Secrets must not be written anywhere: the values of environment variables that are named as such.

What is secret is known by its variable's name and found by its value, wherever that turns up: in the error of a client,
in an address, in what a tool said.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import lru_cache, partial
from urllib.parse import quote

SHOWN = "***"
MIN_LENGTH = 8
"""Of a value that is masked: a shorter one is part of too much that is no secret."""
_NAMED = re.compile(r"(^|_)(KEY|APIKEY|TOKEN|SECRET|PASSWORD|PASSWD|WEBHOOK|WEBHOOK_URL)$", re.IGNORECASE)
_names: set[str] = set()


def register(name: str) -> None:
    """Count the value of this environment variable as secret, whatever it is called."""
    _names.add(name)


def masked(text: str, *forms: Callable[[str], str]) -> str:
    """The text with `***` in place of every secret, also as it stands in addresses, in JSON, and in each of the `forms`."""
    return masker(*forms)(text)


def masker(*forms: Callable[[str], str]) -> Callable[[str], str]:
    """`masked` with the secrets of this moment, for who has much to mask."""
    pattern = _pattern(frozenset(os.environ.items()), frozenset(_names), forms)
    return partial(pattern.sub, SHOWN) if pattern is not None else str


@lru_cache(maxsize=4)
def _pattern(
    environment: frozenset[tuple[str, str]], names: frozenset[str], forms: tuple[Callable[[str], str], ...]
) -> re.Pattern[str] | None:
    values = {value.strip() for name, value in environment if name in names or _NAMED.search(name)}
    written = {
        form(value)
        for value in values
        if len(value) >= MIN_LENGTH
        for form in (str, _in_address, _in_json, _in_ascii_json, *forms)
    }
    # The longest first: a secret may begin with another.
    return re.compile("|".join(map(re.escape, sorted(written, key=len, reverse=True)))) if written else None


def _in_address(value: str) -> str:
    return quote(value, safe="")


def _in_json(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)[1:-1]


def _in_ascii_json(value: str) -> str:
    return json.dumps(value)[1:-1]
