"""The composition root: a recipe becomes finished objects. The only module that knows the concrete classes.

What needs torch is imported where a model is built, since endpoints and scripts are evaluated without it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import platform
import random
import secrets
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from sparring.agents import AgentResult, CommandAgent, EnvironmentAgent, FunctionAgent
from sparring.agents.http import HttpAgent
from sparring.agents.pull import PullAgent
from sparring.agents.worker import KEY_VARIABLE
from sparring.algorithms import choice
from sparring.algorithms.credit import TurnAdvantages, credit
from sparring.algorithms.reductions import Counts
from sparring.chat import create_chat
from sparring.chat.demonstrations import tokenize_conversation
from sparring.config import ALGORITHM_KNOBS, Config, PolicySection, key_from
from sparring.data import read_tasks, split_tasks
from sparring.detectors import DETECTORS, Detector, user_scanner
from sparring.engines.openai import OpenAIEngine
from sparring.engines.scripted_messages import ScriptedMessages, read_script
from sparring.environments import Environment, record_demonstration
from sparring.environments.base import EVALUATION_ONLY
from sparring.errors import ConfigError, ConfigProblem, DataError, UsageError
from sparring.evaluation.evaluation import Judge
from sparring.evaluation.independence import independence
from sparring.gateway import Gateway, WorkQueue
from sparring.gateway.overload import MAX_IN_FLIGHT
from sparring.ledger import Ledger
from sparring.plugins import load_object
from sparring.protocols import Chat, MessageEngine, RewardFunction, Scorer, SpliceRefused
from sparring.rollouts import Agent, Collector, Curriculum, GroupPlan, NamedPolicy, Scheduler
from sparring.rollouts.curriculum import task_kind
from sparring.sessions import AnySession
from sparring.tracking.stored import rows, trajectory_files
from sparring.types import Message, Sampling, Task, ToolSchema, TrajectoryGroup, Weights

if TYPE_CHECKING:
    from sparring.engines.frozen import FrozenEngine
    from sparring.engines.torch_engine import TorchEngine
    from sparring.models.policy import Policy
    from sparring.training.learner import TorchLearner

logger = logging.getLogger(__name__)

Closing: TypeAlias = Callable[[], Awaitable[None]]

TO_STDERR = partial(print, file=sys.stderr)


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
    make_environment: Callable[[], Environment]
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

    agent, close_agent, make_environment, tools = _player(config, recipe_dir, announce)
    reward, scorer = judges_of(config, recipe_dir)
    algorithm = load_algorithm(config, recipe_dir)
    tasks = load_tasks(config, recipe_dir)
    load_curriculum(config, tasks.train)
    kind_of = _kinds(config, tasks)
    detectors = load_detectors(config, recipe_dir)
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
        max_tokens=config.rollout.rollout_max_tokens,
        close_agent=close_agent,
        policies={
            name: NamedPolicy(engine=engine, chat=chat, learns=True)
            if section.role == "trained"
            else NamedPolicy(engine=frozen[name], chat=chat, sampling=_sampling(section, config))
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
        make_environment=make_environment,
        tools=tools,
        recipe_dir=recipe_dir,
        is_deterministic=is_deterministic,
        judge=_judged_by(config, reward, scorer),
        detectors=detectors,
        frozen_by_warm_start=tuple(
            one for name, one in frozen.items() if config.policies[name].weights == "warm_start"
        ),
    )


def frozen_engine(section: PolicySection, engine: TorchEngine, policy: Policy, initial: Weights) -> FrozenEngine:
    """Who plays weights that stay as they are; without any yet where the warm start is to make them. Raises DataError for
    a folder that holds no weights of this model."""
    from sparring.engines.frozen import FrozenEngine
    from sparring.training import checkpoints

    if section.weights == "warm_start":
        return FrozenEngine(engine)
    if section.weights == "base":
        return FrozenEngine(engine, initial)
    return FrozenEngine(engine, checkpoints.load_weights(checkpoint_in(section.weights), policy))


def with_checkpoints(config: Config) -> Config:
    """With the checkpoint that each frozen policy is, in place of the folder that it was named by: so a run plays with the same
    weights from wherever it is continued, whatever that folder holds by then. Raises DataError where there is none."""
    frozen = {
        name: section.model_copy(update={"weights": str(checkpoint_in(section.weights).resolve())})
        for name, section in config.policies.items()
        if section.role == "frozen" and section.weights not in ("base", "warm_start")
    }
    return config.model_copy(update={"policies": {**config.policies, **frozen}}) if frozen else config


def checkpoint_in(folder: str | Path) -> Path:
    """The newest of a run, or the one that is named itself. Raises DataError."""
    from sparring.training import checkpoints

    source = Path(folder)
    return checkpoints.newest(source / "checkpoints" if (source / "checkpoints").is_dir() else source)


def endpoints_of(config: Config) -> dict[str, NamedPolicy]:
    """The policies of the episode that are served elsewhere. Raises UsageError for a key that is not set."""
    policies = {}
    for name, section in config.policies.items():
        if section.role == "endpoint":
            assert section.base_url is not None and section.model is not None, "the configuration asks for both"  # noqa: PT018
            engine = OpenAIEngine(
                section.base_url, section.model, api_key=key_from(section.api_key_env),
                max_concurrency=config.rollout.rollout_max_concurrency,
            )  # fmt: skip
            policies[name] = NamedPolicy(engine=engine, sampling=_sampling(section, config))
    return policies


def _sampling(section: PolicySection, config: Config) -> Sampling:
    return Sampling(
        temperature=section.temperature, max_tokens=section.max_tokens or config.sampling.sampling_max_tokens
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
    agent, close_agent, make_environment, _ = _player(config, recipe_dir, announce)
    reward, scorer = judges_of(config, recipe_dir)
    tasks = load_tasks(config, recipe_dir, is_trained=False)
    engine = engine or message_engine_of(config, recipe_dir)
    collector = Collector(
        engine=engine, chat=None, agent=agent, reward=reward, scorer=scorer, ledger=ledger, seed=config.run.seed,
        max_concurrency=config.rollout.rollout_max_concurrency, timeout_seconds=config.rollout.rollout_timeout,
        max_retries=config.rollout.rollout_max_retries, max_turns=config.agent.max_turns,
        max_tokens=config.rollout.rollout_max_tokens, policies=endpoints_of(config), close_agent=close_agent,
    )  # fmt: skip
    return Baseline(
        engine=engine, collector=collector, ledger=ledger, tasks=tasks, kind_of=_kinds(config, tasks),
        judge=_judged_by(config, reward, scorer), make_environment=make_environment,
    )  # fmt: skip


def message_engine_of(config: Config, recipe_dir: Path) -> MessageEngine:
    """The endpoint or the script that the recipe names. Raises UsageError, DataError."""
    section = config.engine
    if section.type == "scripted":
        assert section.script is not None, "the configuration asks for a script"
        return script_of(section.script, recipe_dir)
    assert section.base_url is not None and section.model is not None, "the configuration asks for both"  # noqa: PT018
    return OpenAIEngine(
        section.base_url, section.model, api_key=key_from(section.api_key_env), max_concurrency=section.max_running
    )


def script_of(script: str, recipe_dir: Path) -> ScriptedMessages:
    """A `module:function`, or a .jsonl file beside the recipe. Raises UsageError, DataError."""
    if ":" in script:
        return ScriptedMessages(load_object(script, beside=recipe_dir), name=script)
    return ScriptedMessages(read_script(recipe_dir / script), name=Path(script).name)


def _player(
    config: Config, recipe_dir: Path, announce: Callable[[str], object]
) -> tuple[Agent, Closing | None, Callable[[], Environment], tuple[ToolSchema, ...]]:
    """Who plays an episode and how to close it, in which environments and with which tools, as far as the agent brings none."""
    agent, close_agent = agent_of(config, recipe_dir, announce)
    if agent is not None:
        return agent, close_agent, _no_environment, ()
    make_environment, environment_class = environment_of(config, recipe_dir)
    tool_loop = EnvironmentAgent(make_environment, max_turns=config.environment.max_turns)
    return tool_loop.play, None, make_environment, environment_class.offered_tools()


def judges_of(config: Config, recipe_dir: Path) -> tuple[RewardFunction | None, Scorer | None]:
    """The reward and the scorer, as far as the recipe names them. Raises UsageError for what cannot be called."""
    reward, scorer = (_judge(f"reward.{key}", getattr(config.reward, key), recipe_dir) for key in ("reward", "scorer"))
    return reward, scorer


def _judge(key: str, name: str | None, recipe_dir: Path) -> Any:
    if name is None:
        return None
    found = load_object(name, beside=recipe_dir)
    if not callable(found):
        raise UsageError(
            f"{key} = {name!r} is {found!r:.200}, which cannot be called; name a function that takes a trajectory and returns a "
            "number."
        )
    return found


def _judged_by(config: Config, reward: RewardFunction | None, scorer: Scorer | None) -> Judge:
    return Judge(
        scorer=config.reward.scorer, independence=independence(reward, scorer),
        success_threshold=config.evaluation.success_threshold,
    )  # fmt: skip


def load_detectors(config: Config, recipe_dir: Path) -> tuple[Detector, ...]:
    """Those that are not off, and the recipe's own scanners. Raises ConfigError for a name that no detector has."""
    unknown = [name for name in config.detectors.off if name not in DETECTORS]
    if unknown:
        message = f"names {', '.join(map(repr, unknown))}, which is no detector; there are {', '.join(DETECTORS)}."
        raise ConfigError([ConfigProblem("detectors.off", message)])
    own = [user_scanner(name, load_object(name, beside=recipe_dir)) for name in config.detectors.scanners]
    return (*(one for name, one in DETECTORS.items() if name not in config.detectors.off), *own)


