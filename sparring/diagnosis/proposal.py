"""A change as settings: whether a recipe takes it, and how it is written on the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sparring.config import Config, validate
from sparring.config.recipe import tables
from sparring.diagnosis.observed import Observed
from sparring.errors import ConfigError
from sparring.types import Json

SAME = 0.5
"""Share of the groups whose episodes are all the same, from which on there is nothing to choose among."""


def overrides(settings: Mapping[str, Json]) -> list[str]:
    """As commands take them: `rollout.max_steps_off_policy=0`."""
    return [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in settings.items()]


def possible(config: Config, settings: Mapping[str, Json]) -> Mapping[str, Json]:
    """The settings, or none of them where the recipe with them would be refused: a proposal must work as it is."""
    try:
        validate(tables(config), overrides(settings))
    except ConfigError:
        return {}
    return settings


def rounded(value: float) -> float:
    """As a person would write it: ten times 5e-7 is 5e-6, and not 4.9999999999999996e-6."""
    return float(f"{value:.6g}")


def warmer(observed: Observed) -> Mapping[str, Json]:
    """Sampling as the policy is, where it is colder and most groups hold one episode several times over; else nothing."""
    if observed.config.sampling.temperature >= 1 or observed.equal_groups < SAME:
        return {}
    return possible(observed.config, {"sampling.temperature": 1.0})


def value_of(config: Config, key: str) -> Json:
    """The value in effect of a key path. Raises AttributeError for a key that there is not."""
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)
