"""Read a recipe and its overrides into a validated configuration, and write the configuration back as text."""

from __future__ import annotations

import copy
import difflib
import json
import os
import re
import tomllib
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import TypeAdapter, ValidationError

from sparring.config.rules import find_conflicts
from sparring.config.rules.engine import TRAINING_KEYS
from sparring.config.sections import (
    ENGINE_CAPABILITIES,
    ENGINE_KEYS,
    LEARNER_KEYS,
    LOCAL_SERVER_KEYS,
    Config,
    Section,
    section_class,
)
from sparring.config.toml import MAX_LEVELS, parse_toml
from sparring.errors import MOST_SHOWN, ConfigError, ConfigProblem, UsageError
from sparring.runtime.redaction import register

_QUOTED = re.compile(
    r"""(?P<path>\s*(?:[^.="'\s]+\.)+(?:"[^"\n]+"|'[^'\n]+')(?:\.[^.="'\s]+)*\s*)=(?P<text>.*)""", re.DOTALL
)
"""An override with a quoted part in its key, as TOML has it: `tracking.prices."org/model-2.5:train"=0.4`."""
_PART = re.compile(r""""[^"]*"|'[^']*'|[^.]+""")


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a recipe and apply `section.key=value` overrides.

    Raises UsageError if the file cannot be read, and ConfigError with all problems of the recipe.
    """
    return validate(read_recipe(path), overrides, source=str(path))


def restore_defaults(config: Config, recorded: Mapping[str, Any]) -> Config:
    """Return the configuration, with the recorded value for every setting that neither the recipe nor an override sets.

    `recorded` is the whole configuration of a run, as stored in its manifest. Defaults may differ between versions of
    Sparring, and a run keeps the defaults that it was created with. A setting whose default is None stays None, because
    None means that the setting is left out. A recorded value that is no longer valid is ignored.
    """
    sections = {}
    for name in Config.model_fields:
        section, values = getattr(config, name), recorded.get(name)
        if not isinstance(section, Section) or not isinstance(values, Mapping):
            continue
        kept = {}
        for key, field in type(section).model_fields.items():
            if key in section.model_fields_set or key not in values or field.default is None or not field.annotation:
                continue
            with suppress(ValidationError):
                kept[key] = TypeAdapter(field.annotation).validate_json(json.dumps(values[key]), strict=True)
        set_by_user = section.model_fields_set
        sections[name] = type(section).model_construct(_fields_set=set_by_user, **{**dict(section), **kept})
    return Config.model_construct(_fields_set=config.model_fields_set, **{**dict(config), **sections})


def key_from(variable: str | None) -> str | None:
    """Return the API key in an environment variable, or None if `variable` is None.

    Raises UsageError if the variable is not set or its value cannot be an API key.
    """
    if variable is None:
        return None
    key = os.environ.get(variable, "")
    register(variable)
    if not key:
        raise UsageError(f"the environment variable {variable} is not set; set it to the endpoint's key.")
    if not re.fullmatch(r"[!-~]+", key):
        # Otherwise the HTTP library would raise an error that contains the key.
        raise UsageError(
            f"the environment variable {variable} contains a space, a line break or a character outside ASCII, which an "
            "HTTP header cannot contain. Set the variable to the key only."
        )
    return key


def untrainable(config: Config, source: str) -> ConfigError:
    """Return the error for a recipe that cannot be trained because its engine returns no token ids."""
    message = (
        f"is {config.engine.type!r}, which returns messages without token ids, but training needs token ids. "
        "Evaluate it with `sparring eval`, or train with engine.type = 'torch', 'remote', 'vllm', 'sglang' or 'tinker'."
    )
    return ConfigError([ConfigProblem("engine.type", message)], source)


def read_recipe(path: Path) -> dict[str, Any]:
    """Return the recipe as nested tables. Raises UsageError if the file does not exist or is not TOML."""
    return read_toml(path / "recipe.toml" if path.is_dir() else path, "recipe")


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Return the tables of a TOML file. Raises UsageError if the file does not exist or is not TOML."""
    if path.exists() and not path.is_file() and not path.is_dir():  # it may have no end
        raise UsageError(f"{path} is a pipe or a device; give the path of a TOML file.")
    try:
        return parse_toml(path.read_text("utf-8-sig"))
    except FileNotFoundError as error:
        hint = "a recipe.toml (`sparring init` makes one)" if what == "recipe" else "a TOML file"
        raise UsageError(f"there is no {what} at {path}; give the path of {hint}.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}. Give the path of a TOML file.") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"{path} is not valid TOML: {error}. Strings need quotes, and the name of a section needs brackets: "
            "[batch]."
        ) from error
    except ValueError as error:
        raise UsageError(f"{path} cannot be used as a {what}: {error}; shorten it.") from error


