"""The policy: a transformers causal LM, what of it is trained, and the lean weights made from both.

The transformers model is the only place where base weights live. What is trained is a LoRA adapter (through peft) or
every weight. `snapshot` copies the trained tensors with a fingerprint of their content; `materialize` turns a snapshot
into fused weights with the adapter merged in, once per content, so that an engine and a learner in one process share
them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from sparring.errors import ConfigError, ConfigProblem
from sparring.models.llama import PARTS, Linear, LlamaWeights, fuse, is_supported
from sparring.types import Weights


class Policy:
    """A model, its tokenizer, and which of its weights are trained."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        precision: str = "fp32",
        device: str = "cpu",
        max_positions: int = 2048,
        lora_rank: int | None = None,
        lora_alpha: int = 64,
        lora_targets: tuple[str, ...] = (),
        lora_layers: int | None = None,
        seed: int = 0,
    ) -> None:
        """`lora_rank` None trains every weight; else an adapter is drawn from `seed` and only it is trained.

        `lora_layers` adapts only that many last layers: no gradient goes below them, so less is computed and kept.
        Raises ConfigError when `lora_targets` names no linear layer of this model.
        """
        self.tokenizer = tokenizer
        self.dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
        limit = getattr(model.config, "max_position_embeddings", max_positions)
        self.max_positions = min(max_positions, limit)
        self.device = torch.device(device)
        self.base: Any = model.to(self.device).eval()
        self.is_lean = is_supported(model.config)
        self.lora_config: LoraConfig | None = None
        self.module: Any = self.base
        if lora_rank is not None:
            self.lora_config = LoraConfig(
                r=lora_rank, lora_alpha=lora_alpha, target_modules=list(lora_targets), lora_dropout=0.0,
                bias="none", task_type="CAUSAL_LM", layers_to_transform=_last_layers(model, lora_layers),
            )  # fmt: skip
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                try:
                    self.module = get_peft_model(self.base, self.lora_config)
                except ValueError as error:
                    linears = sorted({n.split(".")[-1] for n, m in model.named_modules() if isinstance(m, nn.Linear)})
                    raise ConfigError(
                        [
                            ConfigProblem(
                                "model.lora_targets", f"{list(lora_targets)} matches no layer; this model has {linears}"
                            )
                        ]
                    ) from error
        self.trained: dict[str, nn.Parameter] = {
            name: parameter for name, parameter in self.module.named_parameters() if parameter.requires_grad
        }
        strange = [name for name in self.trained if self.is_lean and not name.endswith(_known_endings(lora_rank))]
        if strange:
            raise ConfigError(
                [
                    ConfigProblem(
                        "model.lora_targets", f"adapts {strange[0]}, but only linear layers can be; leave it out"
                    )
                ]
            )
        self._frozen: dict[str, Tensor] = {}
        self._base_weights: LlamaWeights | None = None
        self._materialized: WeakValueDictionary[str, LlamaWeights] = WeakValueDictionary()

    @property
    def num_trained(self) -> int:
        return sum(parameter.numel() for parameter in self.trained.values())

    def vocabulary(self) -> list[str]:
        """What each token id stands for, by id; a part of a character is the replacement character."""
        return [self.tokenizer.decode([index], skip_special_tokens=False) for index in range(len(self.tokenizer))]

    def snapshot(self) -> Weights:
        """A copy of the trained tensors, in fp32, with a hash of names, shapes and content."""
        tensors = {name: parameter.detach().clone() for name, parameter in self.trained.items()}
        return Weights(tensors=tensors, fingerprint=fingerprint(tensors))

    def base_fingerprint(self, initial: Weights) -> str:
        """Hash of the model as it was loaded, whatever has been trained since; `initial` is the snapshot from before that."""
        frozen = {
            name.removeprefix("base_model.model.").replace(".base_layer.", "."): parameter
            for name, parameter in self.module.named_parameters() if name not in self.trained
        }  # fmt: skip
        return fingerprint(frozen if self.lora_config is not None else {**frozen, **initial.tensors})

    def misfit(self, tensors: Mapping[str, Tensor]) -> str | None:
        """Why `tensors` cannot be the trained ones: missing, unknown, or of another shape. None if they can."""
        problems = [f"missing {name}" for name in self.trained if name not in tensors]
        problems += [f"unknown {name}" for name in tensors if name not in self.trained]
        problems += [
            f"{name} has shape {tuple(tensor.shape)}, this model needs {tuple(self.trained[name].shape)}"
            for name, tensor in tensors.items()
            if name in self.trained and tensor.shape != self.trained[name].shape
        ]
        if not problems:
            return None
        return "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the trained tensors. Raises ValueError naming those that do not fit."""
        problem = self.misfit(tensors)
        if problem is not None:
            raise ValueError(problem)
        with torch.no_grad():
            for name, parameter in self.trained.items():
                parameter.copy_(tensors[name])

    def materialize(self, weights: Weights) -> LlamaWeights:
        """Fused weights of the computing precision with `weights` merged in; the same object for the same content."""
        cached = self._materialized.get(weights.fingerprint)
        if cached is None:
            cached = self._merge(weights.tensors)
            self._materialized[weights.fingerprint] = cached
        return cached

    def base_weights(self) -> LlamaWeights:
        """Fused weights without the adapter, which share with `materialize` every matrix that is not adapted."""
        assert self.lora_config is not None, "with every weight trained there is no base left"
        if self._base_weights is None:
            self._base_weights = self._merge({})
        return self._base_weights

    def differentiable(self, merged: LlamaWeights) -> tuple[LlamaWeights, Linear | None]:
        """What a training forward runs on: weights (and for an adapter a linear) whose gradients reach `trained`.

        `merged` must be the materialization of the current snapshot.
        """
        config = self.lora_config
        if config is None:
            return self._fuse(lambda _, tensor: tensor.to(self.dtype)), None
        scale = config.lora_alpha / config.r
        first_layer = self.base.model.layers[0]
        heights = {
            name: tuple(first_layer.get_submodule(part).weight.shape[0] for part in parts)
            for name, parts in PARTS.items()
        }

        def linear(index: int, name: str, inputs: Tensor) -> Tensor:
            factors = [
                factor
                for part in PARTS[name]
                for factor in _factors(self.trained, f"model.layers.{index}.{part}.weight")
            ]
            matrix = merged.layers[index].linears[name]
            if all(factor is None for factor in factors):
                return F.linear(inputs, matrix)
            return AdaptedLinear.apply(inputs, matrix, heights[name], scale, *factors)

        return self._with_adapted_head(merged, self.trained), linear

    @torch.no_grad()
    def _merge(self, tensors: Mapping[str, Tensor]) -> LlamaWeights:
        config = self.lora_config
        if config is None:
            return self._fuse(lambda name, _: tensors[name].to(self.dtype, copy=True))
        scale = config.lora_alpha / config.r

        def read(name: str, tensor: Tensor) -> Tensor:
            a, b = _factors(tensors, name)
            if a is None or b is None:
                return tensor.detach().to(self.dtype)
            return torch.addmm(tensor.detach(), b, a, alpha=scale).to(self.dtype)

        def reuse(names: tuple[str, ...], stack: Callable[[], Tensor]) -> Tensor:
            if any(_factors(tensors, name)[0] is not None for name in names):
                return stack()
            key = "+".join(names)
            if not tensors:  # the base alone: its adapted matrices must not pass for frozen ones
                return self._frozen[key] if key in self._frozen else stack()
            if key not in self._frozen:
                self._frozen[key] = stack()
            return self._frozen[key]

        merged = fuse(self.base, max_positions=self.max_positions, read=read, reuse=reuse)
        return self._with_adapted_head(merged, tensors)

    def _with_adapted_head(self, merged: LlamaWeights, tensors: Mapping[str, Tensor]) -> LlamaWeights:
        """An adapted output matrix is its own even where the base ties it to the embedding."""
        a, b = _factors(tensors, "lm_head.weight")
        if a is None or b is None or self.lora_config is None:
            return merged
        scale = self.lora_config.lora_alpha / self.lora_config.r
        head = torch.addmm(self.base.lm_head.weight.detach(), b, a, alpha=scale).to(self.dtype)
        return replace(merged, lm_head=head)

    def _fuse(self, read: Callable[[str, Tensor], Tensor]) -> LlamaWeights:
        return fuse(self.base, max_positions=self.max_positions, read=read)


