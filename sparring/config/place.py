"""Read the place file, which defines where a recipe runs. Its keys do not change what is learned or evaluated.

    [engine]
    max_running = 128
    [learner]
    device = "cuda"
    [environment]
    workers = 8
    [launch]
    gateway_host = "0.0.0.0"

Precedence: override > place file > recipe > default.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import tomli_w
from pydantic import ValidationError

from sparring.config.recipe import described, merge, read_recipe, read_toml
from sparring.config.rules import RULES, UNREAD, find_unread
from sparring.config.rules.conflict import ConfigRule
from sparring.config.rules.engine import invalid_endpoint, keys_of_other_engines, keys_of_other_learners
from sparring.config.rules.episodes import invalid_listening
from sparring.config.sections import LISTEN_KEYS, Config, EngineSection, LearnerSection, section_class
from sparring.errors import ConfigError, ConfigProblem
from sparring.types import Json

PLACES: Mapping[str, str] = {
    **{f"engine.{key}": f"engine.{key}" for key in EngineSection.model_fields},
    **{f"learner.{key}": f"learner.{key}" for key in LearnerSection.model_fields},
    "learner.device": "model.device",
    "learner.max_tokens_per_microbatch": "optimizer.max_tokens_per_microbatch",
    "learner.activation_checkpointing": "optimizer.activation_checkpointing",
    "environment.workers": "environment.workers",
    "environment.worker_timeout": "environment.worker_timeout",
    **{f"environment.{key}": f"environment.{key}" for key in ("listen", *LISTEN_KEYS)},
    "launch.on": "run.launcher",
    "launch.ray_address": "run.ray_address",
    "launch.num_threads": "run.num_threads",
    "launch.copy_to": "run.copy_to",
    "launch.gateway_host": "agent.gateway_host",
    "launch.gateway_port": "agent.gateway_port",
    "launch.gateway_names": "agent.gateway_names",
}
"""The keys of a place file, each with the recipe key that it sets."""
PLACE_KEYS = frozenset(PLACES.values())
_IGNORED = frozenset(UNREAD) - {keys_of_other_engines, keys_of_other_learners}
"""The rules about keys that a place file may set although nothing reads them."""
_LOCATION = frozenset({"run.name", "run.runs_dir"})
"""Settings that name the run and its folder."""


@final
@dataclass(frozen=True, slots=True)
class Place:
    """A place file that has been read and checked."""

    path: Path
    settings: Mapping[str, Any]
    """Values by recipe key."""

    def overrides(self, recipe: Path, changes: Sequence[str] = ()) -> list[str]:
        """Return the settings that the recipe reads after `changes`, as overrides that go before `changes`.

        One place file serves many recipes. A recipe ignores settings that it does not read: without a gateway, for
        example, it ignores the gateway's address. Raises ConfigError if settings of the place file conflict with each other
        or with defaults, and not only with settings of the recipe or of `changes`.
        """
        tables = read_recipe(recipe)
        kept = dict(self.settings)
        while True:
            written = [
                f"{key}={tomli_w.dumps({'_': value}).removeprefix('_ = ').strip()}" for key, value in kept.items()
            ]
            try:
                config = Config.model_validate(merge(tables, [*written, *changes], []))
            except ValidationError:
                return written  # `load_config` reports this problem of the recipe
            unread = find_unread(config) & kept.keys()
            if not unread:
                break
            kept = {key: value for key, value in kept.items() if key not in unread}
        changed = {change.partition("=")[0].strip() for change in changes}
        others = _flat(tables).keys() - kept.keys() | changed
        problems = _conflicts(config, kept.keys() - changed, PLACE_KEYS - others)
        if problems:
            raise ConfigError(problems, str(self.path))
        return written


def read_place(path: Path) -> Place:
    """Read a place file.

    Raises UsageError if it is not a TOML file. Raises ConfigError with every key that cannot be in a place file or has a
    wrong value.
    """
    tables = read_toml(path, "place file")
    problems: list[ConfigProblem] = []
    settings: dict[str, Any] = {}
    for section, table in tables.items():
        if not isinstance(table, Mapping):
            problems.append(ConfigProblem(section, "is not in a section; a place file has [engine], [learner], ..."))
            continue
        for key, value in table.items():
            if (name := f"{section}.{key}") in PLACES:
                settings[PLACES[name]] = value
            else:
                problems.append(ConfigProblem(name, _refusal(name)))
    problems += _invalid(settings)
    if problems:
        raise ConfigError(problems, str(path))
    return Place(path, settings)


def settings_of(config: Mapping[str, Json]) -> dict[str, Json]:
    """Return the settings of a dumped configuration that define what is run, keyed by name.

    These are all settings except those of a place file and the run's name and folder.
    """
    return {key: value for key, value in _flat(config).items() if key not in PLACE_KEYS | _LOCATION}


def places_of(config: Mapping[str, Json]) -> dict[str, Json]:
    """Return the settings of a dumped configuration that define where it runs, keyed by name."""
    return {key: value for key, value in _flat(config).items() if key in PLACE_KEYS}


def recipe_hash(config: Config) -> str:
    """Return the SHA-256 hash of a recipe's settings. The hash does not depend on where the recipe runs."""
    settings = settings_of(config.model_dump(mode="json"))
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _flat(config: Mapping[str, Json]) -> dict[str, Json]:
    """Return all settings, keyed by name. A section that is None has no settings."""
    return {
        f"{section}.{key}": value
        for section, values in config.items()
        if isinstance(values, dict)
        for key, value in values.items()
    }


