"""Build the engine and the learner of a recipe."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from sparring.assembly.algorithm import Algorithm
from sparring.config import Config, key_from
from sparring.errors import ServiceError
from sparring.models.description import ModelDescription, find_folder, read_description
from sparring.protocols import Engine, Learner
from sparring.run_folders.recipe_files import RUN_RECIPE
from sparring.runtime.machine import default_threads
from sparring.types import EngineCapabilities, Weights

if TYPE_CHECKING:
    from sparring.engines.servers.processes import StartedServers
    from sparring.models.policy import Policy
    from sparring.runtime.launcher import Launcher
    from sparring.training.learner import AdamWSettings, TorchLearner
    from sparring.training.started_ranks import StartedRanks

Announce: TypeAlias = Callable[[str], object]
"""A function that shows a line to the user. The line must not be written to files."""
TO_STDERR = partial(print, file=sys.stderr)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How vLLM or SGLang servers are used."""

    announce: Announce = TO_STDERR
    folder: Path | None = None
    """The folder for the files of servers that are started here; None is a temporary folder."""
    are_used: bool = True
    """False if an engine in this process samples with the same weights instead."""
    num_versions: int | None = None
    """The number of versions of a policy that is served. None: the servers sample for a training run."""


def build_engine(config: Config, policy: Policy, weights: Weights, servers: ServerOptions | None = None) -> Engine:
    """Return the recipe's engine, which runs in this process or in other processes. Raises ServiceError if the engine
    does not answer or cannot do what the recipe needs."""
    section, servers = config.engine, servers or ServerOptions()
    if section.type == "remote":
        return connect_engine(config)
    if section.uses_servers and servers.are_used:
        return connect_servers(config, policy, weights, servers)
    from sparring.engines.torch_engine import TorchEngine

    return TorchEngine(
        policy,
        weights,
        max_running=section.max_running,
        kv_cache_tokens=section.kv_cache_tokens,
        prefill_chunk_tokens=section.prefill_chunk_tokens,
        deterministic=config.runs_in_rounds,
        session_weights=config.rollout.session_weights,
    )


def connect_engine(config: Config) -> Engine:
    """Return the recipe's engine in another process. Raises the same errors as `build_engine`."""
    from sparring.engines.remote import RemoteEngine

    address = config.engine.base_url
    assert address is not None, "the configuration requires an address"
    engine = RemoteEngine(address, api_key=key_from(config.engine.api_key_env))
    _check_capabilities(config, engine.capabilities, address)
    return engine


def connect_servers(config: Config, policy: Policy, weights: Weights | None, servers: ServerOptions) -> Engine:
    """Return an engine over the recipe's servers. vLLM servers are started here if the recipe has no addresses. Without
    `weights`, only the engines that its `freeze` returns can sample.

    Raises the same errors as `build_engine`.
    """
    from sparring.engines.servers.engine import ServersEngine
    from sparring.engines.servers.sglang import SGLANG
    from sparring.engines.servers.vllm import VLLM
    from sparring.models.adapter_files import AdapterShape

    section, model = config.engine, config.model
    folder = servers.folder or Path(tempfile.mkdtemp(prefix="sparring-engine-"))
    running = section.base_urls or _start_servers(config, policy, folder, servers)
    adapters = folder / "adapters" if section.adapters_dir is None else Path(section.adapters_dir)
    try:
        return ServersEngine(
            running,
            shape=AdapterShape(rank=model.lora_rank, alpha=model.lora_alpha)
            if model.trained_weights == "lora"
            else None,
            folder=adapters / folder.parent.name,
            weights=weights,
            api_key=key_from(section.api_key_env),
            max_running=section.max_running,
            session_weights=config.rollout.session_weights,
            kind=SGLANG if section.type == "sglang" else VLLM,
        )
    except BaseException:
        if not isinstance(running, tuple):
            running.close()
        raise


