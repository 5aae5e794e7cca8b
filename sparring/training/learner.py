"""The learner: gradients of a batch, optimizer steps, weights for the engine, its state on disk."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sparring.algorithms.losses import LOSSES, ratio_statistics
from sparring.errors import DataError
from sparring.models.forest import forest_logprobs, layout
from sparring.models.llama import LlamaWeights
from sparring.models.policy import Policy
from sparring.training.packing import pack
from sparring.types import TrainingBatch, Weights


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
        self._snapshot: Weights | None = None
        self._merged: LlamaWeights | None = None
        self.reset_optimizer()

    def reset_optimizer(self) -> None:
        """Forget moments and gradients: the next phase starts fresh on the current weights."""
        self._optimizer = torch.optim.AdamW(list(self._policy.trained.values()), **self._options)
        self._optimizer.zero_grad()
        self._forget_weights()

    def forward_backward(
        self, batch: TrainingBatch, loss_fn: str, loss_config: Mapping[str, float]
    ) -> dict[str, float]:
        """Add the gradient of sum(weight * loss). Raises DataError on a non-finite loss, with gradients cleared."""
        loss_of = LOSSES[loss_fn]
        total, entropy = 0.0, 0.0
        statistics: list[dict[str, Tensor]] = []
        for microbatch in pack(batch, self._max_tokens):
            logprobs_M, entropies_M, sampled_M, advantages_M, weights_M = self._forward(microbatch)
            if not len(logprobs_M):
                continue
            loss = (loss_of(logprobs_M, sampled_M, advantages_M, loss_config) * weights_M).sum()
            if not torch.isfinite(loss):
                self._optimizer.zero_grad()
                raise DataError(
                    f"the loss of a microbatch of {microbatch.num_trained_tokens} tokens is {loss.item()}; nothing was "
                    "trained on it. Lower optimizer.learning_rate, or resume from the last checkpoint."
                )
            loss.backward()
            total += loss.item()
            entropy += entropies_M.sum().item()
            statistics.append(ratio_statistics(logprobs_M, sampled_M, loss_config))
        metrics = {"training/loss": total, "training/entropy": entropy / max(1, batch.num_trained_tokens)}
        return metrics if loss_fn == "cross_entropy" else metrics | _ratio_metrics(statistics)

    def _forward(self, batch: TrainingBatch) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        device = self._policy.device
        forest = layout(batch.segments, device=device)
        weights, linear = self._policy.differentiable(self._current())
        logprobs_M, entropies_M = forest_logprobs(weights, forest, linear=linear)

        def masked(name: str) -> Tensor:
            values = [
                value
                for segment in batch.segments
                for value, is_sampled in zip(getattr(segment, name), segment.mask, strict=True)
                if is_sampled
            ]
            return torch.tensor(values, dtype=torch.float32, device=device)

        return logprobs_M, entropies_M, masked("sampled_logprobs"), masked("advantages"), masked("weights")

    def optim_step(self, learning_rate: float) -> dict[str, float]:
        """Raises DataError on a non-finite gradient; weights stay as they were and gradients are cleared."""
        parameters = list(self._policy.trained.values())
        limit = self._grad_clip_norm or math.inf
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit).item()
        if not math.isfinite(norm):
            self._optimizer.zero_grad()
            raise DataError(
                f"the gradient norm is {norm}; the step was not taken. Lower optimizer.learning_rate, or resume from the "
                "last checkpoint."
            )
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._forget_weights()
        return {"training/grad_norm": norm, "training/learning_rate": learning_rate}

    def export_weights(self) -> Weights:
        """The current weights; the same object until the next optimizer step."""
        if self._snapshot is None:
            self._snapshot = self._policy.snapshot()
        return self._snapshot

    @torch.no_grad()
    def logprobs(self, batch: TrainingBatch) -> Tensor:
        """Log-probabilities [M] of the masked tokens, in segment order, under the current weights."""
        return self._forward(batch)[0]

    def load_weights(self, weights: Weights) -> None:
        """Continue from other weights with a fresh optimizer. Raises DataError naming tensors that do not fit."""
        try:
            self._policy.restore(weights.tensors)
        except ValueError as error:
            raise DataError(f"these weights do not fit this model: {error}. Use the recipe they were trained with.") from error
        self.reset_optimizer()

    def save_state(self, directory: Path) -> None:
        """weights.safetensors, optimizer.safetensors and optimizer.json, into an existing directory."""
        names = list(self._policy.trained)
        save_file({n: p.detach().contiguous().cpu() for n, p in self._policy.trained.items()}, directory / "weights.safetensors")
        state = self._optimizer.state_dict()["state"]
        moments = {f"{names[i]}/{key}": v.contiguous().cpu() for i, slot in state.items() for key, v in slot.items()}
        save_file(moments, directory / "optimizer.safetensors")
        (directory / "optimizer.json").write_text(json.dumps({"optimizer": "AdamW", "names": names}), "utf-8")

    def load_state(self, directory: Path) -> None:
        """Restore what save_state wrote. Raises DataError naming tensors that do not fit."""
        tensors = load_file(directory / "weights.safetensors")
        self.load_weights(Weights(tensors=tensors, fingerprint=""))
        moments = load_file(directory / "optimizer.safetensors")
        state: dict[int, dict[str, Tensor]] = {}
        for index, name in enumerate(self._policy.trained):
            slot = {key: moments[f"{name}/{key}"] for key in ("step", "exp_avg", "exp_avg_sq") if f"{name}/{key}" in moments}
            if slot:
                state[index] = slot
        self._optimizer.load_state_dict({"state": state, "param_groups": self._optimizer.state_dict()["param_groups"]})

    def _current(self) -> LlamaWeights:
        if self._merged is None:
            self._merged = self._policy.materialize(self.export_weights())
        return self._merged

    def _forget_weights(self) -> None:
        self._snapshot = None
        self._merged = None


def _ratio_metrics(statistics: list[dict[str, Tensor]]) -> dict[str, float]:
    if not statistics:
        return {}

    def total(name: str) -> float:
        return sum(part[name].item() for part in statistics)

    count = total("count_sum")
    return {
        "training/ratio_mean": total("ratio_sum") / count,
        "training/ratio_min": min(part["ratio_min"].item() for part in statistics),
        "training/ratio_max": max(part["ratio_max"].item() for part in statistics),
        "training/clip_fraction": total("clipped_sum") / count,
        "training/effective_sample_size": total("ratio_sum") ** 2 / (total("ratio_squared_sum") * count),
        "training/logprob_difference_mean": total("difference_sum") / count,
        "training/logprob_difference_max": max(part["difference_max"].item() for part in statistics),
        "training/kl_k1": total("k1_sum") / count,
        "training/kl_k3": total("k3_sum") / count,
    }
