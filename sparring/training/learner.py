"""The learner: it computes gradients, takes optimizer steps, exports weights for the engine, and saves its state."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from sparring.algorithms.losses import LOSSES, PerToken, Tokens, policy_metrics
from sparring.algorithms.objective import Objective, reference_metrics, weight_metrics
from sparring.errors import DataError
from sparring.models.forest import forest_logprobs, layout
from sparring.models.generic_training import checkpoint_layers, sequence_logprobs
from sparring.models.policy import Policy
from sparring.models.threads import releases_threads
from sparring.runtime.cancellable import Cancelled, guard_change, raise_if_cancelled
from sparring.runtime.faults import fault_point
from sparring.training.checkpoints import read_tensors
from sparring.training.packing import pack
from sparring.training.sequences import expand_batch, trained_values, trajectory_indices, with_values
from sparring.training.state import MOMENTS, AdamWState
from sparring.types import TokenSegment, TrainingBatch, TrainingSequence, Weights

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

NOTHING = TrainingBatch(
    segments=(
        TokenSegment(
            parent=None,
            token_ids=(0, 0),
            mask=(False, True),
            sampled_logprobs=(0.0, 0.0),
            advantages=(0.0, 0.0),
            weights=(0.0, 0.0),
            temperature=1.0,
        ),
    ),
    sequences=(TrainingSequence(segments=(0,), trajectory_id=""),),
)
"""A microbatch whose gradient is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamWSettings:
    """The settings of the AdamW optimizer."""

    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    grad_clip_norm: float = 1.0
    """The largest norm of the gradient. With 0, gradients are not clipped."""
    lora_plus_lr_ratio: float = 1.0
    """The learning rate of an adapter's B matrices divided by that of its A matrices (LoRA+, arXiv:2402.12354)."""


ADAMW = AdamWSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """What was computed for the gradient of a batch or of a part of it. M is the number of trained tokens."""

    loss: float
    num_tokens: int
    """The number of tokens that the model computed."""
    num_trained: int
    values: tuple[Tensor, ...]
    """Log-probabilities, sampled log-probabilities, entropies and, with a KL term, reference log-probabilities, each [M];
    empty without trained tokens."""
    effects: Mapping[str, Tensor]
    """The effects [M] of the objective, by metric."""
    is_supervised: bool


def gradient_metrics(parts: Sequence[Gradient]) -> dict[str, float]:
    """Return the metrics of a batch from those of its parts."""
    metrics = {
        "loss": sum(part.loss for part in parts),
        "tokens": float(sum(part.num_tokens for part in parts)),
        "trained_tokens": float(sum(part.num_trained for part in parts)),
    }
    parts = [part for part in parts if part.values]
    if parts:
        logprobs_M, sampled_M, entropies_M, *references = (
            torch.cat(values) for values in zip(*(part.values for part in parts), strict=True)
        )
        metrics["entropy"] = entropies_M.mean().item()
        effects = {name: torch.cat([part.effects[name] for part in parts]) for name in parts[0].effects}
        metrics |= {name: effect_M.mean().item() for name, effect_M in effects.items()}
        if "correction/weight" in effects:
            metrics |= weight_metrics(effects["correction/weight"])
        if references:
            metrics |= reference_metrics(logprobs_M, references[0])
        if not parts[0].is_supervised:  # a demonstration was not sampled by a policy
            metrics |= {name: value.item() for name, value in policy_metrics(logprobs_M, sampled_M).items()}
    return {f"training/{name}": value for name, value in metrics.items()}