def _start_servers(config: Config, policy: Policy, folder: Path, servers: ServerOptions) -> StartedServers:
    from sparring.engines.servers.environment import default_folder
    from sparring.engines.servers.processes import ServerSettings, StartedServers
    from sparring.planning.gate import find_server_share

    section, has_learner = config.engine, servers.num_versions is None
    settings = ServerSettings(
        model=_find_base(config.model.name, policy, folder),
        environment=default_folder() if section.server_environment is None else Path(section.server_environment),
        num_servers=section.num_servers,
        max_model_len=policy.max_positions,
        lora_rank=config.model.lora_rank if config.model.trained_weights == "lora" else None,
        num_adapters=servers.num_versions or config.num_adapters,
        num_learner_gpus=_count_learner_gpus(config) if has_learner else 0,
        memory_share=find_server_share(config, policy.base.config.to_dict())
        if has_learner and config.run.launcher == "processes"
        else None,
        max_running=section.max_running,
        extra_arguments=section.server_arguments,
    )
    return StartedServers(settings, folder, _create_launcher(config, folder), announce=servers.announce)


def _count_learner_gpus(config: Config) -> int:
    starts_ranks = config.learner.type == "group" and not config.learner.base_urls
    return config.learner.num_ranks if starts_ranks and _is_on_cuda(config) else 1


def _is_on_cuda(config: Config) -> bool:
    from sparring.models.precision import resolve_device

    return resolve_device(config.model.device).startswith("cuda")


def _find_base(name: str, policy: Policy, folder: Path) -> str:
    """Return the folder or the hub's name of the base model, which is written into `folder` if it has neither."""
    found = find_folder(name)
    if found is not None:
        return str(found.absolute())
    if ":" not in name and not Path(name).expanduser().exists():
        return name
    from sparring.models.export import save_base

    base = folder / "base"
    if not base.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix="base-", dir=folder))
        save_base(policy, unfinished)
        unfinished.rename(base)
    return str(base.absolute())


def describe_remote(config: Config) -> tuple[ModelDescription, Weights] | None:
    """Return the model of a remote engine without loading it, and its untrained weights as a file.

    Return None if this process loads the model. It does so if the engine runs in this process, or if the model is not
    in a folder. Raises ServiceError.
    """
    if config.engine.type != "remote":
        return None
    folder = find_folder(config.model.name)
    if folder is None:
        return None
    from sparring.engines.remote_model import fetch_model

    assert config.engine.base_url is not None, "the configuration requires an address"
    remote = fetch_model(config.engine.base_url, api_key=key_from(config.engine.api_key_env))
    description = read_description(
        folder, config.model, device=remote.device, base_fingerprint=lambda: remote.base_fingerprint
    )
    return description, remote.weights


def build_learner(config: Config, policy: Policy, algorithm: Algorithm) -> TorchLearner:
    """Return the learner of the model in this process, with the recipe's loss."""
    from sparring.algorithms.losses import LOSSES
    from sparring.planning.gate import needs_checkpointing
    from sparring.training.learner import TorchLearner

    return TorchLearner(
        policy,
        adam=adam_settings(config),
        max_tokens_per_microbatch=config.optimizer.max_tokens_per_microbatch,
        activation_checkpointing=needs_checkpointing(config, policy.base.config.to_dict()),
        losses={**LOSSES, config.algorithm.loss_fn: algorithm.loss},
    )


def adam_settings(config: Config) -> AdamWSettings:
    """Return the recipe's settings of AdamW."""
    from sparring.training.learner import AdamWSettings

    optimizer = config.optimizer
    return AdamWSettings(
        beta1=optimizer.adam_beta1,
        beta2=optimizer.adam_beta2,
        eps=optimizer.adam_eps,
        weight_decay=optimizer.adam_weight_decay,
        grad_clip_norm=optimizer.adam_grad_clip_norm,
        lora_plus_lr_ratio=optimizer.lora_plus_lr_ratio,
    )


def connect_learner(config: Config, weights: Weights) -> Learner:
    """Return the recipe's learner in another process. It starts with these weights and a new optimizer, whatever it
    trained before. Raises ServiceError if it does not answer, and DataError if it has a different model."""
    from sparring.training.remote import RemoteLearner

    assert config.learner.base_url is not None, "the configuration requires an address"
    learner = RemoteLearner(config.learner.base_url, api_key=key_from(config.learner.api_key_env))
    return _start_with(learner, weights)


