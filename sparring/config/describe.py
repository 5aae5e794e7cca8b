"""Describe settings: type, range, default, meaning, and the functions that read them."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Union

from pydantic.fields import FieldInfo

from sparring.algorithms.choice import FUNCTIONS, PER_TURN, PLUG_INS, WITHOUT_REWARD, find_readers, read_defaults
from sparring.config.recipe import nearest_key
from sparring.config.rules.engine import TRAINING_KEYS
from sparring.config.sections import (
    ENGINE_KEYS,
    LAUNCHED_KEYS,
    LEARNER_KEYS,
    LISTEN_KEYS,
    POLICY_KEYS,
    Config,
    section_class,
)
from sparring.errors import UsageError
from sparring.types import Json

_TYPES: Mapping[Any, str] = {int: "integer", float: "number", str: "text", bool: "true or false", object: "any value"}
_SIGNS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below", "min_length": "minimum length:"}
_TYPE_KEYS = {"engine": ENGINE_KEYS, "learner": LEARNER_KEYS}
_ADAPTER = "model.trained_weights = 'lora'"
_READERS = {
    **dict.fromkeys(("curriculum.easy_threshold", "curriculum.hard_threshold"), "curriculum.select = 'mixed'"),
    **dict.fromkeys(
        ("curriculum.retry_share", "curriculum.history_groups"), "curriculum.select = 'mixed' or 'frontier'"
    ),
    **dict.fromkeys(("curriculum.kind_weights", "curriculum.kind_block_size"), "training with curriculum.kind_field"),
    "model.base_precision": _ADAPTER,
    "environment.max_turns": "the built-in tool loop (recipes without an agent)",
    "environment.worker_timeout": "environment.workers above 0, or environment.listen",
    **dict.fromkeys((f"environment.{key}" for key in LISTEN_KEYS), "environment.listen"),
    **dict.fromkeys(
        (f"environment.{key}" for key in LAUNCHED_KEYS), "environment.listen, and workers that a Ray cluster starts"
    ),
    "agent.max_turns": "agent.function, agent.command, agent.url and agent.pull",
    "agent.variables": "agent.command",
    "agent.gateway_host": "agent.url and agent.pull",
    "agent.gateway_port": "agent.url and agent.pull",
    "agent.gateway_names": "agent.url and agent.pull",
    "agent.tps_limit": "agent.url",
    "data.validation_fraction": "recipes without data.validation",
    "data.held_out_fraction": "recipes without data.held_out",
    "algorithm.turn_rewards": "advantage_method = "
    + ", ".join(name for name in FUNCTIONS["advantage_method"] if name not in (*PER_TURN, *WITHOUT_REWARD)),
    "algorithm.teacher_coef": "algorithm.teacher",
    "algorithm.kl_form": "algorithm.kl_coef above 0",
    "algorithm.options": f"{' and '.join(PLUG_INS)} that are a `module:function`",
    "rollout.session_weights": "rollout.max_steps_off_policy above 0",
    "tracking.mlflow_uri": "tracking.mlflow = true",
    "tracking.mlflow_experiment_name": "tracking.mlflow = true",
    "tracking.wandb_project": "tracking.wandb = true",
    "tracking.wandb_entity": "tracking.wandb = true",
    "tracking.wandb_mode": "tracking.wandb = true",
}
"""The readers of keys that only some recipes read. Keys whose readers follow from another table are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One key of a recipe."""

    key: str
    type: str
    range: str
    """The allowed values; empty if only the type limits them."""
    default: Json
    meaning: str
    read_by: str
    """The readers of the key, with the default of each reader if the defaults differ. Empty if every run reads the
    key."""

    def as_json(self) -> dict[str, Json]:
        return asdict(self)


def describe_settings(wanted: str | None = None) -> list[Setting]:
    """Return all settings, or the settings of one section or key.

    Raises UsageError for an unknown name; the message contains the nearest known name.
    """
    settings = [
        _describe(section, key, field)
        for section, section_field in Config.model_fields.items()
        for key, field in section_class(section_field.annotation).model_fields.items()
    ]
    if wanted is None:
        return settings
    parts = wanted.strip("[]").split(".")
    if parts[0] == "policies" and len(parts) > 1:
        parts[1] = "NAME"
    name = ".".join(parts)
    found = [one for one in settings if one.key == name or one.key.startswith(f"{name}.")]
    if not found:
        raise UsageError(f"{wanted!r} is not a key or section of a recipe{nearest_key(wanted)}")
    return found


def _describe(section: str, key: str, field: FieldInfo) -> Setting:
    prefix = "policies.NAME" if section == "policies" else section
    default = field.get_default(call_default_factory=True)
    return Setting(
        key=f"{prefix}.{key}",
        type=describe_type(field.annotation),
        range=_describe_range(key, field),
        default=list(default) if isinstance(default, tuple) else default,
        meaning=field.description or "",
        read_by=_describe_readers(section, key),
    )


def describe_type(annotation: Any) -> str:
    """Return a type annotation in words, such as `integer or none`."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return describe_type(arguments[0])
    if origin is Literal:
        return "one of " + ", ".join(f'"{value}"' for value in arguments)
    if origin in (Union, types.UnionType):
        named = [describe_type(one) for one in arguments if one is not type(None)]
        return " or ".join([*named, "none"] if type(None) in arguments else named)
    if origin is tuple:
        return f"list of {describe_type(arguments[0])}"
    if origin is dict:
        return f"table of {describe_type(arguments[1])}"
    return _TYPES[annotation]