def _refusal(name: str) -> str:
    """Return an error message that explains why a key cannot be in a place file."""
    known = [
        f"{section}.{key}"
        for section, field in Config.model_fields.items()
        for key in section_class(field.annotation).model_fields
    ]
    by_recipe_key = {recipe_key: place_key for place_key, recipe_key in PLACES.items()}
    if name in by_recipe_key:
        return f"is called {by_recipe_key[name]!r} in a place file."
    if name in known:
        return (
            "is not a key of a place file: it changes what is learned or evaluated, not where the recipe runs. "
            f"Put it into the recipe, or give {name}=VALUE on the command line."
        )
    near = difflib.get_close_matches(name, PLACES, n=1, cutoff=0.6)
    same_key = [other for other in PLACES if other.partition(".")[2] == name.partition(".")[2]]
    hint = [*near, *same_key][:1]
    return f"is not a known key; {f'the nearest one is {hint[0]!r}' if hint else 'docs/places.md lists all keys'}."


def _invalid(settings: Mapping[str, Any]) -> list[ConfigProblem]:
    """Return a problem for each invalid value, and for each conflict between settings of the place file.

    The problems name the keys of the place file.
    """
    tables: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        section, _, field = key.partition(".")
        tables.setdefault(section, {})[field] = value
    try:
        config = Config.model_validate(tables)
    except ValidationError as error:
        problems = [described(detail) for detail in error.errors()]
    else:
        return _conflicts(config, settings.keys(), settings.keys(), (invalid_endpoint, invalid_listening))
    return _with_place_keys(problems)


def _conflicts(
    config: Config, given: Container[str], known: Container[str], certain: Container[ConfigRule] = ()
) -> list[ConfigProblem]:
    """Return the conflicts of `given` keys that depend only on `known` keys, and all conflicts of `certain` rules. The
    problems name the keys of the place file."""
    return _with_place_keys(
        ConfigProblem(key, message)
        for rule in RULES
        if rule not in _IGNORED
        for key, message, reads in rule(config)
        if rule in certain or (key in given and all(one in known for one in reads))
    )


def _with_place_keys(problems: Iterable[ConfigProblem]) -> list[ConfigProblem]:
    by_recipe_key = {recipe_key: place_key for place_key, recipe_key in PLACES.items()}
    return [ConfigProblem(by_recipe_key.get(one.key, one.key), one.message) for one in problems]