def connect_group(config: Config, policy: Policy | None, weights: Weights, servers: ServerOptions) -> Learner:
    """Return the recipe's group of learners, which starts with these weights and a new optimizer. Its ranks are started on this
    machine unless the recipe names running ones. `policy` is the model if this process has loaded it. Raises the errors of
    `connect_learner`."""
    from sparring.training.group import GroupLearner

    section = config.learner
    local = None if section.base_urls else _start_ranks(config, policy, servers)
    learner = GroupLearner(
        section.base_urls if local is None else local.urls,
        api_key=key_from(section.api_key_env) if local is None else local.api_key,
        min_ranks=section.min_ranks,
        rank_seconds=section.rank_timeout,
        processes=local,
    )
    return _start_with(learner, weights)


def _start_with(learner: Learner, weights: Weights) -> Learner:
    """Load the weights into a learner in another process, or close it."""
    try:
        learner.load_weights(weights)
    except BaseException:
        learner.close()
        raise
    return learner


def _start_ranks(config: Config, policy: Policy | None, servers: ServerOptions) -> StartedRanks:
    from sparring.planning.gate import needs_checkpointing
    from sparring.training.started_ranks import StartedRanks

    if servers.folder is None:
        raise ServiceError("the ranks of a learner are started only for a run, which has a folder.")
    is_cuda = _is_on_cuda(config)
    checkpointing = config.optimizer.activation_checkpointing
    if policy is not None and config.run.launcher == "processes":
        # A rank that decides for itself does not count the others on this machine.
        checkpointing = needs_checkpointing(config, policy.base.config.to_dict())
    threads = config.run.num_threads or default_threads(config.learner.num_ranks)
    run = servers.folder.parent
    return StartedRanks(
        _create_launcher(config, run / "learner"),
        run / RUN_RECIPE,
        [
            "learner.type=here",
            f"run.num_threads={threads}",
            f"model.device={'cuda' if is_cuda else config.model.device}",
            f"optimizer.max_tokens_per_microbatch={config.optimizer.max_tokens_per_microbatch}",
            f"optimizer.activation_checkpointing={str(checkpointing).lower()}",
        ],
        options=["--shard-weights"] if config.learner.shard_weights else [],
        num_ranks=config.learner.num_ranks,
        is_cuda=is_cuda,
        folder=run / "learner",
        announce=servers.announce,
    )


def _create_launcher(config: Config, folder: Path) -> Launcher:
    """Return what starts the servers. Its own messages go to `folder`."""
    from sparring.runtime.launcher import ProcessLauncher
    from sparring.runtime.ray_launcher import RayLauncher

    if config.run.launcher == "ray":
        return RayLauncher(config.run.ray_address, folder)
    return ProcessLauncher()


def _check_capabilities(config: Config, can: EngineCapabilities, address: str) -> None:
    """Raise ServiceError if the engine does not do what the recipe needs."""
    needs = {
        "report token ids": (True, can.reports_token_ids),
        "sample in rounds that depend on the seed only (engine.deterministic)": (
            config.runs_in_rounds,
            can.deterministic_rounds,
        ),
        "keep an episode on its first weights (rollout.session_weights)": (
            config.rollout.session_weights == "pinned",
            can.pins_weights,
        ),
        "sample with several weights (role = 'frozen')": (
            any(policy.role == "frozen" for policy in config.policies.values()),
            can.holds_several_weights,
        ),
        "return the log-probabilities of given ids (algorithm.teacher)": (
            bool(config.algorithm.teachers),
            can.scores_given_ids,
        ),
    }
    for what, (is_needed, is_there) in needs.items():
        if is_needed and not is_there:
            raise ServiceError(
                f"the engine at {address} does not {what}, but the recipe needs this; serve the engine with the same setting, "
                "or change the recipe."
            )