def _kinds(config: Config, tasks: Tasks) -> Callable[[Task], str] | None:
    """What kind a task is. Raises DataError for a task without kind now, not when it is played."""
    if config.curriculum.kind_field is None:
        return None
    kind_of = partial(task_kind, field=config.curriculum.kind_field)
    for task in (*tasks.validation, *tasks.held_out):
        kind_of(task)
    return kind_of


def agent_of(
    config: Config, recipe_dir: Path, announce: Callable[[str], object]
) -> tuple[Agent, Closing] | tuple[None, None]:
    """The agent that the recipe brings, and how to close what it opened; None when the built-in tool loop plays. Raises
    UsageError when it is none."""
    section = config.agent
    worker_key = os.environ.get(KEY_VARIABLE) or secrets.token_urlsafe(32)
    queue = WorkQueue(worker_key)
    gateway = Gateway(
        host=section.gateway_host, port=section.gateway_port, queue=queue if section.pull else None,
        max_in_flight=max(MAX_IN_FLIGHT, 4 * config.rollout.rollout_max_concurrency),
    )  # fmt: skip
    pushing: HttpAgent | None = None
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
        pushing = HttpAgent(
            section.url, gateway=gateway, timeout_seconds=config.rollout.rollout_timeout,
            max_retries=config.rollout.rollout_max_retries, max_concurrency=config.rollout.rollout_max_concurrency,
            tps_limit=section.tps_limit,
        )  # fmt: skip
        agent = pushing.play
    elif section.pull:
        agent = PullAgent(
            queue, gateway=gateway, timeout_seconds=config.rollout.rollout_timeout,
            max_retries=config.rollout.rollout_max_retries,
        ).play  # fmt: skip
    else:
        return None, None
    is_told = not section.pull

    async def play(task: Task, session: AnySession) -> AgentResult:
        nonlocal is_told
        await gateway.start()
        if not is_told:
            is_told = True
            announce(_call_for_workers(gateway.base_url.removesuffix("/v1"), worker_key))
        return await agent(task, session)

    async def aclose() -> None:
        await gateway.stop()
        if pushing is not None:
            await pushing.aclose()

    return play, aclose


