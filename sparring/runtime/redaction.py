"""Masks secrets, which are the values of environment variables with names such as `..._KEY` or `..._TOKEN`.

A secret is masked wherever its value appears, for example in the error of a client, in an address or in the result of a
tool.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import lru_cache, partial
from urllib.parse import quote

MASK = "***"
MIN_LENGTH = 8
"""Length of the shortest value that is masked. Shorter values occur in too much text that is not secret."""
_NAMED = re.compile(r"(^|_)(KEY|APIKEY|TOKEN|SECRET|PASSWORD|PASSWD|WEBHOOK|WEBHOOK_URL)$", re.IGNORECASE)
_names: set[str] = set()


def register(name: str) -> None:
    """Treat the value of this environment variable as secret, whatever its name."""
    _names.add(name)


def mask_secrets(text: str, *forms: Callable[[str], str]) -> str:
    """Replace every secret in a string with `***`. This also masks the secret as encoded in addresses, in JSON and by
    each of `forms`."""
    return build_masker(*forms)(text)


def build_masker(*forms: Callable[[str], str]) -> Callable[[str], str]:
    """Return a `mask_secrets` function for the current secrets, for callers with many strings."""
    pattern = _pattern(frozenset(os.environ.items()), frozenset(_names), forms)
    return partial(pattern.sub, MASK) if pattern is not None else str


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
    # The longest secret comes first, because one secret may be the beginning of another.
    return re.compile("|".join(map(re.escape, sorted(written, key=len, reverse=True)))) if written else None


def _in_address(value: str) -> str:
    return quote(value, safe="")


def _in_json(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)[1:-1]


def _in_ascii_json(value: str) -> str:
    return json.dumps(value)[1:-1]
