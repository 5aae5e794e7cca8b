"""The recipe: one frozen section per part, TOML in, every problem named at once.

Names and defaults are MTRL's wherever the concept exists there. Ranges refuse only what cannot work.
Override > recipe > default.
"""

from sparring.config.recipe import (
    key_from,
    load_config,
    read_recipe,
    resolved_toml,
    resolved_view,
    untrainable,
    validate,
)
from sparring.config.rules import endpoint_problems
from sparring.config.sections import (
    ALGORITHM_KNOBS,
    Config,
    EnvironmentSection,
    ModelSection,
    PolicySection,
    RewardSection,
    ScheduleSection,
    Section,
    TrackingSection,
)

__all__ = [
    "ALGORITHM_KNOBS", "Config", "EnvironmentSection", "ModelSection", "PolicySection", "RewardSection",
    "ScheduleSection", "Section", "TrackingSection", "endpoint_problems", "key_from", "load_config", "read_recipe",
    "resolved_toml", "resolved_view", "untrainable", "validate",
]  # fmt: skip
