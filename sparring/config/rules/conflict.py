"""The shape of a rule between settings, and what rules of several sections share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from sparring.config.sections import Config


class Conflict(NamedTuple):
    """One setting that cannot work together with others."""

    key: str
    """Key path of the setting to change."""
    message: str
    reads: tuple[str, ...] = ()
    """Key paths of the other settings that the rule depends on."""


ConfigRule: TypeAlias = Callable[[Config], Iterable[Conflict]]
"""Yields a conflict for each setting that cannot work. Rules run on default values in place of invalid ones."""


def find_given(config: Config, section: str, *keys: str) -> list[str]:
    """Return those of the keys that the recipe or an override sets."""
    return [key for key in keys if key in getattr(config, section).model_fields_set]


def endpoint_problems(*, base_url: str | None, api_key_env: str | None) -> list[tuple[str, str]]:
    """Return (key, message) for each invalid part of an endpoint's address. Messages never contain a key."""
    found: list[tuple[str, str]] = []
    if base_url is not None and not re.fullmatch(r"https?://[^/@?#\s]+(/[^@?#\s]*)?", base_url):
        shown = "an address with a user or key in it" if "@" in base_url else repr(base_url)
        message = f"is {shown}; use one like https://HOST/v1, and name the variable that holds the key in api_key_env."
        found.append(("base_url", message))
    if api_key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", api_key_env):
        message = (
            "is not a valid name of an environment variable; put the key into a variable and give its name here, "
            "never the key."
        )
        found.append(("api_key_env", message))
    return found
