"""The policy: a transformers causal LM, its trained tensors, and the weights for the lean forward pass, which are built
from both.

The trained tensors are a LoRA adapter (through peft) or all weights. With an adapter, the base weights are stored once,
frozen and in their own precision. The matrices of the transformers model are views of the fused matrices. The learner
and an engine in this process both use these. `snapshot` copies the trained tensors with a fingerprint of their content.
`materialize` converts a snapshot to the weights that an engine samples with, only once for the same content.
"""

from __future__ import annotations

import copy
import hashlib
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from sparring.errors import ConfigError, ConfigProblem
from sparring.models.architectures.families import choose_lora_targets
from sparring.models.llama import (
    PARTS,
    LayerWeights,
    LlamaWeights,
    fuse,
    fuse_layer,
    fuse_with_layers,
    is_supported,
)
from sparring.models.products import AdaptedMatrix, Matrix, join_adapters
from sparring.models.trunk import TrunkCache
from sparring.runtime.machine import count_processors
from sparring.types import Weights

if TYPE_CHECKING:
    from peft import LoraConfig  # imported where an adapter is made: the import takes seconds
    from torch.distributed.device_mesh import DeviceMesh

    from sparring.models.sharded import ShardedModel

Result = TypeVar("Result")

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
HASHED_IN_PARALLEL = 2**29
"""The total number of values from which tensors are hashed in parallel."""
HASHED_AT_ONCE = 2**22
"""The number of values that a thread converts to fp32 at once: 16 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """The shape of a LoRA adapter (arXiv:2106.09685)."""

    rank: int
    alpha: int = 64
    targets: tuple[str, ...] = ()
    """The names of the linear layers, and of the experts' parameters, that are adapted; empty for those of the model's
    family."""
    is_merged: bool | None = None
    """Whether an engine's weights have the adapter merged in; None chooses the faster option for the device."""
    layers: int | None = None
    """The number of last layers that are adapted; None adapts all. With fewer layers, less is computed and stored."""


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
        base_precision: str | None = None,
    ) -> None:
        """Create a policy. If `lora` is None, every weight is trained; otherwise only an adapter is trained, which is
        initialized from `seed`.

        `base_precision` is the precision of the frozen weights of a model with an adapter; None keeps the precision of
        `model`.

        Raises ConfigError if `lora.targets` matches no linear layer of this model, or if its forward pass cannot
        compute with frozen weights in this precision.
        """
        self.tokenizer = tokenizer
        self.dtype = DTYPES[precision]
        limit = getattr(model.config, "max_position_embeddings", max_positions)
        self.max_positions = min(max_positions, limit)
        self.device = torch.device(device)
        self.base: Any = model.to(self.device).eval()
        self.is_lean = is_supported(model.config)
        self.is_merged = lora is None or (self.device.type == "cpu" if lora.is_merged is None else lora.is_merged)
        self._set_base_dtype(None if base_precision is None else DTYPES[base_precision], is_trained=lora is None)
        self.lora_config: LoraConfig | None = None
        self.module: Any = self.base
        if lora is not None:
            self.lora_config = _lora_config(model, lora)
            self.module = _adapt_model(self.base, self.lora_config, seed)
        self.trained: dict[str, nn.Parameter] = {
            name: parameter for name, parameter in self.module.named_parameters() if parameter.requires_grad
        }
        strange = [name for name in self.trained if self.is_lean and not name.endswith(_known_endings(lora))]
        if strange:
            raise ConfigError(
                [
                    ConfigProblem(
                        "model.lora_targets",
                        f"adapts {strange[0]}, but only linear layers can be adapted; leave it out",
                    )
                ]
            )
        self._base_weights: LlamaWeights | None = None
        self._heights = _heights(self.base) if self.is_lean and lora is not None else {}
        self._shards: ShardedModel | None = None
        self._converted: dict[int, Tensor] = {}
        """Copies of base matrices in the precision of the products, by identity, for weights with a merged adapter."""
        self.trunk: TrunkCache | None = None
        """The outputs of the frozen layers, if an engine keeps them."""
        self._materialized: WeakValueDictionary[str, LlamaWeights] = WeakValueDictionary()

    @property
    def num_frozen_layers(self) -> int:
        """The number of layers below the first one that is trained."""
        if self.lora_config is None:
            return 0
        numbers = (re.search(r"\.layers\.(\d+)\.", name) for name in self.trained)
        trained = [int(number[1]) for number in numbers if number is not None]
        return min(trained, default=len(self.base.model.layers))

    def keep_trunk(self, max_tokens: int) -> None:
        """From now on, keep the outputs of the frozen layers for up to `max_tokens` token histories, if the model has
        frozen layers."""
        if self.is_lean and self.trunk is None and 0 < self.num_frozen_layers < len(self.base.model.layers):
            self.trunk = TrunkCache(
                num_layers=self.num_frozen_layers,
                hidden_size=self.base.config.hidden_size,
                max_tokens=max_tokens,
                dtype=self.dtype,
                device=self.device,
            )

    def add_adapter(self, lora: LoraSettings, *, seed: int) -> Policy:
        """Return a policy with an adapter of its own, initialized from `seed`, over the frozen weights of this policy, which
        both share. This policy must have the Llama architecture and an adapter."""
        weights = self.base_weights()
        frozen = chain(self.module.parameters(), self.module.buffers())
        memo: dict[int, Any] = {id(one): one for one in frozen if not one.requires_grad}
        model = copy.deepcopy(self.module, memo).unload()
        added = Policy(
            model,
            self.tokenizer,
            precision=next(name for name, dtype in DTYPES.items() if dtype == self.dtype),
            device=str(self.device),
            max_positions=self.max_positions,
            lora=lora,
            seed=seed,
        )
        added._base_weights = weights
        return added

    @property
    def num_trained(self) -> int:
        return sum(parameter.numel() for parameter in self.trained.values())

    def snapshot(self) -> Weights:
        """Return a copy of the trained tensors in fp32, with a hash of names, shapes and content.

        If they are sharded, all ranks must call this, and the copy of rank 0 is on the CPU; the others get no tensors.
        """
        if self.is_sharded:
            return self._gather()
        tensors = {name: parameter.detach().clone() for name, parameter in self.trained.items()}
        return Weights(tensors=tensors, fingerprint=fingerprint(tensors))

    def base_fingerprint(self, initial: Weights) -> str:
        """Return the hash of the model as it was loaded, regardless of any training since then. `initial` is the
        snapshot from before training."""
        frozen = {
            name.removeprefix("base_model.model.").replace(".base_layer.", "."): parameter
            for name, parameter in self.module.named_parameters()
            if name not in self.trained
        }
        return fingerprint(frozen if self.lora_config is not None else {**frozen, **initial.tensors})

    def misfit(self, tensors: Mapping[str, Tensor]) -> str | None:
        """Return why `tensors` do not fit the trained tensors (missing, unknown, or a different shape), or None if they
        fit."""
        problems = [f"missing {name}" for name in self.trained if name not in tensors]
        problems += [f"unknown {name}" for name in tensors if name not in self.trained]
        problems += [
            f"{name} has shape {tuple(tensor.shape)}, but this model needs {tuple(self.trained[name].shape)}"
            for name, tensor in tensors.items()
            if name in self.trained and tensor.shape != self.trained[name].shape
        ]
        if not problems:
            return None
        return "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the trained tensors. Raises ValueError, which lists the tensors that do not fit."""
        problem = self.misfit(tensors)
        if problem is not None:
            raise ValueError(problem)
        with torch.no_grad():
            for name, parameter in self.trained.items():
                parameter.copy_(self.place(tensors[name], name))

    def place(self, whole: Tensor, name: str) -> Tensor:
        """Return the part of a value of a trained tensor that this process holds: all of it unless it is sharded."""
        if not self.is_sharded:
            return whole
        from sparring.models.sharded import shard_like

        return shard_like(whole, self.trained[name])

    def shard(self, mesh: DeviceMesh) -> None:
        """Divide the weights among the ranks of a mesh, and move them to its device. An adapter stays whole in each rank.

        From now on, the policy computes only with `run`, which is collective. Raises the errors of `check_sharding`.
        """
        from sparring.models.sharded import ShardedModel

        self.check_sharding()
        self._base_weights = None
        self.device = torch.device(mesh.device_type)
        kept = [] if self.lora_config is None else list(self.trained.values())
        for parameter in kept:
            parameter.data = parameter.data.to(self.device)
        self._shards = ShardedModel(self.base, mesh, whole=kept)
        self.trained = {name: one for name, one in self.module.named_parameters() if one.requires_grad}

    def check_sharding(self) -> None:
        """Raise ConfigError if the weights of this model cannot be divided among ranks."""
        if not self.is_lean:
            message = (
                f"is set, but only models with the Llama architecture can be divided among ranks, and this is a "
                f"{type(self.base).__name__}. Leave it out."
            )
            raise ConfigError([ConfigProblem("learner.shard_weights", message)])

    @property
    def is_sharded(self) -> bool:
        """Whether this process holds only a part of the trained tensors."""
        return self._shards is not None and self.lora_config is None

    def run(self, compute: Callable[[LlamaWeights], Result], *, with_adapter: bool = True) -> Result:
        """Return `compute(weights)`, whose gradients reach `trained`. Without the adapter, the weights are those that training
        does not change."""
        if self._shards is not None:
            return self._shards(lambda: compute(self._read_shards(with_adapter)))
        return compute(self.differentiable() if with_adapter else self.base_weights())

    def materialize(self, weights: Weights) -> LlamaWeights:
        """Return the weights that an engine computes with. For the same content, the same object is returned."""
        cached = self._materialized.get(weights.fingerprint)
        if cached is None:
            if self.lora_config is None:
                cached = self._fuse(lambda name, _: weights.tensors[name].to(self.device, self.dtype, copy=True))
            else:
                tensors = self.move(weights)
                cached = self._merge(tensors) if self.is_merged else self._adapt(tensors, joined=True)
            self._materialized[weights.fingerprint] = cached
        return cached

    def move(self, weights: Weights) -> dict[str, Tensor]:
        """Return the trained tensors on the policy's device. The tensors of a file are on the CPU."""
        return {name: tensor.to(self.device) for name, tensor in weights.tensors.items()}

    def base_weights(self) -> LlamaWeights:
        """Return the fused weights without the adapter, which training does not change."""
        assert self.lora_config is not None, "with every weight trained there is no base left"
        if self._base_weights is None:
            self._base_weights = self._hold_base()
        return self._base_weights

    def differentiable(self) -> LlamaWeights:
        """Return the weights for a forward pass in training, whose gradients reach `trained`."""
        if self.lora_config is None:
            return self._fuse(self._read_trained)
        return self._adapt(self.trained)

    def _set_base_dtype(self, dtype: torch.dtype | None, *, is_trained: bool) -> None:
        """Convert the parameters. Buffers are not converted, since the rotary frequencies need fp32."""
        if is_trained:
            dtype = torch.float32  # the optimizer changes these, and bf16 would round most of its steps away
        elif not self.is_lean and self.dtype == torch.float32:
            if dtype == torch.bfloat16:
                message = (
                    "is bf16. Products in fp32 with weights in bf16 need a model with the Llama architecture, but this is a "
                    f"{type(self.base).__name__}. Set it to fp32, or model.precision to bf16."
                )
                raise ConfigError([ConfigProblem("model.base_precision", message)])
            dtype = torch.float32
        if dtype is not None:
            for parameter in self.base.parameters():
                parameter.data = parameter.data.to(dtype)

    @torch.no_grad()
    def _hold_base(self) -> LlamaWeights:
        """Return the fused base weights, and make the matrices of the transformers model views of them."""
        if self.device.type == "cpu":
            # Fusing copies some of the parameters. As long as others are in a mapped file, the whole file stays in memory.
            fused = tuple(part for parts in PARTS.values() if len(parts) > 1 for part in parts)
            for name, parameter in self.base.named_parameters():
                if not any(f".{part}." in name for part in fused):
                    parameter.data = parameter.data.clone()

        return fuse(self.base, max_positions=self.max_positions, read=self._read_frozen, stack=_stack_in_place)

    def _read_frozen(self, _: str, tensor: Tensor) -> Tensor:
        return tensor.detach().to(self.dtype) if tensor.ndim == 1 else tensor

    def _read_trained(self, _: str, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype)

    def _read_shards(self, with_adapter: bool) -> LlamaWeights:
        """Return weights that are read from the parameters of a layer whenever it is computed."""
        from sparring.models.sharded import LazyLayers

        assert self._shards is not None, "the weights are sharded"
        read = self._read_trained if self.lora_config is None else self._read_frozen
        tensors = self.trained if with_adapter and self.lora_config is not None else {}

        def read_layer(index: int) -> LayerWeights:
            return self._adapt_layer(index, fuse_layer(self.base, index, read=read), tensors)

        layers = LazyLayers(len(self.base.model.layers), read_layer)
        weights = fuse_with_layers(self.base, layers, max_positions=self.max_positions, read=read)
        head = self._adapt_head(weights.lm_head, tensors)
        return replace(weights, lm_head=head, run_with_layer=self._shards.run_with_layer)

    def _gather(self) -> Weights:
        from sparring.models.sharded import gather

        tensors: dict[str, Tensor] = {}
        for name, parameter in self.trained.items():
            whole = gather(parameter.detach())
            if torch.distributed.get_rank() == 0:
                tensors[name] = whole.to("cpu", copy=True)
        return Weights(tensors=tensors, fingerprint=fingerprint(tensors) if tensors else "")

    def _adapt(self, tensors: Mapping[str, Tensor], *, joined: bool = False) -> LlamaWeights:
        """Return the base weights with an adapter that is not merged into them. With `joined`, the adapters of a fused
        matrix are copied into one, in the precision of the products."""

        base = self.base_weights()
        layers = tuple(self._adapt_layer(*one, tensors, joined=joined) for one in enumerate(base.layers))
        return replace(base, layers=layers, lm_head=self._adapt_head(base.lm_head, tensors))

    def _adapt_layer(
        self, index: int, layer: LayerWeights, tensors: Mapping[str, Tensor], *, joined: bool = False
    ) -> LayerWeights:
        def adapt(name: str, matrix: Tensor) -> Matrix:
            factors = self._factors_of(tensors, index, name)
            if all(factor is None for factor in factors):
                return matrix
            adapted = AdaptedMatrix(base_O_I=matrix, heights=self._heights[name], scale=self._scale, factors=factors)
            return join_adapters(adapted, self.dtype) if joined else adapted

        return _replace_linears(layer, adapt)

    def _adapt_head(self, head: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the output matrix. Its adapter is always merged, and the result is separate from the embedding even if the
        base model ties them."""
        a, b = _factors(tensors, "lm_head.weight")
        return head if a is None or b is None else self._merged(self.base.lm_head.weight, a, b)

    @torch.no_grad()
    def _merge(self, tensors: Mapping[str, Tensor]) -> LlamaWeights:
        """Return the weights in the precision of the products, with the adapter merged into copies of the adapted
        matrices."""

        def merge(index: int, name: str, matrix: Tensor) -> Tensor:
            factors = self._factors_of(tensors, index, name)
            if all(factor is None for factor in factors):
                return self._convert(matrix)
            pieces = [
                part.to(self.dtype) if a is None or b is None else self._merged(part, a, b)
                for part, a, b in zip(matrix.split(self._heights[name]), factors[0::2], factors[1::2], strict=True)
            ]
            return torch.cat(pieces) if len(pieces) > 1 else pieces[0]

        base = self.base_weights()
        layers = tuple(_replace_linears(layer, partial(merge, index)) for index, layer in enumerate(base.layers))
        head = self._adapt_head(self._convert(base.lm_head), tensors)
        return replace(base, embed=self._convert(base.embed), lm_head=head, layers=layers)

    def _merged(self, matrix: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.addmm(matrix.detach().float(), b, a, alpha=self._scale).to(self.dtype)

    def _convert(self, matrix: Tensor) -> Tensor:
        if matrix.dtype == self.dtype:
            return matrix
        if id(matrix) not in self._converted:
            self._converted[id(matrix)] = matrix.to(self.dtype)
        return self._converted[id(matrix)]

    @property
    def _scale(self) -> float:
        assert self.lora_config is not None, "only an adapter has a scale"
        return self.lora_config.lora_alpha / self.lora_config.r

    def _factors_of(self, tensors: Mapping[str, Tensor], index: int, name: str) -> tuple[Tensor | None, ...]:
        """Return A and B of each part of a fused matrix."""
        return tuple(
            factor for part in PARTS[name] for factor in _factors(tensors, f"model.layers.{index}.{part}.weight")
        )

    def _fuse(self, read: Callable[[str, Tensor], Tensor]) -> LlamaWeights:
        return fuse(self.base, max_positions=self.max_positions, read=read)


def _replace_linears(layer: LayerWeights, build: Callable[[str, Tensor], Matrix]) -> LayerWeights:
    """Return a layer with the matrices that `build` returns."""
    linears = {name: build(name, matrix) for name, matrix in layer.linears.items() if isinstance(matrix, Tensor)}
    return replace(layer, linears=linears)


def _stack_in_place(pieces: Sequence[Tensor]) -> Tensor:
    """Join the rows of the pieces, and make each piece a view of the result, so that there is only one copy."""
    whole = torch.cat([piece.detach() for piece in pieces])
    for piece, part in zip(pieces, whole.split([len(piece) for piece in pieces]), strict=True):
        piece.data = part
    return whole


def _heights(model: Any) -> dict[str, tuple[int, ...]]:
    """Return the number of rows of each part of the fused matrices, keyed by the name of the matrix."""
    layer = model.model.layers[0]
    return {name: tuple(len(layer.get_submodule(part).weight) for part in parts) for name, parts in PARTS.items()}


def _lora_config(model: Any, lora: LoraSettings) -> LoraConfig:
    from peft import LoraConfig

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


def _adapt_model(model: Any, config: LoraConfig, seed: int) -> Any:
    """Return the model with a new adapter. Raises ConfigError if the adapter's targets match no layer."""
    from peft import get_peft_model

    with torch.random.fork_rng(), warnings.catch_warnings():
        # peft reads an attribute that transformers has renamed.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        # The adapted output matrix is always separate from the embedding that it shares its base with.
        warnings.filterwarnings("ignore", "Model has `tie_word_embeddings=True`", UserWarning)
        torch.manual_seed(seed)
        try:
            return get_peft_model(model, config)
        except ValueError as error:
            linears = sorted({n.split(".")[-1] for n, m in model.named_modules() if isinstance(m, nn.Linear)})
            targets = sorted(config.target_modules or ())
            message = f"{targets} matches no layer; this model has {linears}"
            raise ConfigError([ConfigProblem("model.lora_targets", message)]) from error


def _last_layers(model: Any, count: int | None) -> list[int] | None:
    """Return the layer indices for peft; None means all. Raises ConfigError if the model has fewer layers."""
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
    """Return a hash of names, shapes and content in fp32. Two hashes are equal exactly if the weights are equal, so
    weights that are stored in bf16 have the same hash after a conversion to fp32.

    The tensors of a large model are hashed in parallel, and their hashes are hashed together.
    """
    digest = hashlib.blake2b(digest_size=16)
    names = sorted(tensors)
    if sum(tensor.numel() for tensor in tensors.values()) < HASHED_IN_PARALLEL:
        for name in names:
            _hash_tensor(digest, name, tensors[name])
        return digest.hexdigest()

    def hash_alone(name: str) -> bytes:
        own = hashlib.blake2b()
        _hash_tensor(own, name, tensors[name])
        return own.digest()

    with ThreadPoolExecutor(max_workers=min(16, count_processors())) as pool:
        for one in pool.map(hash_alone, names):
            digest.update(one)
    return digest.hexdigest()


def _hash_tensor(digest: hashlib.blake2b, name: str, tensor: Tensor) -> None:
    values = tensor.detach().cpu().contiguous()
    digest.update(f"{name}{tuple(values.shape)}{torch.float32}".encode())
    flat = values.flatten()
    for start in range(0, len(flat), HASHED_AT_ONCE):
        digest.update(flat[start : start + HASHED_AT_ONCE].float().view(torch.uint8).numpy().data)