def validate(recipe: Mapping[str, Any], overrides: Sequence[str] = (), *, source: str = "the recipe") -> Config:
    """Return the validated configuration. Overrides replace values from the recipe, and these replace defaults.

    Raises ConfigError with all problems.
    """
    problems: list[ConfigProblem] = []
    merged = merge(recipe, overrides, problems)
    problems += _find_nul(merged)
    wrong: set[str] = set()
    try:
        config = Config.model_validate(merged)
    except ValidationError as error:
        details = error.errors(include_url=False)
        problems += map(described, details[:MOST_SHOWN])
        # Finding the nearest key takes time, and these problems are only counted.
        problems += (ConfigProblem(_path(detail), detail["msg"]) for detail in details[MOST_SHOWN:])
        # A named policy with an invalid key is left out completely, because [policies] is a section of sections.
        wrong = {".".join(str(part) for part in detail["loc"][:2]) for detail in details}
        config = _without(wrong, merged)
    problems += find_conflicts(config, wrong)
    if problems:
        raise ConfigError(problems, source)
    return config


def merge(recipe: Mapping[str, Any], overrides: Sequence[str], problems: list[ConfigProblem]) -> dict[str, Any]:
    """Return the tables of a recipe with the overrides applied. Add to `problems` each override that cannot be
    applied.

    If the overrides choose another engine or learner, or other servers, the recipe's keys that the chosen ones do not
    read are left out.
    """
    merged = copy.deepcopy(dict(recipe))
    for override in overrides:
        _apply(override, merged, problems)
    kept = _without_unread(recipe, engine=_type_of("engine", merged), learner=_type_of("learner", merged))
    kept = _without_other_servers(kept, merged, {override.partition("=")[0].strip() for override in overrides})
    for override in overrides:
        _apply(override, kept, [])
    return kept


def resolved_toml(config: Config) -> str:
    """Return the recipe with its overrides as TOML. `load_config` reads the same values back from it.

    Defaults are left out. Otherwise they would count as set by the user, and would be rejected if nothing reads them.
    """
    return tomli_w.dumps(tables(config))


def tables(config: Config) -> dict[str, Any]:
    """Return the recipe with its overrides as nested tables, the input of `validate`."""
    given = config.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    for section in ("environment", "algorithm"):
        if "options" in given.get(section, {}):  # TOML has dates and infinities, JSON does not
            given[section]["options"] = copy.deepcopy(dict(getattr(config, section).options))
    return given


def resolved_view(
    recipe: Mapping[str, Any], overrides: Sequence[str], config: Config, *, placed: Sequence[str] = ()
) -> list[tuple[str, Any, str]]:
    """Return every field as (key path, value, origin). The origin is override, place, recipe or default.

    `placed` are the overrides of a place file.
    """
    of_place = {override.partition("=")[0] for override in placed}
    overridden = {override.partition("=")[0].strip() for override in overrides}
    rows = []
    sections = {
        name: (getattr(config, name), recipe.get(name, {})) for name in Config.model_fields if name != "policies"
    }
    for name, policy in config.policies.items():
        sections[f"policies.{name}"] = (policy, recipe.get("policies", {}).get(name, {}))
    for section_name, (section, given) in sections.items():
        if section is None:
            continue
        values = section.model_dump(mode="json")
        if section_name == "algorithm":
            values = config.algorithm_in_effect()
        for key, value in values.items():
            spellings = {key, key.replace("_threshold", "_epsilon")}
            paths = {f"{section_name}.{one}" for one in spellings}
            is_override = any(one in paths or one.startswith(tuple(f"{path}." for path in paths)) for one in overridden)
            origin = "default" if spellings.isdisjoint(given) else "recipe"
            origin = "override" if is_override else "place" if not paths.isdisjoint(of_place) else origin
            rows.append((f"{section_name}.{key}", value, origin))
    return rows


def _apply(override: str, merged: dict[str, Any], problems: list[ConfigProblem]) -> None:
    path, separator, text = override.partition("=")
    if quoted := _QUOTED.fullmatch(override):  # a quoted part of a key may contain dots and equal signs
        path, text = quoted["path"], quoted["text"]
    path = path.strip()
    if not separator or path.count(".") < 1:
        problems.append(
            ConfigProblem(override, "is not of the form section.key=value; write, for example, batch.group_size=4.")
        )
        return
    try:
        value = parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # strings need no quotes on the command line
    except ValueError as error:
        problems.append(ConfigProblem(path, f"cannot be read: {error}; shorten it."))
        return
    *tables, key = path.split(".") if quoted is None else map(_unquoted, _PART.findall(path))
    if len(tables) > MAX_LEVELS:
        problems.append(ConfigProblem(path, f"has more than {MAX_LEVELS} parts; write section.key."))
        return
    target = merged
    for table in tables:
        target = target.setdefault(table, {})
        if not isinstance(target, dict):
            problems.append(ConfigProblem(path, f"{table} is a value, not a section."))
            return
    target[key] = value


def _unquoted(part: str) -> str:
    return part[1:-1] if part[:1] in ("'", '"') else part


