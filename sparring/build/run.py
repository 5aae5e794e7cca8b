"""Everything a run or an evaluation needs, finished and wired.

What needs torch is imported where a model is built, since endpoints and scripts are evaluated without it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sparring.build.algorithm import Algorithm, load_algorithm
from sparring.build.judging import load_detectors
from sparring.build.policies import endpoints_of, frozen_engine, load_policy, message_engine_of, sampling_of
from sparring.build.tasks import Tasks, kinds_of, load_curriculum, load_tasks
from sparring.build.user_code import user_code_of
from sparring.chat import create_chat
from sparring.config import Config
from sparring.detectors import Detector
from sparring.environments import Environment
from sparring.evaluation.evaluation import Judge
from sparring.ledger import Ledger
from sparring.logs import get_logger
from sparring.protocols import Chat, MessageEngine
from sparring.rollouts import Collector, GroupPlan, NamedPolicy, Scheduler
from sparring.rollouts.actions import StateVisits
from sparring.rollouts.budget import FailureBudget
from sparring.tracking.process import resident_bytes
from sparring.types import Task, ToolSchema, Trajectory, TrajectoryGroup, Weights

if TYPE_CHECKING:
    from sparring.engines.frozen import FrozenEngine
    from sparring.engines.torch_engine import TorchEngine
    from sparring.models.policy import Policy
    from sparring.training.learner import TorchLearner

logger = get_logger(__name__)


TO_STDERR = partial(print, file=sys.stderr)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Everything a run plays and learns with."""

    config: Config
    policy: Policy
    initial_weights: Weights
    """The policy before any training: an adapter that does nothing, or the weights as loaded."""
    chat: Chat
    engine: TorchEngine
    learner: TorchLearner
    collector: Collector
    ledger: Ledger
    algorithm: Algorithm
    tasks: Tasks
    kind_of: Callable[[Task], str] | None
    """What kind a task is; None without `curriculum.kind_field`."""
    make_environment: Callable[[], Environment]
    tools: tuple[ToolSchema, ...]
    recipe_dir: Path
    is_deterministic: bool
    num_threads: int
    """Of torch's operations."""
    judge: Judge
    detectors: tuple[Detector, ...]
    """Asked after every step."""
    frozen_by_warm_start: tuple[FrozenEngine, ...]
    """Engines of policies that play with what the warm start leaves: to be loaded as soon as it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Everything that a policy which is not trained here is evaluated with."""

    engine: MessageEngine
    collector: Collector
    ledger: Ledger
    tasks: Tasks
    kind_of: Callable[[Task], str] | None
    judge: Judge


def build(config: Config, recipe_dir: Path, ledger: Ledger, *, announce: Callable[[str], object] = TO_STDERR) -> Parts:
    """Load, check and wire everything a run needs. `announce` tells a person what the run waits for, with a key in it that
    must not get into files.

    Raises what the parts raise: ConfigError, DataError, ServiceError.
    """
    # The model's threads are this one's to give back, whoever loads it.
    from sparring.models.threads import releases_threads

    return releases_threads(_build)(config, recipe_dir, ledger, announce)


