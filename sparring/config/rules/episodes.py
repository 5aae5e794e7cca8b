"""Rules of [agent], [environment], [reward], [sampling] and [rollout]: what runs an episode, and the limits of an
episode."""

from __future__ import annotations

from collections.abc import Iterator

from sparring.config.rules.conflict import ConfigRule, Conflict, endpoint_problems, find_given
from sparring.config.sections import LAUNCHED_KEYS, LISTEN_KEYS, Config
from sparring.errors import UsageError
from sparring.runtime.address import read_address


def several_agents(config: Config) -> Iterator[Conflict]:
    kinds = config.agent.kinds()
    if len(kinds) > 1:
        message = (
            f"is given together with agent.{kinds[0]}, but only one agent can run an episode; leave one of them out."
        )
        yield Conflict(f"agent.{kinds[1]}", message)


def environment_keys_with_agent(config: Config) -> Iterator[Conflict]:
    kind = config.agent.kind
    if kind is None:
        return
    if find_given(config, "environment", "max_turns"):
        message = f"is given, but agent.{kind} runs the episodes, not the built-in tool loop; use agent.max_turns."
        yield Conflict("environment.max_turns", message, (f"agent.{kind}",))
    if config.environment.target is not None:
        message = f"is given, but agent.{kind} has its own environment; leave one of them out."
        yield Conflict("environment.target", message, (f"agent.{kind}",))


def missing_without_agent(config: Config) -> Iterator[Conflict]:
    if config.agent.is_foreign:
        return
    for section, key in (("environment", "target"), ("reward", "reward")):
        if getattr(getattr(config, section), key) is None:
            yield Conflict(f"{section}.{key}", "is missing; it has no default unless the recipe has an [agent].")
    for key in find_given(config, "agent", "max_turns"):
        message = "is given, but the recipe has no agent; use environment.max_turns for the built-in tool loop."
        yield Conflict(f"agent.{key}", message)


def workers_without_work(config: Config) -> Iterator[Conflict]:
    targets = (config.environment.target, config.reward.reward, config.reward.scorer)
    if any(target is not None for target in targets):
        return
    for key in ("workers", "listen"):
        if getattr(config.environment, key):
            yield Conflict(
                f"environment.{key}",
                "is given, but the recipe has no environment, reward or scorer to run in workers; leave it out.",
                ("environment.target", "reward.reward", "reward.scorer"),
            )


def timeout_without_workers(config: Config) -> Iterator[Conflict]:
    for key in () if config.environment.has_workers else find_given(config, "environment", "worker_timeout"):
        message = "is given, but nothing runs in workers; leave it out."
        yield Conflict(f"environment.{key}", message, ("environment.workers", "environment.listen"))


def keys_without_listen(config: Config) -> Iterator[Conflict]:
    if config.environment.listen:
        return
    for key in find_given(config, "environment", *LISTEN_KEYS):
        if key in LAUNCHED_KEYS and config.launches_workers:
            continue
        message = "is given, but environment.listen is not, so no worker can connect; leave it out."
        yield Conflict(f"environment.{key}", message, ("environment.listen",))


def invalid_listening(config: Config) -> Iterator[Conflict]:
    section = config.environment
    if not section.listen:
        return
    try:
        read_address(section.listen)
    except UsageError as error:
        yield Conflict("environment.listen", str(error).replace(repr(section.listen), f"is {section.listen!r}, which"))
    for _, message in endpoint_problems(base_url=None, api_key_env=section.api_key_env):
        yield Conflict("environment.api_key_env", message, ("environment.listen",))
    if (section.tls_certificate is None) != (section.tls_key is None):
        missing, given = ("tls_key", "tls_certificate") if section.tls_key is None else ("tls_certificate", "tls_key")
        yield Conflict(
            f"environment.{missing}", f"is missing, but environment.{given} is set; set both.", ("environment.listen",)
        )


def start_rate_without_url(config: Config) -> Iterator[Conflict]:
    if config.agent.url is None and find_given(config, "agent", "tps_limit"):
        yield Conflict("agent.tps_limit", "is given, but agent.url is not; leave it out.", ("agent.url",))


def variables_without_program(config: Config) -> Iterator[Conflict]:
    if config.agent.command is None and find_given(config, "agent", "variables"):
        yield Conflict("agent.variables", "is given, but agent.command is not; leave it out.", ("agent.command",))


def gateway_address_without_remote_agent(config: Config) -> Iterator[Conflict]:
    if config.agent.kind in ("url", "pull"):
        return
    for key in find_given(config, "agent", "gateway_host", "gateway_port", "gateway_names"):
        message = "is given, but it is read only with agent.url or agent.pull; leave it out."
        yield Conflict(f"agent.{key}", message, ("agent.url", "agent.pull"))


