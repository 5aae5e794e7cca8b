"""Proposed changes as settings: whether a recipe accepts them, and their form on the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sparring.config import Config, validate
from sparring.config.recipe import tables
from sparring.diagnosis.observed import Observed
from sparring.errors import ConfigError
from sparring.types import Json

SAME = 0.5
"""The share of groups with identical episodes above which there is nothing left to compare."""


def overrides(settings: Mapping[str, Json]) -> list[str]:
    """Return the settings as arguments of commands: `rollout.max_steps_off_policy=0`."""
    return [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in settings.items()]


def possible(config: Config, settings: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return the settings, or an empty mapping if the recipe would be rejected with them. A proposal must work without
    further changes."""
    try:
        validate(tables(config), overrides(settings))
    except ConfigError:
        return {}
    return settings


def rounded(value: float) -> float:
    """Return the number rounded as a person would write it: 5e-6, not 4.9999999999999996e-6."""
    return float(f"{value:.6g}")


def warmer(observed: Observed) -> Mapping[str, Json]:
    """Return the setting of temperature 1 if the temperature is below 1 and most groups have identical episodes,
    otherwise nothing."""
    if observed.config.sampling.temperature >= 1 or observed.equal_groups < SAME:
        return {}
    return possible(observed.config, {"sampling.temperature": 1.0})


def value_of(config: Config, key: str) -> Json:
    """Return the effective value of a key path. Raises AttributeError if the key does not exist."""
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)