@final
class TorchLearner:
    """Trains a policy in this process, with AdamW (arXiv:1711.05101). Implements `protocols.Learner`."""

    def __init__(
        self,
        policy: Policy,
        *,
        adam: AdamWSettings = ADAMW,
        max_tokens_per_microbatch: int = 8192,
        activation_checkpointing: bool = False,
        losses: Mapping[str, Callable[..., PerToken]] = LOSSES,
    ) -> None:
        """Create a learner. `max_tokens_per_microbatch` counts distinct tokens. `activation_checkpointing` keeps only the input
        of each layer for the backward pass, which computes the layer again."""
        self._policy = policy
        self._checkpointing = activation_checkpointing
        if activation_checkpointing and not policy.is_lean:
            checkpoint_layers(policy)
        self._adam = adam
        self._max_tokens = max_tokens_per_microbatch
        self._losses = losses
        self.num_microbatches = 0
        """The number of computed microbatches so far. It shows that a long step still makes progress."""
        self._num_computed = 0
        """The number of tokens that went through the policy so far."""
        self._agree: Callable[[int], int] | None = None
        self.reset_optimizer()

    def shard(self, mesh: DeviceMesh, agree: Callable[[int], int]) -> None:
        """Divide the weights among the ranks of a mesh. Those that are trained get a new optimizer, but an adapter, which is
        not divided, keeps its own. From now on, all computations except `load_weights` and `load_state` are collective.

        `agree` returns the largest number that a rank passes to it. Ranks with fewer microbatches than others compute some
        that change nothing.
        """
        self._policy.shard(mesh)
        self._checkpointing, self._agree = True, agree
        if self._policy.is_sharded:
            self.reset_optimizer()

    def reset_optimizer(self) -> None:
        """Delete moments and gradients, so that the next phase starts with a new optimizer on the current weights."""
        slow = [one for name, one in self._policy.trained.items() if ".lora_B." not in name]
        fast = [one for name, one in self._policy.trained.items() if ".lora_B." in name]
        groups = [{"params": slow, "ratio": 1.0}, {"params": fast, "ratio": self._adam.lora_plus_lr_ratio}]
        self._optimizer = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=0.0,
            betas=(self._adam.beta1, self._adam.beta2),
            eps=self._adam.eps,
            weight_decay=self._adam.weight_decay,
        )
        self._optimizer.zero_grad()
        self._forget_weights()

    @releases_threads
    def forward_backward(
        self,
        batch: TrainingBatch,
        loss_fn: str,
        loss_config: Mapping[str, Any],
        old_logprobs: Sequence[float] | None = None,
    ) -> dict[str, float]:
        """Add the gradient of sum(weight * loss). If the loss is not finite, the gradients are cleared and DataError is
        raised.

        `old_logprobs` is the result of `logprobs(batch)` before the step. Only `policy_ratio = "three_policy"` reads
        it; None stands for the current log-probabilities. `training/tokens` counts the tokens that the model computed:
        a token that two microbatches need is counted twice, and one that several trajectories share, once.
        """
        return gradient_metrics([self.add_gradient(batch, loss_fn, loss_config, old_logprobs)])

    @releases_threads
    def add_gradient(
        self,
        batch: TrainingBatch,
        loss_fn: str,
        loss_config: Mapping[str, Any],
        old_logprobs: Sequence[float] | None = None,
    ) -> Gradient:
        """Do what `forward_backward` does, and return the values from which its metrics are computed."""
        return self._run_objective(batch, self._backward, loss_fn, loss_config, old_logprobs)

    @releases_threads
    @torch.no_grad()
    def evaluate_loss(self, batch: TrainingBatch, loss_fn: str, loss_config: Mapping[str, Any]) -> Gradient:
        """Return what `add_gradient` returns, without a gradient."""

        def evaluate(*arguments: Any) -> tuple[float, tuple[Tensor, ...], dict[str, Tensor]]:
            loss, values, effects = self._compute_loss(*arguments)
            return loss.item(), values, effects

        return self._run_objective(batch, evaluate, loss_fn, loss_config)

    def find_order(self, batch: TrainingBatch) -> list[int]:
        """Return, for each of the values of this batch's `Gradient`, its place among the trained tokens in segment order."""
        microbatches = self._microbatches(with_values(batch, range(batch.num_trained_tokens)))
        return [int(place) for one in microbatches for place in trained_values(one, "sampled_logprobs")]

    def _run_objective(
        self,
        batch: TrainingBatch,
        compute: Callable[..., tuple[float, tuple[Tensor, ...], dict[str, Tensor]]],
        loss_fn: str,
        loss_config: Mapping[str, Any],
        old_logprobs: Sequence[float] | None = None,
    ) -> Gradient:
        """Call `compute` for each microbatch, and return the values of all."""
        objective = Objective.from_config(loss_fn, loss_config, self._losses)
        total, num_before = 0.0, self._num_computed
        values: list[tuple[Tensor, ...]] = []
        effects: dict[str, list[Tensor]] = {}
        microbatches = self._microbatches(batch)
        old_batches: Sequence[TrainingBatch | None] = [None] * len(microbatches)
        if objective.is_three_policy and old_logprobs is not None:
            old_batches = self._microbatches(with_values(batch, old_logprobs))

        def add(microbatch: TrainingBatch, old_batch: TrainingBatch | None) -> None:
            nonlocal total
            loss, found, changes = compute(objective, microbatch, old_batch)
            fault_point("learner.microbatch")
            total += loss
            values.append(found)
            for name, effect_M in changes.items():
                effects.setdefault(name, []).append(effect_M)

        self._run_passes(
            [partial(add, *pair) for pair in zip(microbatches, old_batches, strict=True)],
            idle=lambda: compute(objective, NOTHING, None),
        )
        return Gradient(
            loss=total,
            num_tokens=self._num_computed - num_before,
            num_trained=batch.num_trained_tokens,
            values=tuple(torch.cat(parts) for parts in zip(*values, strict=True)),
            effects={name: torch.cat(parts) for name, parts in effects.items()},
            is_supervised=objective.is_supervised,
        )

    def gradients(self) -> list[Tensor]:
        """Return the accumulated gradient of each trained tensor. Tensors without a gradient get zeros. The gradients of
        sharded tensors are not returned; they are already those of all ranks."""
        if self._policy.is_sharded:
            return []
        for parameter in self._policy.trained.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [parameter.grad for parameter in self._policy.trained.values() if parameter.grad is not None]

    def clear_gradient(self) -> None:
        self._optimizer.zero_grad()

    @property
    def has_shards(self) -> bool:
        """Whether the weights are divided among the ranks of a group, except an adapter."""
        return self._agree is not None

    @property
    def is_sharded(self) -> bool:
        """Whether the trained weights are divided among the ranks of a group."""
        return self._policy.is_sharded

    @property
    def device(self) -> torch.device:
        return self._policy.device

    def identify(self) -> str:
        """Return a text that is equal for learners with the same base model, trained tensors, optimizer and losses."""
        trained = ", ".join(f"{name} {tuple(one.shape)}" for name, one in sorted(self._policy.trained.items()))
        base = self._policy.base_fingerprint(self.export_weights()) if self._policy.lora_config is not None else "none"
        lora = self._policy.lora_config
        scale = "none" if lora is None else f"{lora.r} {lora.lora_alpha}"
        text = f"{trained}\n{scale}\n{self._policy.dtype}\n{self._adam}\n{sorted(self._losses)}"
        return f"base {base[:12]}, settings {hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def _backward(
        self, objective: Objective, microbatch: TrainingBatch, old_batch: TrainingBatch | None
    ) -> tuple[float, tuple[Tensor, ...], dict[str, Tensor]]:
        """Add the gradient of one microbatch. Return its loss, and the values and effects of `_compute_loss`.

        No returned tensor refers to the graph. Otherwise, the graph's nodes would stay in memory between the freed
        activations, and the next microbatch could not use that memory again.
        """
        loss, values, effects = self._compute_loss(objective, microbatch, old_batch)
        is_finite = bool(torch.isfinite(loss))
        if is_finite or self._agree is not None:  # the other ranks wait for the backward pass
            fault_point("learner.forward")
            loss.backward()
        if not is_finite:
            self._optimizer.zero_grad()
            raise DataError(
                f"the loss of a microbatch of {microbatch.num_trained_tokens} tokens is {loss.item()}; nothing was "
                "trained on it. Lower optimizer.learning_rate, or resume from the last checkpoint."
            )
        return (
            loss.item(),
            tuple(value.detach() for value in values),
            {name: one.detach() for name, one in effects.items()},
        )

    def _compute_loss(
        self, objective: Objective, microbatch: TrainingBatch, old_batch: TrainingBatch | None
    ) -> tuple[Tensor, tuple[Tensor, ...], dict[str, Tensor]]:
        """Return the loss of one microbatch, its values [M] (log-probabilities, sampled log-probabilities, entropies and,
        with a KL term, reference log-probabilities), and the effects [M] of the objective."""
        logprobs_M, entropies_M = self._forward(microbatch, with_entropy_gradient=objective.entropy_coef > 0)
        sampled_M = self._masked(microbatch, "sampled_logprobs")
        references = (self._reference(microbatch),) if objective.kl_coef > 0 else ()
        if not objective.is_three_policy:
            before_M = sampled_M
        else:
            before_M = logprobs_M.detach() if old_batch is None else self._masked(old_batch, "sampled_logprobs")
        tokens = Tokens(
            logprobs_M=logprobs_M,
            old_M=before_M,
            advantages_M=self._masked(microbatch, "advantages"),
            trajectory_M=torch.tensor(trajectory_indices(microbatch), device=self._policy.device),
        )
        loss_M, effects = objective(
            tokens, sampled_M=sampled_M, entropies_M=entropies_M, reference_M=references[0] if references else None
        )
        loss = (loss_M * self._masked(microbatch, "weights")).sum()
        return loss, (logprobs_M, sampled_M, entropies_M, *references), effects

    @releases_threads
    def optim_step(self, learning_rate: float, adam: AdamWSettings | None = None) -> dict[str, float]:
        """Take one AdamW step, and return its metrics. `adam` replaces the learner's settings from now on. If the gradient is
        not finite, the weights stay unchanged, the gradients are cleared, and DataError is raised."""
        self._adam = adam or self._adam
        parameters = list(self._policy.trained.values())
        norm = self._clip_gradient(parameters)
        if not math.isfinite(norm):
            self._optimizer.zero_grad()
            raise DataError(
                f"the gradient norm is {norm}; the step was not taken. Lower optimizer.learning_rate, or resume from "
                "the last checkpoint."
            )
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate * group["ratio"]
            group["betas"], group["eps"] = (self._adam.beta1, self._adam.beta2), self._adam.eps
            group["weight_decay"] = self._adam.weight_decay
        fault_point("learner.optimizing")
        with guard_change():
            self._optimizer.step()
        fault_point("learner.optimized")
        self._optimizer.zero_grad()
        self._forget_weights()
        return {
            "training/grad_norm": norm,
            "training/learning_rate": learning_rate,
            "training/update_size": update_size(self._optimizer, is_sharded=self._policy.is_sharded),
        }

    def _clip_gradient(self, parameters: Sequence[Tensor]) -> float:
        """Limit the norm of the gradient, and return the norm before."""
        norm = torch.nn.utils.clip_grad_norm_(parameters, self._adam.grad_clip_norm or math.inf)
        if self._policy.is_sharded:
            from sparring.models.sharded import gather

            norm = gather(norm)
        return norm.item()

    @releases_threads
    def export_weights(self) -> Weights:
        """Return the current weights. The same object is returned until the next optimizer step."""
        if self._snapshot is None:
            self._snapshot = self._policy.snapshot()
        return self._snapshot

    @releases_threads
    @torch.no_grad()
    def logprobs(self, batch: TrainingBatch) -> list[float]:
        """Return the log-probability of each trained token under the current weights, in segment order."""
        return self._in_order(batch, lambda microbatch: self._forward(microbatch, with_entropy=False)[0])

    @releases_threads
    @torch.no_grad()
    def reference_logprobs(self, batch: TrainingBatch) -> list[float]:
        """Return the log-probability of each trained token under the base model, in segment order."""
        return self._in_order(batch, self._reference)

    def _in_order(self, batch: TrainingBatch, compute: Callable[[TrainingBatch], Tensor]) -> list[float]:
        """Call `compute` for each microbatch, and return its values for the trained tokens in the segment order of the
        whole batch."""
        found = [0.0] * batch.num_trained_tokens

        def add(microbatch: TrainingBatch) -> None:
            places = trained_values(microbatch, "sampled_logprobs")
            for place, value in zip(places, compute(microbatch).tolist(), strict=True):
                found[int(place)] = value

        microbatches = self._microbatches(with_values(batch, range(len(found))))
        self._run_passes([partial(add, one) for one in microbatches], idle=lambda: compute(NOTHING))
        return found

    def close(self) -> None:
        """Do nothing: the caller owns the policy."""

    def _microbatches(self, batch: TrainingBatch) -> list[TrainingBatch]:
        return [
            microbatch if self._policy.is_lean else expand_batch(microbatch)
            for microbatch in pack(batch, self._max_tokens)
            if microbatch.num_trained_tokens
        ]

    def _run_passes(self, passes: Sequence[Callable[[], object]], *, idle: Callable[[], object]) -> None:
        """Run all passes. A cancellation ends them between two passes.

        With sharded weights, all ranks run the same number of passes: `idle` takes the place of those that a rank lacks, or
        that come after its error, which is raised at the end.
        """
        if self._agree is None:
            for run in passes:
                raise_if_cancelled()
                run()
            return
        failure: DataError | Cancelled | None = None
        for number in range(self._agree(len(passes))):
            try:
                raise_if_cancelled()
            except Cancelled as error:
                failure = failure or error
            if failure is not None or number >= len(passes):
                idle()
                continue
            try:
                passes[number]()
            except DataError as error:
                failure = error
        if failure is not None:
            raise failure

    @releases_threads
    def load_weights(self, weights: Weights) -> None:
        """Continue from the given weights with a new optimizer. Raises DataError, which lists the tensors that do not
        fit."""
        try:
            self._policy.restore(weights.tensors)
        except ValueError as error:
            raise DataError(
                f"these weights do not fit this model: {error}. Use the recipe they were trained with."
            ) from error
        self.reset_optimizer()

    @releases_threads
    def export_state(self) -> AdamWState:
        """Return a copy of the weights and moments, which later steps do not change. If they are sharded, ranks other than 0
        get an empty one."""
        moments: dict[str, Tensor] = {}
        for name, parameter in self._policy.trained.items():
            slot = self._optimizer.state.get(parameter, {})
            for key in (key for key in MOMENTS if key in slot):
                whole = self._whole(slot[key].detach())
                if whole is not None:
                    moments[f"{name}/{key}"] = whole.to("cpu", copy=True)
        weights = self.export_weights().tensors
        return AdamWState(weights={name: tensor.cpu() for name, tensor in weights.items()}, moments=moments)

    @releases_threads
    def load_state(self, directory: Path) -> None:
        """Restore a state that `AdamWState.write` wrote. If tensors do not fit, nothing is changed, and DataError is
        raised with their names."""
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
                state[index_of[id(parameter)]] = {
                    key: value if key == "step" else self._policy.place(value, name) for key, value in slot.items()
                }
        if moments:
            raise DataError(
                f"{directory}: the optimizer state has an unknown {next(iter(moments))}; use another checkpoint."
            )
        self.load_weights(Weights(tensors=tensors, fingerprint=""))
        self._optimizer.load_state_dict({"state": state, "param_groups": self._optimizer.state_dict()["param_groups"]})

    def _forward(
        self, batch: TrainingBatch, *, with_entropy: bool = True, with_entropy_gradient: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities and entropies [M] of the masked tokens, in segment order."""
        self.num_microbatches += 1
        policy = self._policy
        if not policy.is_lean:
            self._num_computed += sum(len(segment.token_ids) for segment in batch.segments)
            return sequence_logprobs(policy, batch, with_entropy_gradient=with_entropy_gradient)
        forest = layout(batch.segments, device=policy.device)
        self._num_computed += len(forest.ids_N)
        return policy.run(
            lambda weights: forest_logprobs(
                weights,
                forest,
                with_entropy=with_entropy,
                with_entropy_gradient=with_entropy_gradient,
                checkpointing=self._checkpointing,
                trunk=policy.trunk,
            )
        )

    @torch.no_grad()
    def _reference(self, batch: TrainingBatch) -> Tensor:
        """Return the log-probabilities [M] under the base model, that is, with the same weights but without the
        adapter."""
        policy = self._policy
        if not policy.is_lean:
            with policy.module.disable_adapter():
                return sequence_logprobs(policy, batch)[0]
        forest = layout(batch.segments, device=policy.device)
        return policy.run(
            lambda weights: forest_logprobs(weights, forest, with_entropy=False, trunk=policy.trunk)[0],
            with_adapter=False,
        )

    def _masked(self, batch: TrainingBatch, name: str) -> Tensor:
        """Return the values [M] of a segment field at the masked tokens."""
        return torch.tensor(trained_values(batch, name), dtype=torch.float32, device=self._policy.device)

    def _whole(self, tensor: Tensor) -> Tensor | None:
        """Return the whole tensor, or None if the tensors are sharded and this is not rank 0."""
        if not self._policy.is_sharded:
            return tensor
        from sparring.models.sharded import gather

        whole = gather(tensor)
        return whole if torch.distributed.get_rank() == 0 else None

    def _forget_weights(self) -> None:
        self._snapshot: Weights | None = None


@torch.no_grad()
def update_size(optimizer: torch.optim.AdamW, *, is_sharded: bool = False) -> float:
    """Return the norm of the change that the last step made to the trained weights, as a share of their norm. The norm
    is computed from the moments, without weight decay, so that no copy of the weights is needed."""
    changes, sizes = [], []
    for group in optimizer.param_groups:
        beta1, beta2 = group["betas"]
        for parameter in group["params"]:
            sizes.append(_local(parameter).norm())
            state = optimizer.state.get(parameter)
            if state:
                num_steps = float(state["step"])
                first = _local(state["exp_avg"]) / (1 - beta1**num_steps)
                second = _local(state["exp_avg_sq"]) / (1 - beta2**num_steps)
                changes.append(group["lr"] * (first / (second.sqrt() + group["eps"])).norm())
    if not changes:
        return 0.0
    norms = torch.stack((torch.stack(changes).norm(), torch.stack(sizes).norm()))
    if is_sharded:
        from sparring.models.sharded import add_norms

        norms = add_norms(norms)
    return (norms[0] / norms[1].clamp(min=1e-30)).item()


def _local(tensor: Any) -> Tensor:
    """Return the part of a tensor that this rank holds."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