def _build(config: Config, recipe_dir: Path, ledger: Ledger, announce: Callable[[str], object]) -> Parts:
    import torch

    from sparring.algorithms.losses import LOSSES
    from sparring.engines.torch_engine import TorchEngine
    from sparring.models.memory import keep_freed_memory
    from sparring.training.learner import TorchLearner

    code = user_code_of(config, recipe_dir, announce)
    algorithm = load_algorithm(config, recipe_dir)
    tasks = load_tasks(config, recipe_dir)
    load_curriculum(config, tasks.train)
    kind_of = kinds_of(config, tasks)
    detectors = load_detectors(config, recipe_dir)
    num_groups = config.schedule.max_steps * config.batch.global_batch_size
    if config.curriculum.select != "all" and num_groups <= len(tasks.train):
        logger.warning(
            "curriculum.select = %r goes by how a task went before, but the run plays %d groups and there are %d tasks: none "
            "comes twice. Raise schedule.max_steps, or give fewer tasks.",
            config.curriculum.select, num_groups, len(tasks.train),
        )  # fmt: skip
    num_threads = config.run.num_threads or os.cpu_count() or 1
    torch.set_num_threads(num_threads)
    policy = load_policy(config, recipe_dir)
    chat = create_chat(policy.tokenizer, config.model.name)
    weights = policy.snapshot()
    is_deterministic = config.plays_in_rounds
    engine = TorchEngine(
        policy,
        weights,
        max_running=config.engine.max_running,
        kv_cache_tokens=config.engine.kv_cache_tokens,
        prefill_chunk_tokens=config.engine.prefill_chunk_tokens,
        deterministic=is_deterministic,
        session_weights=config.rollout.session_weights,
    )
    frozen = {
        name: frozen_engine(section, engine, policy, weights)
        for name, section in config.policies.items()
        if section.role == "frozen"
    }
    # After the cache of keys and values, whose pages the kernel should back only as they are used.
    keep_freed_memory()
    optimizer = config.optimizer
    learner = TorchLearner(
        policy,
        beta1=optimizer.adam_beta1,
        beta2=optimizer.adam_beta2,
        eps=optimizer.adam_eps,
        weight_decay=optimizer.adam_weight_decay,
        grad_clip_norm=optimizer.adam_grad_clip_norm,
        lora_plus_lr_ratio=optimizer.lora_plus_lr_ratio,
        max_tokens_per_microbatch=optimizer.max_tokens_per_microbatch,
        losses={**LOSSES, config.algorithm.loss_fn: algorithm.loss},
    )
    collector = Collector(
        engine=engine,
        chat=chat,
        agent=code.agent,
        reward=code.reward,
        scorer=code.scorer,
        ledger=ledger,
        seed=config.run.seed,
        max_concurrency=config.rollout.rollout_max_concurrency,
        timeout_seconds=config.rollout.rollout_timeout,
        max_retries=config.rollout.rollout_max_retries,
        max_context_tokens=policy.max_positions,
        max_turns=config.agent.max_turns,
        max_tokens=config.rollout.rollout_max_tokens,
        close_agent=code.close,
        policies={
            name: NamedPolicy(engine=engine, chat=chat, learns=True)
            if section.role == "trained"
            else NamedPolicy(engine=frozen[name], chat=chat, sampling=sampling_of(section, config))
            for name, section in config.policies.items()
            if section.role != "endpoint"
        }
        | endpoints_of(config),
    )
    return Parts(
        config=config,
        policy=policy,
        initial_weights=weights,
        chat=chat,
        engine=engine,
        learner=learner,
        collector=collector,
        ledger=ledger,
        algorithm=algorithm,
        tasks=tasks,
        kind_of=kind_of,
        make_environment=code.make_environment,
        tools=code.tools,
        recipe_dir=recipe_dir,
        is_deterministic=is_deterministic,
        num_threads=num_threads,
        judge=code.judge,
        detectors=detectors,
        frozen_by_warm_start=tuple(
            one for name, one in frozen.items() if config.policies[name].weights == "warm_start"
        ),
    )


def build_baseline(
    config: Config,
    recipe_dir: Path,
    ledger: Ledger,
    *,
    engine: MessageEngine | None = None,
    announce: Callable[[str], object] = TO_STDERR,
) -> Baseline:
    """Check and wire what an endpoint or a script is evaluated with, without `engine` the one that the recipe names; no torch.
    Raises as `build` does."""
    code = user_code_of(config, recipe_dir, announce)
    tasks = load_tasks(config, recipe_dir, is_trained=False)
    engine = engine or message_engine_of(config, recipe_dir)
    collector = Collector(
        engine=engine, chat=None, agent=code.agent, reward=code.reward, scorer=code.scorer, ledger=ledger, seed=config.run.seed,
        max_concurrency=config.rollout.rollout_max_concurrency, timeout_seconds=config.rollout.rollout_timeout,
        max_retries=config.rollout.rollout_max_retries, max_turns=config.agent.max_turns,
        max_tokens=config.rollout.rollout_max_tokens, policies=endpoints_of(config), close_agent=code.close,
    )  # fmt: skip
    return Baseline(
        engine=engine, collector=collector, ledger=ledger, tasks=tasks, kind_of=kinds_of(config, tasks), judge=code.judge,
    )  # fmt: skip


def observer(parts: Parts) -> Callable[[Sequence[Trajectory]], dict[str, float]]:
    """What the parts of a run say of a step, of which it is given the episodes: numbers by metric name."""
    visits = StateVisits()

    def observe(trajectories: Sequence[Trajectory]) -> dict[str, float]:
        return {
            **parts.engine.metrics(),
            **parts.collector.tally.take(),
            **visits.metrics(trajectories),
            "system/memory_rss_bytes": float(resident_bytes()),
        }

    return observe


def build_scheduler(
    parts: Parts,
    plans: Iterator[GroupPlan],
    *,
    version: int,
    on_group: Callable[[TrajectoryGroup], None] | None = None,
) -> Scheduler:
    """The scheduler of a run that continues at a policy version."""
    config = parts.config
    return Scheduler(
        play_group=parts.collector.play_group,
        plans=plans,
        ledger=parts.ledger,
        groups_per_step=config.batch.global_batch_size,
        max_steps_off_policy=config.rollout.max_steps_off_policy,
        window=config.rollout.staleness_window,
        wave_size=config.rollout.rollout_max_concurrency if parts.is_deterministic else None,
        version=version,
        refill_groups=config.batch.refill_groups,
        budget=FailureBudget(config.rollout.max_lost_share),
        on_group=on_group,
    )


async def close(parts: Parts) -> None:
    await parts.collector.aclose()
    await parts.engine.close()
    await asyncio.to_thread(parts.ledger.close)
