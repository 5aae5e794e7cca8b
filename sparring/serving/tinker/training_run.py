"""One training run of a client: an adapter over the base model, and its optimizer."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from sparring.errors import DataError
from sparring.serving.tinker.answers import ForwardResult
from sparring.serving.tinker.base import Adapter, BaseModel
from sparring.serving.tinker.losses import FUNCTIONS, Computation
from sparring.serving.tinker.requests import AdamParams, LoraConfig
from sparring.training.learner import AdamWSettings, TorchLearner
from sparring.training.state import AdamWState
from sparring.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What a client chose when it created a run."""

    id: str
    session_id: str
    lora: LoraConfig
    seed: int
    user_metadata: Mapping[str, Json] | None = None


@final
class TrainingRun:
    """The computations of a run. They block, and only one of them runs at a time."""

    def __init__(self, settings: RunSettings, base: BaseModel) -> None:
        """Create a run with a new adapter."""
        self.settings, self._base = settings, base
        self._learner = TorchLearner(base.create_policy(settings.lora, settings.seed), losses=FUNCTIONS)
        self._failure: str | None = None
        """Why the accumulated gradient lacks a part."""
        self.last_request_time = time.time()

    def evaluate(self, computation: Computation) -> ForwardResult:
        """Return the loss and the log-probabilities without a gradient."""
        return self._compute(computation, is_forward_only=True)

    def add_gradient(self, computation: Computation) -> ForwardResult:
        """Add the gradient of a loss to the accumulated gradient. Raises DataError if the loss is not finite. After any failure,
        also for lack of memory, the next step is not taken."""
        try:
            return self._compute(computation, is_forward_only=False)
        except Exception as error:
            self.miss_gradient(str(error))
            raise

    def miss_gradient(self, reason: str) -> None:
        """Remember that a gradient is missing, so that the next step is not taken on a part of the batch."""
        self._failure = reason

    def optim_step(self, adam: AdamParams) -> dict[str, Json]:
        """Take a step of AdamW, and set the gradient to zero. Raises DataError if a gradient is missing or not finite; the
        weights are then unchanged and the gradient is zero."""
        if self._failure is not None:
            reason, self._failure = self._failure, None
            self._learner.clear_gradient()
            raise DataError(f"no step was taken, because a forward_backward before it failed: {reason}")
        settings = AdamWSettings(
            beta1=adam.beta1,
            beta2=adam.beta2,
            eps=adam.eps,
            weight_decay=adam.weight_decay,
            grad_clip_norm=adam.grad_clip_norm,
        )
        metrics = self._learner.optim_step(adam.learning_rate, settings)
        return {"metrics": {name.removeprefix("training/"): value for name, value in metrics.items()}}

    def export_adapter(self) -> Adapter:
        """Return a copy of the adapter, which later steps do not change."""
        return Adapter(lora=self.settings.lora, weights=self._learner.export_weights())

    def export_state(self) -> AdamWState:
        return self._learner.export_state()

    def load_state(self, folder: Path) -> None:
        """Continue from weights and moments. Raises DataError if they do not fit; nothing changes then."""
        self._learner.load_state(folder)
        self._failure = None

    def load_adapter(self, adapter: Adapter) -> None:
        """Continue from weights, with a new optimizer. Raises DataError if they do not fit; nothing changes then."""
        self._learner.load_weights(adapter.weights)
        self._failure = None

    def _compute(self, computation: Computation, *, is_forward_only: bool) -> ForwardResult:
        compute = self._learner.evaluate_loss if is_forward_only else self._learner.add_gradient
        found = compute(computation.batch, computation.loss_fn, computation.settings)
        if not math.isfinite(found.loss):
            raise DataError(f"the loss is {found.loss}; check the log-probabilities and advantages of the data.")
        logprobs = [0.0] * found.num_trained
        for place, value in zip(self._learner.find_order(computation.batch), found.values[0].tolist(), strict=True):
            logprobs[place] = value
        return ForwardResult(outputs=computation.divide(logprobs), metrics={"loss:sum": found.loss})
