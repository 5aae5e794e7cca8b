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

from sparring.pages import data_text, text

SHOWN = "***"
MIN_LENGTH = 8
"""Of a value that is masked: a shorter one is part of too much that is no secret."""
_NAMED = re.compile(r"(^|_)(KEY|APIKEY|TOKEN|SECRET|PASSWORD|PASSWD|WEBHOOK|WEBHOOK_URL)$", re.IGNORECASE)
_names: set[str] = set()


def register(name: str) -> None:
    """Count the value of this environment variable as secret, whatever it is called."""
    _names.add(name)


def masked(said: str) -> str:
    """What is said with `***` in place of every secret, also as it stands in addresses, in JSON and in pages."""
    return masker()(said)


def masker() -> Callable[[str], str]:
    """`masked` with the secrets of this moment, for who has much to mask."""
    pattern = _pattern(frozenset(os.environ.items()), frozenset(_names))
    return partial(pattern.sub, SHOWN) if pattern is not None else str


@lru_cache(maxsize=4)
def _pattern(environment: frozenset[tuple[str, str]], names: frozenset[str]) -> re.Pattern[str] | None:
    values = {value.strip() for name, value in environment if name in names or _NAMED.search(name)}
    forms = {
        form
        for value in values
        if len(value) >= MIN_LENGTH
        for form in (
            value,
            quote(value, safe=""),
            json.dumps(value)[1:-1],
            json.dumps(value, ensure_ascii=False)[1:-1],
            text(value),
            data_text(value)[1:-1],
        )
    }
    # The longest first: a secret may begin with another.
    return re.compile("|".join(map(re.escape, sorted(forms, key=len, reverse=True)))) if forms else None