def _type_of(section: str, tables: Mapping[str, Any]) -> Any:
    table = tables.get(section, {})
    default = section_class(Config.model_fields[section].annotation).model_fields["type"].default
    return table.get("type", default) if isinstance(table, Mapping) else None


def _without_unread(recipe: Mapping[str, Any], **types: Any) -> dict[str, Any]:
    """Return a recipe without the keys of [engine] and [learner] that these types do not read, if they are not the types
    of the recipe. Training keys are also left out if the engine cannot be trained, and `engine.deterministic = true`
    stays if it can, so that an engine without this ability is refused."""
    unread: dict[str, frozenset[str]] = {}
    for section, keys in (("engine", ENGINE_KEYS), ("learner", LEARNER_KEYS)):
        chosen = types[section]
        if isinstance(chosen, str) and chosen in keys and chosen != _type_of(section, recipe):
            fields = frozenset(section_class(Config.model_fields[section].annotation).model_fields)
            unread[section] = fields - keys[chosen]
            if section == "engine" and not ENGINE_CAPABILITIES[chosen].reports_token_ids:
                unread |= TRAINING_KEYS
            elif section == "engine" and recipe.get("engine", {}).get("deterministic"):
                unread["engine"] -= {"deterministic"}
    kept: dict[str, Any] = {}
    for name, table in recipe.items():
        if isinstance(table, Mapping) and name in unread:
            table = {key: value for key, value in table.items() if key not in unread[name]}
            if not table:
                continue
        kept[name] = copy.deepcopy(table)
    return kept


def _without_other_servers(
    recipe: Mapping[str, Any], merged: Mapping[str, Any], given: Container[str]
) -> dict[str, Any]:
    """Return a recipe for vLLM without the keys of [engine] about running servers if the overrides set keys of servers
    that are started, or the other way round. `given` are the keys of the overrides."""
    engine = recipe.get("engine")
    if _type_of("engine", merged) != "vllm" or not isinstance(engine, Mapping):
        return dict(recipe)
    unread: tuple[str, ...] = ()
    if "engine.base_urls" in given:
        unread = LOCAL_SERVER_KEYS if merged["engine"]["base_urls"] else ("api_key_env",)
    elif any(f"engine.{key}" in given for key in LOCAL_SERVER_KEYS):
        unread = ("base_urls", "api_key_env")
    return {**recipe, "engine": {key: value for key, value in engine.items() if key not in unread}}


def described(detail: Any) -> ConfigProblem:
    """Convert a pydantic error to a problem with the key path, the value, and the allowed values or the nearest key."""
    path = _path(detail)
    if detail["type"] == "extra_forbidden":
        return ConfigProblem(path, f"is not a known key{nearest_key(path)}")
    if detail["type"] == "missing":
        return ConfigProblem(path, "is missing; this value has no default.")
    message = detail["msg"][0].lower() + detail["msg"][1:]
    return ConfigProblem(path, f"is {_shown(detail['input'])}, but {message.replace('input should', 'it should')}.")


def _find_nul(tables: Mapping[str, Any]) -> list[ConfigProblem]:
    """Return a problem for each text with a NUL character, which no path, name or address can contain."""
    return [
        ConfigProblem(f"{section}.{key}", f"is {_shown(value)}, but text cannot contain the character NUL; remove it.")
        for section, table in tables.items()
        if isinstance(table, Mapping)
        for key, value in table.items()
        if isinstance(value, str) and "\0" in value
    ]


def _path(detail: Any) -> str:
    return ".".join(str(part) for part in detail["loc"])


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def nearest_key(path: str) -> str:
    """Return the end of a message about an unknown key. It suggests the most similar known key."""
    known = list(Config.model_fields)
    for section, field in Config.model_fields.items():
        # The keys of a named policy are one level deeper.
        prefix = ".".join(path.split(".")[:2]) if path.startswith("policies.") and section == "policies" else section
        known += [f"{prefix}.{key}" for key in section_class(field.annotation).model_fields]
    matches = difflib.get_close_matches(path, known, n=1, cutoff=0.6)
    if not matches:
        key = path.rpartition(".")[2]
        same_key = [other for other in known if other.rpartition(".")[2] == key]
        matches = same_key or [
            other for other in known if difflib.get_close_matches(key, [other.rpartition(".")[2]], n=1)
        ]
    return f"; the nearest one is {matches[0]!r}." if matches else "; see docs/configuration.md for all keys."


def _without(wrong: Container[str], merged: Mapping[str, Any]) -> Config:
    """Return the configuration with defaults in place of invalid values, so that rules can check the valid values.

    Sections that have no default are left out, because no rule reads them.
    """
    sections: dict[str, Any] = {}
    for name, table in merged.items():
        if name in wrong or name not in Config.model_fields or Config.model_fields[name].is_required():
            continue
        kept = {key: value for key, value in table.items() if f"{name}.{key}" not in wrong}
        annotation: Any = Config.model_fields[name].annotation
        sections[name] = TypeAdapter(annotation).validate_python(kept)
    return Config.model_construct(None, **sections)