def _describe_range(key: str, field: FieldInfo) -> str:
    if key in FUNCTIONS:
        own = " or a `module:function`" if key in PLUG_INS else ""
        return f"{', '.join(FUNCTIONS[key])}{own}"
    # The bounds of an optional number are in the field's metadata. Those of FiniteFloat (no infinity) are not shown.
    each = [f"each {bound}" for bound in _bounds(_element_metadata(field.annotation))]
    return ", ".join([*_bounds(field.metadata), *each])


def _bounds(metadata: Iterable[Any]) -> Iterator[str]:
    for one in metadata:
        for sign, words in _SIGNS.items():
            if getattr(one, sign, None) is not None:
                yield f"{words} {getattr(one, sign)}"


def _element_metadata(annotation: Any) -> list[Any]:
    """Return the bounds of a list's elements or of a table's values."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        return [found for one in arguments for found in _element_metadata(one)]
    if origin not in (tuple, dict):
        return []
    element = arguments[0 if origin is tuple else 1]
    found = [*element.__metadata__] if typing.get_origin(element) is typing.Annotated else []
    return [bound for one in found for bound in (one.metadata if isinstance(one, FieldInfo) else [one])]


def _describe_readers(section: str, key: str) -> str:
    if f"{section}.{key}" in _READERS:
        return _READERS[f"{section}.{key}"]
    if section == "algorithm":
        return _describe_functions(key)
    if section in _TYPE_KEYS and key != "type":
        return _join(f"{section}.type", [name for name, keys in _TYPE_KEYS[section].items() if key in keys])
    if section == "policies":
        return "" if key == "role" else _join("role", [name for name, keys in POLICY_KEYS.items() if key in keys])
    if key.startswith("lora_"):
        return _ADAPTER
    return (
        "training only (engine.type = 'torch', 'remote', 'vllm', 'sglang' or 'tinker')"
        if key in TRAINING_KEYS.get(section, ())
        else ""
    )


def _describe_functions(key: str) -> str:
    """Return the functions that read a hyperparameter, each with its own default."""
    name = key.replace("_epsilon", "_threshold")
    parts = []
    for choice, readers in find_readers(name).items():
        if not readers:
            continue
        values = {one: read_defaults(FUNCTIONS[choice][one])[name] for one in readers}
        shown = [one if value is inspect.Parameter.empty else f"{one} ({value})" for one, value in values.items()]
        parts.append(f"{choice} = {', '.join(shown)}")
    if parts and key != name:
        return f"{'; '.join(parts)}; these are values of {name}"
    return "; ".join(parts) or "training only (engine.type = 'torch', 'remote', 'vllm', 'sglang' or 'tinker')"


def _join(key: str, values: list[str]) -> str:
    return f"{key} = {' or '.join(repr(value) for value in values)}"
