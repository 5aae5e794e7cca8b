"""Assemble all objects that a run or an evaluation needs.

Modules that need torch are imported only where a model is built, so that endpoints and scripts can be evaluated without
torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from sparring.assembly.algorithm import Algorithm, load_algorithm
from sparring.assembly.engines import (
    TO_STDERR,
    Announce,
    ServerOptions,
    build_engine,
    build_learner,
    connect_engine,
    connect_group,
    connect_learner,
    describe_remote,
)
from sparring.assembly.graders import load_detectors
from sparring.assembly.message_engines import load_message_engine
from sparring.assembly.policies import (
    build_frozen_engine,
    build_sampling,
    check_vocabularies,
    list_endpoints,
    load_checkpoint_weights,
    load_policy,
)
from sparring.assembly.tasks import Tasks, load_curriculum, load_task_kinds, load_tasks
from sparring.assembly.teachers import build_teachers, check_kinds_of_teachers
from sparring.assembly.tinker import build_service_engine, build_service_learner, describe_service
from sparring.assembly.user_code import UserCode, load_user_code
from sparring.assembly.warm_start import check_demonstrations
from sparring.chat import create_chat
from sparring.config import Config
from sparring.detectors import Detector
from sparring.environments import Environment
from sparring.errors import UsageError
from sparring.evaluation.evaluation import SuccessCriterion
from sparring.ledger import Ledger
from sparring.models.description import ModelDescription, describe_policy
from sparring.protocols import Chat, Engine, Learner, MessageEngine
from sparring.rollouts import (
    Collector,
    EpisodeAgent,
    Grading,
    GroupPlan,
    MainPolicy,
    NamedPolicy,
    Pacing,
    RolloutLimits,
    Scheduler,
)
from sparring.rollouts.budget import FailureBudget
from sparring.run_folders import RunFolder
from sparring.run_folders.run_folder import WARM_START
from sparring.runtime import event_loop
from sparring.runtime.logs import get_logger
from sparring.runtime.machine import default_threads
from sparring.training.distillation import Teachers
from sparring.types import Task, ToolSchema, TrajectoryGroup, Weights

if TYPE_CHECKING:
    from sparring.models.policy import Policy

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationParts:
    """The objects that an evaluation needs for any policy, including endpoints and scripts, whose tokens are unknown."""

    engine: Engine | MessageEngine
    collector: Collector
    ledger: Ledger
    tasks: Tasks
    kind_of: Callable[[Task], str] | None
    """The kind of a task; None without `curriculum.kind_field`."""
    criterion: SuccessCriterion


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutParts(EvaluationParts):
    """The recipe's model with all objects that are needed to roll out its weights, or other weights of the same
    shape."""

    config: Config
    model: ModelDescription
    """The part of the model that needs no weights."""
    policy: Policy | None
    """The weights; None if other processes sample and learn with them."""
    initial_weights: Weights
    """The weights before any training: an adapter without effect, or the weights as loaded."""
    engine: Engine
    make_environment: Callable[[], Environment]
    tools: tuple[ToolSchema, ...]
    recipe_dir: Path
    is_deterministic: bool
    num_threads: int
    """The number of threads of torch's operations."""
    frozen: Mapping[str, Engine]
    """The engines of frozen policies, by name."""

    @property
    def frozen_by_warm_start(self) -> tuple[Engine, ...]:
        """The engines of policies that are frozen at the weights after the warm start, which `load_into_engine`
        loads."""
        return tuple(one for name, one in self.frozen.items() if self.config.policies[name].weights == "warm_start")

    @property
    def chat(self) -> Chat:
        return self.model.chat


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingParts(RolloutParts):
    """All parts for rollouts, and the objects that change the weights."""

    learner: Learner
    algorithm: Algorithm
    detectors: tuple[Detector, ...]
    """The detectors that run after every step."""
    teachers: Teachers | None
    """The policies of `algorithm.teacher`."""


@contextmanager
def _released_threads() -> Iterator[None]:
    """Release the torch threads that the calling thread has started."""
    from sparring.models.threads import release_threads

    try:
        yield
    finally:
        release_threads()


@contextmanager
def _closed_on_failure(engine: Engine) -> Iterator[None]:
    """Close the engine if the block raises an exception, so that the servers that it started end."""
    try:
        yield
    except BaseException:
        event_loop.submit(engine.close()).result()
        raise


