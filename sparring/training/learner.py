"""The learner: gradients of a batch, optimizer steps, weights for the engine, its state on disk."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import final

import torch
from safetensors.torch import save_file
from torch import Tensor

from sparring.algorithms.losses import LOSSES, loss_metrics
from sparring.errors import DataError
from sparring.models.forest import forest_logprobs, layout
from sparring.models.generic_training import sequence_logprobs
from sparring.models.llama import LlamaWeights
from sparring.models.policy import Policy
from sparring.models.threads import releases_threads
from sparring.training.checkpoints import read_tensors
from sparring.training.packing import pack
from sparring.training.sequences import expanded
from sparring.types import TrainingBatch, Weights

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What AdamW keeps for each trained tensor."""


@final
class TorchLearner:
    """Trains a policy in this process, with AdamW (arXiv:1711.05101)."""

    def __init__(
        self,
        policy: Policy,
        *,
        beta1: float = 0.9,
        beta2: float = 0.95,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        grad_clip_norm: float = 1.0,
        max_tokens_per_microbatch: int = 8192,
    ) -> None:
        """`grad_clip_norm` 0 does not clip; microbatches are cut by their distinct tokens."""
        self._policy = policy
        self._options = {"lr": 0.0, "betas": (beta1, beta2), "eps": eps, "weight_decay": weight_decay}
        self._grad_clip_norm = grad_clip_norm
        self._max_tokens = max_tokens_per_microbatch
        self.reset_optimizer()

    def reset_optimizer(self) -> None:
        """Forget moments and gradients: the next phase starts fresh on the current weights."""
        self._optimizer = torch.optim.AdamW(list(self._policy.trained.values()), **self._options)
        self._optimizer.zero_grad()
        self._forget_weights()

    @releases_threads
    def forward_backward(
        self, batch: TrainingBatch, loss_fn: str, loss_config: Mapping[str, float]
    ) -> dict[str, float]:
        """Add the gradient of sum(weight * loss). Raises DataError on a non-finite loss, with gradients cleared.

        `training/tokens` counts what the model computed: prompts that two microbatches need count twice.
        """
        total, num_tokens = 0.0, 0
        played: list[tuple[Tensor, Tensor, Tensor]] = []
        per_token: dict[str, list[Tensor]] = {}
        for microbatch in pack(batch, self._max_tokens):
            if not self._policy.is_lean:
                microbatch = expanded(microbatch)
            if microbatch.num_trained_tokens == 0:
                continue
            logprobs_M, entropies_M = self._forward(microbatch)
            sampled_M = self._masked(microbatch, "sampled_logprobs")
            loss_M, effects = LOSSES[loss_fn](
                logprobs_M, sampled_M, self._masked(microbatch, "advantages"), loss_config
            )
            loss = (loss_M * self._masked(microbatch, "weights")).sum()
            if not torch.isfinite(loss):
                self._optimizer.zero_grad()
                raise DataError(
                    f"the loss of a microbatch of {microbatch.num_trained_tokens} tokens is {loss.item()}; nothing was "
                    "trained on it. Lower optimizer.learning_rate, or resume from the last checkpoint."
                )
            loss.backward()
            total += loss.item()
            num_tokens += microbatch.num_tokens
            played.append((logprobs_M.detach(), sampled_M, entropies_M))
            for name, effect_M in effects.items():
                per_token.setdefault(name, []).append(effect_M)
        metrics = {"loss": total, "tokens": float(num_tokens), "trained_tokens": float(batch.num_trained_tokens)}
        if played:
            logprobs_M, sampled_M, entropies_M = (torch.cat(parts) for parts in zip(*played, strict=True))
            metrics["entropy"] = entropies_M.mean().item()
            metrics |= {name: torch.cat(effects).mean().item() for name, effects in per_token.items()}
            if loss_fn != "cross_entropy":  # nobody sampled a demonstration
                metrics |= {name: value.item() for name, value in loss_metrics(logprobs_M, sampled_M).items()}
        return {f"training/{name}": value for name, value in metrics.items()}

    @releases_threads
    def optim_step(self, learning_rate: float) -> dict[str, float]:
        """Raises DataError on a non-finite gradient; weights stay as they were and gradients are cleared."""
        parameters = list(self._policy.trained.values())
        norm = torch.nn.utils.clip_grad_norm_(parameters, self._grad_clip_norm or math.inf).item()
        if not math.isfinite(norm):
            self._optimizer.zero_grad()
            raise DataError(
                f"the gradient norm is {norm}; the step was not taken. Lower optimizer.learning_rate, or resume from "
                "the last checkpoint."
            )
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._forget_weights()
        return {"training/grad_norm": norm, "training/learning_rate": learning_rate}

    @releases_threads
    def export_weights(self) -> Weights:
        """The current weights; the same object until the next optimizer step."""
        if self._snapshot is None:
            self._snapshot = self._policy.snapshot()
        return self._snapshot

    @releases_threads
    @torch.no_grad()
    def logprobs(self, batch: TrainingBatch) -> Tensor:
        """Log-probabilities [M] of the masked tokens under the current weights.

        In segment order; for architectures without the lean forward in the order of `expanded(batch)`.
        """
        return self._forward(batch if self._policy.is_lean else expanded(batch))[0]

    @releases_threads
    def load_weights(self, weights: Weights) -> None:
        """Continue from other weights with a fresh optimizer. Raises DataError naming tensors that do not fit."""
        try:
            self._policy.restore(weights.tensors)
        except ValueError as error:
            raise DataError(
                f"these weights do not fit this model: {error}. Use the recipe they were trained with."
            ) from error
        self.reset_optimizer()

    @releases_threads
    def save_state(self, directory: Path) -> None:
        """weights.safetensors, optimizer.safetensors and optimizer.json, into an existing directory."""
        tensors = {name: parameter.detach().contiguous().cpu() for name, parameter in self._policy.trained.items()}
        save_file(tensors, directory / "weights.safetensors")
        moments: dict[str, Tensor] = {}
        for name, parameter in self._policy.trained.items():
            slot = self._optimizer.state.get(parameter, {})
            moments |= {f"{name}/{key}": slot[key].detach().contiguous().cpu() for key in MOMENTS if key in slot}
        save_file(moments, directory / "optimizer.safetensors")
        (directory / "optimizer.json").write_text(json.dumps({"optimizer": "AdamW"}), "utf-8")

    @releases_threads
    def load_state(self, directory: Path) -> None:
        """Restore what save_state wrote. Raises DataError naming tensors that do not fit; then nothing is changed."""
        tensors = read_tensors(directory / "weights.safetensors")
        moments = read_tensors(directory / "optimizer.safetensors")
        state: dict[int, dict[str, Tensor]] = {}
        for index, (name, parameter) in enumerate(self._policy.trained.items()):
            slot = {key: moments.pop(f"{name}/{key}") for key in MOMENTS if f"{name}/{key}" in moments}
            fits = all(slot[key].shape == parameter.shape for key in MOMENTS[1:] if key in slot)
            if slot and not (len(slot) == len(MOMENTS) and fits):
                raise DataError(
                    f"{directory}: the optimizer state of {name} does not fit this model; use another checkpoint."
                )
            if slot:
                state[index] = slot
        if moments:
            raise DataError(
                f"{directory}: the optimizer state has an unknown {next(iter(moments))}; use another checkpoint."
            )
        self.load_weights(Weights(tensors=tensors, fingerprint=""))
        self._optimizer.load_state_dict({"state": state, "param_groups": self._optimizer.state_dict()["param_groups"]})

    def _forward(self, batch: TrainingBatch) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [M] of the masked tokens, in segment order."""
        policy = self._policy
        if not policy.is_lean:
            return sequence_logprobs(policy, batch)
        weights, linear = policy.differentiable(self._current())
        return forest_logprobs(weights, layout(batch.segments, device=policy.device), linear=linear)

    def _masked(self, batch: TrainingBatch, name: str) -> Tensor:
        """A field of the segments at their masked tokens, [M]."""
        values = [
            value
            for segment in batch.segments
            for value, is_sampled in zip(getattr(segment, name), segment.mask, strict=True)
            if is_sampled
        ]
        return torch.tensor(values, dtype=torch.float32, device=self._policy.device)

    def _current(self) -> LlamaWeights:
        if self._merged is None:
            self._merged = self._policy.materialize(self.export_weights())
        return self._merged

    def _forget_weights(self) -> None:
        self._snapshot: Weights | None = None
        self._merged: LlamaWeights | None = None
