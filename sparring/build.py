"""The composition root: a recipe becomes finished objects. The only module that knows the concrete classes."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sparring.agents import AgentResult, CommandAgent, EnvironmentAgent, FunctionAgent
from sparring.agents.http import HttpAgent
from sparring.algorithms import choice
from sparring.algorithms.credit import TurnAdvantages, credit
from sparring.algorithms.losses import LOSSES
from sparring.algorithms.reductions import Counts
from sparring.chat import create_chat
from sparring.chat.demonstrations import tokenize_conversation
from sparring.config import ALGORITHM_KNOBS, Config, PolicySection
from sparring.data import read_tasks, split_tasks
from sparring.engines.frozen import FrozenEngine
from sparring.engines.torch_engine import TorchEngine
from sparring.environments import Environment, record_demonstration
from sparring.errors import DataError, UsageError
from sparring.gateway import Gateway
from sparring.ledger import Ledger
from sparring.models.memory import keep_freed_memory
from sparring.models.policy import Policy, load_pretrained
from sparring.models.precision import resolve_device, resolve_precision
from sparring.models.threads import releases_threads
from sparring.plugins import load_object
from sparring.protocols import Chat, RewardFunction, Scorer
from sparring.rollouts import Agent, Collector, Curriculum, NamedPolicy, Scheduler
from sparring.rollouts.curriculum import task_kind
from sparring.sessions import Session
from sparring.training import checkpoints
from sparring.training.learner import TorchLearner
from sparring.types import Message, Sampling, Task, ToolSchema, TrajectoryGroup, Weights

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """The three splits; they share no task."""

    train: tuple[Task, ...]
    validation: tuple[Task, ...]
    held_out: tuple[Task, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """The functions of `[algorithm]`, built in or the user's own, their knobs bound; the learner binds the loss's."""

    advantages: Callable[[Sequence[TrajectoryGroup]], TurnAdvantages]
    loss: Callable[..., Any]
    reduction: Callable[[Counts], float]


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
    has_scorer: bool
    frozen_by_warm_start: tuple[FrozenEngine, ...]
    """Engines of policies that play with what the warm start leaves: to be loaded as soon as it has."""


@releases_threads
def build(config: Config, recipe_dir: Path, ledger: Ledger) -> Parts:
    """Load, check and wire everything a run needs. Raises what the parts raise: ConfigError, DataError, ServiceError."""
    gateway = Gateway()
    agent = agent_of(config, recipe_dir, gateway)
    make_environment: Callable[[], Environment] = _no_environment
    tools: tuple[ToolSchema, ...] = ()
    if agent is None:
        make_environment, environment_class = environment_of(config, recipe_dir)
        agent = EnvironmentAgent(make_environment, max_turns=config.environment.max_turns).play
        tools = environment_class.offered_tools()
    reward: RewardFunction | None = (
        None if config.reward.reward is None else load_object(config.reward.reward, beside=recipe_dir)
    )
    scorer: Scorer | None = (
        None if config.reward.scorer is None else load_object(config.reward.scorer, beside=recipe_dir)
    )
    algorithm = load_algorithm(config, recipe_dir)
    tasks = load_tasks(config, recipe_dir)
    load_curriculum(config, tasks.train)
    kind_of = None if config.curriculum.kind_field is None else partial(task_kind, field=config.curriculum.kind_field)
    if kind_of is not None:
        for task in (*tasks.validation, *tasks.held_out):
            kind_of(task)  # raises for a task without kind now, not when it is played
    num_groups = config.schedule.max_steps * config.batch.global_batch_size
    if config.curriculum.select != "all" and num_groups <= len(tasks.train):
        logger.warning(
            "curriculum.select = %r goes by how a task went before, but the run plays %d groups and there are %d tasks: none "
            "comes twice. Raise schedule.max_steps, or give fewer tasks.",
            config.curriculum.select, num_groups, len(tasks.train),
        )  # fmt: skip
    torch.set_num_threads(config.run.num_threads or os.cpu_count() or 1)
    policy = load_policy(config, recipe_dir)
    chat = create_chat(policy.tokenizer, config.model.name)
    weights = policy.snapshot()
    is_deterministic = deterministic(config)
    engine = TorchEngine(
        policy,
        weights,
        max_running=config.engine.max_running,
        kv_cache_tokens=config.engine.kv_cache_tokens,
        prefill_chunk_tokens=config.engine.prefill_chunk_tokens,
        deterministic=is_deterministic,
        session_weights=config.rollout.session_weights,
    )
    frozen = {name: frozen_engine(section, engine, policy, weights) for name, section in config.policies.items()}
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
        agent=agent,
        reward=reward,
        scorer=scorer,
        ledger=ledger,
        seed=config.run.seed,
        max_concurrency=config.rollout.rollout_max_concurrency,
        timeout_seconds=config.rollout.rollout_timeout,
        max_retries=config.rollout.rollout_max_retries,
        max_context_tokens=policy.max_positions,
        max_turns=config.agent.max_turns,
        policies={
            name: NamedPolicy(
                engine=frozen[name] or engine,
                chat=chat,
                learns=section.role == "trained",
                sampling=_sampling(section, config),
            )
            for name, section in config.policies.items()
        },
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
        make_environment=make_environment,
        tools=tools,
        recipe_dir=recipe_dir,
        is_deterministic=is_deterministic,
        has_scorer=scorer is not None,
        frozen_by_warm_start=tuple(
            one for name, one in frozen.items() if one is not None and config.policies[name].weights == "warm_start"
        ),
    )


def frozen_engine(section: PolicySection, engine: TorchEngine, policy: Policy, initial: Weights) -> FrozenEngine | None:
    """Who plays a policy that is not in training; without weights yet where the warm start is to make them. None for
    one that is. Raises DataError for a folder that holds no weights of this model."""
    if section.role == "trained":
        return None
    if section.weights == "warm_start":
        return FrozenEngine(engine)
    if section.weights == "base":
        return FrozenEngine(engine, initial)
    source = Path(section.weights)
    source = source / "checkpoints" if (source / "checkpoints").is_dir() else source
    return FrozenEngine(engine, checkpoints.load_weights(checkpoints.newest(source), policy))


def _sampling(section: PolicySection, config: Config) -> Sampling | None:
    if section.role == "trained":
        return None
    return Sampling(
        temperature=section.temperature, max_tokens=section.max_tokens or config.sampling.sampling_max_tokens
    )


def deterministic(config: Config) -> bool:
    """Whether the engine works in rounds: as the recipe says, else when training is synchronous."""
    if config.engine.deterministic is not None:
        return config.engine.deterministic
    # Rounds wait for every open session, and nobody knows how long a foreign agent thinks.
    return config.rollout.max_steps_off_policy == 0 and not config.agent.is_foreign


def agent_of(config: Config, recipe_dir: Path, gateway: Gateway) -> Agent | None:
    """The agent that the recipe brings; None when the built-in tool loop plays. Raises UsageError when it is none."""
    section = config.agent
    if section.function is not None:
        found = load_object(section.function, beside=recipe_dir)
        if not isinstance(found, FunctionAgent) and not inspect.iscoroutinefunction(found):
            raise UsageError(
                f"agent.function = {section.function!r} is {found!r}; write `async def play(task, session)`, which returns the "
                "reward."
            )
        function = found if isinstance(found, FunctionAgent) else FunctionAgent(found)
        agent: Agent = function.entering(gateway.register).play
    elif section.command is not None:
        agent = CommandAgent(section.command, enter=gateway.register, folder=recipe_dir).play
    elif section.url is not None:
        agent = HttpAgent(
            section.url, gateway=gateway, timeout_seconds=config.rollout.rollout_timeout,
            max_retries=config.rollout.rollout_max_retries, max_concurrency=config.rollout.rollout_max_concurrency,
            tps_limit=section.tps_limit,
        ).play  # fmt: skip
    else:
        return None

    async def play(task: Task, session: Session) -> AgentResult:
        await gateway.start()
        return await agent(task, session)

    return play


def _no_environment() -> Environment:
    raise UsageError("this recipe's agent brings its own world, so there is no environment to play; see [agent].")


def load_policy(config: Config, recipe_dir: Path) -> Policy:
    """The model with what of it is trained. Raises ServiceError when it cannot be loaded."""
    section = config.model
    if ":" in section.name:
        make = load_object(section.name, beside=recipe_dir)
        model, tokenizer = make(config.run.seed)
    else:
        model, tokenizer = load_pretrained(section.name)
    device = resolve_device(section.device)
    is_lora = section.trained_weights == "lora"
    return Policy(
        model,
        tokenizer,
        precision=resolve_precision(section.precision, device),
        device=device,
        max_positions=section.max_sequence_length,
        lora_rank=section.lora_rank if is_lora else None,
        lora_alpha=section.lora_alpha,
        lora_targets=section.lora_targets,
        lora_layers=section.lora_layers,
        seed=config.run.seed,
    )


def environment_of(config: Config, recipe_dir: Path) -> tuple[Callable[[], Environment], type[Environment]]:
    """A factory of fresh environments, and their class. Raises UsageError when the target is no Environment."""
    if config.environment.target is None:
        raise UsageError("environment.target is missing: name the `module:Class` of an Environment.")
    found = load_object(config.environment.target, beside=recipe_dir)
    if not (inspect.isclass(found) and issubclass(found, Environment)):
        raise UsageError(
            f"environment.target = {config.environment.target!r} is {found!r}, not a class derived from "
            "sparring.environments.Environment; derive it, and mark its tools with @tool."
        )
    options = dict(config.environment.options)
    try:
        inspect.signature(found).bind(**options)
    except TypeError as error:
        raise UsageError(
            f"environment.options = {options} do not fit {found.__name__}{inspect.signature(found)}: {error}. "
            "Name the arguments of its __init__."
        ) from error
    found.tool_schemas()
    return lambda: found(**options), found


def load_tasks(config: Config, recipe_dir: Path) -> Tasks:
    """The splits, from files or functions; what is not given is split off the training data.

    Raises DataError when a split that is needed is empty, or when two splits share a task id.
    """
    data = config.data
    if data.train is None:
        raise UsageError("data.train is missing: name a dataset file or a 'module:function' that returns Tasks.")
    train = _tasks_from(data.train, "data.train", recipe_dir)
    validation = None if data.validation is None else _tasks_from(data.validation, "data.validation", recipe_dir)
    held_out = None if data.held_out is None else _tasks_from(data.held_out, "data.held_out", recipe_dir)
    fractions = {
        "validation": data.validation_fraction if validation is None else 0.0,
        "held_out": data.held_out_fraction if held_out is None else 0.0,
    }
    splits = split_tasks(train, fractions, seed=config.run.seed)
    tasks = Tasks(
        train=tuple(splits["train"]),
        validation=tuple(splits["validation"] if validation is None else validation),
        held_out=tuple(splits["held_out"] if held_out is None else held_out),
    )
    if not tasks.train:
        raise DataError(f"data.train = {data.train!r} leaves no task to train on after splitting; give more tasks.")
    named = {"train": tasks.train, "validation": tasks.validation, "held_out": tasks.held_out}
    seen: dict[str, str] = {}
    for split, members in named.items():
        for task in members:
            if seen.setdefault(task.id, split) != split:
                raise DataError(
                    f"task id {task.id!r} is in {seen[task.id]} and in {split}; "
                    "evaluation must not see trained tasks, so give every task one split and one id."
                )
    return tasks


def _tasks_from(source: str, key: str, recipe_dir: Path) -> list[Task]:
    if ":" not in source:
        path = Path(source)
        return list(read_tasks(path if path.is_absolute() else recipe_dir / path))
    function = load_object(source, beside=recipe_dir)
    tasks = function()
    if not isinstance(tasks, Sequence) or not all(isinstance(task, Task) for task in tasks):
        raise DataError(f"{key} = {source!r} returned {type(tasks).__name__}, not a list of sparring.types.Task.")
    return list(tasks)


def demonstrations(parts: Parts, num: int, source: str) -> list[tuple[tuple[int, ...], tuple[bool, ...]]]:
    """Tokenized conversations for the warm start: from the environment's expert, a function, or a .jsonl file.

    Raises DataError naming the row of a demonstration that cannot be used.
    """
    if source == "expert":
        rng = random.Random(parts.config.run.seed)
        chosen = rng.sample(list(parts.tasks.train), min(num, len(parts.tasks.train)))
        conversations = [record_demonstration(parts.make_environment, task) for task in chosen]
    elif ":" in source:
        conversations = list(load_object(source, beside=parts.recipe_dir)(num, parts.config.run.seed))
    else:
        conversations = _conversations_from_file(parts.recipe_dir / source)[:num]
    if not conversations:
        raise DataError(
            f"warm_start.demonstrations = {source!r} gave no demonstration; give at least one conversation."
        )
    tokenized = []
    for row, conversation in enumerate(conversations, start=1):
        try:
            tokenized.append(tokenize_conversation(parts.chat, conversation, parts.tools))
        except DataError as error:
            raise DataError(f"demonstration {row} of {source!r}: {error}") from error
    return tokenized


def _conversations_from_file(path: Path) -> list[list[Message]]:
    if not path.exists():
        raise DataError(
            f"warm_start.demonstrations: {path} does not exist; name a .jsonl file with one {{'messages': [...]}} a line."
        )
    conversations = []
    for row, line in enumerate(path.read_text("utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            conversations.append(json.loads(line)["messages"])
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}, line {row}: {error!r}; every line must be a JSON object with a list 'messages'."
            ) from error
    return conversations


def load_curriculum(config: Config, tasks: Sequence[Task], *, label: str = "") -> Curriculum:
    """The order of the training tasks. Raises DataError for tasks whose kind is missing."""
    return Curriculum(
        tasks, seed=config.run.seed, max_epochs=config.schedule.max_epochs, group_size=config.batch.group_size,
        sampling=Sampling(
            temperature=config.sampling.temperature,
            top_p=config.sampling.sampling_top_p,
            max_tokens=config.sampling.sampling_max_tokens,
        ),
        success_threshold=config.evaluation.success_threshold, label=label, **dict(config.curriculum),
    )  # fmt: skip


def build_scheduler(
    parts: Parts,
    curriculum: Curriculum,
    *,
    version: int,
    on_group: Callable[[TrajectoryGroup], None] | None = None,
) -> Scheduler:
    """The scheduler of a run that continues at a policy version."""
    config = parts.config
    return Scheduler(
        play_group=parts.collector.play_group,
        plans=curriculum,
        ledger=parts.ledger,
        groups_per_step=config.batch.global_batch_size,
        max_steps_off_policy=config.rollout.max_steps_off_policy,
        window=config.rollout.staleness_window,
        wave_size=config.rollout.rollout_max_concurrency if parts.is_deterministic else None,
        version=version,
        refill_groups=config.batch.refill_groups,
        on_group=on_group,
    )


def load_algorithm(config: Config, recipe_dir: Path) -> Algorithm:
    """The functions that `[algorithm]` names, with their knobs bound.

    Raises UsageError for a function of the user's own that cannot be called as needed, or does not read an option.
    """
    section = config.algorithm
    reserved = [name for name in type(section).model_fields if name not in ALGORITHM_KNOBS]
    chosen: dict[str, Callable[..., Any]] = {}
    for key in ("advantage_method", "loss_fn", "loss_reduction"):
        name = getattr(section, key)
        chosen[key] = load_object(name, beside=recipe_dir) if ":" in name else choice.ROOMS[key][name]
        problem = choice.misfit(chosen[key], reserved)
        if problem is not None:
            raise UsageError(f"algorithm.{key} = {name!r} {problem}; write {choice.PLUG_INS[key]}.")
    correction = choice.ROOMS["off_policy_correction"][config.off_policy_correction]
    read = {name for function in (*chosen.values(), correction) for name in choice.knobs_of(function)}
    for name in section.knobs():
        if name not in read:
            key = f"options.{name}" if name in section.options else name
            raise UsageError(
                f"algorithm.{key} is given, but none of the chosen functions takes a keyword argument {name!r}; leave it "
                "out, or give your function that argument."
            )
    bound = {key: choice.bind(function, section.knobs()) for key, function in chosen.items()}
    if section.advantage_method in choice.PER_TURN or ":" in section.advantage_method:
        sums_turn_rewards = None
    else:
        sums_turn_rewards = section.turn_rewards == "sum"
    return Algorithm(
        advantages=partial(credit, estimator=bound["advantage_method"], sums_turn_rewards=sums_turn_rewards),
        loss=chosen["loss_fn"],
        reduction=bound["loss_reduction"],
    )


async def close(parts: Parts) -> None:
    await parts.engine.close()
    await asyncio.to_thread(parts.ledger.close)
