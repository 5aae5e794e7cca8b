"""Fit training into the memory of this machine: reject training that cannot fit before its model is loaded, and
recompute activations if that makes it fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparring.config import Config
from sparring.errors import GateError, UsageError
from sparring.planning.devices import this_machine
from sparring.planning.plan import Plan, make_plan
from sparring.planning.resolve import find_shape
from sparring.planning.shapes import ModelShape, shape_from_config


def refuse_too_large(config: Config) -> None:
    """Raise GateError if training needs more memory than this machine has.

    The message states the largest item and the necessary changes. Nothing is rejected if no plan is possible: for a
    model of unknown size, for an engine or learner that is already running elsewhere, and for parts on a cluster.
    """
    if not _is_all_here(config):
        return
    shape = _known_shape(config.model.name)
    if shape is None:
        return
    refusal = _plan_here(config, shape).refusal()
    if refusal is not None:
        raise GateError(f"{refusal} `sparring plan` shows all items; --no-check trains anyway.")


def _is_all_here(config: Config) -> bool:
    """Return whether all that samples and learns is started on this machine."""
    starts_ranks = config.learner.type == "group" and not config.learner.base_urls
    uses_cluster = config.run.launcher == "ray" and (config.starts_servers or starts_ranks)
    samples_here = config.engine.type == "torch" or config.starts_servers
    return samples_here and (config.learner.type == "here" or starts_ranks) and not uses_cluster


def needs_checkpointing(config: Config, model: Mapping[str, Any]) -> bool:
    """Return whether the learner, or each rank of a group, recomputes activations. The recipe sets this; with `auto`, they
    are recomputed if training does not fit otherwise.

    `model` is the config of the loaded model. With `auto`, nothing is recomputed for a model whose sizes are not those
    of a decoder.
    """
    asked = config.optimizer.activation_checkpointing
    if asked != "auto":
        return asked
    try:
        shape = shape_from_config(config.model.name, model)
    except UsageError:
        return False
    return _plan_here(config, shape).asked.checkpointing


def find_server_share(config: Config, model: Mapping[str, Any]) -> float | None:
    """Return the share of a GPU's memory that all vLLM servers together may use if the learner needs the same GPU, as
    planned. None if no server shares a GPU with the learner, or if the model's sizes are not those of a decoder.

    `model` is the config of the loaded model.
    """
    try:
        return _plan_here(config, shape_from_config(config.model.name, model)).server_share
    except UsageError:
        return None


def _plan_here(config: Config, shape: ModelShape) -> Plan:
    from sparring.models.precision import resolve_device, resolve_precision
    from sparring.planning.calibration import count_gpus, gpu_bytes

    place = resolve_device(config.model.device)
    device = this_machine(
        flops=1.0,
        bandwidth=1.0,
        is_cuda=place.startswith("cuda"),
        gpu_bytes=gpu_bytes(place),
        num_devices=count_gpus(place),
    )
    model = config.model.model_copy(update={"precision": resolve_precision(config.model.precision, place)})
    return make_plan(config.model_copy(update={"model": model}), shape, device)


def _known_shape(name: str) -> ModelShape | None:
    try:
        return find_shape(name)
    except UsageError:
        return None  # loading the model reports the problem of its folder
