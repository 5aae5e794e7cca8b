"""The policy: a transformers causal LM, its trained tensors, and the lean weights that are built from both.

Only the transformers model holds the base weights. The trained tensors are a LoRA adapter (through peft) or all weights.
`snapshot` copies the trained tensors with a fingerprint of their content; `materialize` converts a snapshot to fused
weights with the adapter merged in, once per content, so that an engine and a learner in one process share them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from sparring.errors import ConfigError, ConfigProblem
from sparring.models.architectures.families import choose_lora_targets
from sparring.models.llama import PARTS, Linear, LlamaWeights, fuse, is_supported
from sparring.types import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """The shape of a LoRA adapter (arXiv:2106.09685)."""

    rank: int
    alpha: int = 64
    targets: tuple[str, ...] = ()
    """The names of the linear layers, and of the experts' parameters, that are adapted; empty for those of the model's
    family."""
    layers: int | None = None
    """The number of last layers that are adapted; None adapts all. With fewer layers less is computed and stored."""


class Policy:
    """A model with its tokenizer and its trained weights."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        precision: str = "fp32",
        device: str = "cpu",
        max_positions: int = 2048,
        lora: LoraSettings | None = None,
        seed: int = 0,
    ) -> None:
        """Create a policy. `lora` None trains every weight; otherwise only an adapter is trained, initialised from `seed`.

        Raises ConfigError when `lora.targets` names no linear layer of this model.
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
        if lora is not None:
            self.lora_config = _lora_config(model, lora)
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                try:
                    self.module = get_peft_model(self.base, self.lora_config)
                except ValueError as error:
                    linears = sorted({n.split(".")[-1] for n, m in model.named_modules() if isinstance(m, nn.Linear)})
                    raise ConfigError(
                        [
                            ConfigProblem(
                                "model.lora_targets",
                                f"{sorted(self.lora_config.target_modules or ())} matches no layer; this model has {linears}",
                            )
                        ]
                    ) from error
        self.trained: dict[str, nn.Parameter] = {
            name: parameter for name, parameter in self.module.named_parameters() if parameter.requires_grad
        }
        strange = [name for name in self.trained if self.is_lean and not name.endswith(_known_endings(lora))]
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

    def snapshot(self) -> Weights:
        """Return a copy of the trained tensors in fp32, with a hash of names, shapes and content."""
        tensors = {name: parameter.detach().clone() for name, parameter in self.trained.items()}
        return Weights(tensors=tensors, fingerprint=fingerprint(tensors))

    def base_fingerprint(self, initial: Weights) -> str:
        """Return the hash of the model as it was loaded, independent of training since then. `initial` is the snapshot
        from before training."""
        frozen = {
            name.removeprefix("base_model.model.").replace(".base_layer.", "."): parameter
            for name, parameter in self.module.named_parameters()
            if name not in self.trained
        }
        return fingerprint(frozen if self.lora_config is not None else {**frozen, **initial.tensors})

    def misfit(self, tensors: Mapping[str, Tensor]) -> str | None:
        """Return why `tensors` do not fit the trained ones (missing, unknown, or of another shape); None if they do."""
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
        """Set the trained tensors. Raises ValueError that names those that do not fit."""
        problem = self.misfit(tensors)
        if problem is not None:
            raise ValueError(problem)
        with torch.no_grad():
            for name, parameter in self.trained.items():
                parameter.copy_(tensors[name])

    def materialize(self, weights: Weights) -> LlamaWeights:
        """Return fused weights of the computing precision with `weights` merged in; the same object for the same content."""
        cached = self._materialized.get(weights.fingerprint)
        if cached is None:
            cached = self._merge(weights.tensors)
            self._materialized[weights.fingerprint] = cached
        return cached

    def base_weights(self) -> LlamaWeights:
        """Return fused weights without the adapter. They share every matrix that is not adapted with `materialize`."""
        assert self.lora_config is not None, "with every weight trained there is no base left"
        if self._base_weights is None:
            self._base_weights = self._merge({})
        return self._base_weights

    def differentiable(self, merged: LlamaWeights) -> tuple[LlamaWeights, Linear | None]:
        """Return the weights for a training forward (and for an adapter a linear function), whose gradients reach `trained`.

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
            if not tensors:  # only the base: its adapted matrices must not be reused as frozen ones
                return self._frozen[key] if key in self._frozen else stack()
            if key not in self._frozen:
                self._frozen[key] = stack()
            return self._frozen[key]

        merged = fuse(self.base, max_positions=self.max_positions, read=read, reuse=reuse)
        return self._with_adapted_head(merged, tensors)

    def _with_adapted_head(self, merged: LlamaWeights, tensors: Mapping[str, Tensor]) -> LlamaWeights:
        """Return the weights with a separate output matrix where it is adapted, even if the base ties it to the embedding."""
        a, b = _factors(tensors, "lm_head.weight")
        if a is None or b is None or self.lora_config is None:
            return merged
        scale = self.lora_config.lora_alpha / self.lora_config.r
        head = torch.addmm(self.base.lm_head.weight.detach(), b, a, alpha=scale).to(self.dtype)
        return replace(merged, lm_head=head)

    def _fuse(self, read: Callable[[str, Tensor], Tensor]) -> LlamaWeights:
        return fuse(self.base, max_positions=self.max_positions, read=read)


def _lora_config(model: Any, lora: LoraSettings) -> LoraConfig:
    targets = lora.targets or choose_lora_targets(model.config)
    names = [name for name, _ in model.named_parameters()]
    parameters = [target for target in targets if any(name.endswith(f".{target}") for name in names)]
    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=[target for target in targets if target not in parameters],
        target_parameters=parameters or None,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
        layers_to_transform=_last_layers(model, lora.layers),
    )


def _last_layers(model: Any, count: int | None) -> list[int] | None:
    """Return the layer indices for peft; None means all. Raises ConfigError for more layers than there are."""
    if count is None:
        return None
    total = model.config.num_hidden_layers
    if count > total:
        raise ConfigError([ConfigProblem("model.lora_layers", f"is {count}, but this model has {total} layers.")])
    return list(range(total - count, total))


def _factors(tensors: Mapping[str, Tensor], name: str) -> tuple[Tensor | None, Tensor | None]:
    """Return the adapter's A [r, in] and B [out, r] for a base weight, or (None, None) when it is not adapted."""
    prefix = f"base_model.model.{name.removesuffix('.weight')}"
    return tensors.get(f"{prefix}.lora_A.default.weight"), tensors.get(f"{prefix}.lora_B.default.weight")


def _known_endings(lora: LoraSettings | None) -> tuple[str, ...]:
    return ("",) if lora is None else ("lora_A.default.weight", "lora_B.default.weight")


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Return a hash of names, shapes and content, which is equal exactly when the weights are."""
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
        """Compute the product. `heights` are the numbers of rows of the parts that `merged` stacks; `factors` are A and B
        of each, None for a part without an adapter."""
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
