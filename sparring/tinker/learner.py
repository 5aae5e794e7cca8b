"""A learner on a service that speaks the Tinker API."""

from __future__ import annotations

import json
import math
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from sparring.algorithms.losses import LOSSES, PerToken, Tokens, policy_metrics
from sparring.algorithms.objective import Objective, reference_metrics, weight_metrics
from sparring.errors import DataError, DiskError, ServiceError
from sparring.models.adapter_files import AdapterShape
from sparring.models.policy import fingerprint
from sparring.models.tensor_files import TensorFile
from sparring.protocols import LossConfig
from sparring.runtime import event_loop
from sparring.runtime.cancellable import guard_change, raise_if_cancelled
from sparring.runtime.json_values import parse_json
from sparring.runtime.private_files import write_private
from sparring.tinker.adapter import Stored, convert, read_stored, with_state, write_base
from sparring.tinker.formulas import Plan
from sparring.tinker.probe import find_norm
from sparring.tinker.rows import divide, expand
from sparring.tinker.service import AdamStep, Row, Service, Trainer, check_targets
from sparring.training.learner import ADAMW, AdamWSettings
from sparring.training.sequences import trained_values, trajectory_indices
from sparring.types import TrainingBatch, Weights

STATE_FILE = "tinker.json"
LARGEST_WEIGHT = 1e15
"""The largest gradient with respect to a log-probability. The squares of larger ones are beyond fp32."""