@_released_threads()
def load_training_parts(
    config: Config,
    recipe_dir: Path,
    ledger: Ledger,
    *,
    announce: Announce = TO_STDERR,
    folder: Path | None = None,
    uses_servers: bool = True,
) -> TrainingParts:
    """Load and check all objects that training needs.

    `announce` shows the user what the run is waiting for. The text may contain a key that must not be written to files.
    Servers that are started for the run keep their files in `folder`, or in a temporary folder. Without `uses_servers`,
    no vLLM server is used, and the weights are sampled in this process.
    Raises the errors of the parts: ConfigError, DataError and ServiceError.
    """
    code = load_user_code(config, recipe_dir, announce, None if folder is None else folder.parent / "workers")
    algorithm = load_algorithm(config, recipe_dir)
    tasks = load_tasks(config, recipe_dir)
    load_curriculum(config, tasks.train)
    check_kinds_of_teachers(config, tasks.train)
    detectors = load_detectors(config, recipe_dir)
    check_demonstrations(config, recipe_dir)
    num_groups = config.schedule.max_steps * config.batch.global_batch_size
    section = config.curriculum
    if section.select != "all" and section.kind_field is None and num_groups <= len(tasks.train):
        logger.warning(
            "curriculum.select = %r depends on earlier episodes of a task, but the run has %d groups for %d tasks, so no task "
            "runs twice. Raise schedule.max_steps, use fewer tasks, or set curriculum.kind_field.",
            section.select,
            num_groups,
            len(tasks.train),
        )
    servers = ServerOptions(folder=folder, announce=announce, are_used=uses_servers)
    # A check of the recipe in a process of its own starts no ranks.
    learns_here = config.learner.type == "here" or (config.learner.type == "group" and not uses_servers)
    rollout = _rollout_parts(config, recipe_dir, code, tasks, ledger, servers, learns_here=learns_here)
    with _closed_on_failure(rollout.engine):
        if config.learner.shard_weights and rollout.policy is not None:
            rollout.policy.check_sharding()
        if config.learner.type == "tinker":
            learner = build_service_learner(config, algorithm, len(rollout.model.tokenizer), announce)
        elif config.learner.type == "remote":
            learner = connect_learner(config, rollout.initial_weights)
        elif not learns_here:
            learner = connect_group(config, rollout.policy, rollout.initial_weights, servers)
        else:
            assert rollout.policy is not None, "the policy is loaded if the learner is in this process"
            learner = build_learner(config, rollout.policy, algorithm)
        return TrainingParts(
            **{field.name: getattr(rollout, field.name) for field in fields(rollout)},
            learner=learner,
            algorithm=algorithm,
            detectors=detectors,
            teachers=build_teachers(config, rollout.frozen, rollout.model.tokenizer, kind_of=rollout.kind_of),
        )


@_released_threads()
def load_rollout_parts(
    config: Config, recipe_dir: Path, ledger: Ledger, *, announce: Announce = TO_STDERR, folder: Path | None = None
) -> RolloutParts:
    """Load and check all objects that the model's episodes need, without a learner.

    The arguments and errors are those of `load_training_parts`.
    """
    code = load_user_code(config, recipe_dir, announce, None if folder is None else folder.parent / "workers")
    tasks = load_tasks(config, recipe_dir)
    servers = ServerOptions(folder=folder, announce=announce)
    return _rollout_parts(config, recipe_dir, code, tasks, ledger, servers, learns_here=False)


def _rollout_parts(
    config: Config,
    recipe_dir: Path,
    code: UserCode,
    tasks: Tasks,
    ledger: Ledger,
    servers: ServerOptions,
    *,
    learns_here: bool,
) -> RolloutParts:
    import torch

    from sparring.runtime.allocator import keep_freed_memory

    kind_of = load_task_kinds(config, tasks)
    num_threads = config.run.num_threads or default_threads()
    torch.set_num_threads(num_threads)
    if config.engine.type == "tinker":
        policy, (model, weights) = None, describe_service(config)
        chat, engine = model.chat, build_service_engine(config, model, weights)
    elif learns_here or (loaded := describe_remote(config)) is None:
        policy = load_policy(config, recipe_dir)
        weights = policy.snapshot()
        chat = create_chat(policy.tokenizer, config.model.name)
        model = describe_policy(policy, chat, partial(policy.base_fingerprint, weights))
        engine = build_engine(config, policy, weights, servers)
    else:
        policy, (model, weights), chat = None, loaded, loaded[0].chat
        engine = connect_engine(config)
    with _closed_on_failure(engine):
        check_vocabularies(config, model)
        frozen = {
            name: build_frozen_engine(section, engine, policy, weights)
            for name, section in config.policies.items()
            if section.role == "frozen"
        }
        # The KV cache must be allocated before this call, so that the kernel provides its pages only when they are used.
        keep_freed_memory()
        trained_here = {
            name: NamedPolicy(engine=engine, chat=chat, learns=True)
            if section.role == "trained"
            else NamedPolicy(engine=frozen[name], chat=chat, sampling=build_sampling(section, config))
            for name, section in config.policies.items()
            if section.role != "endpoint"
        }
        collector = _collector(
            config,
            code,
            ledger,
            policy=MainPolicy(engine, chat),
            policies=trained_here,
            max_context_tokens=model.max_positions,
        )
        return RolloutParts(
            config=config,
            model=model,
            policy=policy,
            initial_weights=weights,
            engine=engine,
            collector=collector,
            ledger=ledger,
            tasks=tasks,
            kind_of=kind_of,
            make_environment=code.make_environment,
            tools=code.tools,
            recipe_dir=recipe_dir,
            is_deterministic=config.runs_in_rounds,
            num_threads=num_threads,
            criterion=code.criterion,
            frozen=frozen,
        )


