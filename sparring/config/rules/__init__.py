"""Rules between settings: combinations that cannot work, and settings that no part of the recipe reads."""

from collections.abc import Container

from sparring.config.rules import algorithm, data, engine, episodes, policies, tracking, training
from sparring.config.rules.conflict import ConfigRule
from sparring.config.sections import Config
from sparring.errors import ConfigProblem

RULES: tuple[ConfigRule, ...] = (
    *engine.RULES,
    *algorithm.RULES,
    *episodes.RULES,
    *policies.RULES,
    *training.RULES,
    *data.RULES,
    *tracking.RULES,
)
"""All rules, in the order in which problems are reported."""


def find_conflicts(config: Config, wrong: Container[str] = ()) -> list[ConfigProblem]:
    """Return the conflicts between settings, except those that depend on a key or section in `wrong`."""
    found: list[ConfigProblem] = []
    for rule in RULES:
        for key, message, reads in rule(config):
            if not any(path in wrong or path.partition(".")[0] in wrong for path in (key, *reads)):
                found.append(ConfigProblem(key, message))
    return found


UNREAD: tuple[ConfigRule, ...] = (
    engine.keys_of_other_engines,
    engine.keys_of_other_learners,
    engine.training_keys_without_training,
    episodes.workers_without_work,
    episodes.timeout_without_workers,
    episodes.keys_without_listen,
    episodes.gateway_address_without_remote_agent,
)
"""The rules about keys of a place file that nothing in a recipe reads."""


def find_unread(config: Config) -> set[str]:
    """Return the keys that a place file sets but no part of the recipe reads."""
    return {key for rule in UNREAD for key, _, _ in rule(config)}


def find_warnings(config: Config) -> list[ConfigProblem]:
    """Return a problem for each combination that works but is probably not intended."""
    return [ConfigProblem(key, message) for rule in algorithm.WARNINGS for key, message, _ in rule(config)]