def worker_keys_without_queue(config: Config) -> Iterator[Conflict]:
    for key, needed in (("worker_keys", "pull"), ("audit_log", "worker_keys")):
        if not getattr(config.agent, needed) and find_given(config, "agent", key):
            message = f"is given, but agent.{needed} is not; leave it out."
            yield Conflict(f"agent.{key}", message, (f"agent.{needed}",))


def gateway_address_for_url(config: Config) -> Iterator[Conflict]:
    if config.agent.url is not None and config.agent.gateway_host == "0.0.0.0":
        message = (
            "is 0.0.0.0, which an agent cannot connect to; use the address at which the agent reaches this machine."
        )
        yield Conflict("agent.gateway_host", message, ("agent.url",))


def episode_tokens_above_all_turns(config: Config) -> Iterator[Conflict]:
    is_foreign = config.agent.is_foreign
    max_turns = config.agent.max_turns if is_foreign else config.environment.max_turns
    max_tokens, turn_tokens = config.rollout.rollout_max_tokens, config.sampling.sampling_max_tokens
    if max_tokens is not None and max_turns is not None and max_tokens >= max_turns * turn_tokens:
        yield Conflict(
            "rollout.rollout_max_tokens",
            f"is {max_tokens}, but {max_turns} turns with sampling.sampling_max_tokens = {turn_tokens} never sample "
            "more; lower it, or leave it out.",
            ("sampling.sampling_max_tokens", f"{'agent' if is_foreign else 'environment'}.max_turns"),
        )


def truncated_sampling(config: Config) -> Iterator[Conflict]:
    if config.sampling.sampling_top_p < 1:
        yield Conflict(
            "sampling.sampling_top_p",
            f"is {config.sampling.sampling_top_p}, but the learner computes the ratio over the whole vocabulary, so training on "
            "a truncated distribution would be biased; use 1.0 and lower the temperature instead.",
        )


def turn_tokens_above_sequence(config: Config) -> Iterator[Conflict]:
    tokens, longest = config.sampling.sampling_max_tokens, config.model.max_sequence_length
    if config.is_trainable and find_given(config, "sampling", "sampling_max_tokens") and tokens >= longest:
        yield Conflict(
            "sampling.sampling_max_tokens",
            f"is {tokens}, but model.max_sequence_length = {longest} also includes the prompt; lower it.",
            ("model.max_sequence_length",),
        )


def window_above_staleness(config: Config) -> Iterator[Conflict]:
    rollout = config.rollout
    if config.start_allowance < 0:
        waits = rollout.max_steps_off_policy - config.start_allowance
        yield Conflict(
            "rollout.staleness_window",
            f"is {rollout.staleness_window}, so a group may wait {waits} steps, but max_steps_off_policy is only "
            f"{rollout.max_steps_off_policy}; lower staleness_window or raise max_steps_off_policy.",
            ("rollout.max_steps_off_policy", "batch.global_batch_size"),
        )


def session_weights_when_synchronous(config: Config) -> Iterator[Conflict]:
    if config.rollout.max_steps_off_policy == 0 and find_given(config, "rollout", "session_weights"):
        yield Conflict(
            "rollout.session_weights",
            "is given, but with max_steps_off_policy = 0 the weights do not change during an episode; leave it out.",
            ("rollout.max_steps_off_policy",),
        )


def concurrency_below_group(config: Config) -> Iterator[Conflict]:
    runs_in_rounds = config.runs_in_rounds and config.rollout.max_steps_off_policy == 0
    if runs_in_rounds and config.rollout.rollout_max_concurrency < config.batch.group_size:
        yield Conflict(
            "rollout.rollout_max_concurrency",
            f"is {config.rollout.rollout_max_concurrency}, but deterministic rollouts run a whole group at once "
            f"(group_size = {config.batch.group_size}); raise it, or set engine.deterministic = false.",
            ("batch.group_size", "rollout.max_steps_off_policy", "engine.deterministic"),
        )


RULES: tuple[ConfigRule, ...] = (
    several_agents,
    environment_keys_with_agent,
    missing_without_agent,
    variables_without_program,
    workers_without_work,
    timeout_without_workers,
    keys_without_listen,
    invalid_listening,
    start_rate_without_url,
    gateway_address_without_remote_agent,
    worker_keys_without_queue,
    gateway_address_for_url,
    episode_tokens_above_all_turns,
    truncated_sampling,
    turn_tokens_above_sequence,
    window_above_staleness,
    session_weights_when_synchronous,
    concurrency_below_group,
)