def _collector(
    config: Config,
    code: UserCode,
    ledger: Ledger,
    *,
    policy: MainPolicy,
    policies: Mapping[str, NamedPolicy] = MappingProxyType({}),
    max_context_tokens: int | None = None,
) -> Collector:
    return Collector(
        agent=EpisodeAgent(code.agent, code.close, code.wait_until_ready),
        policy=policy,
        grading=Grading(reward=code.reward, scorer=code.scorer),
        ledger=ledger,
        seed=config.run.seed,
        limits=_limits_of(config, max_context_tokens=max_context_tokens),
        policies={**policies, **list_endpoints(config)},
    )


def _limits_of(config: Config, *, max_context_tokens: int | None) -> RolloutLimits:
    return RolloutLimits(
        timeout_seconds=config.rollout.rollout_timeout,
        max_concurrency=config.rollout.rollout_max_concurrency,
        max_retries=config.rollout.rollout_max_retries,
        max_turns=config.agent.max_turns,
        max_tokens=config.rollout.rollout_max_tokens,
        max_context_tokens=max_context_tokens,
    )


def load_evaluation_parts(
    config: Config,
    recipe_dir: Path,
    ledger: Ledger,
    *,
    engine: MessageEngine | None = None,
    announce: Announce = TO_STDERR,
) -> EvaluationParts:
    """Load and check all objects that the evaluation of an endpoint or a script needs.

    If `engine` is None, the recipe's engine is used. Torch is not imported. Raises the same errors as
    `load_training_parts`.
    """
    code = load_user_code(config, recipe_dir, announce)
    tasks = load_tasks(config, recipe_dir, is_trained=False)
    engine = engine or load_message_engine(config, recipe_dir)
    collector = _collector(config, code, ledger, policy=MainPolicy(engine))
    return EvaluationParts(
        engine=engine,
        collector=collector,
        ledger=ledger,
        tasks=tasks,
        kind_of=load_task_kinds(config, tasks),
        criterion=code.criterion,
    )


def build_scheduler(
    parts: TrainingParts,
    plans: Iterator[GroupPlan],
    *,
    version: int,
    on_group: Callable[[TrajectoryGroup], None] | None = None,
) -> Scheduler:
    """Build the scheduler of a run that continues at a policy version."""
    config = parts.config
    return Scheduler(
        play_group=parts.collector.play_group,
        plans=plans,
        ledger=parts.ledger,
        pacing=Pacing(
            groups_per_step=config.batch.global_batch_size,
            max_steps_off_policy=config.rollout.max_steps_off_policy,
            window=config.rollout.staleness_window,
            wave_size=config.rollout.rollout_max_concurrency if parts.is_deterministic else None,
            refill_groups=config.batch.refill_groups,
        ),
        version=version,
        budget=FailureBudget(config.rollout.max_lost_share),
        on_group=on_group,
    )


async def load_into_engine(parts: RolloutParts, folder: RunFolder, weights: Weights, *, version: int) -> None:
    """Load weights of this run's model into the engine.

    Policies that are frozen after the warm start get the weights that the warm start produced. Raises UsageError if the
    recipe has such policies but the run had no warm start.
    """
    await parts.engine.load_weights(weights, version=version)
    if not parts.frozen_by_warm_start:
        return
    left = folder.checkpoints / WARM_START
    if not left.is_dir():
        raise UsageError(
            f"a policy of the recipe has weights = 'warm_start', but {left} does not exist, because this run had no warm "
            "start. Specify the folder of a run instead."
        )
    frozen = load_checkpoint_weights(left, parts.policy)
    for engine in parts.frozen_by_warm_start:
        await engine.load_weights(frozen, version=0)


async def close(parts: RolloutParts) -> None:
    """Close the collector, the engine, the teacher, the learner and the ledger."""
    await parts.collector.aclose()
    await parts.engine.close()
    if isinstance(parts, TrainingParts):
        if parts.teachers is not None:
            await parts.teachers.close()
        await asyncio.to_thread(parts.learner.close)
    await asyncio.to_thread(parts.ledger.close)
