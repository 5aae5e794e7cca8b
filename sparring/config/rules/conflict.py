"""The type of the rules between settings, and functions that the rules of several sections share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from sparring.config.sections import Config


class Conflict(NamedTuple):
    """One setting that conflicts with other settings."""

    key: str
    """Key path of the setting to change."""
    message: str
    reads: tuple[str, ...] = ()
    """Key paths of the other settings that the rule depends on."""


ConfigRule: TypeAlias = Callable[[Config], Iterable[Conflict]]
"""A function that yields a conflict for each setting that cannot work. It sees defaults in place of invalid values."""


def find_given(config: Config, section: str, *keys: str) -> list[str]:
    """Return the keys that the recipe or an override sets."""
    return [key for key in keys if key in getattr(config, section).model_fields_set]


def endpoint_problems(*, base_url: str | None, api_key_env: str | None) -> list[tuple[str, str]]:
    """Return (key, message) for each invalid setting of an endpoint: its address, or the variable that holds its key.
    Messages never contain a secret key."""
    found: list[tuple[str, str]] = []
    if base_url is not None and not re.fullmatch(r"https?://[^/@?#\s]+(/[^@?#\s]*)?", base_url):
        shown = "an address that contains a user or key" if "@" in base_url else repr(base_url)
        message = f"is {shown}; use one like https://HOST/v1, and name the variable that holds the key in api_key_env."
        found.append(("base_url", message))
    if api_key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", api_key_env):
        message = (
            "is not a valid name of an environment variable; put the key into a variable and give the variable's name here, "
            "never the key."
        )
        found.append(("api_key_env", message))
    return found


def has_repeated(urls: Iterable[str]) -> bool:
    """Return whether two addresses name the same server. Addresses with and without /v1 are equal."""
    addresses = [url.rstrip("/").removesuffix("/v1") for url in urls]
    return len(set(addresses)) < len(addresses)
