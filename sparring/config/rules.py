"""Rules between settings: what cannot work together, and what nothing in the chosen combination would read."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Mapping

from sparring.algorithms import choice
from sparring.config.sections import (
    ENGINE_KEYS,
    POLICY_KEYS,
    AlgorithmSection,
    Config,
    CurriculumSection,
    PolicySection,
    TrackingSection,
    section_class,
)
from sparring.errors import ConfigProblem
from sparring.prices import PRICES, has_price

OF_TRAINING: Mapping[str, frozenset[str]] = {
    **{
        name: frozenset(section_class(Config.model_fields[name].annotation).model_fields)
        for name in ("model", "batch", "algorithm", "optimizer", "schedule", "warm_start", "detectors", "tracking")
    },
    "curriculum": frozenset(CurriculumSection.model_fields) - {"kind_field"},
    "sampling": frozenset({"temperature", "sampling_top_p"}),
    "rollout": frozenset({"max_steps_off_policy", "staleness_window", "session_weights"}),
}
"""Keys by section that only a model which is played and trained here reads."""


_POLICY_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_MAIN_NAMES = ("policy", "default")


def conflicts(config: Config, wrong: Container[str] = ()) -> list[ConfigProblem]:
    """Rules between fields: what cannot work together, and what nothing in the chosen combination would read.

    A rule that reads a key of `wrong` is not judged.
    """
    found: list[ConfigProblem] = []

    def refuse(key: str, message: str, *reads: str) -> None:
        """`reads` are the other keys that the rule depends on."""
        keys = (key, *reads)
        if not any(path in wrong or path.partition(".")[0] in wrong for path in keys):
            found.append(ConfigProblem(key, message))

    def given(section: str, *keys: str) -> list[str]:
        return [key for key in keys if key in getattr(config, section).model_fields_set]

    batch, rollout, model, data = config.batch, config.rollout, config.model, config.data
    for key, message in _engine_problems(config):
        refuse(key, message, "engine.type")
    if not config.is_trainable:
        for section, keys in OF_TRAINING.items():
            for key in given(section, *sorted(keys)) if getattr(config, section) is not None else ():
                message = f"is given, but engine.type = {config.engine.type!r} is not trained, so nothing reads it; leave it out."
                refuse(f"{section}.{key}", message, "engine.type")
    chosen = choice.refusals(
        config.algorithm, correction=config.off_policy_correction, group_size=batch.group_size,
        max_steps_off_policy=rollout.max_steps_off_policy, trained_weights=model.trained_weights,
    )  # fmt: skip
    for key, message, reads in chosen:
        first, *others = (path if "." in path else f"algorithm.{path}" for path in (key, *reads))
        refuse(first, message, *others)
    agent = config.agent
    ways = agent.ways()
    if len(ways) > 1:
        refuse(f"agent.{ways[1]}", f"is given beside agent.{ways[0]}, and one agent plays an episode; leave one out.")
    if agent.is_foreign:
        if given("environment", "max_turns"):
            message = f"is given, but agent.{ways[0]} plays, not the built-in tool loop; use agent.max_turns."
            refuse("environment.max_turns", message, f"agent.{ways[0]}")
        if config.environment.target is not None:
            message = f"is given, but agent.{ways[0]} brings a world of its own; leave one of them out."
            refuse("environment.target", message, f"agent.{ways[0]}")
    else:
        for key, section in (("target", "environment"), ("reward", "reward")):
            if getattr(getattr(config, section), key) is None:
                refuse(f"{section}.{key}", "is missing; this value has no default unless an [agent] plays.")
        for key in given("agent", "max_turns"):
            refuse(f"agent.{key}", "is given, but no agent is; use environment.max_turns for the built-in tool loop.")
    environment = config.environment
    if (
        environment.workers
        and environment.target is None
        and config.reward.reward is None
        and config.reward.scorer is None
    ):
        message = "is given, but the recipe has no environment, reward or scorer to run in workers; leave it out."
        refuse("environment.workers", message, "environment.target", "reward.reward", "reward.scorer")
    for key in given("environment", "worker_timeout") if environment.workers == 0 else ():
        refuse(f"environment.{key}", "is given, but nothing runs in workers; leave it out.", "environment.workers")
    if agent.url is None and given("agent", "tps_limit"):
        refuse("agent.tps_limit", "is given, but agent.url is not; leave it out.", "agent.url")
    for key in given("agent", "gateway_host", "gateway_port"):
        if agent.way not in ("url", "pull"):
            message = "is given, but only agents of url and pull are elsewhere and need to know it; leave it out."
            refuse(f"agent.{key}", message, "agent.url", "agent.pull")
    if agent.url is not None and agent.gateway_host == "0.0.0.0":
        message = "is 0.0.0.0, which no agent could dial; give the address under which agent.url reaches this machine."
        refuse("agent.gateway_host", message, "agent.url")
    max_turns = agent.max_turns if agent.is_foreign else config.environment.max_turns
    max_tokens, turn_tokens = rollout.rollout_max_tokens, config.sampling.sampling_max_tokens
    if max_tokens is not None and max_turns is not None and max_tokens >= max_turns * turn_tokens:
        refuse(
            "rollout.rollout_max_tokens",
            f"is {max_tokens}, but {max_turns} turns of sampling.sampling_max_tokens = {turn_tokens} never sample more; make it "
            "smaller, or leave it out.",
            "sampling.sampling_max_tokens",
            f"{'agent' if agent.is_foreign else 'environment'}.max_turns",
        )
    for name, policy in config.policies.items():
        path = f"policies.{name}"
        if not _POLICY_NAME.fullmatch(name):
            refuse(path, "is no name for a policy; use lower-case letters, digits and _, a letter first.")
        if name in _MAIN_NAMES:
            refuse(path, f"has the name that clients call the policy in training by; use another than {_MAIN_NAMES}.")
        for key, message in _policy_problems(config, policy):
            refuse(f"{path}.{key}", message)
        if policy.role == "frozen" and policy.weights == "warm_start" and config.warm_start is None:
            message = "is 'warm_start', but the recipe has no [warm_start]; use 'base', or the folder of a run."
            refuse(f"{path}.weights", message, "warm_start")
        if policy.role == "frozen" and (policy.max_tokens or 0) >= model.max_sequence_length:
            refuse(
                f"{path}.max_tokens",
                f"is {policy.max_tokens}, but model.max_sequence_length = {model.max_sequence_length} holds the prompt too; "
                "make it smaller.",
                "model.max_sequence_length",
            )
    for name in config.algorithm.options:
        if name in AlgorithmSection.model_fields:
            message = f"is a key of [algorithm] itself: write algorithm.{name} = ... without options."
            refuse(f"algorithm.options.{name}", message)
    method = config.algorithm.advantage_method
    sees_more = config.algorithm.needs_every_token or config.algorithm.takes_reward_off
    if batch.refill_groups and (sees_more or method not in choice.SILENT_WHEN_EQUAL):
        refuse(
            "batch.refill_groups",
            f"is {batch.refill_groups}, but with these settings of [algorithm] a group of equal total rewards may teach "
            "something all the same; leave it out, or use a method that compares totals and no further terms.",
            "algorithm.advantage_method",
        )
    select, unread = config.curriculum.select, "is given, but select = {!r} does not read it; leave it out, or use {}."
    for key in given("curriculum", "easy_threshold", "hard_threshold"):
        if select != "mixed":
            refuse(f"curriculum.{key}", unread.format(select, "'mixed'"), "curriculum.select")
    for key in given("curriculum", "retry_share", "history_groups"):
        if select == "all":
            refuse(f"curriculum.{key}", unread.format(select, "'mixed' or 'frontier'"), "curriculum.select")
    if config.curriculum.hard_threshold >= config.curriculum.easy_threshold:
        refuse(
            "curriculum.hard_threshold",
            f"is {config.curriculum.hard_threshold}, but tasks rest from easy_threshold = "
            f"{config.curriculum.easy_threshold} on, so none would be left; make it smaller.",
            "curriculum.easy_threshold",
        )
    if select != "all" and config.schedule.max_epochs == 1:
        refuse(
            "curriculum.select",
            f"is {select!r}, which goes by how a task went before, but schedule.max_epochs = 1 offers every task once; raise "
            "max_epochs, or leave select out.",
            "schedule.max_epochs",
        )
    if select != "all" and batch.group_size * config.curriculum.history_groups < 4:
        refuse(
            "curriculum.history_groups",
            f"is {config.curriculum.history_groups}, which with batch.group_size = {batch.group_size} is too little to tell how "
            "hard a task is: one lucky episode would put it to rest. Make their product at least 4.",
            "batch.group_size",
            "curriculum.select",
        )
    if config.curriculum.kind_weights and config.curriculum.kind_field is None:
        refuse(
            "curriculum.kind_weights",
            "is given, but kind_field is not, so all tasks are of one kind; name the field that tells them apart.",
            "curriculum.kind_field",
        )
    for kind, weight in config.curriculum.kind_weights.items():
        if weight <= 0:
            refuse(
                f"curriculum.kind_weights.{kind}",
                f"is {weight}; give a positive number, or leave tasks that shall not be trained out of data.train.",
            )
    if config.detectors.reaction == "roll_back" and config.schedule.save_every == 0 and config.warm_start is None:
        refuse(
            "detectors.reaction",
            "is 'roll_back', but schedule.save_every = 0 saves only at the end, so there would be no checkpoint to go back to; "
            "set save_every, or use 'stop'.",
            "schedule.save_every",
            "warm_start",
        )
    if config.sampling.sampling_top_p < 1:
        refuse(
            "sampling.sampling_top_p",
            f"is {config.sampling.sampling_top_p}, but the learner's ratio is over the whole vocabulary, so training on a "
            "truncated distribution would be biased; use 1.0 and lower the temperature instead.",
        )
    if model.trained_weights == "full":
        message = "is given, but trained_weights = 'full' trains no adapter; leave it out."
        for key in given("model", "lora_rank", "lora_alpha", "lora_layers", "lora_targets"):
            refuse(f"model.{key}", message, "model.trained_weights")
        if given("optimizer", "lora_plus_lr_ratio"):
            refuse("optimizer.lora_plus_lr_ratio", message, "model.trained_weights")
    if config.optimizer.warmup_steps > config.schedule.max_steps > 0:
        refuse(
            "optimizer.warmup_steps",
            f"is {config.optimizer.warmup_steps}, but the run ends at schedule.max_steps = {config.schedule.max_steps}, so "
            "the rate would never reach learning_rate; make it smaller.",
            "schedule.max_steps",
        )
    waits = math.ceil((rollout.staleness_window - 1) / batch.global_batch_size)
    if waits > rollout.max_steps_off_policy:
        refuse(
            "rollout.staleness_window",
            f"is {rollout.staleness_window}, which lets a group wait {waits} steps, but max_steps_off_policy = "
            f"{rollout.max_steps_off_policy}; use a smaller window or a larger bound.",
            "rollout.max_steps_off_policy",
            "batch.global_batch_size",
        )
    if rollout.max_steps_off_policy == 0 and given("rollout", "session_weights"):
        refuse(
            "rollout.session_weights",
            "is given, but with max_steps_off_policy = 0 no weights change during play; leave it out.",
            "rollout.max_steps_off_policy",
        )
    if config.engine.deterministic and rollout.max_steps_off_policy > 0:
        refuse(
            "engine.deterministic",
            "is true, but asynchronous play depends on timing; set rollout.max_steps_off_policy = 0, or leave it out.",
            "rollout.max_steps_off_policy",
        )
    endpoints = [name for name, policy in config.policies.items() if policy.role == "endpoint"]
    if config.engine.deterministic and endpoints:
        refuse(
            "engine.deterministic",
            f"is true, but policies.{endpoints[0]} is an endpoint, and no seed fixes what that answers; leave it out, or have a "
            "model that is loaded here play with role = 'frozen'.",
            f"policies.{endpoints[0]}",
        )
    plays_in_rounds = config.plays_in_rounds and rollout.max_steps_off_policy == 0
    if plays_in_rounds and rollout.rollout_max_concurrency < batch.group_size:
        refuse(
            "rollout.rollout_max_concurrency",
            f"is {rollout.rollout_max_concurrency}, but deterministic play opens a whole group together "
            f"(group_size = {batch.group_size}); raise it, or set engine.deterministic = false.",
            "batch.group_size",
            "rollout.max_steps_off_policy",
            "engine.deterministic",
        )
    for split in ("validation", "held_out"):
        if getattr(data, split) is not None and given("data", f"{split}_fraction"):
            message = f"is given, but data.{split} names the tasks already; leave one of them out."
            refuse(f"data.{split}_fraction", message, f"data.{split}")
    if data.validation is None and data.held_out is None and data.validation_fraction + data.held_out_fraction >= 1:
        refuse(
            "data.validation_fraction",
            f"is {data.validation_fraction}, which with held_out_fraction = {data.held_out_fraction} leaves nothing to "
            "train on; make them less than 1 together.",
            "data.held_out_fraction",
            "data.validation",
            "data.held_out",
        )
    largest = max(config.evaluation.val_group_size, config.evaluation.eval_group_size)
    for k in config.evaluation.pass_k_values or ():
        if not 1 <= k <= largest:
            refuse(
                "evaluation.pass_k_values",
                f"holds {k}, but with {largest} episodes a task pass@{k} is not defined; raise eval_group_size.",
                "evaluation.val_group_size",
                "evaluation.eval_group_size",
            )
    if not config.tracking.mlflow:
        for key in given("tracking", "mlflow_uri", "mlflow_experiment_name"):
            message = "is given, but tracking.mlflow is false; set it to true, or leave this out."
            refuse(f"tracking.{key}", message, "tracking.mlflow")
    for key, message in _tracking_problems(config.tracking):
        refuse(f"tracking.{key}", message)
    bounded = config.is_trainable and given("sampling", "sampling_max_tokens")
    if bounded and config.sampling.sampling_max_tokens >= model.max_sequence_length:
        refuse(
            "sampling.sampling_max_tokens",
            f"is {config.sampling.sampling_max_tokens}, but model.max_sequence_length = {model.max_sequence_length} holds "
            "the prompt too; make it smaller.",
            "model.max_sequence_length",
        )
    return found


def _policy_problems(config: Config, policy: PolicySection) -> list[tuple[str, str]]:
    """What is wrong with a further policy by itself: (key, message)."""
    found = []
    for key in sorted(policy.model_fields_set - POLICY_KEYS[policy.role]):
        message = f"is given, but role = {policy.role!r} does not read it; leave it out."
        if policy.role == "trained" and key in POLICY_KEYS["frozen"]:
            message = "is given, but role = 'trained' plays with what is in training, as [sampling] says; leave it out."
        found.append((key, message))
    if policy.role != "endpoint" and not config.is_trainable:
        found.append(("role", f"is {policy.role!r}, which takes a model that is loaded here; use 'endpoint'."))
    if policy.role == "endpoint":
        found += [
            (key, "is missing; role = 'endpoint' needs it.")
            for key in ("base_url", "model")
            if not getattr(policy, key)
        ]
        found += endpoint_problems(base_url=policy.base_url, api_key_env=policy.api_key_env)
    return found


def _tracking_problems(section: TrackingSection) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if section.mlflow_uri is not None and re.search(r"://[^/@]*:[^/@]*@", section.mlflow_uri):
        message = "has a password in it; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or what the database reads."
        found.append(("mlflow_uri", message))
    address = section.prometheus_address
    if address is not None and not re.fullmatch(r"[\w.\-]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}", address):
        message = f"is {address!r}; give the host and port to listen at, as 127.0.0.1:9400."
        found.append(("prometheus_address", message))
    variable = section.webhook_url_env
    if variable is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        message = "is no name of an environment variable; put the address into one, and give its name here."
        found.append(("webhook_url_env", message))
    for name, price in section.prices.items():
        if not has_price(name) or price < 0:
            message = f"is no price; what may have one is {', '.join(PRICES)} and MODEL:read, and it is not below 0."
            found.append((f"prices.{name}", message))
    return found


def _engine_problems(config: Config) -> list[tuple[str, str]]:
    """Keys of [engine] that the chosen one does not read, or cannot do without."""
    engine = config.engine
    found: list[tuple[str, str]] = []
    for key in sorted(engine.model_fields_set - ENGINE_KEYS[engine.type]):
        readers = " or ".join(repr(name) for name, keys in ENGINE_KEYS.items() if key in keys)
        found.append((
            f"engine.{key}",
            f"is given, but engine.type = {engine.type!r} does not read it; leave it out, or set engine.type to {readers}.",
        ))  # fmt: skip
    needed = {"openai": ("base_url", "model"), "scripted": ("script",)}.get(engine.type, ())
    for key in needed:
        if getattr(engine, key) is None:
            found.append((f"engine.{key}", f"is missing; engine.type = {engine.type!r} needs it."))
    told = endpoint_problems(base_url=engine.base_url, api_key_env=engine.api_key_env)
    return found + [(f"engine.{key}", message) for key, message in told]


def endpoint_problems(*, base_url: str | None, api_key_env: str | None) -> list[tuple[str, str]]:
    """What is wrong with how an endpoint is named: the key and a message."""
    found: list[tuple[str, str]] = []
    if base_url is not None and not re.fullmatch(r"https?://[^/@?#\s]+(/[^@?#\s]*)?", base_url):
        # Keys are not shown.
        shown = "an address with a user or key in it" if "@" in base_url else repr(base_url)
        message = f"is {shown}; give one like https://HOST/v1, and name the variable that holds the key apart."
        found.append(("base_url", message))
    if api_key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", api_key_env):
        message = "is no name of an environment variable; put the key into one, and give its name here, never the key."
        found.append(("api_key_env", message))
    return found