def _call_for_workers(address: str, key: str) -> str:
    """What a person must do. A key that came from the environment is known, and is not shown."""
    address = address.replace("//0.0.0.0:", f"//{platform.node()}:")
    shown = f"${KEY_VARIABLE}" if os.environ.get(KEY_VARIABLE) else key
    return (
        f"episodes wait for workers at {address}; start some wherever that can be reached:\n"
        f"  {KEY_VARIABLE}={shown} python -m sparring.agents.worker {address} MODULE:FUNCTION"
    )


def _no_environment() -> Environment:
    raise UsageError("this recipe's agent brings its own world, so there is no environment to play; see [agent].")


def load_policy(config: Config, recipe_dir: Path) -> Policy:
    """The model with what of it is trained. Raises ServiceError when it cannot be loaded."""
    from sparring.models.policy import Policy, load_pretrained
    from sparring.models.precision import resolve_device, resolve_precision

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
    found, options = _environment_target(config, recipe_dir)
    environment_class = found.with_options(**options)
    environment_class.tool_schemas()
    return lambda: environment_class(**options), environment_class


def refuse_training(config: Config, recipe_dir: Path) -> None:
    """Raises UsageError when nobody may train in the recipe's environment."""
    if config.environment.target is None:
        return
    found, options = _environment_target(config, recipe_dir)
    reason = found.evaluation_only(**options)
    if reason is not None:
        raise UsageError(
            f"environment.target = {config.environment.target!r} may be evaluated in and not trained in: {reason}"
        )


