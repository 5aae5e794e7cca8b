"""Rules of [policies.NAME]: names, the keys that each role reads, and the settings that each role needs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparring.config.rules.conflict import ConfigRule, Conflict, endpoint_problems
from sparring.config.sections import POLICY_KEYS, Config

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_MAIN_NAMES = ("policy", "default")


def invalid_name(config: Config) -> Iterator[Conflict]:
    for name in config.policies:
        if not _NAME.fullmatch(name):
            message = "is not a valid name of a policy; use lower-case letters, digits and _, starting with a letter."
            yield Conflict(f"policies.{name}", message)
        if name in _MAIN_NAMES:
            message = f"is a name of the policy in training; choose a name other than {' or '.join(_MAIN_NAMES)}."
            yield Conflict(f"policies.{name}", message)


def keys_of_other_roles(config: Config) -> Iterator[Conflict]:
    for name, policy in config.policies.items():
        for key in sorted(policy.model_fields_set - POLICY_KEYS[policy.role]):
            message = f"is given, but role = {policy.role!r} does not read it; leave it out."
            if policy.role == "trained" and key in POLICY_KEYS["frozen"]:
                message = "is given, but role = 'trained' uses the policy in training and [sampling]; leave it out."
            yield Conflict(f"policies.{name}.{key}", message)


def local_model_without_engine(config: Config) -> Iterator[Conflict]:
    for name, policy in config.policies.items():
        if policy.role != "endpoint" and not config.is_trainable:
            message = f"is {policy.role!r}, which needs a model that is loaded in this process; use 'endpoint'."
            yield Conflict(f"policies.{name}.role", message)


def keys_that_endpoints_need(config: Config) -> Iterator[Conflict]:
    for name, policy in config.policies.items():
        if policy.role != "endpoint":
            continue
        for key in ("base_url", "model"):
            if not getattr(policy, key):
                yield Conflict(f"policies.{name}.{key}", "is missing; role = 'endpoint' needs it.")
        for key, message in endpoint_problems(base_url=policy.base_url, api_key_env=policy.api_key_env):
            yield Conflict(f"policies.{name}.{key}", message)


def weights_of_missing_warm_start(config: Config) -> Iterator[Conflict]:
    for name, policy in config.policies.items():
        if policy.role == "frozen" and policy.weights == "warm_start" and config.warm_start is None:
            message = "is 'warm_start', but the recipe has no [warm_start]; use 'base', or the folder of a run."
            yield Conflict(f"policies.{name}.weights", message, ("warm_start",))


def tokens_above_sequence(config: Config) -> Iterator[Conflict]:
    longest = config.model.max_sequence_length
    for name, policy in config.policies.items():
        if policy.role == "frozen" and (policy.max_tokens or 0) >= longest:
            yield Conflict(
                f"policies.{name}.max_tokens",
                f"is {policy.max_tokens}, but model.max_sequence_length = {longest} also includes the prompt; lower it.",
                ("model.max_sequence_length",),
            )


RULES: tuple[ConfigRule, ...] = (
    invalid_name,
    keys_of_other_roles,
    local_model_without_engine,
    keys_that_endpoints_need,
    weights_of_missing_warm_start,
    tokens_above_sequence,
)
