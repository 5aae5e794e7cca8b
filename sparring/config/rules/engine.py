"""Rules of [engine] and [learner]: keys that the chosen type reads or needs, and keys that only training reads."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from sparring.config.rules.conflict import ConfigRule, Conflict, endpoint_problems, find_given, has_repeated
from sparring.config.sections import (
    ENGINE_KEYS,
    LEARNER_KEYS,
    LOCAL_SERVER_KEYS,
    Config,
    CurriculumSection,
    EngineSection,
    LearnerSection,
    section_class,
)

TRAINING_KEYS: Mapping[str, frozenset[str]] = {
    **{
        name: frozenset(section_class(Config.model_fields[name].annotation).model_fields)
        for name in (
            "model",
            "batch",
            "algorithm",
            "optimizer",
            "schedule",
            "limits",
            "warm_start",
            "detectors",
            "tracking",
            "learner",
        )
    },
    "curriculum": frozenset(CurriculumSection.model_fields) - {"kind_field"},
    "sampling": frozenset({"temperature", "sampling_top_p"}),
    "rollout": frozenset({"max_steps_off_policy", "staleness_window", "session_weights"}),
}
"""The keys, by section, that are read only if this process trains a model."""


def keys_of_other_engines(config: Config) -> Iterator[Conflict]:
    yield from _keys_of_other_types("engine", config.engine, ENGINE_KEYS)


def keys_of_other_learners(config: Config) -> Iterator[Conflict]:
    yield from _keys_of_other_types("learner", config.learner, LEARNER_KEYS)


def keys_that_the_engine_needs(config: Config) -> Iterator[Conflict]:
    engine = config.engine
    for key in {
        "openai": ("base_url", "model"),
        "remote": ("base_url",),
        "scripted": ("script",),
    }.get(engine.type, ()):
        if not getattr(engine, key):
            yield Conflict(f"engine.{key}", f"is missing; engine.type = {engine.type!r} needs it.", ("engine.type",))


def local_servers_with_addresses(config: Config) -> Iterator[Conflict]:
    if config.engine.type != "vllm":
        return
    if config.engine.base_urls:
        for key in find_given(config, "engine", *LOCAL_SERVER_KEYS):
            yield Conflict(
                f"engine.{key}",
                "is for servers that are started on this machine, but engine.base_urls names running servers; leave one out.",
                ("engine.type", "engine.base_urls"),
            )
    else:
        for key in find_given(config, "engine", "api_key_env"):
            yield Conflict(
                f"engine.{key}",
                "is for running servers, but engine.base_urls is empty, so servers are started on this machine; leave it "
                "out, or add their addresses.",
                ("engine.type", "engine.base_urls"),
            )


def limits_of_sglang(config: Config) -> Iterator[Conflict]:
    if config.engine.type != "sglang":
        return
    if not config.engine.base_urls:
        yield Conflict(
            "engine.base_urls",
            "is empty, but a run starts no SGLang servers; add the addresses of running ones (docs/vllm.md).",
            ("engine.type",),
        )
    if config.model.trained_weights == "full":
        yield Conflict(
            "model.trained_weights",
            "is 'full', but engine.type = 'sglang' gets only adapters; set model.trained_weights = 'lora', or use "
            "engine.type = 'vllm'.",
            ("engine.type",),
        )


def address_of_a_remote_learner(config: Config) -> Iterator[Conflict]:
    if config.learner.type == "remote" and config.learner.base_url is None:
        yield Conflict("learner.base_url", "is missing; learner.type = 'remote' needs it.", ("learner.type",))


def _addresses_of_a_service(config: Config) -> Iterator[Conflict]:
    own = {"tinker": ("base_url",), "sagemaker": ("role_arn",)}
    unread = {"tinker": ("role_arn",), "sagemaker": ("base_url", "api_key_env")}
    service = config.learner.service
    for key in (*own[service], "model"):
        if getattr(config.learner, key) is None:
            yield Conflict(f"learner.{key}", "is missing; learner.type = 'tinker' needs it.", ("learner.type",))
    for key in unread[service]:
        if getattr(config.learner, key) is not None:
            message = f"is not read with learner.service = {service!r}; leave it out."
            yield Conflict(f"learner.{key}", message, ("learner.service",))
    if service == "sagemaker" and config.model.lora_targets:
        message = "is given, but SageMaker chooses the layers of an adapter; leave it out."
        yield Conflict("model.lora_targets", message, ("learner.service",))


TINKER_PARTS: Mapping[str, frozenset[str]] = {
    "attention": frozenset({"q_proj", "k_proj", "v_proj", "o_proj"}),
    "mlp": frozenset({"gate_proj", "up_proj", "down_proj"}),
    "output": frozenset({"lm_head"}),
}
"""The layers that a client of the Tinker API can choose for an adapter, each part as a whole."""


def are_tinker_parts(targets: Collection[str]) -> bool:
    """Return whether a Tinker service can adapt exactly these layers."""
    return set(targets) == frozenset().union(*(part for part in TINKER_PARTS.values() if part & set(targets)))


def needs_of_a_tinker_service(config: Config) -> Iterator[Conflict]:
    if config.engine.type == "tinker" and config.learner.type != "tinker":
        yield Conflict(
            "engine.type",
            "is 'tinker', the service of the learner, but learner.type is not 'tinker'; set both.",
            ("learner.type",),
        )
    if config.learner.type != "tinker":
        return
    yield from _addresses_of_a_service(config)
    one = "but a Tinker service"
    for key, value, message in (
        (
            "model.trained_weights",
            config.model.trained_weights == "lora",
            f"is 'full', {one} trains adapters; use 'lora'.",
        ),
        (
            "sampling.temperature",
            config.sampling.temperature == 1.0,
            f"is not 1, {one} trains at temperature 1; set it to 1.",
        ),
        (
            "algorithm.entropy_coef",
            not config.algorithm.entropy_coef,
            f"is not 0, {one} returns no entropies; set it to 0.",
        ),
        (
            "optimizer.lora_plus_lr_ratio",
            config.optimizer.lora_plus_lr_ratio == 1.0,
            f"is not 1, {one} has one learning rate for all matrices; set it to 1.",
        ),
        ("model.lora_layers", config.model.lora_layers is None, f"is given, {one} adapts all layers; leave it out."),
        (
            "model.lora_targets",
            are_tinker_parts(config.model.lora_targets),
            f"are {', '.join(config.model.lora_targets)}, {one} adapts the attention ({_list('attention')}), the MLP "
            f"({_list('mlp')}) and lm_head each as a whole; name all layers of a part or none, or leave the key out.",
        ),
    ):
        if not value:
            yield Conflict(key, message, ("learner.type",))


def _list(part: str) -> str:
    return ", ".join(sorted(TINKER_PARTS[part]))


def ranks_of_a_group(config: Config) -> Iterator[Conflict]:
    learner = config.learner
    if learner.type != "group":
        return
    if learner.base_urls:
        for key in find_given(config, "learner", "num_ranks", "shard_weights"):
            yield Conflict(
                f"learner.{key}",
                "is for ranks that are started on this machine, but learner.base_urls names running ranks; leave one out.",
                ("learner.type", "learner.base_urls"),
            )
    else:
        for key in find_given(config, "learner", "api_key_env"):
            yield Conflict(
                f"learner.{key}",
                "is for running ranks, but learner.base_urls is empty, so ranks are started on this machine; leave it out, or "
                "add their addresses.",
                ("learner.type", "learner.base_urls"),
            )
    num_ranks = len(learner.base_urls) or learner.num_ranks
    if learner.min_ranks > num_ranks:
        yield Conflict(
            "learner.min_ranks",
            f"is {learner.min_ranks}, but the group has only {num_ranks} ranks; lower it.",
            ("learner.type", "learner.base_urls", "learner.num_ranks"),
        )


def cluster_without_servers(config: Config) -> Iterator[Conflict]:
    if config.run.launcher == "processes":
        for key in find_given(config, "run", "ray_address"):
            message = 'is for run.launcher = "ray" (launch.on in a place file); set it, or leave this out.'
            yield Conflict(f"run.{key}", message, ("run.launcher",))
        return
    starts_servers = config.engine.type == "vllm" and not config.engine.base_urls
    starts_ranks = config.learner.type == "group" and not config.learner.base_urls
    if not (starts_servers or starts_ranks or config.environment.workers):
        yield Conflict(
            "run.launcher",
            'is "ray", but nothing is started there: it starts the servers of engine.type = "vllm" and the ranks of '
            'learner.type = "group", where these have no addresses, and environment.workers.',
            ("engine.type", "learner.type", "environment.workers"),
        )


def invalid_endpoint(config: Config) -> Iterator[Conflict]:
    for name, section in (("engine", config.engine), ("learner", config.learner)):
        for key, message in endpoint_problems(base_url=section.base_url, api_key_env=section.api_key_env):
            yield Conflict(f"{name}.{key}", message, (f"{name}.type",))
        for url in section.base_urls:
            for _, message in endpoint_problems(base_url=url, api_key_env=None):
                yield Conflict(f"{name}.base_urls", f"has an item that {message}", (f"{name}.type",))
        if has_repeated(section.base_urls):
            yield Conflict(f"{name}.base_urls", "names a server twice; name each one once.", (f"{name}.type",))


def training_keys_without_training(config: Config) -> Iterator[Conflict]:
    if config.is_trainable:
        return
    message = f"is given, but engine.type = {config.engine.type!r} is not trained, so nothing reads it; leave it out."
    for section, keys in TRAINING_KEYS.items():
        for key in find_given(config, section, *sorted(keys)) if getattr(config, section) is not None else ():
            yield Conflict(f"{section}.{key}", message, ("engine.type",))


def deterministic_and_asynchronous(config: Config) -> Iterator[Conflict]:
    if config.engine.deterministic and config.rollout.max_steps_off_policy > 0:
        yield Conflict(
            "engine.deterministic",
            "is true, but asynchronous rollouts depend on timing; set rollout.max_steps_off_policy = 0, or leave it out.",
            ("rollout.max_steps_off_policy",),
        )


def settings_beyond_the_engine(config: Config) -> Iterator[Conflict]:
    """Report settings that need a capability missing from the chosen trainable engine."""
    can, name = config.engine_capabilities, config.engine.type
    if not can.reports_token_ids:
        return  # `keys_of_other_engines` and `training_keys_without_training` report these settings
    if config.engine.deterministic and not can.deterministic_rounds:
        yield Conflict(
            "engine.deterministic",
            f"is true, but engine.type = {name!r} cannot sample in rounds that depend only on the seed; leave it out.",
            ("engine.type",),
        )
    if config.rollout.session_weights == "pinned" and not can.pins_weights:
        yield Conflict(
            "rollout.session_weights",
            f"is 'pinned', but engine.type = {name!r} cannot keep an episode on its first weights{_when_full(config)}; use "
            "'latest'.",
            ("engine.type", "model.trained_weights"),
        )
    frozen = [name for name, policy in config.policies.items() if policy.role == "frozen"]
    if frozen and not can.holds_several_weights:
        yield Conflict(
            f"policies.{frozen[0]}.role",
            f"is 'frozen', but engine.type = {name!r} holds one version of the weights{_when_full(config)}; set "
            "model.trained_weights = 'lora', or use engine.type = 'torch'.",
            ("engine.type", "model.trained_weights"),
        )


def _when_full(config: Config) -> str:
    return " if model.trained_weights = 'full'" if config.model.trained_weights == "full" else ""


def deterministic_with_endpoint(config: Config) -> Iterator[Conflict]:
    endpoints = [name for name, policy in config.policies.items() if policy.role == "endpoint"]
    if config.engine.deterministic and endpoints:
        yield Conflict(
            "engine.deterministic",
            f"is true, but policies.{endpoints[0]} is an endpoint, and its answers do not depend on the seed; leave it out, or "
            "use a model that is loaded in this process (role = 'frozen').",
            (f"policies.{endpoints[0]}",),
        )


def _keys_of_other_types(
    name: str, section: EngineSection | LearnerSection, readers: Mapping[str, frozenset[str]]
) -> Iterator[Conflict]:
    for key in sorted(section.model_fields_set - readers[section.type]):
        others = " or ".join(repr(kind) for kind, keys in readers.items() if key in keys)
        yield Conflict(
            f"{name}.{key}",
            f"is given, but {name}.type = {section.type!r} does not read it; leave it out, or set {name}.type to {others}.",
            (f"{name}.type",),
        )


RULES: tuple[ConfigRule, ...] = (
    keys_of_other_engines,
    keys_that_the_engine_needs,
    local_servers_with_addresses,
    limits_of_sglang,
    keys_of_other_learners,
    address_of_a_remote_learner,
    needs_of_a_tinker_service,
    ranks_of_a_group,
    cluster_without_servers,
    invalid_endpoint,
    training_keys_without_training,
    deterministic_and_asynchronous,
    settings_beyond_the_engine,
    deterministic_with_endpoint,
)