def _last_layers(model: Any, count: int | None) -> list[int] | None:
    """Indices for peft; None means all. Raises ConfigError for more layers than there are."""
    if count is None:
        return None
    total = model.config.num_hidden_layers
    if count > total:
        raise ConfigError([ConfigProblem("model.lora_layers", f"is {count}, but this model has {total} layers.")])
    return list(range(total - count, total))


def _factors(tensors: Mapping[str, Tensor], name: str) -> tuple[Tensor | None, Tensor | None]:
    """The adapter's A [r, in] and B [out, r] for a base weight, or None twice when it is not adapted."""
    prefix = f"base_model.model.{name.removesuffix('.weight')}"
    return tensors.get(f"{prefix}.lora_A.default.weight"), tensors.get(f"{prefix}.lora_B.default.weight")


def _known_endings(lora_rank: int | None) -> tuple[str, ...]:
    return ("",) if lora_rank is None else ("lora_A.default.weight", "lora_B.default.weight")


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Hash of names, shapes and content; equal exactly when the weights are."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous().cpu()
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.view(torch.uint8).numpy().data)
    return digest.hexdigest()


class AdaptedLinear(torch.autograd.Function):
    """A fused linear layer whose matrix already holds the merged adapter (LoRA, arXiv:2106.09685).

    Forward is one product with W' = W + scale * B A, exactly what the sampler computes. The factors' gradients need
    only low-rank products: dB = scale * dy^T (x A^T), dA = scale * (dy B)^T x; W' itself gets none.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, merged: Tensor, heights: tuple[int, ...], scale: float, *factors: Tensor | None
    ) -> Tensor:
        """`heights` are the rows of each part that `merged` stacks; `factors` are A and B of each, None if bare."""
        ctx.save_for_backward(x, merged, *factors)
        ctx.heights, ctx.scale = heights, scale
        return F.linear(x, merged)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = gradients
        x, merged, *factors = ctx.saved_tensors
        factor_gradients: list[Tensor | None] = []
        for part, a, b in zip(grad.split(ctx.heights, dim=-1), factors[0::2], factors[1::2], strict=True):
            if a is None or b is None:
                factor_gradients += [None, None]
                continue
            factor_gradients.append(((part @ b.to(x.dtype)).T @ x).float() * ctx.scale)
            factor_gradients.append((part.T @ (x @ a.to(x.dtype).T)).float() * ctx.scale)
        return (grad @ merged if ctx.needs_input_grad[0] else None), None, None, None, *factor_gradients