def _environment_target(config: Config, recipe_dir: Path) -> tuple[type[Environment], dict[str, Any]]:
    """The class that the recipe names and its options, which fit it. Raises UsageError."""
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
    return found, options


def load_tasks(config: Config, recipe_dir: Path, *, is_trained: bool = True) -> Tasks:
    """The splits, from files or functions; what is not given is split off the training data. A policy that is not trained
    needs none of that where the recipe names the held-out tasks.

    Raises DataError when a split that is needed is empty, or when two splits share a task id; UsageError for tasks to train on
    that are for evaluation alone.
    """
    data = config.data
    needs_train = is_trained or data.held_out is None
    if data.train is None and needs_train:
        raise UsageError("data.train is missing: name a dataset file or a 'module:function' that returns Tasks.")
    train = [] if data.train is None else _tasks_from(data.train, "data.train", recipe_dir)
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
    if not tasks.train and needs_train:
        raise DataError(f"data.train = {data.train!r} leaves no task to train on after splitting; give more tasks.")
    if is_trained and config.is_trainable:
        _refuse_evaluation_only(config, recipe_dir, tasks.train)
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


def _refuse_evaluation_only(config: Config, recipe_dir: Path, tasks: Sequence[Task]) -> None:
    """Raises UsageError for a task that nobody may train on. An environment that judges of that itself has done so before
    (`refuse_training`)."""
    reason = next((task.fields[EVALUATION_ONLY] for task in tasks if EVALUATION_ONLY in task.fields), None)
    if reason is None:
        return
    if config.environment.target is not None:
        found, _ = _environment_target(config, recipe_dir)
        if found.evaluation_only.__func__ is not Environment.evaluation_only.__func__:
            return
    raise UsageError(
        f"data.train = {config.data.train!r} gives tasks that may be evaluated on and not trained on: {reason}\nEvaluate with "
        "them, or, where you have the right to train on them, say on what ground where the tasks are made, for example "
        'sop_bench.tasks(..., i_have_training_rights="who allows it, and where").'
    )


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
    """Tokenized conversations for the warm start: from the environment's expert, a function, a .jsonl file or a recording.

    Raises DataError naming the row of a demonstration that cannot be used.
    """
    told: list[tuple[Sequence[Message], Sequence[ToolSchema]]]
    if source == "expert":
        rng = random.Random(parts.config.run.seed)
        chosen = rng.sample(list(parts.tasks.train), min(num, len(parts.tasks.train)))
        told = [(record_demonstration(parts.make_environment, task), parts.tools) for task in chosen]
    elif ":" in source:
        told = [(one, parts.tools) for one in load_object(source, beside=parts.recipe_dir)(num, parts.config.run.seed)]
    else:
        told = _conversations_from(parts.recipe_dir / source, parts.tools)[:num]
    if not told:
        raise DataError(
            f"warm_start.demonstrations = {source!r} gave no demonstration; give at least one conversation."
        )
    tokenized = []
    for row, (conversation, tools) in enumerate(told, start=1):
        try:
            tokenized.append(tokenize_conversation(parts.chat, conversation, tools))
        except (DataError, SpliceRefused) as error:
            raise DataError(f"demonstration {row} of {source!r}: {error}") from error
    return tokenized


def _conversations_from(
    path: Path, tools: tuple[ToolSchema, ...]
) -> list[tuple[Sequence[Message], Sequence[ToolSchema]]]:
    """Conversations from a file or a recording, each with the tools that it names itself, else with those given."""
    conversations = []
    for file in trajectory_files(path):
        for where, row in rows(file):
            messages = row.get("messages")
            own = row.get("tools", row.get("task", {}).get("fields", {}).get("tools"))
            if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
                raise DataError(f"{where}: there is no list 'messages' of objects; give {{'messages': [...]}} a line.")
            conversations.append((messages, tools if own is None else own))
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
    await parts.collector.aclose()
    await parts.engine.close()
    await asyncio.to_thread(parts.ledger.close)
