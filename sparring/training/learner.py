"""The learner: gradients of a batch, optimizer steps, weights for the engine, its state on disk."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from sparring.algorithms.losses import LOSSES, PerToken, Tokens, policy_metrics
from sparring.algorithms.objective import Objective, reference_metrics, weight_metrics
from sparring.computing import changing, may_go_on
from sparring.errors import DataError
from sparring.faults import fault_point
from sparring.models.forest import forest_logprobs, layout
from sparring.models.generic_training import sequence_logprobs
from sparring.models.llama import LlamaWeights
from sparring.models.policy import Policy
from sparring.models.threads import releases_threads
from sparring.training.checkpoints import read_tensors
from sparring.training.packing import pack
from sparring.training.sequences import expanded, trajectory_indices
from sparring.training.state import MOMENTS, AdamWState
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
        lora_plus_lr_ratio: float = 1.0,
        max_tokens_per_microbatch: int = 8192,
        losses: Mapping[str, Callable[..., PerToken]] = LOSSES,
    ) -> None:
        """`grad_clip_norm` 0 does not clip; `lora_plus_lr_ratio` is how much faster the B matrices of an adapter learn
        than the A matrices (LoRA+, arXiv:2402.12354); microbatches are cut by their distinct tokens."""
        self._policy = policy
        self._options = {"lr": 0.0, "betas": (beta1, beta2), "eps": eps, "weight_decay": weight_decay}
        self._grad_clip_norm = grad_clip_norm
        self._ratio = lora_plus_lr_ratio
        self._max_tokens = max_tokens_per_microbatch
        self._losses = losses
        self.num_microbatches = 0
        """How many it has computed so far: what tells a long step from one that hangs."""
        self.reset_optimizer()

    def reset_optimizer(self) -> None:
        """Forget moments and gradients: the next phase starts fresh on the current weights."""
        slow = [one for name, one in self._policy.trained.items() if ".lora_B." not in name]
        fast = [one for name, one in self._policy.trained.items() if ".lora_B." in name]
        groups = [{"params": slow, "ratio": 1.0}, {"params": fast, "ratio": self._ratio}]
        self._optimizer = torch.optim.AdamW([group for group in groups if group["params"]], **self._options)
        self._optimizer.zero_grad()
        self._forget_weights()

    @releases_threads
    def forward_backward(
        self, batch: TrainingBatch, loss_fn: str, loss_config: Mapping[str, Any], old_M: Tensor | None = None
    ) -> dict[str, float]:
        """Add the gradient of sum(weight * loss). Raises DataError on a non-finite loss, with gradients cleared.

        `old_M`, in the order of `logprobs(batch)`, are the log-probabilities before the step, which only
        `policy_ratio = "three_policy"` reads; None takes the current ones. `training/tokens` counts what the model
        computed: prompts that two microbatches need count twice.
        """
        objective = Objective.from_config(loss_fn, loss_config, self._losses)
        total, num_tokens, num_seen = 0.0, 0, 0
        played: list[tuple[Tensor, ...]] = []
        per_token: dict[str, list[Tensor]] = {}
        for microbatch in self._microbatches(batch):
            logprobs_M, entropies_M = self._forward(microbatch, with_entropy_gradient=objective.entropy_coef > 0)
            sampled_M = self._masked(microbatch, "sampled_logprobs")
            references = (self._reference(microbatch),) if objective.kl_coef > 0 else ()
            count = len(logprobs_M)
            if not objective.is_three_policy:
                before_M = sampled_M
            else:
                before_M = logprobs_M.detach() if old_M is None else old_M[num_seen : num_seen + count]
            num_seen += count
            tokens = Tokens(
                logprobs_M=logprobs_M, old_M=before_M, advantages_M=self._masked(microbatch, "advantages"),
                trajectory_M=torch.tensor(trajectory_indices(microbatch), device=self._policy.device),
            )  # fmt: skip
            loss_M, effects = objective(
                tokens, sampled_M=sampled_M, entropies_M=entropies_M, reference_M=references[0] if references else None
            )
            loss = (loss_M * self._masked(microbatch, "weights")).sum()
            if not torch.isfinite(loss):
                self._optimizer.zero_grad()
                raise DataError(
                    f"the loss of a microbatch of {microbatch.num_trained_tokens} tokens is {loss.item()}; nothing was "
                    "trained on it. Lower optimizer.learning_rate, or resume from the last checkpoint."
                )
            fault_point("learner.forward")
            loss.backward()
            total += loss.item()
            num_tokens += microbatch.num_tokens
            fault_point("learner.microbatch")
            played.append((logprobs_M.detach(), sampled_M, entropies_M.detach(), *references))
            for name, effect_M in effects.items():
                per_token.setdefault(name, []).append(effect_M)
        metrics = {"loss": total, "tokens": float(num_tokens), "trained_tokens": float(batch.num_trained_tokens)}
        if played:
            logprobs_M, sampled_M, entropies_M, *references = (torch.cat(parts) for parts in zip(*played, strict=True))
            metrics["entropy"] = entropies_M.mean().item()
            effects = {name: torch.cat(parts) for name, parts in per_token.items()}
            metrics |= {name: effect_M.mean().item() for name, effect_M in effects.items()}
            if "correction/weight" in effects:
                metrics |= weight_metrics(effects["correction/weight"])
            if references:
                metrics |= reference_metrics(logprobs_M, references[0])
            if not objective.is_supervised:  # nobody sampled a demonstration
                metrics |= {name: value.item() for name, value in policy_metrics(logprobs_M, sampled_M).items()}
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
            group["lr"] = learning_rate * group["ratio"]
        fault_point("learner.optimizing")
        with changing():
            self._optimizer.step()
        fault_point("learner.optimized")
        self._optimizer.zero_grad()
        self._forget_weights()
        return {
            "training/grad_norm": norm, "training/learning_rate": learning_rate,
            "training/update_size": update_size(self._optimizer),
        }  # fmt: skip

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

        Microbatch by microbatch as `forward_backward` takes them; in each in segment order, for architectures without
        the lean forward in the order of `expanded`.
        """
        return torch.cat([self._forward(part)[0] for part in self._microbatches(batch)])

    @releases_threads
    @torch.no_grad()
    def divergences(self, batch: TrainingBatch) -> tuple[dict[tuple[str, float], float], dict[str, float]]:
        """Sum of log(sampler / base) over the trained tokens that have one trajectory and one advantage, by both; and the
        metrics of all.

        A batch whose advantages number the turns gives k1 of every turn (`training.divergence`).
        """
        sums: dict[tuple[str, float], float] = {}
        seen: list[tuple[Tensor, Tensor]] = []
        for microbatch in self._microbatches(batch):
            names = list(dict.fromkeys(sequence.trajectory_id for sequence in microbatch.sequences))
            keys = zip(
                (names[index] for index in trajectory_indices(microbatch)),
                self._masked(microbatch, "advantages").tolist(),
                strict=True,
            )
            seen.append((self._masked(microbatch, "sampled_logprobs"), self._reference(microbatch)))
            differences_M = seen[-1][0] - seen[-1][1]
            for key, difference in zip(keys, differences_M.tolist(), strict=True):
                sums[key] = sums.get(key, 0.0) + difference
        if not seen:
            return {}, {}
        sampled_M, reference_M = (torch.cat(parts) for parts in zip(*seen, strict=True))
        metrics = reference_metrics(sampled_M, reference_M)
        return sums, {f"training/{name}": value for name, value in metrics.items()}

    def _microbatches(self, batch: TrainingBatch) -> Iterator[TrainingBatch]:
        for microbatch in pack(batch, self._max_tokens):
            if microbatch.num_trained_tokens:
                may_go_on()
                yield microbatch if self._policy.is_lean else expanded(microbatch)

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
    def export_state(self) -> AdamWState:
        """A copy of weights and moments, which later steps do not touch."""
        moments: dict[str, Tensor] = {}
        for name, parameter in self._policy.trained.items():
            slot = self._optimizer.state.get(parameter, {})
            moments |= {f"{name}/{key}": slot[key].detach().to("cpu", copy=True) for key in MOMENTS if key in slot}
        weights = self.export_weights().tensors
        return AdamWState(weights={name: tensor.cpu() for name, tensor in weights.items()}, moments=moments)

    @releases_threads
    def load_state(self, directory: Path) -> None:
        """Restore what `AdamWState.write` wrote. Raises DataError naming tensors that do not fit; then nothing is changed."""
        tensors = read_tensors(directory / "weights.safetensors")
        moments = read_tensors(directory / "optimizer.safetensors")
        state: dict[int, dict[str, Tensor]] = {}
        index_of = {id(one): i for i, one in enumerate(p for g in self._optimizer.param_groups for p in g["params"])}
        for name, parameter in self._policy.trained.items():
            slot = {key: moments.pop(f"{name}/{key}") for key in MOMENTS if f"{name}/{key}" in moments}
            fits = all(slot[key].shape == parameter.shape for key in MOMENTS[1:] if key in slot)
            if slot and not (len(slot) == len(MOMENTS) and fits):
                raise DataError(
                    f"{directory}: the optimizer state of {name} does not fit this model; use another checkpoint."
                )
            if slot:
                state[index_of[id(parameter)]] = slot
        if moments:
            raise DataError(
                f"{directory}: the optimizer state has an unknown {next(iter(moments))}; use another checkpoint."
            )
        self.load_weights(Weights(tensors=tensors, fingerprint=""))
        self._optimizer.load_state_dict({"state": state, "param_groups": self._optimizer.state_dict()["param_groups"]})

    def _forward(self, batch: TrainingBatch, *, with_entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [M] of the masked tokens, in segment order."""
        self.num_microbatches += 1
        policy = self._policy
        if not policy.is_lean:
            return sequence_logprobs(policy, batch, with_entropy_gradient=with_entropy_gradient)
        weights, linear = policy.differentiable(self._current())
        return forest_logprobs(
            weights,
            layout(batch.segments, device=policy.device),
            linear=linear,
            with_entropy_gradient=with_entropy_gradient,
        )

    @torch.no_grad()
    def _reference(self, batch: TrainingBatch) -> Tensor:
        """Log-probabilities [M] under the base model: the same weights with the adapter switched off."""
        policy = self._policy
        if not policy.is_lean:
            with policy.module.disable_adapter():
                return sequence_logprobs(policy, batch)[0]
        return forest_logprobs(policy.base_weights(), layout(batch.segments, device=policy.device))[0]

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


@torch.no_grad()
def update_size(optimizer: torch.optim.AdamW) -> float:
    """Norm of the change that the last step made to the trained weights, as a share of their norm. From the moments, so that
    no copy of the weights is kept; without the weight decay."""
    changes, sizes = [], []
    for group in optimizer.param_groups:
        beta1, beta2 = group["betas"]
        for parameter in group["params"]:
            sizes.append(parameter.norm())
            state = optimizer.state.get(parameter)
            if state:
                num_steps = float(state["step"])
                first = state["exp_avg"] / (1 - beta1**num_steps)
                second = state["exp_avg_sq"] / (1 - beta2**num_steps)
                changes.append(group["lr"] * (first / (second.sqrt() + group["eps"])).norm())
    if not changes:
        return 0.0
    return (torch.stack(changes).norm() / torch.stack(sizes).norm().clamp(min=1e-30)).item()
