"""Refuse a training that cannot fit the memory of this machine, before its model is loaded."""

from __future__ import annotations

from sparring.config import Config
from sparring.errors import GateError, UsageError
from sparring.planning.devices import this_machine
from sparring.planning.plan import make_plan
from sparring.planning.resolve import find_shape
from sparring.planning.shapes import ModelShape


def refuse_too_large(config: Config) -> None:
    """Raise GateError if a training needs more memory than this machine has.

    The message names the largest item and the needed changes. Nothing is refused if the plan is unknown: for a model
    without sizes, and for an engine or learner in another process.
    """
    if config.engine.type != "torch" or config.learner.type != "here":
        return
    shape = _known_shape(config.model.name)
    if shape is None:
        return
    from sparring.models.precision import resolve_device, resolve_precision
    from sparring.planning.calibration import gpu_bytes

    place = resolve_device(config.model.device)
    device = this_machine(flops=1.0, bandwidth=1.0, is_cuda=place.startswith("cuda"), gpu_bytes=gpu_bytes(place))
    model = config.model.model_copy(update={"precision": resolve_precision(config.model.precision, place)})
    refusal = make_plan(config.model_copy(update={"model": model}), shape, device).refusal()
    if refusal is not None:
        raise GateError(f"{refusal} `sparring plan` shows all items; --no-check trains anyway.")


def _known_shape(name: str) -> ModelShape | None:
    try:
        return find_shape(name)
    except UsageError:
        return None  # loading the model reports the problem of its folder
