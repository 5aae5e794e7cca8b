"""Build the engine and the learner of a recipe on a service that speaks the Tinker API."""

from __future__ import annotations

import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from sparring.assembly.algorithm import Algorithm
from sparring.assembly.engines import TO_STDERR, Announce, adam_settings
from sparring.config import Config, key_from
from sparring.config.rules.engine import TINKER_PARTS
from sparring.errors import DataError, ServiceError
from sparring.metering.usage import endpoint_name
from sparring.models.description import ModelDescription, find_folder, read_description
from sparring.protocols import Engine, Learner
from sparring.types import Weights

if TYPE_CHECKING:
    from sparring.tinker.probe import Probed
    from sparring.tinker.sagemaker import SageMakerService
    from sparring.tinker.service import Service


def connect_service(config: Config) -> Service:
    """Connect to the service of [learner], whose requests are counted in the run. Raises ServiceError."""
    from sparring.tinker.metered import MeteredService
    from sparring.tinker.sdk import SdkService
    from sparring.tinker.service import Adapted

    section = config.learner
    assert section.model is not None, "the configuration requires it"
    if section.service == "sagemaker":
        return MeteredService(_share_sagemaker(config), f"{section.model}@sagemaker", scores_by_sampler=True)
    assert section.base_url is not None, "the configuration requires it"
    targets = set(config.model.lora_targets)
    parts = {name: bool(part & targets) for name, part in TINKER_PARTS.items()}
    service = SdkService(
        section.base_url,
        model=section.model,
        api_key=key_from(section.api_key_env),
        adapted=Adapted(**parts) if targets else Adapted(),
    )
    return MeteredService(service, endpoint_name(section.model, section.base_url))


_sagemaker: list[SageMakerService] = []
"""The open service of this process. Engine and learner share it, because a session in training also samples."""


def _share_sagemaker(config: Config) -> SageMakerService:
    from sparring.models.adapter_files import AdapterShape
    from sparring.tinker.sagemaker import SageMakerService

    section = config.learner
    assert section.model is not None and section.role_arn is not None, "the configuration requires both"  # noqa: PT018
    shape = AdapterShape(rank=config.model.lora_rank, alpha=config.model.lora_alpha)
    settings = {"model": section.model, "role_arn": section.role_arn, "shape": shape}
    _sagemaker[:] = [one for one in _sagemaker if one.is_open]
    for one in _sagemaker:
        if one.settings == settings:
            return one.share()
    _sagemaker.append(SageMakerService(model=section.model, role_arn=section.role_arn, shape=shape))
    return _sagemaker[-1]


def describe_service(config: Config) -> tuple[ModelDescription, Weights]:
    """Return the description of the model that a service samples and trains, from the folder `model.name`, and its untrained
    weights. Raises DataError if there is no such folder."""
    from sparring.tinker.learner import base_weights

    folder = find_folder(config.model.name)
    if folder is None:
        raise DataError(
            f"model.name is {config.model.name!r}, but with engine.type = 'tinker' it is a folder with the model's config and "
            "tokenizer, whose weights stay on the service. Download these files, and name the folder."
        )
    assert config.learner.model is not None, "the configuration requires it"
    name = f"{config.learner.base_url or config.learner.service} {config.learner.model}"
    temporary = tempfile.TemporaryDirectory(prefix="sparring-base-")
    weights = base_weights(Path(temporary.name), name)
    weakref.finalize(weights.tensors, temporary.cleanup)
    description = read_description(
        folder, config.model, device="the service", base_fingerprint=lambda: weights.fingerprint
    )
    return description, weights


def build_service_engine(config: Config, model: ModelDescription, weights: Weights) -> Engine:
    """Return the engine of a service, which samples with the base model first. Raises ServiceError."""
    from sparring.tinker.engine import TinkerEngine

    return TinkerEngine(
        connect_service(config),
        weights=weights,
        max_context_tokens=model.max_positions,
        max_running=config.engine.max_running,
        decode=model.chat.decode,
    )


def build_service_learner(
    config: Config, algorithm: Algorithm, vocabulary_size: int, announce: Announce = TO_STDERR
) -> Learner:
    """Measure a service, show what was found, and return the learner of a new adapter on the service.

    Raises ServiceError if the service computes something else than the recipe needs.
    """
    from sparring.algorithms.losses import LOSSES
    from sparring.models.adapter_files import AdapterShape
    from sparring.tinker.learner import TinkerLearner, check_settings
    from sparring.tinker.probe import EPS, describe, probe
    from sparring.tinker.sagemaker import LARGEST_EPS

    service, section = connect_service(config), config.model
    try:
        samples = config.engine.type == "tinker"
        eps = LARGEST_EPS if config.learner.service == "sagemaker" else EPS
        probed = probe(service, rank=section.lora_rank, vocabulary_size=vocabulary_size, samples=samples, eps=eps)
        announce(f"{service.name} was measured: {describe(probed)}")
        adam = adam_settings(config)
        check_settings(adam, clips_gradients=probed.clips_gradients, name=service.name)
        _check_sampling(config, probed, service.name)
        return TinkerLearner(
            service,
            shape=AdapterShape(rank=section.lora_rank, alpha=section.lora_alpha),
            seed=config.run.seed,
            plan=probed.plan,
            adam=adam,
            max_tokens_per_request=config.optimizer.max_tokens_per_microbatch,
            losses={**LOSSES, config.algorithm.loss_fn: algorithm.loss},
        )
    except BaseException:
        service.close()
        raise


def _check_sampling(config: Config, probed: Probed, name: str) -> None:
    """Raise ServiceError if turns with earlier weights would put these back into training."""
    is_frozen = any(policy.role == "frozen" and policy.weights != "base" for policy in config.policies.values())
    if probed.sampling_restores and (config.rollout.max_steps_off_policy > 0 or is_frozen):
        raise ServiceError(
            f"{name} puts earlier weights back into training if a turn is sampled with them. Train synchronously "
            "(rollout.max_steps_off_policy = 0) and without frozen policies of other weights, or sample with vLLM "
            "(engine.type = 'vllm')."
        )
