"""Read recipes: TOML files become frozen sections, one for each part of a recipe. All problems of a recipe are reported
at once.

Names and defaults are those of MTRL wherever MTRL has the same concept. Ranges reject only values that cannot work.
Precedence: override > place file > recipe > default.
"""

from sparring.config.place import PLACE_KEYS, PLACES, Place, places_of, read_place, recipe_hash, settings_of
from sparring.config.recipe import (
    key_from,
    load_config,
    read_recipe,
    resolved_toml,
    resolved_view,
    restore_defaults,
    untrainable,
    validate,
)
from sparring.config.rules import find_warnings
from sparring.config.rules.conflict import endpoint_problems, has_repeated
from sparring.config.sections import (
    HYPERPARAMETERS,
    Config,
    EngineSection,
    EnvironmentSection,
    ModelSection,
    PolicySection,
    RewardSection,
    ScheduleSection,
    Section,
    TrackingSection,
)

__all__ = [
    "HYPERPARAMETERS", "PLACES", "PLACE_KEYS", "Config", "EngineSection", "EnvironmentSection", "ModelSection", "Place",
    "PolicySection", "RewardSection", "ScheduleSection", "Section", "TrackingSection", "endpoint_problems",
    "find_warnings", "has_repeated", "key_from", "load_config", "places_of", "read_place", "read_recipe", "recipe_hash",
    "resolved_toml", "resolved_view", "restore_defaults", "settings_of", "untrainable", "validate",
]  # fmt: skip