@final
class TinkerLearner:
    """Trains an adapter on a service that speaks the Tinker API. Implements `protocols.Learner`.

    The loss is computed here, from the log-probabilities that the service returns. Its gradient with respect to them is
    sent back as the weights of a loss that is linear in them, so that every loss and correction is exact. The service
    computes two passes: `forward_backward` requests the log-probabilities, and `optim_step` sends the gradients of all
    batches since the last step, in one request with the step itself. A gradient that is deleted was therefore never sent.

    The service computes each sequence by itself. A token that several sequences share is trained in the first of them.
    """

    def __init__(
        self,
        service: Service,
        *,
        shape: AdapterShape,
        seed: int = 0,
        plan: Plan | None = None,
        adam: AdamWSettings = ADAMW,
        max_tokens_per_request: int = 8192,
        losses: Mapping[str, Callable[..., PerToken]] = LOSSES,
    ) -> None:
        """Create a new adapter on the service. `plan` is that of the service's formula; without it, the service is expected to
        compute a plain sum (`probe.probe` measures it). Raises ServiceError, and DataError for LoRA+."""
        if adam.lora_plus_lr_ratio != 1.0:
            raise DataError(
                "a Tinker service has one learning rate for all matrices; set optimizer.lora_plus_lr_ratio = 1."
            )
        self._service, self._shape, self._seed, self._plan = service, shape, seed, plan or Plan()
        self._adam, self._max_tokens, self._losses = adam, max_tokens_per_request, losses
        self._files = tempfile.TemporaryDirectory(prefix="sparring-tinker-")
        self._prefix, self._num_saved = f"sparring-{uuid.uuid4().hex[:8]}", 0
        self._pending: list[Row] = []
        """The rows of the gradient that has accumulated. Their weights are those of a plain sum."""
        self._exported: Weights | None = None
        self._has_moments = False
        self.num_microbatches = 0
        """The number of parts of batches that the service has computed. It shows that a long step still makes progress."""
        self._trainer: Trainer = service.create(rank=shape.rank, seed=seed)

    def forward_backward(
        self,
        batch: TrainingBatch,
        loss_fn: str,
        loss_config: LossConfig,
        old_logprobs: Sequence[float] | None = None,
    ) -> dict[str, float]:
        """Compute the loss and its gradient with respect to the log-probabilities, and keep the gradient for `optim_step`.

        Raises DataError if the loss is not finite or needs entropies, which a service does not return, or if the batch was
        not sampled at temperature 1.
        """
        objective = Objective.from_config(loss_fn, loss_config, self._losses)
        if objective.entropy_coef:
            raise DataError("a Tinker service returns no entropies; set algorithm.entropy_coef = 0.")
        expansion = expand(batch)
        scored = self._forward(expansion.rows())
        logprobs_M = torch.tensor(expansion.gather(scored), requires_grad=True)
        sampled_M = torch.tensor(trained_values(batch, "sampled_logprobs"))
        reference_M = torch.tensor(self.reference_logprobs(batch)) if objective.kl_coef else None
        old_M = sampled_M
        if objective.is_three_policy:
            old_M = logprobs_M.detach() if old_logprobs is None else torch.tensor(list(old_logprobs))
        tokens = Tokens(
            logprobs_M=logprobs_M,
            old_M=old_M,
            advantages_M=torch.tensor(trained_values(batch, "advantages")),
            trajectory_M=torch.tensor(trajectory_indices(batch)),
        )
        loss_M, effects = objective(tokens, sampled_M=sampled_M, reference_M=reference_M)
        loss = (loss_M * torch.tensor(trained_values(batch, "weights"))).sum()
        weights = self._gradient(loss, logprobs_M)
        self._pending += [
            Row(token_ids=ids, weights=row, logprobs=tuple(values))
            for ids, row, values in zip(expansion.sequences, expansion.scatter(weights), scored, strict=True)
        ]
        metrics = {
            "loss": loss.item(),
            "tokens": float(expansion.num_tokens),
            "trained_tokens": float(len(logprobs_M)),
            **_mean_metrics(logprobs_M.detach(), sampled_M, effects, reference_M, objective),
        }
        return {f"training/{name}": value for name, value in metrics.items()}

    def _gradient(self, loss: Tensor, logprobs_M: Tensor) -> list[float]:
        """Return the weights of the service's loss, -sum(weight * logprob): the negative gradient of the loss. Raises
        DataError if it is not finite; the accumulated gradient is then zero."""
        if math.isfinite(loss.item()):
            loss.backward()
            assert logprobs_M.grad is not None, "the loss depends on the log-probabilities"
            weights = (-logprobs_M.grad).tolist()
            if all(map(math.isfinite, weights)):
                return weights
        self._pending.clear()
        raise DataError(
            f"the loss of a batch of {len(logprobs_M)} tokens is {loss.item()}; nothing was trained on it. Lower "
            "optimizer.learning_rate, or resume from the last checkpoint."
        )

    def _forward(self, rows: Sequence[Row]) -> list[list[float]]:
        """Return the log-probability of each target of each row. All parts are sent before the first one is awaited."""
        sent = [self._trainer.forward(part) for part in divide(rows, self._max_tokens)]
        found: list[list[float]] = []
        for pending in sent:
            raise_if_cancelled()
            found += pending.result()
            self.num_microbatches += 1
        check_targets(found, rows, self._service.name)
        return found

    def logprobs(self, batch: TrainingBatch) -> list[float]:
        expansion = expand(batch)
        return expansion.gather(self._forward(expansion.rows()))

    def reference_logprobs(self, batch: TrainingBatch) -> list[float]:
        """Return the log-probabilities under the base model, which the service samples from."""
        expansion = expand(batch)
        sampler = self._service.create_sampler(None)
        found = [event_loop.submit(sampler.logprobs(ids)) for ids in expansion.sequences]
        return expansion.gather([one.result() for one in found])

    def optim_step(self, learning_rate: float) -> dict[str, float]:
        """Send the accumulated gradient and the optimizer step together, and wait for both."""
        metrics = {"training/learning_rate": learning_rate}
        rows, self._pending = self._pending, []
        if not rows:
            return metrics | {"training/grad_norm": 0.0}
        if any(abs(weight) > LARGEST_WEIGHT for row in rows for weight in row.weights):
            raise DataError(
                "the gradient with respect to the log-probabilities is too large for fp32; the step was not taken. Lower "
                "optimizer.learning_rate, or resume from the last checkpoint."
            )
        carried, loss_fn = self._plan.carry(rows), self._plan.loss_fn
        with guard_change():
            self._exported, self._has_moments = None, True
            passes = [self._trainer.forward_backward(part, loss_fn) for part in divide(carried, self._max_tokens)]
            stepped = self._trainer.optim_step(self._adam_step(learning_rate))
            for one in passes:
                one.result()
                self.num_microbatches += 1
            norm = find_norm(stepped.result())
        if norm is not None and not math.isfinite(norm):
            raise DataError(
                f"the service reports a gradient norm of {norm}, and took the step. Resume from the last checkpoint, with a "
                "lower optimizer.learning_rate."
            )
        return metrics if norm is None else metrics | {"training/grad_norm": norm}

    def _adam_step(self, learning_rate: float) -> AdamStep:
        adam = self._adam
        return AdamStep(
            learning_rate=learning_rate,
            beta1=adam.beta1,
            beta2=adam.beta2,
            eps=adam.eps,
            weight_decay=adam.weight_decay,
            grad_clip_norm=adam.grad_clip_norm,
        )

    def reset_optimizer(self) -> None:
        """Delete the accumulated gradient. If a step has been taken, continue with a new adapter on the service, which has the
        weights of the old one and no moments."""
        self._pending.clear()
        if self._has_moments:
            self._continue_from(self._trainer.save_state(self._next_name()), with_optimizer=False)

    def export_weights(self) -> Weights:
        """Store the weights on the service for sampling, and download them. The object is the same until they change."""
        if self._exported is None:
            sampler = self._trainer.save_sampler(self._next_name())
            path = Path(self._files.name) / f"{uuid.uuid4().hex}.safetensors"
            with tempfile.TemporaryDirectory(prefix="sparring-adapter-") as folder:
                self._service.download(sampler, Path(folder))
                convert(Path(folder), path, Stored(sampler=sampler), self._shape)
            tensors = TensorFile(path, is_temporary=True)
            self._exported = Weights(tensors=tensors, fingerprint=fingerprint(tensors))
        return self._exported

    def load_weights(self, weights: Weights) -> None:
        """Continue from weights that this service has stored with their state, from the present ones, or from those before
        training. Raises DataError for other weights, because a service takes none."""
        is_new = any(".lora_B." in name for name in weights.tensors) and not any(
            one.any() for name, one in weights.tensors.items() if ".lora_B." in name
        )
        stored = Stored(sampler=None) if is_new else read_stored(weights)
        if stored.sampler is None:
            self._replace(self._service.create(rank=self._shape.rank, seed=self._seed), has_moments=False)
        elif self._exported is not None and weights.fingerprint == self._exported.fingerprint:
            self.reset_optimizer()
        elif stored.state is not None:
            self._continue_from(stored.state, with_optimizer=False)
        else:
            raise DataError(
                f"{self._service.name} has stored these weights only for sampling. Continue from a checkpoint of the run."
            )

    def export_state(self) -> TinkerState:
        """Store weights and moments on the service, and return their path with a copy of the weights."""
        weights = self.export_weights()
        return TinkerState(weights, self._trainer.save_state(self._next_name()), self._service.name)

    def load_state(self, directory: Path) -> None:
        try:
            path = str(parse_json((directory / STATE_FILE).read_text("utf-8"))["state"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise DataError(
                f"{directory} has no readable {STATE_FILE}, so it was not written by a run on a Tinker service; use another "
                "checkpoint."
            ) from error
        self._continue_from(path, with_optimizer=True)

    def close(self) -> None:
        """Release the adapter and close the connections. What was stored on the service stays there."""
        self._trainer.close()
        self._service.close()
        self._exported = None
        self._files.cleanup()

    def _continue_from(self, path: str, *, with_optimizer: bool) -> None:
        try:
            restored = self._service.restore(path, with_optimizer=with_optimizer)
        except ServiceError as error:
            raise ServiceError(
                f"{error} If the service no longer has {path}, continue from another checkpoint."
            ) from error
        self._replace(restored, has_moments=with_optimizer)

    def _replace(self, trainer: Trainer, *, has_moments: bool) -> None:
        replaced, self._trainer = self._trainer, trainer
        self._pending.clear()
        self._exported, self._has_moments = None, has_moments
        replaced.close()

    def _next_name(self) -> str:
        self._num_saved += 1
        return f"{self._prefix}-{self._num_saved}"


@final
class TinkerState:
    """A state that the service stores. Implements `protocols.LearnerState`."""

    def __init__(self, weights: Weights, path: str, service: str) -> None:
        self._weights, self._path, self._service = weights, path, service

    def write(self, directory: Path) -> None:
        """Write a copy of the weights, and the path of the state on the service. Raises DiskError."""
        assert isinstance(self._weights.tensors, TensorFile), "the weights were downloaded"
        try:
            with_state(self._weights.tensors.path, directory / "weights.safetensors", self._path)
            facts = {"state": self._path, "service": self._service, "fingerprint": self._weights.fingerprint}
            write_private(directory / STATE_FILE, json.dumps(facts, indent=1))
        except OSError as error:
            raise DiskError(f"the checkpoint cannot be written: {error}. Free up space on that disk.") from error


def base_weights(folder: Path, name: str) -> Weights:
    """Return the weights before training: those of the base model, without an adapter. `name` identifies the base model."""
    path = folder / "base.safetensors"
    write_base(path)
    return Weights(tensors=TensorFile(path), fingerprint=f"tinker:{name}")


def _mean_metrics(
    logprobs_M: Tensor,
    sampled_M: Tensor,
    effects: Mapping[str, Tensor],
    reference_M: Tensor | None,
    objective: Objective,
) -> dict[str, float]:
    """Return the metrics that the learner of this process reports, except the entropy."""
    if not len(logprobs_M):
        return {}
    metrics = {name: effect_M.detach().mean().item() for name, effect_M in effects.items()}
    if "correction/weight" in effects:
        metrics |= weight_metrics(effects["correction/weight"].detach())
    if reference_M is not None:
        metrics |= reference_metrics(logprobs_M, reference_M)
    if not objective.is_supervised:  # a demonstration was not sampled by a policy
        metrics |= {name: value.item() for name, value in policy_metrics(logprobs_M, sampled_M).items()}
    return metrics


def check_settings(adam: AdamWSettings, *, clips_gradients: bool, name: str) -> None:
    """Raise ServiceError if the service ignores a setting of the optimizer."""
    if adam.grad_clip_norm > 0 and not clips_gradients:
        raise ServiceError(
            f"{name} does not clip gradients, but optimizer.adam_grad_clip_norm is {adam.grad_clip_norm:g}. Set it to 0, and "
            "choose a learning rate that needs no clipping."
        )
