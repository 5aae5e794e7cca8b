"""Load policies: the policy in training, and named policies that are used in addition to it or in its place."""

from __future__ import annotations

import json
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from sparring.config import Config, PolicySection, key_from
from sparring.engines.openai import OpenAIEngine
from sparring.errors import DataError
from sparring.models.description import ModelDescription
from sparring.protocols import Engine
from sparring.rollouts import NamedPolicy
from sparring.run_folders.run_folder import VOCABULARY
from sparring.runtime.plugins import load_function
from sparring.types import Sampling, Weights

if TYPE_CHECKING:
    from sparring.models.policy import Policy


def load_policy(config: Config, recipe_dir: Path, *, device: str | None = None) -> Policy:
    """Load the model with its trained tensors, on another device than the recipe's if it is given. Raises ServiceError if it
    cannot be loaded."""
    from sparring.models.policy import LoraSettings, Policy
    from sparring.models.precision import (
        prepare_cuda,
        resolve_base_precision,
        resolve_device,
        resolve_precision,
    )
    from sparring.models.pretrained import load_pretrained

    section = config.model
    own_device = resolve_device(section.device)
    prepare_cuda(own_device)
    is_adapted = section.trained_weights == "lora"
    base_precision = resolve_base_precision(section.base_precision, own_device) if is_adapted else "fp32"
    if ":" in section.name:
        make = load_function(section.name, "seed", key="model.name", folder=recipe_dir)
        model, tokenizer = make(config.run.seed)
    else:
        model, tokenizer = load_pretrained(section.name, precision=base_precision)
    lora = LoraSettings(
        rank=section.lora_rank,
        alpha=section.lora_alpha,
        targets=section.lora_targets,
        layers=section.lora_layers,
        is_merged=None if section.lora_merged == "auto" else section.lora_merged,
    )
    return Policy(
        model,
        tokenizer,
        precision=resolve_precision(section.precision, own_device),
        device=device or own_device,
        max_positions=section.max_sequence_length,
        lora=lora if is_adapted else None,
        seed=config.run.seed,
        base_precision=base_precision,
    )


def load_checkpoint_weights(checkpoint: Path, policy: Policy | None) -> Weights:
    """Return the weights of a checkpoint. Raises DataError if the checkpoint is damaged or does not fit.

    If no policy is given, the weights stay in their file, and the process that loads them checks whether they fit.
    """
    from sparring.training import checkpoints

    if policy is not None:
        return checkpoints.load_weights(checkpoint, policy)
    from sparring.models.policy import fingerprint
    from sparring.models.tensor_files import TensorFile

    checkpoints.verify(checkpoint)
    tensors = TensorFile(checkpoint / "weights.safetensors")
    return Weights(tensors=tensors, fingerprint=fingerprint(tensors))


def build_frozen_engine(section: PolicySection, engine: Engine, policy: Policy | None, initial: Weights) -> Engine:
    """Return the engine of a frozen policy. If the warm start will produce its weights, the engine has no weights yet.

    Raises DataError if a folder does not contain weights of this model.
    """
    if section.weights == "warm_start":
        return engine.freeze()
    if section.weights == "base":
        return engine.freeze(initial)
    return engine.freeze(load_checkpoint_weights(find_checkpoint(section.weights), policy))


def check_vocabularies(config: Config, model: ModelDescription) -> None:
    """Raise DataError if a frozen policy is from a run whose model has another vocabulary, as far as the run's folder
    contains the vocabulary."""
    for name, section in config.policies.items():
        if section.role != "frozen" or section.weights in ("base", "warm_start"):
            continue
        stored = find_checkpoint(section.weights).parent.parent / VOCABULARY
        if not stored.is_file():
            continue
        for index, (theirs, ours) in enumerate(zip_longest(json.loads(stored.read_bytes()), model.vocabulary())):
            if theirs != ours:
                raise DataError(
                    f"policies.{name}.weights = {section.weights!r} is from a run with another vocabulary: token {index} is "
                    f"{theirs!r} there and {ours!r} here. Use a run with the same model as this recipe."
                )


def pin_checkpoints(config: Config) -> Config:
    """Return the configuration with the checkpoint of each frozen policy in place of its folder.

    A resumed run then uses the same weights even if the folder has changed. Raises DataError if there is no checkpoint.
    """
    frozen = {
        name: section.model_copy(update={"weights": str(find_checkpoint(section.weights).resolve())})
        for name, section in config.policies.items()
        if section.role == "frozen" and section.weights not in ("base", "warm_start")
    }
    return config.model_copy(update={"policies": {**config.policies, **frozen}}) if frozen else config


def find_checkpoint(folder: str | Path) -> Path:
    """Return the newest checkpoint of a run folder, or the folder itself if it is a checkpoint.

    Raises DataError if there is no checkpoint.
    """
    from sparring.training import checkpoints

    source = Path(folder)
    return checkpoints.find_newest(source / "checkpoints" if (source / "checkpoints").is_dir() else source)


def list_endpoints(config: Config) -> dict[str, NamedPolicy]:
    """Return the named policies that an endpoint serves. Raises UsageError if an API key is not set."""
    policies = {}
    for name, section in config.policies.items():
        if section.role == "endpoint":
            assert section.base_url is not None and section.model is not None, "the configuration requires both"  # noqa: PT018
            engine = OpenAIEngine(
                section.base_url,
                section.model,
                api_key=key_from(section.api_key_env),
                max_concurrency=config.rollout.rollout_max_concurrency,
            )
            policies[name] = NamedPolicy(engine=engine, sampling=build_sampling(section, config))
    return policies


def build_sampling(section: PolicySection, config: Config) -> Sampling:
    return Sampling(
        temperature=section.temperature, max_tokens=section.max_tokens or config.sampling.sampling_max_tokens
    )
